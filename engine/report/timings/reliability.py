"""Say how reliable the estimated speeds of a device are, and when its calibration is to be repeated."""

from collections.abc import Iterable

import pandas as pd

from engine.report.timings.estimates import Device
from engine.results.flags import SPOILING
from engine.words import in_words

WORST_MEDIAN, WORST_P90 = 0.25, 0.75
"""Largest errors on unseen families of a reliable device. Published and simulated devices stay far below: at most 14
and 38 %. Estimates from the FLOPs alone are about as wrong: 31 and 75 %. See docs/benchmarks.md."""
MOST_SPOILED = 0.5
"""Share of timings with a flag of SPOILING from which a calibration is unreliable. The fit minimises absolute errors,
so it resists fewer wrong timings. With more, it may follow them, and its error may look small."""


def error_sentence(device: Device) -> str:
    """Return the held-out error of a device as a sentence."""
    fitted, count = device.fitted, len(_spoiled(device))
    flagged = f", {count} of {len(device.measured)} timings flagged" if count else ""
    return (
        f"{fitted.label}: error on unseen families of the timed models {100 * fitted.median_error:.1f} % (median), "
        f"{100 * fitted.p90_error:.1f} % (90th percentile); {100 * fitted.coverage:.0f} % of them inside their 90 % "
        "interval; "
        f"{fitted.models:,} models{flagged}, {fitted.source}"
    )


def warnings(devices: Iterable[Device]) -> list[str]:
    """Return a text for each device with unreliable estimates: why they are unreliable, and what to do."""
    return [text for device in devices if (text := _warning(device))]


def mark_unreliable(speeds: pd.DataFrame, devices: Iterable[Device]) -> pd.DataFrame:
    """Return speeds with the source `estimated, unreliable` for the estimates of devices that have a warning.

    speeds: columns `source` and `device`. Without `device`, all speeds are of the one device that is given.
    """
    labels = [device.fitted.label for device in devices if _warning(device)]
    unreliable = speeds["device"].isin(labels) if "device" in speeds else bool(labels)
    estimated = speeds["source"] == "estimated"
    return speeds.assign(source=speeds["source"].mask(estimated & unreliable, "estimated, unreliable"))


def _warning(device: Device) -> str:
    fitted, spoiled, reasons = device.fitted, _spoiled(device), []
    if spoiled and len(spoiled) >= MOST_SPOILED * len(device.measured):
        names = in_words(flag for flag in SPOILING if any(flag in text for text in spoiled))
        reasons.append(f"{len(spoiled)} of {len(device.measured)} timings flagged ({names})")
    if fitted.median_error > WORST_MEDIAN or fitted.p90_error > WORST_P90:
        reasons.append(
            f"the error on unseen families is {100 * fitted.median_error:.0f} % (median), "
            f"{100 * fitted.p90_error:.0f} % (90th percentile)"
        )
    advice = "Calibrate again on a quiet machine."
    return f"Unreliable estimates for {fitted.label}: {' and '.join(reasons)}. {advice}" if reasons else ""


def _spoiled(device: Device) -> list[str]:
    """Return the flags, as text, of the timings here that have a flag of SPOILING."""
    texts: Iterable[str] = device.measured.get("flags", ())
    return [text for text in texts if any(flag in text for flag in SPOILING)]
