"""The suite brought up to date with timm: what is kept, what is added, and at which batch size."""

from pathlib import Path

import pytest
import timm

from engine import suite
from engine.models import timm_models
from engine.specs import Refused
from engine.suite import Entry
from engine.tasks.suite import CATALOG, build, updated

FAMILIES = {"old": "a", "test_tiny": "b", "small": "b", "middle": "b", "large": "b", "huge": "b", "other": "a"}
COUNTED = {"old": (1.0, 10.0), "small": (1.0, 3.0), "middle": (2.0, 7.0), "large": (3.0, 9.0), "huge": (9.0, 9.0)}


def test_a_family_without_a_model_gets_its_median() -> None:
    """Median of four: the smaller of the two in the middle. 64 x 10 activations / 7 is 91: a batch of 64."""
    listed = [Entry("old_name", "old", 64), Entry("gone", "gone", 8)]
    assert updated(listed, FAMILIES, COUNTED) == [Entry("middle", "middle", 64), Entry("old_name", "old", 64)]


@pytest.mark.parametrize(("macts", "expected"), [(0.1, 1024), (640.0, 1), (6400.0, 1), (5.0, 128), (5.1, 64)])
def test_the_batch_is_the_power_of_two_below_the_median_listed_activations(macts: float, expected: int) -> None:
    added, _ = updated([Entry("old", "old", 64)], {"old": "a", "new": "b"}, {"old": (1, 10.0), "new": (1, macts)})
    assert added == Entry("new", "new", expected)


def test_a_family_nobody_has_counted_is_refused() -> None:
    with pytest.raises(Refused, match="no model of the family b: run catalog-build"):
        updated([Entry("old", "old", 64)], {"old": "a", "new": "b"}, COUNTED)


def test_the_installed_timm(tmp_path: Path) -> None:
    file = tmp_path / "timm.csv"
    file.write_text(suite.FILE.read_text())
    listed = suite.read(suite.FILE)
    found = build(file, CATALOG)
    assert suite.read(file) == tuple(found)
    assert set(listed) <= set(found)
    families = timm_models.families()
    assert {families[entry.model] for entry in found} == set(families.values())
    added = [entry.model for entry in found if entry not in listed]
    assert len({families[model] for model in added}) == len(added), "one each"
    assert set(added) <= set(timm.list_models(exclude_filters="test_*"))
    assert build(file, CATALOG) == found, "and nothing the second time"
