"""Tests of the first steps, which pages offer while the store is empty and tick when done."""

import pytest
from streamlit.testing.v1 import AppTest

from engine.specs import BenchmarkSpec, ProfileSpec
from engine.specs.train import TrainSpec
from engine.store import Exit, State, Store, attempts
from engine.store import queue as queueing
from pages.shared.tour import STEPS
from tests.support.page import ENVIRONMENT, open_page, texts, unfold

pytestmark = pytest.mark.usefixtures("own_world")
LIST, CATALOGUE = "history/page.py", "catalog/page.py"


def finish_run(store: Store, spec: ProfileSpec | BenchmarkSpec | TrainSpec) -> None:
    attempt = queueing.claim_new(store.database, ENVIRONMENT.host, spec, name="")
    assert attempt
    attempts.begin(store.database, attempt)
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, Exit(code=0), None, "")


def offered_steps(app: AppTest) -> list[str]:
    assert not app.exception
    labels = [label for label, *_ in STEPS]
    return [link.label for link in app.page_link if link.label in labels]


@pytest.mark.slow
@pytest.mark.parametrize("page", [LIST, CATALOGUE])
def test_empty_store_offers_all_first_steps(page: str) -> None:
    app = open_page(page)
    assert offered_steps(app) == ["Count ViT-B-32", "Time ResNet-18", "Train a small CLIP"]
    assert "First steps" in texts(app)


@pytest.mark.slow
def test_finished_steps_are_ticked_and_the_complete_list_is_hidden(store: Store) -> None:
    finish_run(store, ProfileSpec(models=("timm:resnet18",)))
    app = unfold(open_page(LIST), "First steps")
    assert len(offered_steps(app)) == 3
    assert [link.label for link in app.page_link if link.icon == ":material/check_circle:"] == ["Count ViT-B-32"]
    finish_run(store, BenchmarkSpec(models=("timm:resnet18",)))
    finish_run(store, TrainSpec())
    assert not [part for part in open_page(LIST).get("expander") if part.label.startswith("First steps")]


@pytest.mark.slow
def test_catalogue_hides_first_steps_after_the_first_run(store: Store) -> None:
    finish_run(store, ProfileSpec(models=("timm:resnet18",)))
    assert "First steps" not in texts(open_page(CATALOGUE))
