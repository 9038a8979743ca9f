"""Plots of trainings and evaluations: curves, confusion matrices, predictions, maps of embeddings."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.report.figures import evaluation as evaluated
from engine.report.figures import training as figures
from engine.results import Metric
from engine.results.embeddings import read_embeddings


def points(name: str, values: list[float], every: int = 1) -> list[Metric]:
    return [Metric(step=every * (place + 1), name=name, value=value) for place, value in enumerate(values)]


METRICS = [
    *points("train/loss", [3.0, 2.0, 1.0]),
    *points("train/lr", [0.1, 0.2, 0.1]),
    *points("train/step_s", [0.5, 0.5, 0.5]),
    *points("train/data_s", [0.1, 0.1, 0.1]),
    *points("val/clip_val_loss", [2.5], every=3),
    *points("val/digits-zeroshot-val-top1", [0.934], every=3),
    *points("val/image_to_text_R@1", [0.5], every=3),
    *points("val/image_to_text_R@5", [0.7], every=3),
    *points("val/text_to_image_mean_rank", [4.0], every=3),
    *points("train/something_new", [1.0]),
]


def test_loss_and_accuracy_have_large_panels_and_others_small_ones() -> None:
    frame = figures.frame({"run 1": METRICS})
    assert [(panel.title, panel.names) for panel in figures.large(frame)] == [
        ("Loss", ("train/loss", "val/clip_val_loss")),
        ("Zero-shot accuracy (%)", ("val/digits-zeroshot-val-top1",)),
    ]
    small = {panel.title: panel.names for panel in figures.small(frame)}
    assert small == {
        "Learning rate": ("train/lr",),
        "Time of a step (s)": ("train/step_s", "train/data_s"),
        "Recall at 1 (%)": ("val/image_to_text_R@1",),
        "Recall at 5 (%)": ("val/image_to_text_R@5",),
        "Mean rank": ("val/text_to_image_mean_rank",),
        "Something new": ("train/something_new",),
    }
    assert figures.large(figures.frame({})) == figures.small(figures.frame({"run 1": []})) == []


def test_clip_loss_is_drawn_apart_from_other_training_losses() -> None:
    frame = figures.frame({"run 1": METRICS})
    assert [(panel.title, panel.names) for panel in figures.large(frame, clip_loss=False)] == [
        ("Loss", ("train/loss",)),
        ("Held-out CLIP loss", ("val/clip_val_loss",)),
        ("Zero-shot accuracy (%)", ("val/digits-zeroshot-val-top1",)),
    ]


def test_parts_of_the_loss_have_a_panel_if_there_are_several() -> None:
    one_part = [*METRICS, *points("train/contrastive_loss", [3.0])]
    assert "Weighted parts of the loss" not in {
        panel.title for panel in figures.small(figures.frame({"run 1": one_part}))
    }
    two_parts = [*one_part, *points("train/caption_loss", [1.0])]
    panels = {panel.title: panel.names for panel in figures.small(figures.frame({"run 1": two_parts}))}
    assert panels["Weighted parts of the loss"] == ("train/contrastive_loss", "train/caption_loss")


def points_of_line(figure: object, name: str) -> list[tuple[float, float]]:
    """Return the points of the line called `name`."""
    line = next(trace for trace in figure.data if trace.name == name and trace.showlegend is not False)  # type: ignore[attr-defined]
    return list(zip(line.x, line.y, strict=True))


def test_curve_has_its_points_and_labels_of_last_and_best() -> None:
    frame = figures.frame({"run 1": METRICS})
    loss, right = figures.large(frame)
    figure = figures.curves(frame, loss, best={"run 1": 2})
    assert points_of_line(figure, "training") == [(1, 3.0), (2, 2.0), (3, 1.0)]
    assert points_of_line(figure, "held out (CLIP loss)") == [(3, 2.5)]
    labels = [trace.text[0] for trace in figure.data if trace.text is not None]
    assert labels == ["2.5", "1"]
    assert [trace.textposition for trace in figure.data if trace.text is not None] == ["top right", "bottom right"]
    assert [note.text for note in figure.layout.annotations] == ["best"]
    assert figure.layout.shapes[0].x0 == 2
    accuracy = figures.curves(frame, right)
    assert (accuracy.layout.yaxis.title.text, accuracy.layout.yaxis.tickformat) == ("Zero-shot accuracy (%)", ",~g")
    assert accuracy.data[0].y[-1] == pytest.approx(93.4), "the title has the unit, so the axis has numbers"
    assert [trace.text[0] for trace in accuracy.data if trace.text is not None] == ["93.4 %"]


def test_axis_of_a_single_step_shows_no_other_steps() -> None:
    """A training that has only validated its initial weights is at step 0. There is no step -1."""
    frame = figures.frame({"run 1": [Metric(step=0, name="val/clip_val_loss", value=2.5)]})
    (panel,) = figures.large(frame)
    for figure in (figures.curves(frame, panel), figures.overview(frame, [panel])):
        assert (figure.layout.xaxis.range, figure.layout.xaxis.dtick) == ((-0.5, 0.5), 1)


def test_runs_differ_by_colour_and_shape_and_curves_by_dash() -> None:
    frame = figures.frame({"run 1": METRICS, "run 2 <b>": METRICS})
    figure = figures.curves(frame, figures.large(frame)[0], best={"run 1": 2, "run 2 <b>": 3})
    lines = [trace for trace in figure.data if trace.showlegend is not False]
    assert [line.name for line in lines] == [
        "run 1: training",
        "run 1: held out (CLIP loss)",
        "run 2 &lt;b&gt;: training",
        "run 2 &lt;b&gt;: held out (CLIP loss)",
    ]
    assert len({line.line.color for line in lines}) == 2
    assert [line.marker.symbol for line in lines] == ["circle"] * 2 + ["diamond"] * 2
    assert [line.line.dash for line in lines] == ["solid", "dash"] * 2
    assert [note.text for note in figure.layout.annotations] == ["best of run 1", "best of run 2 &lt;b&gt;"]


def test_zero_shot_curves_of_different_data_share_a_dash() -> None:
    custom = points("val/own-zeroshot-val-top1", [0.2])
    digits = [*points("val/digits-zeroshot-val-top1", [0.3]), *points("val/digits-zeroshot-val-top5", [0.4])]
    expected = {"run 1: zero-shot top-1": "solid", "run 6: zero-shot top-1": "solid", "run 6: zero-shot top-5": "dash"}
    for metrics in ({"run 1": custom, "run 6": digits}, {"run 6": digits, "run 1": custom}):
        frame = figures.frame(metrics)
        figure = figures.curves(frame, figures.large(frame)[0])
        lines = [trace for trace in figure.data if trace.showlegend is not False]
        assert {line.name: line.line.dash for line in lines} == expected
        assert len({line.line.color for line in lines}) == 2
        assert {trace.text[0] for trace in figure.data if trace.text is not None} == {"20.0 %", "30.0 %"}


def test_small_charts_of_several_runs_explain_their_dashes() -> None:
    frame = figures.frame({"run 1": METRICS, "run 2": [*METRICS, *points("train/lr_image", [0.1])]})
    panels = figures.small(frame)
    assert figures.overview_key(frame, panels) == (
        "Each run has the colour and shape that it has in the charts above. Solid: learning rate, whole step. "
        "Dashed: image tower, waiting for data."
    )
    lines = [trace for trace in figures.overview(frame, panels).data if trace.mode != "markers+text"]
    dashes = {line.name.partition(": ")[2]: line.line.dash for line in lines}
    assert (dashes["whole step"], dashes["waiting for data"], dashes["image tower"]) == ("solid", "dash", "dash")
    assert figures.overview_key(figures.frame({"run 1": METRICS, "run 2": []}), panels) == "", "only one run has points"


def test_only_noisy_curves_are_smoothed() -> None:
    smoothed = ("loss", "contrastive_loss", "grad_norm", "samples_per_s", "data_s", "step_s")
    exact = ("lr", "lr_image", "memory_mb", "logit_scale")
    frame = figures.frame({"run 1": [point for name in smoothed + exact for point in points(f"train/{name}", [3, 2])]})
    for name in smoothed + exact:
        figure = figures.curves(frame, figures.Panel("", (f"train/{name}",)), smooth=20)
        faint = [trace for trace in figure.data if trace.opacity == 0.3]
        assert bool(faint) is (name in smoothed), name


def test_smoothing_shows_faint_raw_points_and_skips_validation() -> None:
    frame = figures.frame({"run 1": METRICS})
    figure = figures.curves(frame, figures.large(frame)[0], smooth=3)
    faint = [trace for trace in figure.data if trace.opacity == 0.3]
    assert [list(trace.y) for trace in faint] == [[3.0, 2.0, 1.0]]
    # each earlier point has half the weight of the next, by hand: (3/4 + 2/2 + 1) / (1/4 + 1/2 + 1)
    assert points_of_line(figure, "training")[-1] == (3, pytest.approx(2.75 / 1.75))
    assert points_of_line(figure, "held out (CLIP loss)") == [(3, 2.5)]


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    frame = figures.frame({"run 1": points("train/loss", [float(n) for n in range(25_001)])})
    line = points_of_line(figures.curves(frame, figures.large(frame)[0]), "training")
    assert 900 <= len(line) <= figures.MOST_POINTS
    assert line[-1] == (25_001, 25_000.0)


@pytest.mark.parametrize(("steps", "between"), [(1, 1), (3, 1), (11, 1), (12, None), (300, None)])
def test_short_curves_have_ticks_only_at_steps(steps: int, between: int | None) -> None:
    frame = figures.frame({"run 1": points("train/loss", [1.0] * steps) + points("train/lr", [0.1] * steps)})
    assert figures.curves(frame, figures.large(frame)[0]).layout.xaxis.dtick == between
    overview = figures.overview(frame, [*figures.large(frame), *figures.small(frame)])
    assert [overview.layout.xaxis.dtick, overview.layout.xaxis2.dtick] == [between, between]


def test_overview_has_a_panel_per_metric_and_accepts_nan() -> None:
    broken = [*METRICS, *points("train/grad_norm", [1.0, float("nan")]), *points("train/logit_scale", [-1.0])]
    frame = figures.frame({"run 1": broken})
    panels = figures.small(frame)
    figure = figures.overview(frame, panels)
    assert {note.text for note in figure.layout.annotations} == {panel.title for panel in panels}
    assert figures.overview(figures.frame({}), []).data == ()


CONFUSION = 'true,cat,"a, b"\ncat,3,1\n"a, b",2,0\n'


def write(folder: Path, content: str) -> Path:
    path = folder / "file.csv"
    path.write_text(content)
    return path


def test_confusion_matrix_is_read_drawn_and_ranked_by_mistakes(tmp_path: Path) -> None:
    counts = evaluated.read_confusion(write(tmp_path, CONFUSION))
    assert counts.to_numpy().tolist() == [[3, 1], [2, 0]]
    assert list(counts.columns) == list(counts.index) == ["cat", "a, b"]
    figure = evaluated.confusion(counts)
    assert figure.data[0].z.tolist() == [[75, 25], [100, 0]]
    assert figure.data[0].text.tolist() == [["3", "1"], ["2", ""]]
    assert figure.layout.xaxis.ticktext == ("cat", "a, b")
    mistakes = evaluated.mistakes(counts).to_dict("records")
    assert mistakes == [
        {"true": "a, b", "predicted": "cat", "count": 2, "share": 1.0},
        {"true": "cat", "predicted": "a, b", "count": 1, "share": 0.25},
    ]


def test_confusion_matrix_draws_classes_with_most_mistakes() -> None:
    values = np.diag(np.full(100, 5))
    values[70, 71] = 3
    names = [f"class {n}" for n in range(100)]
    figure = evaluated.confusion(pd.DataFrame(values, index=names, columns=names))
    assert len(figure.layout.xaxis.ticktext) == evaluated.MOST_CLASSES
    assert {"class 70", "class 71"} <= set(figure.layout.xaxis.ticktext)
    assert evaluated.mistakes(pd.DataFrame(np.diag([1, 0]), index=["a", "b"], columns=["a", "b"])).empty


UNCLOSED = f'true,a\na,"{"1" * 140_000}'


@pytest.mark.parametrize(
    "content",
    ["", "a\n", "true,a,b\na,1,2\n", "true,a\nb,1\n", "true,a\na,1\nb,1\n", "true,a,b\na,1\nb,1,2\n", UNCLOSED],
)
def test_files_that_are_no_confusion_matrix_are_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no confusion matrix"):
        evaluated.read_confusion(write(tmp_path, content))


def test_predictions_keep_class_names_as_text(tmp_path: Path) -> None:
    head = "source,index,true,predicted,confidence\n"
    frame = evaluated.read_predictions(write(tmp_path, head + "x.png,0,NA,NA,0.5\n1.png,1,2,3,0.25\n"))
    assert frame["right"].tolist() == [True, False]
    assert frame["true"].tolist() == ["NA", "2"], "class names stay text"
    with pytest.raises(ValueError, match="lacks the columns confidence"):
        evaluated.read_predictions(write(tmp_path, "source,index,true,predicted\n"))


def test_average_precision_keeps_classes_without_images_and_refuses_a_cut_file(tmp_path: Path) -> None:
    head = "class,images,average_precision\n"
    frame = evaluated.read_average_precision(write(tmp_path, f"{head}NA,0,nan\nb,3,0.5\n"))
    assert frame["class"].tolist() == ["b", "NA"]
    assert frame["average_precision"].dropna().tolist() == [0.5]
    with pytest.raises(ValueError, match="could not convert"):
        evaluated.read_average_precision(write(tmp_path, f"{head}a,3,0.5\nb,3"))


def test_principal_components_are_eigenvectors_of_the_covariance() -> None:
    samples = np.random.default_rng(0).normal(size=(200, 5)) @ np.diag([5.0, 3.0, 1.0, 0.5, 0.1])
    coordinates, shares = evaluated.pca(samples)
    values, vectors = np.linalg.eigh(np.cov(samples.T))
    assert shares == pytest.approx(values[::-1][:2] / values.sum())
    for component in range(2):
        direction = vectors[:, -1 - component]
        expected = (samples - samples.mean(axis=0)) @ direction
        sign = np.sign(direction[np.abs(direction).argmax()])
        assert coordinates[:, component] == pytest.approx(sign * expected)
    assert evaluated.pca(np.ones((3, 4)))[1].tolist() == [0, 0], "all points are equal"


def write_embeddings(path: Path, **changes: object) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, object] = {
        "images": rng.normal(size=(4, 3)).astype(np.float32),
        "texts": rng.normal(size=(5, 3)).astype(np.float32) + 10,
        "owner": np.array([0, 1, 2, 3, 3]),
        "labels": np.array([0, 1, 1, -1]),
        "sources": np.array(["a.png", "b.png", "c.png", "d.png"]),
        "captions": np.array(["x", "y", "x", "z", "w"]),
        "classes": np.array(["cat", "dog"]),
    }
    np.savez_compressed(path, **(arrays | changes))
    return path


def test_embeddings_are_read_with_unique_captions(tmp_path: Path) -> None:
    embeddings = read_embeddings(write_embeddings(tmp_path / "e.npz"))
    assert embeddings.labels == ("cat", "dog", "dog", "")
    assert embeddings.captions == ("x", "y", "z", "w")
    assert embeddings.text_labels == ("cat", "dog", "", "")
    assert len(embeddings.texts) == 4


def test_embeddings_that_are_a_bomb_are_refused(tmp_path: Path) -> None:
    """A run that somebody imports may have any file. Opening its page must not fill the server's memory."""
    path = write_embeddings(tmp_path / "e.npz", images=np.zeros((20_000, 1000), np.float32))
    assert path.stat().st_size < 200_000
    with pytest.raises(ValueError, match=r"would unpack to 80,\d{3},\d{3}, and at most 10 times are taken"):
        read_embeddings(path)


def test_map_aligns_images_and_captions_or_shows_their_gap(tmp_path: Path) -> None:
    embeddings = read_embeddings(write_embeddings(tmp_path / "e.npz"))
    places, shares = evaluated.place(embeddings)
    assert list(places["what"]) == ["image"] * 4 + ["caption"] * 4
    assert list(places["name"][:5]) == ["a.png", "b.png", "c.png", "d.png", "x"]
    means = places.groupby("what")[["x", "y"]].mean()
    assert means.to_numpy() == pytest.approx(0, abs=1e-6)
    not_aligned, gap = evaluated.place(embeddings, aligned=False)
    assert gap[0] > 0.9 > shares[0], "the gap is nearly all of the variance"
    ends = not_aligned.groupby("what")["x"].agg(["min", "max"])
    assert (
        ends.loc["image", "max"] < ends.loc["caption", "min"] or ends.loc["image", "min"] > ends.loc["caption", "max"]
    )
    figure = evaluated.embeddings(places, shares)
    assert sorted(trace.name for trace in figure.data if trace.showlegend) == ["captions", "cat", "dog", "images"]
    assert [note.text for note in figure.layout.annotations if note.visible] == ["cat", "dog"]


def test_map_draws_a_limited_number_of_images(tmp_path: Path) -> None:
    count = 3 * evaluated.MOST_DRAWN
    path = write_embeddings(
        tmp_path / "e.npz",
        images=np.random.default_rng(1).normal(size=(count, 3)).astype(np.float32),
        labels=np.arange(count) % 31,
        sources=np.array([f"{n}.png" for n in range(count)]),
    )
    places, shares = evaluated.place(read_embeddings(path))
    assert (places["what"] == "image").sum() == evaluated.MOST_DRAWN
    assert [trace.name for trace in evaluated.embeddings(places, shares).data] == ["images", "captions"]


def test_files_without_embeddings_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "e.npz", images=np.zeros((2, 3)))
    with pytest.raises(ValueError, match="holds no embeddings"):
        read_embeddings(tmp_path / "e.npz")
    (tmp_path / "f.npz").write_bytes(b"PK\3\4 and no more")
    with pytest.raises(ValueError, match="holds no embeddings"):
        read_embeddings(tmp_path / "f.npz")
    with pytest.raises(ValueError, match="do not fit"):
        read_embeddings(write_embeddings(tmp_path / "g.npz", texts=np.zeros((5, 4))))


def test_damaged_embeddings_are_refused(tmp_path: Path) -> None:
    """The page shows a ValueError as a message and nothing else, so no other error may come out."""
    damaged = bytearray(write_embeddings(tmp_path / "e.npz").read_bytes())
    damaged[60:90] = b"\xff" * 30  # compressed data, for which zlib has an error of its own
    (tmp_path / "e.npz").write_bytes(damaged)
    with pytest.raises(ValueError, match="holds no embeddings: Error -3 while decompressing"):
        read_embeddings(tmp_path / "e.npz")
    changes: list[dict[str, object]] = [
        {"owner": np.full(5, 99)},
        {"owner": np.zeros((5, 2), int)},
        {"labels": np.zeros((4, 2), int)},
        {"images": np.full((4, 3), "a")},
    ]
    for number, change in enumerate(changes):
        with pytest.raises(ValueError, match="holds no embeddings"):
            read_embeddings(write_embeddings(tmp_path / f"{number}.npz", **change))
