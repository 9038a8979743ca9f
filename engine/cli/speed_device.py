"""device: what this machine's devices can do."""

from typing import cast

from pydantic import Field

from engine.cli.output import TableFile, note, print_progress, printable, show_table
from engine.cli.runs import EndedBadly, store_here, submit
from engine.results import DeviceRow
from engine.settings import Settings
from engine.specs import DeviceSpec, Refused

SHOWN = ["device", "model", "threads", "size", "gflop_per_s", "gb_per_s", "latency_ms", "samples", "flags", "status"]
"""The columns of a terminal; a file has all of them."""


class DeviceFlags(DeviceSpec):
    """The spec as flags."""

    def spec(self) -> DeviceSpec:
        """The request alone."""
        return DeviceSpec.model_validate(self.model_dump(include=set(DeviceSpec.model_fields), exclude_unset=True))


class Device(DeviceFlags):
    """Measure a device here and now: matrix products per data type, and copying memory."""

    output: TableFile | None = Field(None, description="Write the rows to this .csv or .json file.")

    def cli_cmd(self) -> None:
        from engine.jobs import foreground
        from engine.report import frames
        from engine.store import Cause, State

        with store_here() as store:
            run_id = foreground.run_here(store, Settings(), self.spec(), on_event=print_progress)
            run, rows = store.run(run_id), cast(list[DeviceRow], store.rows(run_id))
        frame = frames.device(rows)
        show_table(frame, frame[[name for name in SHOWN if frame[name].replace("", None).notna().any()]], self.output)
        if run.cause == Cause.REFUSED:
            raise Refused(run.error)
        failed = [row for row in rows if row.status != "ok"]
        for row in failed:
            note(f"{row.model} failed ({row.status}): {printable(row.error)}")
        if failed or run.state != State.FINISHED:
            raise EndedBadly(
                f"run {run_id} {run.state}: {len(failed)} of {len(rows)} rates failed. {run.error}".strip()
            )


class SubmitDevice(DeviceFlags):
    """Queue a measurement of a device; the flags are those of `device`."""

    name: str = Field("", max_length=200, description="A name for lists of runs.")

    def cli_cmd(self) -> None:
        submit(self.spec(), self.name)
