"""Why torch.compile splits models and compiles them again; what a trace holds; variants that say how to compile."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._dynamo.utils import get_compilation_metrics
from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from engine.measure import trace
from engine.models import steps, variants
from engine.models.built import Built
from engine.models.variants import Numbers, settling_calls
from engine.replicates import graphs
from engine.replicates.benchmark import work
from engine.replicates.benchmark.job import Job
from engine.replicates.benchmark.prepared import switches
from engine.specs import Refused, Variant
from engine.specs.benchmark import BenchmarkSpec
from tests.engine.replicates.test_failures import toy

pytestmark = [pytest.mark.slow]


def with_break(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def test_a_break_is_told_with_its_line_and_a_recompilation_with_its_guard() -> None:
    torch._dynamo.reset()
    counters = graphs.fresh_counters(compiles=True)
    run = torch.compile(with_break, backend="eager", dynamic=False)
    run(torch.ones(2))
    found = graphs.graphs(counters)
    assert (found["graph_breaks"], found["unique_graphs"], found["recompilations"]) == (1, 2, 0)
    (reason,) = found["graph_break_reasons"]
    line = with_break.__code__.co_firstlineno + 2
    assert f"test_graphs.py:{line} in with_break: " in reason
    run(torch.ones(3))
    again = graphs.graphs(counters)
    assert again["recompilations"] == 2  # both halves
    assert any("size mismatch" in reason and "in with_break" in reason for reason in again["recompile_reasons"])
    torch._dynamo.reset()


def test_the_same_code_in_another_variant_is_no_recompilation() -> None:
    """Without isolate_recompiles, as in torch 2.11, all variants share what torch keeps of a code."""
    torch._dynamo.reset()
    for backend in ("eager", "aot_eager"):
        counters = graphs.fresh_counters(compiles=True)
        run = torch.compile(with_break, backend=backend, dynamic=False)
        run(torch.ones(2))
        assert graphs.graphs(counters)["recompilations"] == 0, backend
        run(torch.ones(3))
        assert graphs.graphs(counters)["recompilations"] == 2, backend
    torch._dynamo.reset()


def test_nothing_is_told_of_what_is_not_compiled() -> None:
    assert graphs.graphs(graphs.fresh_counters(compiles=False)) == {}


def test_a_trace_has_the_phases_and_the_slowest_operators(tmp_path: Path) -> None:
    left = torch.ones(300, 300)
    path = tmp_path / "traces" / "one.json.gz"
    slowest = trace.record({"forward": lambda: left @ left}, "cpu", path)
    assert slowest[0].name == "aten::mm"
    assert slowest[0].calls == 1
    assert sum(one.share for one in slowest) == pytest.approx(1)
    with gzip.open(path) as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert names.count("forward") >= trace.CALLS
    assert "aten::mm" in names


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_variant_says_that_torch_gave_up_its_cuda_graphs(
    monkeypatch: pytest.MonkeyPatch, device: str, tmp_path: Path
) -> None:
    """inductor gives them up for a CPU, where nobody expects any. On a GPU it may do so for parts of a model.

    The caches are empty, as those of a job's first process: torch 2.11 decides only where it compiles.
    """
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    real = settling_calls
    monkeypatch.setattr(variants, "settling_calls", lambda variant, _: real(variant, device))
    request = BenchmarkSpec(
        models="timm:toy", variants="compile:max-autotune", replicates=2, min_seconds=0.01, min_samples=3, threads=1
    )
    job = Job(spec=request, model="timm:toy", mode="inference", batch_size=2, parent=1)
    (found,) = (report.measured for report in work.work(job, toy) if report.measured)
    told = "torch runs compiled graphs of this variant without CUDA graphs; the log says why"
    assert (told in found.notes) == (device == "cuda"), found


def test_nothing_is_compiled_while_a_trace_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not of the later variants, although each is compiled a second time after its timing."""
    compiled: list[int] = []
    real = trace.record

    def record(*how: Any) -> Any:
        before = len(get_compilation_metrics())
        found = real(*how)
        compiled.append(len(get_compilation_metrics()) - before)
        return found

    monkeypatch.setattr(trace, "record", record)
    variants = "eager,compile:aot_eager,compile:eager"
    request = BenchmarkSpec(
        models="timm:toy", variants=variants, replicates=1, min_seconds=0.01, min_samples=3, threads=1, trace=True
    )
    folder = tmp_path / "traces"
    job = Job(spec=request, model="timm:toy", mode="inference", batch_size=2, parent=1, traces=folder)
    found = [report.measured for report in work.work(job, toy) if report.measured]
    assert [one.label for one in found] == variants.split(",")
    assert all(one.row["slowest"] and one.compile_again_ms for one in found[1:])
    assert compiled == [0, 0, 0]


def test_the_marks_of_optimizers_and_compiled_graphs_are_no_kernels() -> None:
    """A real list of the profiler's events, as a GPU gives them: torch's marks lie on the device's timeline, too."""

    def event(number: int, name: str, start: float, end: float, *, mark: bool) -> FunctionEvent:
        times = {"start_us": start, "end_us": end, "device_type": DeviceType.CUDA, "use_device": "cuda", "stack": ()}
        return FunctionEvent(number, name, 7, **times, is_user_annotation=mark)

    events = EventList(
        [
            event(1, "forward", 0, 900, mark=True),
            event(2, "gemm", 100, 400, mark=False),
            event(3, "Optimizer.step#SGD.step", 500, 900, mark=True),
            event(4, "multi_tensor_apply_kernel", 600, 700, mark=False),
        ],
        use_device="cuda",
    )
    events._build_tree()
    slowest = trace._slowest(SimpleNamespace(key_averages=events.key_averages), {"forward"}, kernels=True)
    assert [(one.name, one.share) for one in slowest] == [("gemm", 0.75), ("multi_tensor_apply_kernel", 0.25)]


def test_compiled_variants_say_how_they_compile() -> None:
    variant = Variant.parse("compile:inductor+dynamic+fullgraph+freezing")
    assert (variant.dynamic, variant.fullgraph, variant.freezing) == (True, True, True)
    assert Variant.parse(variant.label) == variant
    with pytest.raises(ValueError, match="freezing"):
        BenchmarkSpec(models=("timm:resnet18",), mode="training", variants=("compile+freezing",))
    with pytest.raises(ValueError, match="settings of purpose accuracy"):
        BenchmarkSpec(models=("timm:resnet18",), tolerance=0.1)
    with pytest.raises(ValueError, match="choose purpose performance"):
        BenchmarkSpec(models=("timm:resnet18",), purpose="accuracy", trace=True)


def test_fullgraph_dynamic_and_freezing_change_how_a_model_is_compiled() -> None:
    class Breaks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return with_break(x)

    def compiled(text: str, *sizes: int) -> int:
        torch._dynamo.reset()
        counters = graphs.fresh_counters(compiles=True)
        built = Built(Breaks(), (torch.ones(sizes[0]),), {}, "toy", (1, 1), (1, 1))
        run = variants.runner(Variant.parse(text), built, Numbers("float32"), "cpu")
        for size in sizes:
            run.func(torch.ones(size))  # type: ignore[attr-defined]
        recompilations: int = graphs.graphs(counters)["recompilations"]
        return recompilations

    assert compiled("compile:eager", 2, 3) > 0
    assert compiled("compile:eager+dynamic", 2, 3) == 0
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        compiled("compile:eager+fullgraph", 2)
    spec = BenchmarkSpec(models="timm:toy", variants="compile,compile+freezing")
    job = Job(spec=spec, model="timm:toy", mode="inference", batch_size=1, parent=0)
    for variant in spec.plan:
        with switches(job, Numbers("float32"), variant)():
            assert torch._inductor.config.freezing == variant.freezing
    torch._dynamo.reset()


def test_an_optimizer_of_timm_takes_a_step_and_an_unknown_one_is_refused() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    made = steps.optimizer("timm/lion", model, rate=0.5)
    model(torch.ones(1, 2)).sum().backward()
    made.step()
    # Lion moves each weight by the rate, against the sign of its gradient (Chen et al., 2023)
    torch.testing.assert_close(model.weight.detach(), before - 0.5)
    with pytest.raises(Refused, match="timm/nosuch cannot be made here"):
        steps.check_optimizer("timm/nosuch")
