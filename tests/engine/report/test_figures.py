"""Charts of results: points, bars, labels, units, and escaping of names."""

import sys
from collections.abc import Callable

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import torch

from engine.measure.counting import flops
from engine.report import frames
from engine.report.figures import compare, profile, recurrent, scatter, speed
from engine.report.style import COLOURS, GREY, INK, digits, family_styles, text
from engine.results import ModuleCount, ProfileRow
from tests.support.page import benchmark_row, profile_row, recurrent_row


def table(**columns: list[object]) -> pd.DataFrame:
    count = len(next(iter(columns.values())))
    texts = {"name": [f"timm:m{i}" for i in range(count)], "model": [f"m{i}" for i in range(count)]}
    known: dict[str, object] = {**texts, "library": ["timm"] * count, "family": ["vit"] * count}
    return pd.DataFrame(known | {"image_size": ["224"] * count, "batch_size": 1} | columns)


def test_each_family_has_a_fixed_and_unique_style() -> None:
    families = [f"family {number}" for number in range(40)]
    styles = family_styles(families)
    assert len(set(styles.values())) == 40
    assert [styles[family][0] for family in families[: len(COLOURS)]] == list(COLOURS)
    frame = table(gmacs=[1.0, 2.0], mparams=[1.0, 2.0], family=["family 7", "family 0"])
    colours = {
        trace.name: trace.marker.color for trace in scatter.scatter(frame, "gmacs", "mparams", styles=styles).data
    }
    assert colours == {"family 7": styles["family 7"][0], "family 0": styles["family 0"][0]}


def test_families_of_one_style_have_different_shapes_in_a_plot() -> None:
    styles = family_styles([f"family {number}" for number in range(60)])
    families = ["family 1", "family 1", "family 49"]
    assert styles["family 1"] == styles["family 49"]
    frame = table(gmacs=[1.0, 2.0, 3.0], mparams=[1.0, 2.0, 3.0], family=families)
    traces = scatter.scatter(frame, "gmacs", "mparams", styles=styles).data
    shapes = {trace.name: trace.marker.symbol for trace in traces}
    assert {trace.marker.color for trace in traces} == {styles["family 1"][0]}
    assert shapes["family 1"] == styles["family 1"][1] != shapes["family 49"]


def test_names_cannot_be_format_strings_of_hover_texts() -> None:
    assert text("<b>%{x:>1000000000} %{0}") == "&lt;b&gt;%&#123;x:&gt;1000000000} %&#123;0}"


def test_scatter_draws_rows_with_both_values_and_shows_the_source() -> None:
    frame = table(gmacs=[1.0, 10.0, None, 0.0], mparams=[5.0, 50.0, 7.0, 3.0])
    figure = scatter.scatter(frame, "gmacs", "mparams", styles={}, source="counted with torch 2.15")
    assert sum(len(trace.x) for trace in figure.data) == 2  # the others lack a value, or have none on a log axis
    assert figure.layout.xaxis.title.text == "MACs (G)"
    assert figure.layout.yaxis.title.text == "Parameters (M)"
    assert figure.layout.xaxis.type == "log"
    hover = figure.data[0].hovertemplate
    assert "counted with torch 2.15" in hover
    assert "MACs %{customdata[4]:,.3~r} G" in hover
    linear = scatter.scatter(frame, "gmacs", "mparams", styles={}, log_x=False)
    assert sum(len(trace.x) for trace in linear.data) == 3


def test_points_carry_the_label_of_their_row() -> None:
    frame = table(gmacs=[1.0, 2.0, 3.0], mparams=[1.0, 2.0, 3.0]).loc[[2, 0]]
    (trace,) = scatter.scatter(frame, "gmacs", "mparams", styles={}).data
    assert [int(label) for label in trace.customdata[:, 0]] == [2, 0]


@pytest.mark.parametrize(("others", "name"), [(1, "1 other family"), (5, "5 other families")])
def test_scatter_groups_smaller_families_as_other(others: int, name: str) -> None:
    count = scatter.SHOWN_FAMILIES + others
    frame = table(gmacs=[1.0] * count, mparams=[1.0] * count, family=[f"f{i}" for i in range(count)])
    traces = scatter.scatter(frame, "gmacs", "mparams", styles={}).data
    assert len(traces) == scatter.SHOWN_FAMILIES + 1
    assert traces[0].name == name
    assert len(traces[0].x) == others


def test_size_and_colour_of_points_show_further_values() -> None:
    frame = table(gmacs=[1.0, 2.0, 4.0], mparams=[1.0, 2.0, 4.0], macts=[1.0, 10.0, 100.0])
    (trace,) = scatter.scatter(frame, "gmacs", "mparams", styles={}, size="macts", colour="macts").data
    assert trace.selected.marker.size is None, "the size of a selected point keeps its meaning"
    (plain,) = scatter.scatter(frame, "gmacs", "mparams", styles={}).data
    assert plain.selected.marker.size > max(plain.marker.size)
    assert list(trace.marker.size) == pytest.approx(
        [scatter.SMALLEST, scatter.SMALLEST + (scatter.LARGEST - scatter.SMALLEST) * 0.5**0.5, scatter.LARGEST]
    )
    assert list(trace.marker.color) == [0.0, 1.0, 2.0]  # logarithms to base 10
    assert "Activations" in trace.hovertemplate


def test_percentages_are_coloured_on_a_linear_scale() -> None:
    frame = table(gmacs=[1.0, 2.0], mparams=[1.0, 2.0], imagenet_top1=[62.5, 88.0])
    (trace,) = scatter.scatter(frame, "gmacs", "mparams", styles={}, colour="imagenet_top1").data
    assert list(trace.marker.color) == [62.5, 88.0]
    assert trace.marker.colorbar.ticktext is None


def test_rows_without_a_size_or_a_colour_are_drawn_small_and_grey() -> None:
    frame = table(gmacs=[1.0, 2.0, 4.0], mparams=[1.0, 2.0, 4.0], macts=[1.0, None, 100.0])
    grey, coloured = scatter.scatter(frame, "gmacs", "mparams", styles={}, size="macts", colour="macts").data
    assert (grey.name, list(grey.x), grey.marker.color) == ("no Activations (M)", [2.0], GREY)
    assert list(grey.marker.size) == [scatter.SMALLEST]
    assert (list(coloured.x), list(coloured.marker.size)) == ([1.0, 4.0], [scatter.SMALLEST, scatter.LARGEST])
    only_missing = table(gmacs=[1.0], mparams=[1.0], macts=[None])
    (trace,) = scatter.scatter(only_missing, "gmacs", "mparams", styles={}, size="macts", colour="macts").data
    assert (list(trace.x), list(trace.marker.size)) == ([1.0], [scatter.SMALLEST])


def test_outliers_are_labelled() -> None:
    line = 10.0 ** np.linspace(0, 3, 20)
    frame = table(gmacs=[*line, 30.0], mparams=[*line, 3000.0], model=[*(f"m{i}" for i in range(20)), "odd"])
    figure = scatter.scatter(frame, "gmacs", "mparams", styles={})
    labels = {annotation.text for annotation in figure.layout.annotations}
    assert {"odd", "m0", "m19"} <= labels
    assert len(labels) <= 6
    assert all(annotation.x <= 3 for annotation in figure.layout.annotations)  # a log axis has exponents


def test_labels_that_would_overlap_on_a_phone_are_left_out() -> None:
    frame = table(gmacs=[1.0, 2.0, 100.0], mparams=[1.0, 1.02, 100.0], model=["first_model", "second", "far_away"])
    named = [
        label.text
        for label in scatter.scatter(frame, "gmacs", "mparams", styles={}, front=frame.index).layout.annotations
    ]
    assert named == ["first_model", "far_away"]


def test_percent_axis_ends_at_100_and_one_point_has_useful_ticks() -> None:
    frame = table(gmacs=[2.0], imagenet_top1=[80.0])
    layout = scatter.scatter(frame, "gmacs", "imagenet_top1", styles={}).layout
    assert layout.yaxis.maxallowed == 2  # on a log axis, plotly takes the exponent
    low, high = (10**end for end in layout.xaxis.range)
    assert 0.5 < low < 2 < high < 8  # labels at 1, 2 and 5
    assert layout.xaxis.dtick == "D2"
    assert scatter.scatter(frame, "gmacs", "imagenet_top1", styles={}, log_y=False).layout.yaxis.maxallowed == 100


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_scatter_accepts_few_rows(rows: int) -> None:
    frame = table(gmacs=[2.0] * rows, mparams=[2.0] * rows) if rows else table(gmacs=[2.0], mparams=[2.0]).iloc[:0]
    figure = scatter.scatter(frame, "gmacs", "mparams", styles={}, size="gmacs", colour="mparams")
    assert sum(len(trace.x) for trace in figure.data) == rows


def test_charts_escape_html_in_names() -> None:
    evil = ["<a href='javascript:alert(1)'>x</a>"]
    frame = table(gmacs=[1.0], mparams=[1.0], model=evil, name=evil, family=evil)
    figure_json = scatter.scatter(frame, "gmacs", "mparams", styles={}).to_json()
    assert "<a" not in figure_json
    assert "\\u003ca" not in figure_json
    assert "<a" not in profile.bars(frame, "gmacs").to_json().replace("\\u003c", "<")


def test_bars_split_into_towers_and_show_the_value() -> None:
    frame = table(gmacs=[4.0, 1234.5], image_gmacs=[3.0, 1000.0], text_gmacs=[1.0, 234.5], other_gmacs=[0.0, 0.0])
    figure = profile.bars(frame, "gmacs", source="run 3")
    assert {trace.name: list(trace.x) for trace in figure.data} == {"image": [3.0, 1000.0], "text": [1.0, 234.5]}
    assert [annotation.text for annotation in figure.layout.annotations] == ["4", "1,230"]
    assert figure.layout.xaxis.title.text == "MACs (G)"
    assert "run 3" in figure.data[0].hovertemplate


def test_bars_of_fvcore_split_into_its_towers_and_other() -> None:
    other_counter = {"gmacs": [9.0, 9.0], "image_gmacs": [9.0, 9.0]}
    towers = {"fvcore_image_gmacs": [3.0, 1.0], "fvcore_text_gmacs": [1.0, float("nan")]}
    figure = profile.bars(table(fvcore_gmacs=[4.5, 1.0], **towers, **other_counter), "fvcore_gmacs")
    values_of = {trace.name: list(trace.x) for trace in figure.data}
    assert (values_of["image"], values_of["text"][1], values_of["other"]) == ([1.0, 3.0], 1.0, [0.0, 0.5])
    assert [annotation.text for annotation in figure.layout.annotations] == ["1", "4.5"]
    assert figure.layout.xaxis.title.text == "fvcore MACs (G)"
    one_tower = profile.bars(
        table(fvcore_gmacs=[4.5], fvcore_image_gmacs=[4.5], fvcore_text_gmacs=[None]), "fvcore_gmacs"
    )
    assert [trace.name for trace in one_tower.data] == ["image"]


def test_sweep_separates_equal_names_by_library() -> None:
    rows = [
        profile_row("resnet50", image_size=str(size), gmacs=gmacs + size / 100, library=library)
        for library, gmacs in (("timm", 4.0), ("torchvision", 5.0))
        for size in (64, 128)
    ]
    figure = profile.sweep(frames.profile([*rows, profile_row("resnet18", image_size="64")]), "image_size", "gmacs")
    assert [(line.name, list(line.y)) for line in figure.data if "50" in line.name] == [
        ("timm:resnet50", [4.64, 5.28]),
        ("torchvision:resnet50", [5.64, 6.28]),
    ]
    assert "resnet18" in [line.name for line in figure.data]


def test_image_sizes_of_equal_area_share_a_tick_that_names_both() -> None:
    def count(size: str, peak: float) -> ProfileRow:
        return profile_row("resnet18", image_size=size, inference_peak_mb=peak)

    frame = frames.profile([count("64x96", 50), count("96x64", 60), count("128", 80)])
    figure = profile.sweep(frame, "image_size", "gmacs")
    assert list(figure.layout.xaxis.ticktext) == ["64x96, 96x64", "128"]
    assert [sizes for (sizes,) in figure.data[0].customdata] == ["64x96, 96x64", "128"], "one point for equal values"
    figure = profile.sweep(frame, "image_size", "inference_peak_mb")
    assert list(figure.layout.xaxis.ticktext) == ["64x96, 96x64", "128"]
    (line,) = figure.data
    assert list(zip([sizes for (sizes,) in line.customdata], line.y, strict=True)) == [
        ("64x96", 50),
        ("96x64", 60),
        ("128", 80),
    ]


def test_tower_shares_are_percentages_of_the_total() -> None:
    frame = pd.DataFrame(
        {"tower": ["image", "text", "total"], "mparams": [3.0, 1.0, 4.0], "gmacs": [9.0, 1.0, 10.0], "macts": [1, 1, 2]}
    )
    shares = {trace.name: list(trace.x) for trace in profile.towers(frame).data}
    assert shares == {"image": [50.0, 90.0, 75.0], "text": [50.0, 10.0, 25.0]}


def test_bars_name_the_library_only_of_models_that_two_libraries_have() -> None:
    models = [("timm", "resnet50"), ("torchvision", "resnet50"), ("timm", "resnet18")]
    figure = profile.bars(frames.profile([profile_row(model, library=library) for library, model in models]), "gmacs")
    names = {name for trace in figure.data for name in trace.y}
    assert names == {"timm:resnet50", "torchvision:resnet50", "resnet18"}


def test_treemap_area_is_the_value_minus_that_of_children() -> None:
    def module(path: str, gmacs: float) -> ModuleCount:
        return ModuleCount(path=path, type="Block", mparams=1, gmacs=gmacs, macts=1, calls=1)

    modules = frames.modules([module("", 10), module("a", 6), module("a.x", 5), module("b", 2), module("b.shared", 3)])
    trace = profile.treemap(modules, "gmacs").data[0]
    assert dict(zip(trace.ids, trace.values, strict=True)) == {
        "model.": 2,
        "model.a": 1,
        "model.a.x": 5,
        "model.b": 0,
        "model.b.shared": 2,  # also called elsewhere, so its value is larger than its parent's
    }
    assert list(trace.parents) == ["", "model.", "model.a", "model.", "model.b"]
    assert list(trace.customdata[:, 1]) == ["10", "6", "5", "2", "3"]


def test_treemap_of_many_modules_has_no_colour_too_dark_for_its_text() -> None:
    def luminance(colour: str) -> float:
        shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
        return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    trees = [{"path": "", "parent": None}, *({"path": f"{n}", "parent": ""} for n in range(30))]
    modules = pd.DataFrame(trees).assign(name="m", type="t", calls=1, gmacs=1.0)
    layout = profile.treemap(modules, "gmacs").layout
    assert layout.extendtreemapcolors is False, "plotly would add darker colours for the 6th and later branches"
    contrasts = [(luminance(hue) + 0.05) / (luminance(INK) + 0.05) for hue in layout.treemapcolorway]
    assert min(contrasts) >= 4.5


def test_treemap_areas_of_shared_modules_add_up_to_the_model() -> None:
    class Block(torch.nn.Module):
        def __init__(self, shared: torch.nn.Module) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(shared)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    shared = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU())
    model = torch.nn.Sequential(Block(shared), Block(shared), Block(torch.nn.Linear(16, 8)))
    counted = flops.count(model.eval(), (torch.ones(1, 16),))
    inner = {"type": "", "mparams": 0, "macts": 0, "calls": 1}
    rows = [ModuleCount(path=path, gmacs=counted.modules[path].flops, **inner) for path, _ in model.named_modules()]
    trace = profile.treemap(frames.modules(rows), "gmacs").data[0]
    areas = dict(zip(trace.ids, trace.values, strict=True))
    assert sum(areas.values()) == pytest.approx(counted.flops)
    assert areas["model.0.inner.0.0"] == pytest.approx(2 * 16 * 16)
    assert areas["model.1.inner"] == pytest.approx(2 * 16 * 16), "the shared module is listed in the first block"


def test_operator_bars_show_work_and_traffic() -> None:
    frame = pd.DataFrame(
        {"operator": ["mm", "add"], "share": [100.0, 0.0], "read_mb": [2.0, 1.0], "written_mb": [1.0, 0.0]}
    )
    shares = {trace.name: list(trace.x) for trace in profile.operators(frame).data}
    assert shares == {"MACs": [0.0, 100.0], "memory traffic": [25.0, 75.0]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234.5, "1,230"), (0.012345, "0.0123"), (10, "10"), (None, "–"), (float("nan"), "–"), (1e6, "1,000,000")],
)
def test_digits_rounds_to_three_significant_digits(value: float | None, shown: str) -> None:
    assert digits(value) == shown


def names(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda count: profile.bars(frames.profile([profile_row(name) for name in names(count)]), "gmacs"),
        lambda count: speed.latency(frames.benchmark([benchmark_row(name) for name in names(count)])),
        lambda count: speed.speedups(frames.benchmark([benchmark_row(name, "compile") for name in names(count)])),
        lambda count: recurrent.bars(
            frames.recurrent([recurrent_row("aten").model_copy(update={"model": name}) for name in names(count)])
        ),
        lambda count: compare.bars(
            pd.DataFrame({"what": names(count), "run 1": 1.0, "run 2": 2.0}), ["run 1", "run 2"], "run 1", "MACs (G)"
        ),
    ],
    ids=["profile", "latency", "speed-ups", "recurrent", "compared"],
)
def test_time_to_draw_a_bar_does_not_grow_with_their_number(draw: Callable[[int], go.Figure]) -> None:
    """Count calls of Python functions. plotly's `add_annotation` takes longer with each existing annotation."""

    def calls(count: int) -> int:
        number = 0

        def count_call(_frame: object, event: str, _argument: object) -> None:
            nonlocal number
            number += event == "call"

        sys.setprofile(count_call)
        try:
            assert len(draw(count).layout.annotations) >= count
        finally:
            sys.setprofile(None)
        return number

    draw(1)  # plotly imports some modules on first use
    assert calls(120) < 4 * calls(40)


@pytest.mark.parametrize(("log_x", "ends"), [(True, (5.0, 10.0, 500.0, 1000.0)), (False, (0.0, 0.0, 500.0, 550.0))])
def test_axes_end_near_the_outermost_points_however_long_names_are(log_x: bool, ends: tuple[float, ...]) -> None:
    """Plotly would extend an axis until it contains the names. A fixed range would undo a zoom at each new filter."""
    frame = table(gmacs=[10.0, 50.0, 500.0], mparams=[1.0, 2.0, 3.0], model=["m" * 45] * 3)
    axis = scatter.scatter(frame, "gmacs", "mparams", styles={}, log_x=log_x).layout.xaxis
    assert axis.range is None
    assert ends[0] <= axis.autorangeoptions.clipmin <= ends[1]
    assert ends[2] <= axis.autorangeoptions.clipmax <= ends[3]
