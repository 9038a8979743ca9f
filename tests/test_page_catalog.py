"""The catalogue page, driven in process."""

import json
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from engine.report.quantities import title
from tests.page_support import open_page, texts, write_catalogue


@pytest.fixture(autouse=True)
def _catalogue(tmp_path: Path, settings: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(write_catalogue(tmp_path / "catalog")))


def models(app: AppTest) -> list[str]:
    return list(app.dataframe[0].value["model"])


def test_it_shows_every_row_and_says_with_what_they_were_counted() -> None:
    app = open_page()
    assert not app.exception
    assert len(models(app)) == 7
    assert "7 models" in texts(app)
    assert "2026" in texts(app)
    assert app.get("plotly_chart")


def test_it_warns_when_other_versions_are_installed() -> None:
    (warning,) = open_page().warning
    assert "torch" in warning.value
    assert "instead of 0\\.0\\.1" in warning.value


def test_failed_and_incomplete_rows_are_visible_as_such() -> None:
    app = open_page()
    remarks = dict(zip(models(app), app.dataframe[0].value["remark"], strict=True))
    assert remarks["broken"] == "error: RuntimeError: **no** <b>way</b>"
    assert remarks["odd_one"] == "incomplete: work of unknown size is missing: sort (2 calls)"
    assert "1 of these could not be counted and 1 are incomplete" in texts(app)


def test_filters_narrow_table_and_plot() -> None:
    app = open_page()
    app.text_input(key="catalog_search").set_value("vit").run()
    assert models(app) == ["ViT-B-32", "ViT-L-14", "vit_tiny_patch16_224"]
    app.number_input(key="catalog_max_gmacs").set_value(10.0).run()
    assert models(app) == ["ViT-B-32", "vit_tiny_patch16_224"]
    app.get_by_key("catalog_library").set_value("timm").run()
    assert models(app) == ["vit_tiny_patch16_224"]
    assert not app.exception
    app.button(key="catalog_reset").click().run()
    assert len(models(app)) == 7


def test_a_link_carries_the_view() -> None:
    app = open_page(catalog_search="resnet", catalog_x=title("mparams"), catalog_log_x="false")
    assert models(app) == ["resnet18", "resnet50"]
    assert app.selectbox(key="catalog_x").value == "mparams"
    assert app.toggle(key="catalog_log_x").value is False


@pytest.mark.parametrize("colour", ["family", "macts"])
def test_any_two_figures_can_be_plotted_with_size_and_colour(colour: str) -> None:
    app = open_page(
        **{"catalog_x": title("macts"), "catalog_y": title("inference_peak_mb")},
        **{"catalog_size": title("mparams"), "catalog_colour": title(colour)},
    )
    assert not app.exception
    figure = json.loads(app.get("plotly_chart")[0].proto.spec)
    assert figure["layout"]["xaxis"]["title"]["text"] == "Activations (M)"
    assert figure["layout"]["yaxis"]["title"]["text"] == "Peak mem. (MB)"
    assert ("colorbar" in figure["data"][0]["marker"]) == (colour != "family")


def test_filters_that_nothing_meets_say_so_and_offer_a_way_back() -> None:
    app = open_page(catalog_search="no such model")
    assert not app.exception
    assert "None of the 7 rows" in texts(app)
    app.button(key="catalog_show_all").click().run()
    assert len(models(app)) == 7


def test_without_a_catalogue_it_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("VITALS_CATALOG_DIR", str(tmp_path / "empty"))
    app = open_page()
    assert not app.exception
    assert "python -m engine catalog-build" in texts(app)


def test_nothing_can_be_profiled_before_something_is_selected() -> None:
    assert open_page().button(key="catalog_profile").disabled
