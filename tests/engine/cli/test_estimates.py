"""The commands `estimate` and `calibrate`, and the options of `catalog` for accuracy and speed."""

import os
import re
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from engine.__main__ import main
from engine.estimate import calibrate, devices, work
from engine.published import speeds
from engine.report.catalog import choose
from engine.report.timings import estimates, reliability, stored
from engine.report.timings.stored import Setting
from engine.results import Row
from engine.settings import Settings
from engine.specs import Refused, Spec
from engine.store import Run, State, Store
from tests.support.page import benchmark_row, calibrated_by_hand, finish


@pytest.fixture(scope="module")
def counted() -> pd.DataFrame:
    return work.read(Settings().catalog_dir)


@pytest.mark.slow
def test_catalog_sorts_by_column_names_of_its_files(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "sorted.csv"
    line = ["catalog", "--match", "timm:resnet*", "--descending", "--output", str(file), "--sort"]
    assert main([*line, "intensity_flops_per_byte"]) == 0
    assert pd.read_csv(file)["intensity_flops_per_byte"].is_monotonic_decreasing
    assert main([*line, "imagenet_top1_percent", "--accuracy", "imagenet_top1"]) == 0
    assert pd.read_csv(file)["imagenet_top1_percent"].dropna().is_monotonic_decreasing


@pytest.mark.slow
def test_estimate_writes_interval_source_and_range(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "estimates.csv"
    estimate = ["estimate", "--models", "timm:resnet50,open_clip:ViT-B-32", "--device", "4090 eager 2.9"]
    assert main([*estimate, "--output", str(file)]) == 0
    assert "error on unseen families" in capsys.readouterr().err
    rows = pd.read_csv(file).set_index(["model", "image_size"])
    assert rows.loc[("timm:resnet50", 224), "source"] == "published"
    clip = rows.loc[("open_clip:ViT-B-32", 224)]
    assert clip["source"] == "estimated"
    assert clip["latency_ms_low"] < clip["latency_ms"] < clip["latency_ms_high"]
    assert 5 < clip["error_percent"] < 15
    assert pd.isna(rows.loc[("timm:resnet50", 224), "error_percent"]), "only estimates have an error"
    assert clip["samples_per_s"] == pytest.approx(1000 * clip["batch_size"] / clip["latency_ms"])
    assert main([*estimate, "--batch-size", "1", "--output", str(file)]) == 0
    rows = pd.read_csv(file)
    assert set(rows["source"]) == {"estimated"}
    assert not rows["in_range"].any(), "published timings of this GPU start at batch 4"
    assert f"{len(rows)} estimates outside the fitted range may be far off" in capsys.readouterr().err
    assert main([*estimate, "--rates", "--output", str(file)]) == 0
    (label,) = set(pd.read_csv(file)["device"])
    assert label in capsys.readouterr().err
    assert {"addmm", "convolution"} <= set(pd.read_csv(file)["kind"])


@pytest.mark.slow
def test_estimate_names_other_devices_and_models_without_a_count(
    *,
    store: Store,
    counted: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = ["timm:resnet18", "timm:resnet34"]
    monkeypatch.setattr(work, "read", lambda _folder: counted.drop(missing, level="name"))
    assert main(["estimate", "--models", ",".join(missing), "--device", "4090 eager"]) == 0
    _, others, uncounted, rows = capsys.readouterr().err.splitlines()
    inference = [device for device in devices.shipped() if device.mode == "inference"]
    labels = [device.label for device in devices.find(inference, "4090 eager")]
    assert len(labels) > 2
    assert others == f"'4090 eager' also matches {'; '.join(labels[1:])}"
    assert uncounted == f"no estimate, because the catalogue has no complete count: {', '.join(missing)}"
    assert rows == "no rows"


@pytest.mark.slow
def test_catalog_selects_by_accuracy_latency_and_front(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "choice.csv"
    limits = ["--min-accuracy", "80", "--max-gmacs", "5", "--max-latency-ms", "50", "--device", "i7"]
    assert main(["catalog", "--accuracy", "imagenet_top1", *limits, "--front", "--output", str(file)]) == 0
    rows = pd.read_csv(file).sort_values("latency_ms")
    assert len(rows) > 3
    assert rows["imagenet_top1_percent"].is_monotonic_increasing
    assert rows["gmacs"].max() <= 5
    assert rows["latency_ms"].max() <= 50
    assert set(rows["source"]) == {"published", "estimated"}


@pytest.mark.slow
def test_front_omits_estimates_outside_the_fitted_range(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Published timings of this GPU start at batch 4, so at batch 1 every estimate is outside."""
    file = tmp_path / "choice.csv"
    device = ["--device", "4090 eager 2.9", "--batch-size", "1", "--match", "resnet18*"]
    line = ["catalog", "--accuracy", "imagenet_top1", *device, "--output", str(file)]
    assert main(line) == 0
    rows = pd.read_csv(file)
    count = int((rows["latency_ms"].notna() & rows["imagenet_top1_percent"].notna()).sum())
    assert count > 1
    capsys.readouterr()
    assert main([*line, "--front"]) == 0
    assert f"{count} rows left off the front: unreliable timings" in capsys.readouterr().err
    assert len(pd.read_csv(file)) == 0


@pytest.mark.slow
def test_front_omits_flagged_timings_and_limits_count_them(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrated_by_hand(store, flags=("contended",))
    file = tmp_path / "choice.csv"
    line = ["catalog", "--accuracy", "imagenet_top1", "--device", "a cpu", "--output", str(file)]
    assert main(line) == 0
    rows = pd.read_csv(file)
    flagged = rows["source"] == "measured, contended"
    assert flagged.sum() > 24
    assert (rows.loc[flagged, "flags"] == "contended").all()
    accurate = rows["imagenet_top1_percent"].notna()
    outside = (rows["flags"] == "estimate outside the fitted range") & rows["latency_ms"].notna()
    capsys.readouterr()
    assert main([*line, "--front"]) == 0
    count = int(((flagged | outside) & accurate).sum())
    assert f"{count:,} rows left off the front: unreliable timings" in capsys.readouterr().err
    front = pd.read_csv(file)
    assert len(front) > 5
    assert set(front["source"]) == {"estimated, unreliable"}
    assert front["flags"].isna().all()
    assert main([*line, "--max-latency-ms", "5", "--min-accuracy", "0"]) == 0
    slow = int((flagged & accurate & (rows["latency_ms"] > 5)).sum())
    untimed = int((accurate & rows["latency_ms"].isna()).sum())
    missing = int((~accurate & (rows["latency_ms"] <= 5)).sum())
    assert slow > 1
    assert missing > 1
    reasons = f"{slow} rows with an unreliable timing that misses the limit; {missing} rows without a published value."
    reasons = (f"{untimed} rows without a known speed; " if untimed else "") + reasons
    assert f"Left out by limits: {reasons}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["catalog", "--front"], "need an --accuracy"),
        (["catalog", "--max-latency-ms", "5"], "need a --device"),
        (["catalog", "--accuracy", "top1"], "no published accuracy 'top1'; there are imagenet_top1"),
        (["estimate", "--models", "timm:resnet18", "--device", "abacus"], "no known device has 'abacus'"),
        (["calibrate", "--budget", "soon"], "no duration: write seconds, minutes or hours"),
        (["calibrate", "--budget", "9s"], "error: --budget: "),
        (["calibrate", "--budget", "1441m"], "error: --budget: "),
        (["calibrate", "--name", "laptop"], "--from and --name belong together"),
        (
            ["calibrate", "--from", "b.csv", "--name", "laptop", "--batch-size", "8", "--device", "cuda:0"],
            "--from times no models, so leave out --device, --batch-size",
        ),
        (["calibrate", "--budget", "10s", "--batch-size", "4096"], "give a longer budget or a smaller batch size"),
    ],
)
def test_bad_usage_prints_the_reason_and_exits_with_2(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    assert main(arguments) == 2
    assert answer in capsys.readouterr().err


def run_of_one_row(store: Store, spec: Spec, *, name: str, state: State = State.FINISHED) -> tuple[Run, list[Row]]:
    run_id = store.enqueue(spec, name=name)
    finish(store, run_id, [benchmark_row("test_vit", batch_size=1)], state=state)
    return store.run(run_id), store.rows(run_id)


@pytest.mark.parametrize(
    ("state", "code", "message"),
    [
        (State.CANCELLED, 1, "Run 1 cancelled. `python -m engine resume 1` queues it again."),
        (State.FINISHED, 2, "error: fewer than 19 models could be timed: see `runs show 1`"),
    ],
)
def test_calibrate_that_was_cancelled_does_not_say_that_too_few_models_could_be_timed(
    *,
    store: Store,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    code: int,
    message: str,
) -> None:
    monkeypatch.setattr("engine.cli.estimates.run_here", partial(run_of_one_row, state=state))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (4.6, 0.0, 0.0))
    assert main(["calibrate", "--threads", "1", "--budget", "2m"]) == code
    assert store.run(1).spec.model_dump()["threads"] == 1
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("the load is 5 on 2 CPUs: the calibration takes longer")
    assert last == message


@pytest.mark.slow
def test_calibrate_makes_a_device_from_a_file_of_timm(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calibrate from published timings of the i7 under another name, with a failed model. The prior may be the i7."""
    published = speeds.read().query("device.str.contains('i7') and mode == 'inference'").sample(60, random_state=3)
    columns = {"image_size": "infer_img_size", "batch_size": "infer_batch_size"}
    table = published.rename(columns={**columns, "samples_per_s": "infer_samples_per_sec"})
    table[["model", *columns.values(), "infer_samples_per_sec"]].to_csv(tmp_path / "bench.csv", index=False)
    with (tmp_path / "bench.csv").open("a") as file:
        file.write("broken_model,,,\n")
    assert main(["calibrate", "--from", str(tmp_path / "bench.csv"), "--name", "my laptop"]) == 0
    assert "my laptop: error on unseen families" in capsys.readouterr().err
    assert main(["estimate", "--models", "timm:resnet18", "--device", "my laptop"]) == 0
    assert "estimated" in capsys.readouterr().out
    published_row, answer = published.iloc[0], tmp_path / "answer.csv"
    estimate = [
        "estimate",
        "--models",
        f"timm:{published_row['model']}",
        "--device",
        "my laptop",
        "--output",
        str(answer),
    ]
    assert main(estimate) == 0
    row = pd.read_csv(answer).set_index("image_size").loc[int(published_row["image_size"])]
    assert row["source"] == "measured"
    assert row["samples_per_s"] == pytest.approx(published_row["samples_per_s"])
    (Settings().device_dir / "my laptop.csv").unlink()  # as stored by versions without this file
    assert main(estimate) == 0
    assert pd.read_csv(answer)["source"].eq("estimated").all()
    (tmp_path / "bench.csv").write_text("name,speed\na,1\n")
    assert main(["calibrate", "--from", str(tmp_path / "bench.csv"), "--name", "x"]) == 2
    assert "lacks columns of timm's benchmark.py" in capsys.readouterr().err
    path = Settings().device_dir / "my laptop.json"
    path.write_bytes(path.read_bytes()[:-100])
    for command in (["estimate", "--models", "timm:resnet18"], ["catalog", "--device", "i7"]):
        assert main(command) == 0
        message = f"The device in {path} cannot be read. Repeat its `calibrate --from`, or delete the file."
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("ending", [".json", ".csv"])
@pytest.mark.parametrize("content", ["", '{"device": "a"', "name,image_size\n"])
def test_damaged_device_is_left_out_and_named(counted: pd.DataFrame, tmp_path: Path, ending: str, content: str) -> None:
    known = devices.shipped()[0]
    for name in ("damaged", "whole"):
        (tmp_path / f"{name}.json").write_text(known.model_copy(update={"name": name}).model_dump_json())
    (tmp_path / f"damaged{ending}").write_text(content)
    found = estimates.available(stored.latest([]), counted, tmp_path)
    assert [device.fitted.name for device in found if device.fitted.name] == ["whole"]
    (text,) = estimates.imported(tmp_path)[1]
    assert text.startswith(f"The device in {tmp_path / 'damaged.json'} cannot be read.")


def test_settings_with_too_few_timings_for_a_device_are_not_searched(
    counted: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Catalogue of all users waits for it: thousands of settings with one timing each took more than a minute."""
    searched = []
    monkeypatch.setattr(estimates, "device_of_setting", lambda timed, setting, *_: searched.append(setting))
    names = [(*key, None) for key in counted.index[: devices.FEWEST]]
    lines = [(*name, Setting(batch_size=1), 1.0, 1e3, "", "") for name in names]
    lines += [(*name, Setting(batch_size=2), 1.0, 1e3, "", "") for name in names[1:]]
    estimates.available(stored.latest([lines]), counted, Path("nowhere"))
    assert searched == [Setting(batch_size=1)]


def test_device_of_a_timing_setting_prefers_measured_values(counted: pd.DataFrame) -> None:
    i7 = devices.find(devices.shipped(), "i7")[0]
    timed_models = counted.sample(30, random_state=2)
    measured_ms = devices.estimate(i7, timed_models, 1)["latency_ms"] * 2
    setting = Setting(device="cpu", device_name="Slow CPU", threads=2)
    lines = [(name, size, None, setting, ms, 1e3 / ms, "", "") for (name, size), ms in measured_ms.items()]
    timed = stored.latest([lines])
    device = estimates.available(timed, counted, Path("nowhere"))[0]
    assert device.fitted.label == setting.label
    frame = device.speeds(counted)
    assert frame.loc[timed_models.index, "source"].eq("measured").all()
    assert frame.loc[timed_models.index, "latency_ms"].to_numpy() == pytest.approx(measured_ms.to_numpy())
    assert frame.loc[timed_models.index, "latency_ms_low"].isna().all()
    estimated = frame.drop(timed_models.index)
    assert estimated["source"].eq("estimated").all()
    expected = devices.estimate(i7, counted, 1)["latency_ms"].drop(timed_models.index) * 2
    assert (estimated["latency_ms"] / expected).median() == pytest.approx(1, abs=0.02)
    assert estimates.device_of_setting(timed.head(devices.FEWEST - 1), setting, counted, [i7]) is None


def test_published_timing_keeps_its_batch_size_and_is_never_outside_the_fitted_range(counted: pd.DataFrame) -> None:
    i7 = devices.find(devices.shipped(), "i7")[0]
    outside = devices.estimate(i7, counted)["in_range"].idxmin()
    timed = pd.DataFrame([(*outside, 512, 100.0, 5120.0)], columns=[*work.KEY, "batch_size", *estimates.SPEEDS])
    found = estimates.Device(i7, timed, "published").speeds(counted)
    row = found.loc[outside, ["batch_size", *estimates.SPEEDS, "source", "in_range"]]
    assert row.tolist() == [512, 100, 5120, "published", True]
    assert found["batch_size"].drop(outside).eq(i7.typical_batch).all()


@pytest.mark.slow
def test_only_unreliable_estimates_have_a_warning(counted: pd.DataFrame) -> None:
    """Random timings have large errors, and many disturbed timings may shift all estimates in the same direction."""
    i7 = devices.find(devices.shipped(), "i7")[0]
    timed_models = counted.sample(40, random_state=2)
    measured_ms = devices.estimate(i7, timed_models, 1)["latency_ms"]

    def warnings(latency_ms: pd.Series, flags: list[str]) -> list[str]:
        lines = [
            (name, size, None, Setting(threads=2), ms, 1e3 / ms, "", flag)
            for ((name, size), ms), flag in zip(latency_ms.items(), flags, strict=True)
        ]
        return reliability.warnings(estimates.available(stored.latest([lines]), counted, Path("nowhere")))

    quiet = ["single process, below floor"] * 40
    assert warnings(measured_ms, quiet) == [], "no warning for published devices either"
    assert warnings(measured_ms, ["contended"] * 19 + quiet[19:]) == []
    unknown = pd.Series(
        1.0, index=pd.MultiIndex.from_tuples([(f"timm:unknown_{number}", "224") for number in range(9)])
    )
    flags = [*["contended"] * 19, *quiet[19:], *["contended"] * 9]
    assert warnings(pd.concat([measured_ms, unknown]), flags) == [], "timings of uncounted models are not fitted"
    (message,) = warnings(measured_ms, ["contended"] * 19 + ["unstable, drifting"] + quiet[20:])
    assert message == (
        "Unreliable estimates for eager, batch 1, float32 on cpu, 2 threads: 20 of 40 timings flagged (unstable, "
        "contended, drifting). Calibrate again on a quiet machine."
    )
    (message,) = warnings(measured_ms.sample(frac=1, random_state=1).set_axis(measured_ms.index), quiet)
    assert re.search(r"the error on unseen families is \d+ % \(median\), \d+ % \(90th percentile\)\. Cal", message)


@pytest.mark.slow
def test_estimate_and_calibrate_warn_of_unreliable_estimates(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrated_by_hand(store, flags=("contended",))
    message = "timings flagged (contended). Calibrate again on a quiet machine."
    timed = store.rows(1)[0].name
    for device in ([], ["--device", "batch 1"]):
        assert main(["estimate", "--models", f"timm:resnet18,{timed}", *device]) == 0
        shown = capsys.readouterr()
        assert message in shown.err
        (line,) = [line for line in shown.out.splitlines() if "(here)" in line and "estimated" not in line]
        assert f"{timed} " in line
        assert "measured, contended" in line
        marked = [line for line in shown.out.splitlines() if "estimated, unreliable" in line]
        assert marked
        assert all("(here)" in line for line in marked), "published devices are reliable"
    monkeypatch.setattr("engine.cli.estimates.run_here", run_of_one_row)
    assert main(["calibrate"]) == 0
    assert message in capsys.readouterr().err
    assert main(["catalog", "--match", "resnet18", "--device", "batch 1"]) == 0
    assert "estimated, unreliable" in capsys.readouterr().out


@pytest.mark.parametrize("batch_size", [1, 8])
def test_device_is_fitted_to_latency_at_batch_1_and_to_throughput_above(counted: pd.DataFrame, batch_size: int) -> None:
    i7 = devices.find(devices.shipped(), "i7")[0]
    timed_models = counted.sample(30, random_state=2)
    expected = devices.estimate(i7, timed_models, batch_size)
    setting = Setting(batch_size=batch_size)
    # calls that queue: throughput is twice what the latency says
    lines = [
        (name, size, None, setting, ms, 2e3 * batch_size / ms, "", "")
        for (name, size), ms in expected["latency_ms"].items()
    ]
    device = estimates.device_of_setting(stored.latest([lines]), setting, counted, [i7])
    assert device is not None
    found = devices.estimate(device.fitted, timed_models, batch_size)
    factor = (found["samples_per_s"] / expected["samples_per_s"]).median()
    assert factor == pytest.approx(1 if batch_size == 1 else 2, rel=0.02)


def test_published_devices_alike_are_of_the_same_kind_and_infer() -> None:
    published = devices.shipped()
    cpus, gpus = (estimates.published_alike(published, device) for device in ("cpu", "cuda:1"))
    assert cpus
    assert not any("NVIDIA" in device.device for device in cpus)
    assert gpus
    assert all("NVIDIA" in device.device for device in gpus)
    assert len(cpus) + len(gpus) == sum(device.mode == "inference" for device in published) < len(published)


def test_worth_measuring_has_models_that_could_enter_the_front() -> None:
    frame = pd.DataFrame(
        {
            **{"name": list("abcd"), "quality": [80.0, 80.0, 80.0, 70.0], "latency_ms": [10.0, 12.0, 20.0, 15.0]},
            **{"latency_ms_low": [None, 8.0, 16.0, 9.0], "source": ["measured", "estimated", "estimated", "estimated"]},
            "in_range": True,
        }
    )
    ranked = estimates.worth_measuring(frame, "quality")
    assert list(ranked["name"]) == ["b", "d"], "gains: b 10 / 8, d 10 / 9; the lower bound of c is above a"
    assert list(ranked["gain"]) == [1.25, pytest.approx(10 / 9)]
    ranked = estimates.worth_measuring(frame.assign(latency_ms_low=[None, 8.0, 16.0, 5.0]), "quality")
    assert list(ranked["name"]) == ["d", "b"], "gains: d 10 / 5, b 10 / 8"
    out_of_range = pd.DataFrame(
        {"name": ["e"], "quality": 90.0, "latency_ms": 1.0, "latency_ms_low": 0.5, "in_range": False}
    )
    ranked = estimates.worth_measuring(pd.concat([frame, out_of_range.assign(source="estimated")]), "quality")
    assert list(ranked["name"]) == ["e", "b", "d"], "an estimate outside the fitted range does not remove others"


@pytest.mark.slow
def test_speeds_of_a_device_have_one_batch_size(counted: pd.DataFrame) -> None:
    device = estimates.find(estimates.available(stored.latest([]), counted, Path("nowhere")), "5090 eager")[0]
    frame = counted.reset_index()[["name", "image_size"]]
    filled = estimates.with_speeds(frame, device, counted)
    assert filled["batch_size"].nunique() == 1
    assert {"published", "estimated"} == set(filled["source"])
    assert choose.front(filled.assign(gmacs=1.0), "latency_ms", "gmacs").any()


def test_read_timm_skips_rows_without_a_speed(tmp_path: Path) -> None:
    file = tmp_path / "b.csv"
    file.write_text(
        "model,img_size,batch_size,samples_per_sec\nresnet18.a1_in1k,224,2,100\nresnet34,224,2,0\nvgg11,224,2,inf\n"
        "vgg13,224,0.5,9\nvgg16,224.7,2,9\n"
    )
    assert calibrate.read_timm(file).to_dict("records") == [
        {"name": "timm:resnet18", "image_size": "224", "batch_size": 2, "seconds": 0.01}
    ]
    names = "model,infer_img_size,infer_batch_size,infer_samples_per_sec"
    file.write_text(f"{names},img_size,batch_size,samples_per_sec\nresnet18,224,2,100,64,8,5\n")
    assert calibrate.read_timm(file)["seconds"].tolist() == [0.01]
    file.write_text(f"{names.replace('infer_img_size', 'img_size')}\nresnet18,224,2,100\n")
    with pytest.raises(Refused, match=r"It has model, img_size, infer_batch_size, infer_samples_per_sec$"):
        calibrate.read_timm(file)
