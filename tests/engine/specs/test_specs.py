"""Specs of all kinds: valid and refused values, devices, JSON, sizes and pace."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from engine import specs
from engine.names import FILTERS
from engine.specs import BenchmarkSpec, DeviceSpec, EvaluateSpec, ProfileSpec, RecurrentSpec, Spec, TrainSpec
from engine.specs.fields.clip import ClipFields


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("models", "", "at least 1 item"),
        ("models", ["x" * 201], "at most 200 characters"),
        ("models", [f"m{i}" for i in range(2001)], "at most 2000 items"),
        ("batch_size", 0, "greater than or equal to 1"),
        ("batch_size", 10**9, "less than or equal to 4096"),
        ("batch_size", math.nan, "finite number"),
        ("image_size", "12x", "neither N nor HxW"),
        ("image_size", "-224", "neither N nor HxW"),
        ("image_size", "224x9999999", "less than or equal to 4096"),
        ("image_size", 4097, "less than or equal to 4096"),
        ("image_size", True, "valid tuple"),
        ("context_length", 0, "greater than or equal to 1"),
        ("device", "gpu", "'gpu' is not one of meta, cpu, cuda"),
        ("device", "cuda:0; rm -rf /", "is not one of"),
        ("device", "cuda:" + "9" * 5000, "is not one of"),
        ("precision", "int8", "'float32', 'float16'"),
        ("counter", "deepspeed", "'torch', 'fvcore' or 'both'"),
        (
            "configs",
            {"x": {"vision_cfg": {"layers": 10**9}}},
            "x: vision_cfg has layers 1000000000, but whole numbers up to 1,024",
        ),
        ("configs", {"x": {"text_cfg": {"layers": [4, "6"]}}}, "can be built"),
        ("configs", {"x": {"vision_cfg": {"image_size": 10**6}}}, "image_size 1000000, but whole numbers up to 4,096"),
        ("configs", {"x": {"text_cfg": {"context_length": True}}}, "context_length True, but whole numbers"),
        ("configs", {"x": {"vision_cfg": {"image_size": []}}}, r"x: vision_cfg has image_size \[\], but whole numbers"),
        ("configs", {"x": {"vision_cfg": {"image_size": [8, 8, 8]}}}, "4,096 can be built, one or two"),
        ("configs", {"x": {"multimodal_cfg": 5}}, "x: multimodal_cfg is 5, but must be an object"),
        ("configs", {"x": {"text_cfg": {"tokenizer_kwargs": 5}}}, "x: text_cfg has tokenizer_kwargs 5, but"),
        ("configs", {"x": {"note": "y" * 70_000}}, "at most 65,536 bytes"),
        ("colour", "red", "Extra inputs are not permitted"),
    ],
)
def test_invalid_value_is_refused_with_its_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as error:
        ProfileSpec.model_validate({"models": "resnet50", field: value})
    assert error.value.errors()[0]["loc"][0] == field


def test_each_kind_of_run_has_its_number_of_attempts() -> None:
    kinds = (ProfileSpec, BenchmarkSpec, RecurrentSpec, DeviceSpec, TrainSpec, EvaluateSpec)
    assert [spec.attempts for spec in kinds] == [1, 2, 2, 2, 3, 2], "profiles start again only if a person says so"
    assert [spec.continues for spec in kinds] == [False, True, False, False, True, False]


def test_default_device_of_fvcore_is_the_cpu() -> None:
    assert ProfileSpec(models=("a",)).device == "meta"
    assert ProfileSpec(models=("a",), counter="both").device == "cpu"
    assert ProfileSpec(models=("a",), counter="fvcore", device="cuda:1").devices == ("cuda:1",)
    with pytest.raises(ValidationError, match="choose device cpu or cuda, not meta"):
        ProfileSpec(models=("a",), counter="both", device="meta")


SPECS_WITH_A_DEVICE: list[dict[str, Any]] = [
    {"kind": ProfileSpec, "models": "resnet50"},
    {"kind": BenchmarkSpec, "models": "resnet50"},
    {"kind": RecurrentSpec},
    {"kind": DeviceSpec},
    {"kind": EvaluateSpec},
    {"kind": TrainSpec},
]


@pytest.mark.parametrize(
    "kind_and_fields", SPECS_WITH_A_DEVICE, ids=lambda kind_and_fields: str(kind_and_fields["kind"].kind)
)
@pytest.mark.parametrize(
    ("text", "name"),
    [("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:01", "cuda:1"), ("mps:0", "mps"), ("hpu", "hpu:0")],
)
def test_device_names_are_normalized(kind_and_fields: dict[str, Any], text: str, name: str) -> None:
    fields = {key: value for key, value in kind_and_fields.items() if key != "kind"}
    spec = kind_and_fields["kind"].model_validate(fields | {"device": text})
    assert (spec.device, spec.devices) == (name, (name,))
    assert spec == kind_and_fields["kind"].model_validate(fields | {"device": name})


def test_each_process_of_a_training_has_an_accelerator() -> None:
    assert TrainSpec(device="cuda:2").devices == ("cuda:2",)
    assert TrainSpec(device="cuda", nproc=3).devices == ("cuda:0", "cuda:1", "cuda:2")
    assert TrainSpec(device="cpu", nproc=3).devices == ("cpu",)
    assert TrainSpec(device="cluster:cpu", nproc=2).devices == ("cluster:cpu", "cluster:cpu")


def test_timing_on_several_nodes_has_one_device_per_node() -> None:
    spec = BenchmarkSpec(models=("a", "b", "c"), device="cluster:gpu:H100", nodes=3)
    assert (spec.devices, spec.refusal) == (("cluster:gpu:H100",) * 3, "")
    assert "on a cluster only, not on cpu" in spec.model_copy(update={"device": "cpu"}).refusal


def test_specs_load_from_their_json() -> None:
    spec = ProfileSpec.model_validate(
        {"models": "a,{b,c}*", "image_size": "224x320", "configs": {"t": {"embed_dim": 1}}}
    )
    assert spec.image_size == ((224, 320),)
    assert specs.load("profile", spec.model_dump_json()) == spec
    with pytest.raises(LookupError, match="no kind of run is called 'dance'"):
        specs.load("dance", "{}")


def test_stored_requests_with_a_single_size_load() -> None:
    old = specs.load("profile", '{"models": ["a"], "image_size": null, "batch_size": 4}')
    assert old == ProfileSpec(models=("a",), batch_size=(4,))
    assert old.half_batch == 2
    assert specs.load("profile", '{"models": ["a"], "image_size": "160x224"}') == ProfileSpec.model_validate(
        {"models": "a", "image_size": (160, 224)}
    )
    swept = ProfileSpec.model_validate({"models": "a", "image_size": "224 96x128, 224x224", "batch_size": "1, 8 1"})
    sizes = [(point.image_size, point.batch_size) for point in swept.points]
    assert sizes == [(((224, 224),), (1,)), (((224, 224),), (8,)), (((96, 128),), (1,)), (((96, 128),), (8,))]
    assert swept.half_batch is None


def test_specs_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ProfileSpec(models=("a",)).batch_size = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (BenchmarkSpec(models="resnet18"), BenchmarkSpec(models="resnet50", seed=3), True),
        (BenchmarkSpec(models="resnet18"), BenchmarkSpec(models="resnet18", batch_size="sweep"), False),
        (BenchmarkSpec(models="resnet18", replicates=5), BenchmarkSpec(models="resnet18", publishable=True), False),
        (BenchmarkSpec(models="resnet18"), BenchmarkSpec(models="resnet18", cudnn_benchmark=True), False),
        (BenchmarkSpec(models="resnet18"), BenchmarkSpec(models="resnet18", deterministic=True), False),
        (RecurrentSpec(runners="aten"), RecurrentSpec(runners="aten", seed=3), True),
        (RecurrentSpec(runners="aten"), RecurrentSpec(runners="aten,py"), False),
        (TrainSpec(), TrainSpec(seed=1, lr=0.1), True),
        (TrainSpec(), TrainSpec(precision="fp32"), False),
        (TrainSpec(), TrainSpec(lock_image=True), False),
        (EvaluateSpec(), EvaluateSpec(seed=1), True),
        (EvaluateSpec(), EvaluateSpec(tasks="retrieval"), False),
    ],
)
def test_specs_with_equally_long_work_have_the_same_pace(first: Spec, second: Spec, equal: bool) -> None:
    assert (first.pace == second.pace) == equal


def test_every_field_of_a_timing_is_varied_or_has_a_meaning() -> None:
    """Runs that differ in a varied field are compared, to see its effect."""
    varied = {
        *("models", "groups", "runners", "variants", "baseline", "configs", "mode", "precision", "channels_last"),
        *("image_size", "context_length", "batch_size", "batch_size_list", "max_batch_size", "mini_batch"),
        *("seq_length", "hidden_size", "sweep", "sweep_values", "nodes", *FILTERS),
        *("seed", "trace", "time_limit", "publishable", "replicates", "warmup", "loops", "min_samples"),
        *("min_seconds", "max_seconds"),
    }
    for spec in (BenchmarkSpec, RecurrentSpec):
        undecided = set(spec.model_fields) - set(spec.meaning) - varied
        assert not undecided, f"add these to {spec.__name__}.meaning, or above if runs that differ in them compare"


def test_every_field_of_pairs_changes_the_meaning() -> None:
    varied = {"csv_separator", "model", "configs", "image_size", "context_length"}  # a wrong separator reads no pairs
    for spec in (TrainSpec, EvaluateSpec):
        assert set(ClipFields.model_fields) - varied <= set(spec.meaning)


@pytest.mark.parametrize("spec", [BenchmarkSpec, DeviceSpec, EvaluateSpec, ProfileSpec, RecurrentSpec, TrainSpec])
def test_help_of_a_field_without_a_value_names_what_is_used(spec: type[Spec]) -> None:
    unnamed = [
        name
        for name, field in spec.model_fields.items()
        if field.default is None and "default" not in str(field.description).lower()
    ]
    assert unnamed == []


def test_meaning_and_paced_by_name_existing_fields() -> None:
    for spec in Spec.__subclasses__():
        assert set(spec.meaning) <= set(spec.model_fields)
        assert all(hasattr(spec, name) or name in spec.model_fields for name in spec.paced_by)
