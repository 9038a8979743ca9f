"""First steps: offered where nothing was asked for yet, ticked as they are done, and gone afterwards."""

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


def finish(store: Store, spec: ProfileSpec | BenchmarkSpec | TrainSpec) -> None:
    attempt = queueing.claim_new(store.database, ENVIRONMENT.host, spec, name="")
    assert attempt
    attempts.begin(store.database, attempt)
    attempts.finish(store.database, attempt, State.FINISHED)
    attempts.close(store.database, attempt, Exit(code=0), None, "")


def offered(app: AppTest) -> list[str]:
    assert not app.exception
    labels = [step.label for step in STEPS]
    return [link.label for link in app.page_link if link.label in labels]


@pytest.mark.slow
@pytest.mark.parametrize("page", [LIST, CATALOGUE])
def test_an_empty_store_offers_all_of_them(page: str) -> None:
    app = open_page(page)
    assert offered(app) == ["Count ViT-B-32", "Time ResNet-18", "Train a small CLIP"]
    assert "First steps" in texts(app)


@pytest.mark.slow
def test_what_was_done_is_ticked_until_all_were(store: Store) -> None:
    finish(store, ProfileSpec(models=("timm:resnet18",)))
    app = unfold(open_page(LIST), "First steps")
    assert len(offered(app)) == 3
    assert [link.label for link in app.page_link if link.icon == ":material/check_circle:"] == ["Count ViT-B-32"]
    finish(store, BenchmarkSpec(models=("timm:resnet18",)))
    finish(store, TrainSpec())
    assert not [part for part in open_page(LIST).get("expander") if part.label.startswith("First steps")]


@pytest.mark.slow
def test_the_catalogue_is_itself_once_something_was_asked_for(store: Store) -> None:
    finish(store, ProfileSpec(models=("timm:resnet18",)))
    assert "First steps" not in texts(open_page(CATALOGUE))
