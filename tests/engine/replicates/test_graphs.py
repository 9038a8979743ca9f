"""Graph breaks and recompilations of torch.compile, profiler traces, and compile options of variants."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch._dynamo.exc import SkipFrame
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


def test_graph_breaks_have_a_line_and_recompilations_a_guard() -> None:
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
    after_second_size = graphs.graphs(counters)
    assert after_second_size["recompilations"] == 2  # both halves
    assert any(
        "size mismatch" in reason and "in with_break" in reason for reason in after_second_size["recompile_reasons"]
    )
    torch._dynamo.reset()


def test_same_code_in_another_variant_is_not_a_recompilation() -> None:
    """torch 2.11 has no isolate_recompiles: all variants share the compiled versions of a function."""
    torch._dynamo.reset()
    for backend in ("eager", "aot_eager"):
        counters = graphs.fresh_counters(compiles=True)
        run = torch.compile(with_break, backend=backend, dynamic=False)
        run(torch.ones(2))
        assert graphs.graphs(counters)["recompilations"] == 0, backend
        run(torch.ones(3))
        assert graphs.graphs(counters)["recompilations"] == 2, backend
    torch._dynamo.reset()


def test_uncompiled_variants_have_no_graph_counts() -> None:
    assert graphs.graphs(graphs.fresh_counters(compiles=False)) == {}


def test_trace_has_phases_and_slowest_operators(tmp_path: Path) -> None:
    left = torch.ones(300, 300)
    path = tmp_path / "traces" / "one.json.gz"
    slowest = trace.record({"forward": lambda: left @ left}, "cpu", path)
    assert slowest[0].name == "aten::mm"
    assert slowest[0].calls == 1
    assert sum(operator.share for operator in slowest) == pytest.approx(1)
    with gzip.open(path) as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    assert names.count("forward") >= trace.CALLS
    assert "aten::mm" in names


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_variant_whose_cuda_graphs_were_skipped_has_a_note(
    monkeypatch: pytest.MonkeyPatch, device: str, tmp_path: Path
) -> None:
    """inductor skips CUDA graphs on a CPU, where none are expected. On a GPU it may skip them for parts of a model.

    The caches are empty, as in the first process of a job, because torch 2.11 decides this during compilation.
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
    note = "torch runs compiled graphs of this variant without CUDA graphs; the log says why"
    assert (note in found.notes) == (device == "cuda"), found


@pytest.mark.parametrize("purpose", ["performance", "accuracy"])
def test_variant_that_torch_did_not_compile_has_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, purpose: str
) -> None:
    """inductor skips models in bfloat16 on a GPU that emulates it: it only warns, and the model runs eagerly."""
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    def skip(_graph: object) -> None:
        raise SkipFrame("BF16 is not supported")

    monkeypatch.setattr("torch._inductor.compile_fx._check_triton_bf16_support", skip)
    request = BenchmarkSpec(
        **{"models": "timm:toy", "variants": "eager,compile,compile:aot_eager", "replicates": 2, "threads": 1},
        **{"min_seconds": 0.01, "min_samples": 3, "purpose": purpose},
    )
    job = Job(spec=request, model="timm:toy", mode="inference", batch_size=2, parent=1)
    found = [report.measured for report in work.work(job, toy) if report.measured]
    assert [measured.status for measured in found] == ["ok"] * 3, found
    assert [graphs.NOT_COMPILED in measured.notes for measured in found] == [False, True, False]


def test_no_compilation_happens_while_a_trace_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes later variants, although each variant is compiled a second time after its timing."""
    compiled: list[int] = []
    real = trace.record

    def record(*arguments: Any) -> Any:
        before = len(get_compilation_metrics())
        found = real(*arguments)
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
    assert [measured.label for measured in found] == variants.split(",")
    assert all(measured.row["slowest"] and measured.compile_again_ms for measured in found[1:])
    assert compiled == [0, 0, 0]


def test_profiler_annotations_do_not_count_as_kernels() -> None:
    """Use profiler events as a GPU gives them: annotations of torch are also on the timeline of the device."""

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
    assert [(kernel.name, kernel.share) for kernel in slowest] == [("gemm", 0.75), ("multi_tensor_apply_kernel", 0.25)]


def test_compile_options_are_parsed_and_checked() -> None:
    variant = Variant.parse("compile:inductor+dynamic+fullgraph+freezing")
    assert (variant.dynamic, variant.fullgraph, variant.freezing) == (True, True, True)
    assert Variant.parse(variant.label) == variant
    with pytest.raises(ValueError, match="freezing"):
        BenchmarkSpec(models=("timm:resnet18",), mode="training", variants=("compile+freezing",))
    with pytest.raises(ValueError, match="settings of purpose accuracy"):
        BenchmarkSpec(models=("timm:resnet18",), tolerance=0.1)
    with pytest.raises(ValueError, match="choose purpose performance"):
        BenchmarkSpec(models=("timm:resnet18",), purpose="accuracy", trace=True)


def test_fullgraph_dynamic_and_freezing_affect_compilation() -> None:
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


def test_timm_optimizer_takes_a_step_and_unknown_one_is_refused() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    optimizer = steps.optimizer("timm/lion", model, rate=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    # Lion moves each weight by the learning rate, against the sign of its gradient (Chen et al., 2023)
    torch.testing.assert_close(model.weight.detach(), before - 0.5)
    with pytest.raises(Refused, match="timm/nosuch cannot be made here"):
        steps.check_optimizer("timm/nosuch")
