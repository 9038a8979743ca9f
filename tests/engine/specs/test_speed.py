"""Benchmark and device specs: variants, plans, filters, batch sizes, and refused requests."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from engine import names, specs, suite
from engine.specs import BenchmarkSpec, DeviceSpec, ModelName, RecurrentSpec, Refused, Variant

FAMILIES = {entry.qualified: "suite" for entry in suite.entries()} | {ModelName("torchvision:resnet18"): "resnet"}


def benchmark(**fields: Any) -> BenchmarkSpec:
    return BenchmarkSpec.model_validate({"models": ["resnet18"], **fields})


@pytest.mark.parametrize(
    "text",
    [
        "eager",
        "compile",
        "compile:max-autotune",
        "compile:aot_eager",
        "compile:inductor:reduce-overhead",
        "trace+channels_last",
        "compile+channels_last+reparameterized+fast_norm+checkpointing+amp_float16",
    ],
)
def test_variant_label_parses_to_the_same_variant(text: str) -> None:
    assert Variant.parse(text).label == text


def test_compile_modes_and_backends_are_distinguished() -> None:
    assert Variant.parse("compile:max-autotune").backend == ""
    assert Variant.parse("compile:max-autotune").compile_mode == "max-autotune"
    assert Variant.parse("compile:aot_eager").backend == "aot_eager"
    assert Variant.parse("compile:aot_eager").compile_mode == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with one of eager, compile, trace, export, cudagraphs, not with ''"),
        ("fast", "not with 'fast'"),
        ("eager:inductor", "only compile takes a backend"),
        ("compile:inductor:fast", "'fast' is none of the modes"),
        ("compile:a:b:c", "compile:BACKEND:MODE"),
        ("compile:$(id)", "no backend's name"),
        ("eager+float32+amp", "names two precisions"),
        ("eager+int8", "'int8' is none of channels_last"),
    ],
)
def test_invalid_variant_is_refused_with_the_wrong_word(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Variant.parse(text)


def test_precisions_apply_to_variants_without_a_precision() -> None:
    spec = benchmark(variants="eager,compile,eager+amp", precision="float32,bfloat16")
    labels = [variant.label for variant in spec.plan]
    assert labels == ["eager", "eager+bfloat16", "compile", "compile+bfloat16", "eager+amp"]
    spec = benchmark(variants="eager+float32,compile", precision="bfloat16")
    assert [variant.label for variant in spec.plan] == ["eager", "compile+bfloat16"]


def test_baseline_is_the_first_variant_of_the_same_precision() -> None:
    spec = benchmark(variants="eager,compile", precision="float32,bfloat16")
    found = {variant.label: (base.label if (base := spec.baseline(variant)) else None) for variant in spec.plan}
    assert found == {"eager": None, "eager+bfloat16": "eager", "compile": "eager", "compile+bfloat16": "eager+bfloat16"}


def test_channels_last_applies_to_all_variants() -> None:
    assert [variant.label for variant in benchmark(variants="eager,compile", channels_last=True).plan] == [
        "eager+channels_last",
        "compile+channels_last",
    ]


def test_repeated_variants_run_once() -> None:
    spec = benchmark(variants="eager,eager,compile,eager+float32")
    assert [variant.label for variant in spec.plan] == ["eager", "compile"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "meta"}, "nothing can be timed there"),
        ({"device": "gpu"}, "device 'gpu' is not one of cpu, cuda[:i]"),
        ({"device": "gpu"}, "or on a Ray cluster cluster:cpu, cluster:gpu[:TYPE]"),
        ({"batch_size": 0}, "0 is neither a number from 1 to 65536 nor one of recorded, sweep, max"),
        ({"batch_size": 10**9}, "1000000000 is neither a number"),
        ({"batch_size": "1,sweep"}, "'sweep' is not a number from 1 to 65536"),
        ({"batch_size": "1,,16"}, "'' is not a number from 1 to 65536"),
        ({"batch_size": ",".join(map(str, range(1, 18)))}, "at most 16 batch sizes are timed in one run, not 17"),
        ({"batch_size": "many"}, "batch_size\n  Value error, 'many' is neither a number"),
        ({"variants": ""}, "at least 1 item"),
        ({"variants": "quick"}, "not with 'quick'"),
        ({"precision": "int8"}, "'float32', 'tf32'"),
        ({"variants": ",".join(f"compile:b{i}" for i in range(9)), "precision": "float32,amp"}, "at most 16 run"),
        ({"filter": "("}, "'(' is no regular expression: missing ): ("),
        ({"filter": "a{1000000000}"}, "repeats too often: a count in braces is at most 1,000"),
        ({"filter": "a{2,1001}"}, "a count in braces is at most 1,000"),
        ({"exclude": "(?:(?:a{1000}){1000}){1000}"}, "no regular expression: invalid repetition size"),
        ({"exclude": r"(\pL?){1000}"}, "no regular expression: pattern too large"),
        ({"filter": "^(?!timm:vit)"}, "RE2 has no look-around and no back-references: to leave out names that"),
        ({"filter": "(?<=vit_)base"}, "that contain something, use the field exclude"),
        ({"filter": r"(a)\1"}, "instead of a back-reference, write the alternatives, such as aa|bb"),
        ({"filter": "a" * 201}, "at most 200 characters"),
        ({"partition": "3/2"}, "'3/2' is no part of a whole"),
        ({"partition": "0/0"}, "'0/0' is no part of a whole"),
        ({"partition": "1of2"}, "write I/N, such as 1/4"),
        ({"time_limit": float("inf")}, "finite"),
        ({"min_seconds": 0}, "greater than 0"),
        ({"replicates": 21}, "less than or equal to 20"),
        ({"variants": "eager,trace", "mode": "training"}, "inference graphs"),
        ({"batch_size_list": "resnet18"}, "'resnet18' is no list of batch sizes: write a name and a number"),
        ({"batch_size_list": "resnet18 8\nvit -1"}, "'vit -1' is no list of batch sizes"),
        ({"batch_size_list": "vit,65537"}, "a number from 1 to 65,536, such as resnet18 8"),
        ({"batch_size_list": "vit 8\nvit,9"}, "vit has two batch sizes, 8 and 9"),
        ({"batch_size_list": "vit 8", "batch_size": 4}, "batch size 4 and a batch size list exclude each other"),
        ({"batch_size": "listed"}, "needs a batch size list"),
    ],
)
def test_invalid_requests_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        benchmark(**fields)
    assert message in str(refusal.value)


def test_cudnn_has_no_effect_on_a_cpu_of_the_cluster_either() -> None:
    assert all("cudnn_benchmark" in benchmark(device=device).unused for device in ("cpu", "cluster:cpu"))
    assert "cudnn_benchmark" not in benchmark(device="cluster:gpu").unused


def test_summary_names_both_modes() -> None:
    request = BenchmarkSpec(models=("timm:resnet18",), mode="both")
    assert request.summary == "timm:resnet18 (inference and training performance, eager, cpu)"


def test_several_batch_sizes_are_timed_smallest_first() -> None:
    request = benchmark(batch_size=" 16,1,16")
    assert specs.load("benchmark", request.model_dump_json()).model_dump()["batch_size"] == "1,16"
    assert (request.batch_sizes(ModelName("timm:resnet18")), request.sweeps) == ((1, 16), True)
    assert (benchmark(batch_size="8,8").batch_size, benchmark(batch_size="8,8").sweeps) == (8, False)


def test_specs_load_from_their_json() -> None:
    spec = benchmark(
        batch_size="sweep", variants="eager,compile:max-autotune", precision="float32,amp", image_size="64x96"
    )
    assert specs.load("benchmark", spec.model_dump_json()) == spec
    device = DeviceSpec(dtypes=("float32", "tf32"), device="cuda")
    assert specs.load("device", device.model_dump_json()) == device
    assert device.devices == ("cuda:0",)


@pytest.mark.parametrize(
    ("fields", "processes", "samples", "seconds", "below"),
    [
        ({}, 3, 10, 2, False),
        ({"publishable": True}, 5, 10, 10, False),
        ({"replicates": 1}, 1, 10, 2, False),
        ({"replicates": 2}, 2, 10, 2, True),
        ({"publishable": True, "replicates": 4}, 4, 10, 10, True),
        ({"publishable": True, "min_seconds": 5}, 5, 10, 5, True),
        ({"min_samples": 9}, 3, 9, 2, True),
        ({"min_seconds": 1.9}, 3, 10, 1.9, True),
        ({"purpose": "accuracy", "replicates": 7}, 1, 10, 2, False),
    ],
)
def test_processes_and_floors_depend_on_the_request(
    fields: dict[str, Any], processes: int, samples: int, seconds: float, below: bool
) -> None:
    spec = benchmark(**fields)
    assert (spec.processes, spec.floor_samples, spec.floor_seconds, spec.below_floor) == (
        processes,
        samples,
        seconds,
        below,
    )


def test_accuracy_runs_are_reproducible() -> None:
    assert benchmark(purpose="accuracy").reproducible
    assert benchmark(deterministic=True).reproducible
    assert not benchmark().reproducible


def test_default_batch_size_of_training_accuracy_is_8() -> None:
    """The default is that of PyTorch's benchmark, because batch norm over one image makes small differences large."""
    assert BenchmarkSpec(models=("a",), purpose="accuracy", mode="training").batch_size == 8
    assert BenchmarkSpec(models=("a",), purpose="accuracy", mode="training", batch_size=2).batch_size == 2
    assert BenchmarkSpec(models=("a",), purpose="accuracy").batch_size == 1
    assert BenchmarkSpec(models=("a",), mode="training").batch_size == 1


def test_timings_are_exclusive() -> None:
    assert all(spec.exclusive for spec in (BenchmarkSpec, RecurrentSpec, DeviceSpec))
    assert benchmark(device="cuda").devices == ("cuda:0",)


def test_name_suite_selects_all_models_of_the_suite() -> None:
    found = names.select(benchmark(models=["suite", "torchvision:resnet18"]), FAMILIES)
    assert found[-1] == "torchvision:resnet18"
    assert len(found) == len({entry.model for entry in suite.entries()}) + 1
    assert "timm:nest_base_jx" in found


def test_filter_exclude_and_partition_select_models() -> None:
    spec = benchmark(models=["suite"], filter="^(VIT|mobile)", exclude="v3", exclude_exact="mobilevit_s")
    found = names.select(spec, FAMILIES)
    assert "timm:mobilenetv2_100" in found
    assert all(name.startswith(("timm:vit", "timm:mobile")) and "v3" not in name for name in found)
    assert "timm:mobilevit_s" not in found
    assert "timm:nest_base_jx" not in names.select(benchmark(models=["suite"], exclude_exact="jx_nest_base"), FAMILIES)
    for limit in ({"filter": "jx_nest"}, {"filter": "nest_base_jx"}):
        assert names.select(benchmark(models=["suite"], **limit), FAMILIES) == ["timm:nest_base_jx"]
    assert "timm:resnext101_32x16d" not in names.select(benchmark(models=["suite"], exclude="SWSL"), FAMILIES)
    parts = [names.select(spec.model_copy(update={"partition": f"{i}/3"}), FAMILIES) for i in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(found)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_filters_that_leave_no_model_are_refused() -> None:
    with pytest.raises(Refused, match=r"^filter: none of \d+ models is left"):
        names.select(benchmark(models=["suite"], filter="no such name"), FAMILIES)


def test_text_length_needs_a_model_with_texts_in_any_part() -> None:
    mixed = ["open_clip:ViT-B-32", "timm:mobilevit_s"]
    part = benchmark(models=mixed, context_length=16, partition="2/2")
    families = {ModelName(name): "f" for name in mixed}
    assert names.select(part, families) == mixed[1:]
    with pytest.raises(Refused, match=r"^context_length: none of these models has a text tower"):
        names.select(benchmark(models=mixed[1:], context_length=16), families)


def test_regular_expressions_do_not_backtrack() -> None:
    families = {ModelName.of("timm", "a" * 60): "f", ModelName.of("timm", "a" * 60 + "b"): "f"}
    assert names.select(benchmark(models=["timm:*"], filter="^(a|aa)+b"), families) == [f"timm:{'a' * 60}b"]
    assert names.select(benchmark(models=["timm:*"], exclude="^(a|aa)+b"), families) == [f"timm:{'a' * 60}"]


@pytest.mark.parametrize(
    ("model", "batch_size"),
    [
        ("timm:ghostnet_100", 512),
        ("timm:mobilevit_s", 64),  # 128, halved
        ("timm:nest_base_jx", 32),  # called jx_nest_base in the suite: 128, quartered
        ("timm:resnext101_32x16d", 32),  # called swsl_resnext101_32x16d in the suite: 64, halved
        ("timm:resnet18", None),
        ("open_clip:mobilevit_s", None),
    ],
)
def test_recorded_batch_sizes_of_the_suite(model: str, batch_size: int | None) -> None:
    assert suite.recorded_batch_size(ModelName(model)) == batch_size


def test_batch_size_list_accepts_names_of_timm_and_of_the_suite() -> None:
    spec = benchmark(batch_size_list="# mine\nresnet18 4\ntimm:resnet18,8\n\njx_nest_base , 2 # theirs\n")
    assert spec.batch_size == "listed"
    assert spec.batch_size_list == "resnet18 4, timm:resnet18 8, jx_nest_base 2"
    assert specs.load("benchmark", spec.model_dump_json()) == spec
    models = ("timm:resnet18", "torchvision:resnet18", "timm:nest_base_jx")
    assert [spec.batch_sizes(ModelName(model)) for model in models] == [(8,), (4,), (2,)]
    with pytest.raises(Refused, match="the batch size list has no line for timm:resnet50: add one"):
        spec.batch_sizes(ModelName("timm:resnet50"))


def test_text_tower_of_an_image_model_is_refused() -> None:
    families = {ModelName(f"{library}:m"): "" for library in ("timm", "open_clip")}
    assert names.select(benchmark(models=["*"], tower="image"), families) == list(families)
    assert names.select(benchmark(models=["open_clip:m"], tower="text"), families) == ["open_clip:m"]
    with pytest.raises(Refused, match=r"^timm:m has no text tower"):
        names.select(benchmark(models=["*"], tower="text"), families)


def test_lists_of_the_suite_use_the_names_of_the_suite() -> None:
    assert suite.is_in(ModelName("timm:nest_base_jx"), suite.QUARTERED)
    assert suite.is_in(ModelName("timm:resnext101_32x16d"), suite.HIGHER_WHEN_FROZEN)
    assert not suite.is_in(ModelName("torchvision:inception_v3"), suite.HIGHER_TOLERANCE)
