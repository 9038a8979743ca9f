"""device: what this machine's devices can do."""

from pydantic import Field

from engine.cli.here import RunName, run_here, store_here, submit, tell_failures
from engine.cli.output import TableFile, brief, show_table
from engine.results import DeviceRow
from engine.specs import DeviceSpec

SHOWN = ["device", "model", "threads", "size", "gflop_per_s", "gb_per_s", "latency_ms", "samples", "flags", "status"]
"""The columns of a terminal; a file has all of them."""


class DeviceFlags(DeviceSpec):
    """The spec as flags."""

    def spec(self) -> DeviceSpec:
        """Return the request alone."""
        return DeviceSpec.model_validate(self.model_dump(include=set(DeviceSpec.model_fields), exclude_unset=True))


class Device(DeviceFlags):
    """Measure a device here and now: matrix products per data type, and copying memory."""

    output: TableFile | None = Field(None, description="Write the rows to this .csv, .json or .parquet file.")

    def cli_cmd(self) -> None:
        from engine.report import frames

        with store_here() as store:
            run, rows = run_here(store, self.spec(), DeviceRow)
        frame = frames.with_environment(frames.device(rows), run)
        show_table(frame, brief(frame, SHOWN), self.output)
        tell_failures(run, rows, lambda row: row.model)


class SubmitDevice(DeviceFlags):
    """Queue a measurement of a device; the flags are those of `device`."""

    name: RunName = ""

    def cli_cmd(self) -> None:
        submit(self.spec(), self.name)
