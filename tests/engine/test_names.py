"""Names and patterns of models, files of names, and configuration files."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import shipped
from engine.names import LIBRARIES, ModelNotFound, expand, expand_files, libraries, parse_names, resolve
from engine.settings import Settings
from engine.specs import ModelName, ProfileSpec, Refused, split_patterns

FAMILIES_BY_NAME = {
    "open_clip:RN50": "RN",
    "open_clip:ViT-B-16": "ViT",
    "open_clip:ViT-B-32": "ViT",
    "timm:convnext_tiny": "convnext",
    "timm:resnet18": "resnet",
    "torchvision:resnet18": "resnet",
}
FAMILIES = {ModelName(name): family for name, family in FAMILIES_BY_NAME.items()}


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ("timm:resnet18,timm:vit*", {"timm"}),
        ("suite,{torchvision,timm}:resnet18", {"timm", "torchvision"}),
        ("timm:resnet18,python:my.models:build", {"timm"}),
        ("config:mine", set()),
        ("timm:resnet18,ViT-B-32", set(LIBRARIES)),
        ("family:resnet", set(LIBRARIES)),
        ("all", set(LIBRARIES)),
        ("keras:resnet18", set(LIBRARIES)),
    ],
)
def test_libraries_are_those_that_patterns_name_or_all(models: str, expected: set[str]) -> None:
    assert libraries(ProfileSpec(models=models)) == expected


@pytest.mark.parametrize(
    ("patterns", "models"),
    [
        (["ViT-B-32"], ["open_clip:ViT-B-32"]),
        (["open_clip:ViT-B-32"], ["open_clip:ViT-B-32"]),
        (["ViT-B/32", "open_clip:ViT-B/16"], ["open_clip:ViT-B-32", "open_clip:ViT-B-16"]),
        (["vit-b-*"], ["open_clip:ViT-B-16", "open_clip:ViT-B-32"]),
        (["ViT-B-[13]?"], ["open_clip:ViT-B-16", "open_clip:ViT-B-32"]),
        (["ViT-B-{32,16}"], ["open_clip:ViT-B-32", "open_clip:ViT-B-16"]),
        (["timm:*18"], ["timm:resnet18"]),
        (["*18"], ["timm:resnet18", "torchvision:resnet18"]),
        (["timm:all"], ["timm:convnext_tiny", "timm:resnet18"]),
        (["all"], list(FAMILIES)),
        (["family:resnet"], ["timm:resnet18", "torchvision:resnet18"]),
        (["family:r*"], ["open_clip:RN50", "timm:resnet18", "torchvision:resnet18"]),
        (["RN50", "all", "RN50"], ["open_clip:RN50", *(name for name in FAMILIES if name != "open_clip:RN50")]),
    ],
)
def test_patterns_resolve_to_models(patterns: list[str], models: list[str]) -> None:
    assert resolve(patterns, FAMILIES) == models


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("resnet18", "timm:resnet18 or torchvision:resnet18"),
        ("ViT-B-23", "closest: open_clip:ViT-B-32"),
        ("vit-b-32x*", "closest: open_clip:ViT-B-32"),
        ("family:resnett", "closest families: resnet"),
        ("keras:resnet18", "libraries are open_clip, timm, torchvision"),
        ("timm:RN50", "no model matches"),
        ("https://example.org/model", "no model matches"),
        ("../../etc/passwd", "no model matches"),
        ("zzzzzzzz", "nothing is close to it"),
    ],
)
def test_unknown_name_is_refused_with_suggestions(pattern: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=message.replace("/", ".")):
        resolve([pattern], FAMILIES)


def test_commas_split_patterns_outside_braces() -> None:
    assert split_patterns(" a, {b,c}-32,\n[de]* ,,") == ["a", "{b,c}-32", "[de]*"]
    assert split_patterns("a},{b,{c,d},e}-32,f") == ["a}", "{b,{c,d},e}-32", "f"]
    assert len(split_patterns("a," * 500_000)) == 500_000  # takes linear time
    assert expand(["{a,b}-{1,2}", "c"]) == ["a-1", "a-2", "b-1", "b-2", "c"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["{*,*}" * 20], "more than 3,000 patterns: use a wildcard, or fewer choices in braces"),
        (["{a,b," * 11 + "c" + "}" * 11], "more than 3,000 patterns"),  # 177,147 nested choices
        (["{a,b}" * 9] * 6, "more than 3,000 patterns: use a wildcard"),
        (["x" * 201], "a pattern has at most 200 characters, .* has 201"),
    ],
)
def test_patterns_with_too_many_expansions_are_refused(patterns: list[str], message: str) -> None:
    with pytest.raises(Refused, match=message):
        resolve(patterns, dict.fromkeys(FAMILIES, "f"))


@pytest.mark.slow
@given(st.text(max_size=30))
def test_any_text_resolves_or_is_refused(text: str) -> None:
    with suppress(ModelNotFound):
        assert set(resolve([text], FAMILIES)) <= set(FAMILIES)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("ViT-B-32\n# a comment\n\nresnet18, RN50 # both\n", ["ViT-B-32", "resnet18", "RN50"]),
        ("model,gmacs\nViT-B-32,7.39\nRN50,9.1\n", ["ViT-B-32", "RN50"]),
        ("library, model\ntimm, resnet18\n,RN50\n", ["timm:resnet18", "RN50"]),
        ('"model","library"\n"resnet18","timm"\n', ["timm:resnet18"]),
        ("model , library \nresnet18 , timm \n", ["timm:resnet18"]),
    ],
)
def test_names_are_read_from_text_and_csv_files(tmp_path: Path, text: str, names: list[str]) -> None:
    file = tmp_path / "models.txt"
    file.write_text("\ufeff" + text, encoding="utf-8")
    assert expand_files([f"@{file}", "RN101"]) == ([*names, "RN101"], {})


def test_empty_or_absent_file_of_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"models\.csv holds no model names"):
        parse_names("model,gmacs\n", "models.csv")
    with pytest.raises(Refused, match="no file of names at"):
        expand_files([f"@{tmp_path / 'absent'}"])


def test_configuration_file_is_a_model(tmp_path: Path) -> None:
    config = {"embed_dim": 8, "vision_cfg": {}, "text_cfg": {}}
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    assert expand_files([str(tmp_path / "tiny.json")]) == (["config:tiny"], {"tiny": config})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tiny.json").write_text(json.dumps(config | {"embed_dim": 16}))
    with pytest.raises(Refused, match="two configurations are named 'tiny': rename"):
        expand_files([str(tmp_path / "tiny.json"), str(tmp_path / "other" / "tiny.json")])


DEEPLY_NESTED = '{"embed_dim": 1, "vision_cfg": ' + '{"a": ' * 300 + "1" + "}" * 300 + ', "text_cfg": {}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "it needs embed_dim"),
        ("{}", "it needs"),
        (DEEPLY_NESTED, "recursion limit exceeded"),
    ],
)
def test_invalid_configuration_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "tiny.json").write_text(text)
    with pytest.raises(Refused, match=message):
        expand_files([str(tmp_path / "tiny.json")])


def test_names_resolve_with_the_shipped_catalogue() -> None:
    families = shipped.families(Settings().catalog_dir)
    assert families["timm:resnet50"] == "resnet"
    assert "open_clip:ViT-B-32" in families
    with pytest.raises(ModelNotFound, match="timm:resnet50 or torchvision:resnet50"):
        resolve(["resnet50"], families)
