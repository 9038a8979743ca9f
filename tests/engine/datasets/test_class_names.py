"""Class names and prompts of zero-shot. Those of ImageNet are open_clip's, however the data name the classes."""

import subprocess
import sys
from pathlib import Path

import open_clip
import pytest
from pydantic import ValidationError
from timm.data import ImageNetInfo

from engine.datasets import DataProblem, class_names, note_on_ids, open_pairs, prompts
from engine.specs import TrainSpec
from tests.support.data import write_classes

SYNSETS = ImageNetInfo("imagenet-1k").label_names()
NAMES = tuple(open_clip.IMAGENET_CLASSNAMES)


@pytest.mark.parametrize(
    "data_classes",
    [(), tuple(SYNSETS), tuple(str(number) for number in range(1000)), NAMES],
    ids=["labels", "synsets", "numbers", "names"],
)
def test_imagenet_classes_have_the_names_of_open_clip(data_classes: tuple[str, ...]) -> None:
    assert class_names(("imagenet",), data_classes) == NAMES


def test_numbered_folders_are_named_by_number_not_by_position(tmp_path: Path) -> None:
    folder = open_pairs(str(write_classes(tmp_path, {"2": 1, "10": 1, "999": 1})))
    assert folder.classes == ("10", "2", "999")
    assert class_names(("imagenet",), folder.classes) == (NAMES[10], NAMES[2], NAMES[999])


def test_wrong_number_of_names_is_refused() -> None:
    with pytest.raises(DataProblem, match="2 classes, but 1 name was given: give one name per class, one per line"):
        class_names(("cat,dog",), ("0", "1"))
    with pytest.raises(DataProblem, match="2 classes, but 3 names were given"):
        class_names(("cat", "dog", "owl"), ("0", "1"))


def test_synset_folders_are_named_and_captioned_by_default(tmp_path: Path) -> None:
    folder = open_pairs(str(write_classes(tmp_path, {SYNSETS[7]: 1, SYNSETS[0]: 2})))
    assert folder.classes == ("tench", "rooster")
    assert [folder.label(index) for index in range(3)] == [0, 0, 1]
    assert folder.captions(2) == ("a photo of a rooster.",)
    assert folder.notes == ("folders are synsets of ImageNet: classes have its names, such as tench for n01440764",)


def test_classes_outside_imagenet_are_refused() -> None:
    with pytest.raises(DataProblem, match="ImageNet lacks 2 of the data's 3 classes: my cat, 1000"):
        class_names(("imagenet",), ("tench", "my cat", "1000"))


@pytest.mark.parametrize("names", [("red", "green", "blue"), ("Blue", "Red", "violet")])
def test_names_in_the_wrong_order_are_refused(names: tuple[str, ...]) -> None:
    """Names are matched by position, so names in another order would give a low accuracy without an error."""
    with pytest.raises(DataProblem, match=r"was given for the class '.*'; .* order of the data's classes: blue, green"):
        class_names(names, ("blue", "green", "red"))


def test_names_in_the_right_order_may_be_spelled_differently() -> None:
    names = ("Blue", "leaf green", "crimson")
    assert class_names(names, ("blue", "green", "red")) == names
    assert class_names(("cat", "CAT"), ("Cat", "cat")) == ("cat", "CAT")


def test_named_template_lists_equal_those_of_open_clip() -> None:
    imagenet = tuple(fill("{}") for fill in open_clip.OPENAI_IMAGENET_TEMPLATES)
    simple = tuple(fill("{}") for fill in open_clip.SIMPLE_IMAGENET_TEMPLATES)
    assert prompts(("openai-80",), ("own {}",)) == prompts((), ("own {}",), ("imagenet",)) == imagenet
    assert prompts(("openai-7", "a {}"), ()) == (*simple, "a {}")
    assert prompts((), ("own {}",)) == ("own {}",)
    assert TrainSpec(templates="openai-80\na {}").templates == ("openai-80", "a {}")  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="lists with a name are openai-80, openai-7"):
        TrainSpec(templates="openai-8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("classes", "example"),
    [
        (("n01440764", "n01443537"), "'a photo of a n01440764'"),
        (("0", "1", "two"), "'a photo of a 0'"),
        (("3f2a9b01c4", "cat"), ""),
        (("zero", "one"), ""),
        ((), ""),
    ],
)
def test_class_names_that_are_ids_have_a_note(classes: tuple[str, ...], example: str) -> None:
    assert example in note_on_ids(classes)
    assert bool(note_on_ids(classes)) == bool(example)


@pytest.mark.slow
def test_name_lists_are_read_without_importing_libraries() -> None:
    script = "import sys; from engine.datasets import class_names; class_names(('imagenet',), ('n01440764',)); "
    script += "sys.exit(bool({'torch', 'timm', 'open_clip'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
