"""Update of the suite to the installed timm: kept models, added models and their batch sizes."""

from pathlib import Path

import pytest
import timm

from engine import suite
from engine.models import timm_models
from engine.specs import Refused
from engine.suite import Entry
from engine.tasks.suite import CATALOG, build, updated

FAMILIES = {"old": "a", "test_tiny": "b", "small": "b", "middle": "b", "large": "b", "huge": "b", "other": "a"}
COUNTS = {"old": (1.0, 10.0), "small": (1.0, 3.0), "middle": (2.0, 7.0), "large": (3.0, 9.0), "huge": (9.0, 9.0)}


def test_family_without_a_model_gets_its_median_model() -> None:
    """The median of four is the smaller of the middle two. 64 x 10 activations / 7 is 91, so the batch size is 64."""
    entries = [Entry("old_name", "old", 64), Entry("gone", "gone", 8)]
    assert updated(entries, FAMILIES, COUNTS) == [Entry("middle", "middle", 64), Entry("old_name", "old", 64)]


@pytest.mark.parametrize(("macts", "expected"), [(0.1, 1024), (640.0, 1), (6400.0, 1), (5.0, 128), (5.1, 64)])
def test_batch_size_of_an_added_model_follows_its_activations(macts: float, expected: int) -> None:
    added, _ = updated([Entry("old", "old", 64)], {"old": "a", "new": "b"}, {"old": (1, 10.0), "new": (1, macts)})
    assert added == Entry("new", "new", expected)


def test_family_without_counts_is_refused() -> None:
    with pytest.raises(Refused, match="no model of the family b: run catalog-build"):
        updated([Entry("old", "old", 64)], {"old": "a", "new": "b"}, COUNTS)


def test_suite_covers_all_families_of_the_installed_timm(tmp_path: Path) -> None:
    file = tmp_path / "timm.csv"
    file.write_text(suite.FILE.read_text())
    entries = suite.read(suite.FILE)
    found = build(file, CATALOG)
    assert suite.read(file) == tuple(found)
    assert set(entries) <= set(found)
    families = timm_models.families()
    assert {families[entry.model] for entry in found} == set(families.values())
    added = [entry.model for entry in found if entry not in entries]
    assert len({families[model] for model in added}) == len(added), "one model per family"
    assert set(added) <= set(timm.list_models(exclude_filters="test_*"))
    assert build(file, CATALOG) == found, "a second update changes nothing"
