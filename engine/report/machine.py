"""What a machine is, in ten lines."""

from engine.results import Device, Machine


def facts(machine: Machine) -> dict[str, str]:
    """Return the ten lines, as text by name."""
    accelerators = [device for device in machine.devices if device.name != "cpu"]
    versions = dict(machine.versions)
    torch = versions.pop("torch", "not installed")
    drivers = sorted({device.driver for device in accelerators if device.driver})
    return {
        "Host": machine.host,
        "System": machine.platform,
        "Processor": machine.cpu,
        "Cores": f"{machine.cores or 'unknown'} physical; {machine.threads} threads may be used",
        "Caches": ", ".join(f"{name} {size}" for name, size in machine.caches.items()) or "unknown",
        "Memory": f"{machine.memory_gb:g} GB",
        "Accelerators": "; ".join(map(_accelerator, accelerators)) or "none that torch can use",
        "Driver": ", ".join(drivers) or "–",
        "torch": torch,
        "Libraries": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _accelerator(device: Device) -> str:
    memory = f", {device.memory_gb:g} GB" if device.memory_gb else ""
    return f"{device.name} {device.model}{memory}"
