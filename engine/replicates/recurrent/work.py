"""The work of one fresh process of a recurrent benchmark."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from engine.measure.plan import Plan
from engine.measure.stopwatch import Stopwatch, stopwatch_for
from engine.models import recurrent
from engine.models.recurrent import Control, Network, Run
from engine.replicates import compiling, messages, side_by_side
from engine.replicates.graphs import fresh_counters, graphs
from engine.replicates.messages import Measured, Report
from engine.replicates.ready import Held, Ready, first_call, load_libraries, resident
from engine.specs import RecurrentSpec
from engine.specs.fields.runners import RUNNERS
from engine.words import plural

Build = Callable[[str, RecurrentSpec], Network]
BLOCK_MS = 5.0
"""Milliseconds per block of calls. Small layers take 0.2 ms, and a block's first calls are some per cent slower."""
SETTLING = {"script": 5, "trace": 5}
"""Calls after the first in which TorchScript still compiles. It profiles, specialises and optimises, separately for
forward and backward; up to four such calls have been observed."""
UNMARKED = nullcontext()
"""The context of a phase while no profiler records."""


class Job(messages.Job):
    """The job of one process: all runners of one family at one size. Its labels are the names of runners."""

    spec: RecurrentSpec
    """One of `RecurrentSpec.comparisons`."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        return self.spec.chosen

    @property
    def title(self) -> str:
        spec = self.spec
        if spec.family == "resnet":
            return f"resnet, batch {spec.mini_batch}"
        steps = plural(spec.seq_length, "time step")
        return f"{spec.family}, {steps}, batch {spec.mini_batch}, hidden {spec.hidden_size}"


def work(job: Job, build: Build = recurrent.build) -> Iterator[Report]:
    """Yield progress and the result of each runner: prepared, checked and timed."""
    spec = job.spec
    recurrent.set_torchscript(spec)
    load_libraries(spec.device)
    stopwatch, control, resident_mb = stopwatch_for(spec.device), Control(spec), resident()
    return side_by_side.measure(
        job,
        stopwatch,
        Plan(
            min_samples=spec.loops,
            min_seconds=spec.floor_seconds,
            warmup_calls=spec.warmup,
            block_ms=BLOCK_MS,
            seed=spec.seed + job.process,
        ),
        lambda name: prepare(job, name, stopwatch, control, build, resident_mb),
    )


def prepare(
    job: Job, name: str, stopwatch: Stopwatch, control: Control, build: Build, resident_mb: float
) -> Ready | Measured:
    """Build and check a runner, make its first calls and measure its memory. Wrong results are returned, not timed.

    resident_mb: memory of the process before its first runner. Errors: Refused if the device or the runner does not
    support the request; errors of torch.
    """
    spec, execution = job.spec, RUNNERS[name].execution
    loading_s = compiling.own_caches(name, spec.device) if execution == "compile" else 0.0
    held = Held.now(spec.device, resident_mb)
    network = build(name, spec)
    counters = fresh_counters(compiles=execution == "compile")
    with network.settings():
        run, phases, measured = first_call(
            name,
            network.capture,
            partial(phases_of, network),
            stopwatch,
            held,
            compiles=execution != "eager",
            settling=SETTLING.get(execution, 0),
        )
    errors = control.errors(network, run)
    checked = {"output_error": errors.output, "gradient_error": errors.gradient, "tolerance": errors.tolerance}
    row = checked | {"threads": torch.get_num_threads()} | graphs(counters)
    measured = measured.model_copy(update={"loading_s": loading_s, "row": row, "notes": network.notes})
    if not errors.ok:
        gradient = "" if errors.gradient is None else f", its gradients by {errors.gradient:.3g}"
        error = f"not timed: its outputs differ from the control in float64 by {errors.output:.3g}{gradient}, and "
        error += f"{errors.tolerance:.3g} is allowed"
        return measured.model_copy(update={"status": "error", "error": error})
    return Ready(name, phases, network.settings, measured, unreported=("clear",))


def marked(phase: str) -> AbstractContextManager[object]:
    """Return a context that marks a phase in a trace of torch.profiler, as fastrnns does: `## forward ##`.

    Without a profiler nothing is marked, because these calls are timed: a mark costs 5.9 us even if nobody records it,
    and this function with its context 0.24 us (2026-11-24, one thread of a virtual AMD EPYC, torch 2.15). The shortest
    phases of small layers take about 80 us.
    """
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        return torch.profiler.record_function(f"## {phase} ##")
    return UNMARKED


def phases_of(network: Network, run: Run) -> Mapping[str, Callable[[], None]]:
    """Return a forward pass and, from its output, a backward pass; then `clear`, which is not timed."""
    output: Tensor | None = None

    def forward() -> None:
        nonlocal output
        with marked("forward"):
            output = run()[0]

    def backward() -> None:
        assert output is not None, "forward comes first"
        with marked("backward"):
            output.backward(network.cotangent)  # type: ignore[no-untyped-call]

    def clear() -> None:
        """Free the graph and the gradients, so that no pass spends time on it and no gradients add to old ones."""
        nonlocal output
        output = None
        for parameter in network.parameters.values():
            parameter.grad = None

    if network.cotangent is None:
        return {"forward": forward}
    return {"forward": forward, "backward": backward, "clear": clear}
