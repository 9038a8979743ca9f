"""Probe this host and store the result, so that processes without torch can refuse an absent device."""

from importlib import import_module

from engine.jobs.lifecycle import fingerprint
from engine.settings import Settings
from engine.store import open_store


def main(settings: Settings) -> None:
    """Run `python -m engine probe`."""
    machine = import_module("engine.measure.environment").probe()
    store = open_store(settings)
    store.save_machine(machine, fingerprint())
    store.close()
