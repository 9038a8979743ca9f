"""Options for building a model: classes, channels, and keywords as a JSON object or as words."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from engine.specs import BenchmarkSpec, ProfileSpec
from engine.specs.base import json_object
from engine.specs.fields.building import changes, parse_keywords


@pytest.mark.parametrize(
    ("value", "keywords"),
    [
        ("", {}),
        ({}, {}),
        ('{"depth": 2, "global_pool": "max"}', {"depth": 2, "global_pool": "max"}),
        ("depth=2 global_pool=max", {"depth": 2, "global_pool": "max"}),
        ("rate=0.1 qkv_bias=false class_token=True", {"rate": 0.1, "qkv_bias": False, "class_token": True}),
        ("layers=[3,4,6,3] name='a b'", {"layers": [3, 4, 6, 3], "name": "a b"}),
        ({"out_indices": (1, 2)}, {"out_indices": [1, 2]}),
    ],
)
def test_keywords_are_read_from_json_words_or_an_object(value: Any, keywords: dict[str, Any]) -> None:
    for spec in (ProfileSpec(models="a", model_kwargs=value), BenchmarkSpec(models="a", model_kwargs=value)):
        assert json_object(spec.model_kwargs) == keywords
        assert type(spec).model_validate_json(spec.model_dump_json()) == spec


def test_order_of_keywords_does_not_matter() -> None:
    assert parse_keywords("b=1 a=2") == parse_keywords('{"a": 2, "b": 1}') == '{"a": 2, "b": 1}'


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("depth", "'depth' is not a keyword with its value: write name=value"),
        ("depth=2 depth=3", "'depth' is given twice"),
        ("act='relu", "cannot be split into words: no closing quotation"),
        ("a.b=2", "'a.b' is not the name of a keyword"),
        ("depth=null", "depth is null, but a keyword is a number, a text"),
        ('{"cfg": {"url": "x"}}', 'cfg is {"url": "x"}, but a keyword is'),
        ('{"depth": 1e400}', "depth: numbers lie between"),
        ("depth=99999999", "depth: numbers lie between"),
        ("depth=NaN", "depth: numbers lie between"),
        ("depth=" + "9" * 400, "depth: numbers lie between"),
        ('{"name": "\\ud800"}', "is not JSON"),
        ("name=\udcff", "surrogates not allowed"),
        ("{", "is not JSON"),
        ("[1]", "is not a keyword with its value"),
        ([1], "keywords are a JSON object or words"),
        ("name=" + "x" * 4000, "at most 4,000 characters together"),
        ({"k": [[[[1]]]]}, "but a keyword is a number"),
        ({"k": [1.5] * 1000}, "at most 4,000 characters together"),
        ('{"k": ' + "[" * 3000 + "]" * 3000 + "}", "but a keyword is a number|is not JSON"),
    ],
)
def test_invalid_keywords_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("{", r"\{")):
        ProfileSpec(models="a", model_kwargs=value)


@pytest.mark.parametrize(
    "fields", [{"num_classes": -1}, {"num_classes": 1_000_001}, {"in_chans": 0}, {"in_chans": 1025}]
)
def test_classes_and_channels_are_bounded(fields: dict[str, int]) -> None:
    for spec in (ProfileSpec, BenchmarkSpec):
        with pytest.raises(ValidationError):
            spec(models="a", **fields)


def test_changes_of_a_model_are_described_and_part_of_its_meaning() -> None:
    plain, changed = ({"models": "a"}, {"models": "a", "num_classes": 10, "in_chans": 4, "model_kwargs": "depth=2"})
    for spec in (ProfileSpec, BenchmarkSpec):
        assert changes(spec(**plain)) == ""
        assert changes(spec(models="a", num_classes=1, in_chans=1)) == "1 class, 1 channel"
        assert changes(spec(**changed)) == '10 classes, 4 channels, {"depth": 2}'
        assert spec(**plain).pace != spec(**changed).pace
        assert {"num_classes", "in_chans", "model_kwargs"} <= set(spec.meaning)


def test_benchmark_stored_without_building_options_loads() -> None:
    old = {name: value for name, value in BenchmarkSpec(models="a").model_dump(mode="json").items()}
    for name in ("num_classes", "in_chans", "model_kwargs", "configs"):
        del old[name]
    assert BenchmarkSpec.model_validate_json(json.dumps(old)) == BenchmarkSpec(models="a")


def test_recorded_batch_sizes_are_refused_for_changed_models() -> None:
    with pytest.raises(ValidationError, match="as timm defines them, not with 10 classes: choose"):
        BenchmarkSpec(models="suite", batch_size="recorded", num_classes=10)
