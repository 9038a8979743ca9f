"""Estimates of speed: work of models, fits of costs, error on unseen families, ranges and calibration."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timm

from engine.estimate import calibrate, devices, work
from engine.estimate.fit import COARSE, fit, scale_costs, splits
from engine.estimate.work import FEATURES
from engine.published import speeds
from engine.report.catalog import catalog
from engine.settings import Settings
from engine.specs import Refused


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return work.read(Settings().catalog_dir)


def timings(table: pd.DataFrame, costs: np.ndarray, batch: int = 64) -> pd.DataFrame:
    """Return times that follow the linear model exactly."""
    seconds = work.features(table, batch) @ costs
    return table.index.to_frame(index=False).assign(batch_size=batch, seconds=seconds)


def costs_of(**known: float) -> np.ndarray:
    return np.array([known.get(feature.replace(":", "_"), 0.0) for feature in FEATURES])


TRUE = costs_of(convolution_gflop=2e-3, addmm_gflop=1e-3, add_gb=5e-3, gelu_gb=4e-3, other_call=1e-5)


def test_work_of_resnet18_equals_hand_formulas(table: pd.DataFrame) -> None:
    """In ResNet-18 at 224 px, the only matrix product is the classifier, 512 x 1000, which reads 512,000 weights."""
    row = table.loc[("timm:resnet18", "224")]
    assert row["flop:addmm"] == pytest.approx(2 * 512 * 1000 / 1e9)
    assert row["call:native_batch_norm"] == 20
    assert row["call:convolution"] == 20
    assert row["weight:addmm"] + row["byte:addmm"] == pytest.approx(4 * (512_000 + 1000 + 512 + 1000) / 1e9)
    batch_1, batch_100 = (work.features(table.loc[[("timm:resnet18", "224")]], batch)[0] for batch in (1, 100))
    calls = FEATURES.index("convolution:call")
    assert (batch_1[calls], batch_100[calls]) == (20, 0.2)
    assert [batch[FEATURES.index("batch:call")] for batch in (batch_1, batch_100)] == [1, 0.01]
    gigabytes = FEATURES.index("convolution:gb")
    assert batch_1[gigabytes] - batch_100[gigabytes] == pytest.approx(row["weight:convolution"] * 0.99)


def test_work_grows_with_the_image_size_but_weights_do_not(table: pd.DataFrame) -> None:
    small, large = (table.loc[("timm:resnet50", size)] for size in ("224", "288"))
    assert large["flop:convolution"] / small["flop:convolution"] == pytest.approx((288 / 224) ** 2, rel=0.01)
    assert large["weight:convolution"] == small["weight:convolution"]
    macts = catalog.read(Settings().catalog_dir).set_index(["name", "image_size"])["macts"]
    small, large = (("timm:caformer_b36", size) for size in ("224", "384"))
    assert table.at[large, "byte:add"] / table.at[small, "byte:add"] == pytest.approx(macts[large] / macts[small])
    assert table.filter(like="byte:").min().min() >= 0
    small = table.loc[("timm:resnet50", "224")]
    assert (small["timed_size"], table.loc[("timm:resnet18d", "224"), "timed_size"]) == ("288", "288")
    assert table.loc[("timm:vit_tiny_patch16_224", "224"), "timed_size"] == "224", "it has no size of its own for tests"


def test_fused_recurrent_layers_count_as_matrix_products(table: pd.DataFrame) -> None:
    row, operators = (table.loc[("timm:sequencer2d_s", "224")], pd.read_csv(Settings().catalog_dir / work.OPERATORS))
    products = operators[
        (operators["model"] == "sequencer2d_s") & operators["operator"].isin(["addmm", "mkldnn_rnn_layer"])
    ]
    assert len(products) == 2
    assert row["flop:addmm"] == pytest.approx(products["flops"].sum() / 1e9)
    assert row["call:addmm"] == products["calls"].sum() == 55 + 72


def test_fit_recovers_known_costs(table: pd.DataFrame) -> None:
    seconds = timings(table, TRUE)["seconds"].to_numpy()
    costs = fit(work.features(table, 64), seconds, table["family"], [1e-6])
    large = np.flatnonzero(TRUE)
    assert costs[large] == pytest.approx(TRUE[large], rel=0.02)


@pytest.mark.slow
def test_fit_selects_the_regularisation_with_least_error_on_families(table: pd.DataFrame) -> None:
    features, family = work.features(table, 64), table["family"]
    seconds = features @ TRUE
    assert (fit(features, seconds, family, [100.0, 0.01]) == fit(features, seconds, family, [0.01])).all()
    random = np.random.default_rng(0)
    rows = random.choice(len(table), 60, replace=False)
    equal_costs = np.array([1e-3, 1e-3, 1e-3, 5e-3, 1e-5])[np.array(COARSE)]
    noisy = features[rows] @ equal_costs * random.lognormal(0, 0.3, len(rows))
    costs = fit(features[rows], noisy, family.iloc[rows], [0.01, 100.0])
    assert (costs == fit(features[rows], noisy, family.iloc[rows], [100.0])).all()
    costs = fit(features[rows], noisy, family.iloc[rows], [99.9, 100.0])
    assert (costs == fit(features[rows], noisy, family.iloc[rows], [100.0])).all(), "of about equal errors, the larger"


def test_scale_costs_recovers_a_device_that_is_faster_by_group(table: pd.DataFrame) -> None:
    factors = np.array([0.5, 1.0, 2.0, 0.8, 1.5])[np.array(COARSE)]
    rows = table.sample(30, random_state=0)
    costs = scale_costs(TRUE, work.features(rows, 64), work.features(rows, 64) @ (TRUE * factors), COARSE, 1e-6)
    held_out = work.features(table, 64)
    assert held_out @ costs == pytest.approx(held_out @ (TRUE * factors), rel=0.02)
    pulled = scale_costs(TRUE, work.features(rows, 64), 3 * work.features(rows, 64) @ TRUE, COARSE, 1e6)
    assert pulled == pytest.approx(3 * TRUE, rel=1e-3), "a strong pull keeps the median ratio to the prior"


def test_splits_keep_each_family_on_one_side(table: pd.DataFrame) -> None:
    families = table["family"].to_numpy()
    tested, sizes = np.zeros(len(families), dtype=int), list[int]()
    for train, test in splits(families):
        assert not set(families[train]) & set(families[test])
        assert not (train & test).any()
        tested += test
        sizes.append(test.sum())
    assert (tested == 1).all()
    assert len(sizes) == 8
    assert max(sizes) - min(sizes) <= 1, "the largest families come first, so the small ones balance the folds"


@pytest.mark.slow
def test_estimates_of_a_fitted_device_are_accurate_in_their_range(table: pd.DataFrame) -> None:
    small = table[table["flop:convolution"] < table["flop:convolution"].quantile(0.8)][::5]  # a fit of all takes 4 s
    fields = {"device": "GPU", "precision": "amp", "source": "test"}
    fitted, held_out = devices.fit_device(timings(small, TRUE), small, **fields)
    assert fitted.median_error < 0.05
    assert set(held_out["family"]) == set(small["family"])
    estimates = devices.estimate(fitted, table, 64)
    truth = 64e3 * work.features(table, 64) @ TRUE
    inside = estimates["in_range"].to_numpy()
    assert np.median(np.abs(estimates["latency_ms"] / truth - 1)[inside]) < 0.1
    assert (estimates["latency_ms_low"] <= estimates["latency_ms_high"]).all()
    assert estimates["samples_per_s"].to_numpy() == pytest.approx(64e3 / estimates["latency_ms"].to_numpy())
    largest = table["flop:convolution"].idxmax()
    assert not estimates.loc[largest, "in_range"], "it has far more convolutions than any fitted model"
    for batch_size in (1, 128):
        assert not devices.estimate(fitted, table, batch_size)["in_range"].any(), "this batch size was not fitted"
    only_new = table.assign(**{"flop:bmm": 1e6})
    assert not devices.estimate(fitted, only_new, 64)["in_range"].any(), "no fitted model has these products"
    i7, pooling = devices.find(devices.shipped(), "i7")[0], "max_pool2d_with_indices:gb"  # 4.7 % of resnet18's bytes
    row = table.loc[[("timm:resnet18", "224")]]
    amount = work.features(row, i7.typical_batch)[0, FEATURES.index(pooling)]
    small, large = 1, 20  # its share of the time is 0.7 % or 12 %
    cases = (small, 0.0, True), (large, 0.0, False), (large, amount / 1.2, True), (large, amount / 1.3, False)
    for factor, most, in_range in cases:
        changes = {"most": {**i7.most, pooling: most}, "costs": {**i7.costs, pooling: factor * i7.costs[pooling]}}
        assert devices.estimate(i7.model_copy(update=changes), row)["in_range"].item() == in_range


@pytest.mark.slow
def test_estimate_below_the_least_time_per_operator_is_out_of_range(table: pd.DataFrame) -> None:
    """The launch of an operator takes time even for small batches, and timings of large batches do not show it."""
    some = table[::5]  # a fit of all takes 4 s
    fitted, _ = devices.fit_device(timings(some, TRUE), some, device="GPU", precision="amp", source="test")
    calls = table.filter(like="call:").sum(axis=1)
    timed = work.features(some, 64) @ TRUE * 64 / calls[::5]
    assert fitted.least_per_call == pytest.approx(timed.min(), rel=1e-4)
    without_limits = fitted.model_copy(update={"batch_sizes": (1, 64), "most": dict.fromkeys(FEATURES, 1e9)})
    estimates = devices.estimate(without_limits, table, 1)
    enough = estimates["latency_ms"] / 1e3 / calls >= fitted.least_per_call / 1.25
    assert 0 < enough.sum() < len(table)
    assert list(estimates["in_range"]) == list(enough)
    assert devices.estimate(without_limits, table, 64)["in_range"].all()


def test_interval_covers_the_claimed_share() -> None:
    ratios = np.exp(np.random.default_rng(0).normal(0, 0.2, 40_000))
    low, high = devices.interval(ratios[:20_000])
    assert np.mean((low <= ratios[20_000:]) & (ratios[20_000:] <= high)) == pytest.approx(0.9, abs=0.01)
    assert devices.interval(np.array([1.0, 2.0, 3.0])) == (1.0, 3.0), (
        "the whole range, because 3 values are too few for quantiles"
    )
    assert devices.interval(np.arange(1.0, 40.0)) == (2.0, 38.0), "5 % of 40 are 2 ranks"


def test_error_of_held_out_predictions_by_hand() -> None:
    seconds, fold = np.arange(1.0, 40.0), np.arange(39) // 20
    expected = {"median_error": 0.95, "p90_error": 0.9716, "coverage": 0.0, "low": 2.0, "high": 38.0}
    assert devices.held_out_error(seconds, np.ones(39), fold) == expected, "the range of each fold is that of the other"


def test_range_of_the_fewest_models_covers_the_claimed_share() -> None:
    draws = np.random.default_rng(0).normal(size=(20_000, devices.FEWEST + 1))
    fitted, new = draws[:, :-1], draws[:, -1]
    inside = (fitted.min(axis=1) <= new) & (new <= fitted.max(axis=1))
    assert inside.mean() == pytest.approx(devices.LEVEL, abs=0.01)


def test_too_few_timings_are_refused(table: pd.DataFrame) -> None:
    with pytest.raises(Refused, match="18 counted models are timed, at least 19"):
        devices.fit_device(timings(table.head(18), TRUE), table, device="GPU", precision="amp", source="test")
    one_family = table[table["family"] == "resnet"]
    with pytest.raises(Refused, match=r"are of the family resnet.* at least 2 families"):
        devices.fit_device(timings(one_family, TRUE), table, device="GPU", precision="amp", source="test")


def test_shipped_devices_have_errors_and_every_published_setting() -> None:
    shipped = devices.shipped()
    settings = speeds.read()[speeds.SETTING].drop_duplicates()
    assert len(shipped) == len(settings)
    assert all(
        device.models > 500 and 0.85 <= device.coverage <= 0.95 and device.low < 1 < device.high for device in shipped
    )
    assert devices.find(shipped, "5090 eager")[0].label == "NVIDIA GeForce RTX 5090, amp, eager, torch 2.9.1"
    assert devices.find(shipped, "2.9.1, RTX5090, eager") == devices.find(shipped, "5090 eager 2.9.1")
    compiled = [device.torch for device in devices.find(shipped, "4090 compiled")]
    assert compiled == ["2.9.1", "2.4.0"], "the newest torch first"
    with pytest.raises(Refused, match=r"(?s)no known device has 'H100'.*RTX 3090"):
        devices.find(shipped, "H100")
    rates = devices.rates(shipped[0])
    assert set(rates["unit"]) == set(devices.UNITS.values())
    assert (rates["rate"] > 0).all()


def test_rates_and_labels_of_a_device_by_hand() -> None:
    costs = {"addmm:gflop": 2e-3, "add:gb": 0.1, "add:call": 3e-6}
    device = devices.shipped()[0].model_copy(update={"costs": costs, "device": "A", "precision": "amp", "torch": ""})
    assert devices.rates(device).to_numpy().tolist() == [
        ["addmm", 500.0, "GFLOP/s"],
        ["add", 10.0, "GB/s"],
        ["add", pytest.approx(3.0), "us per call"],
    ]
    plain = device.model_copy(update={"memory_format": "contiguous", "compiled": False})
    assert plain.label == "A, amp, eager"
    assert devices.find([*devices.shipped(), plain], "amp eager")[0] == plain, "timed here or imported, so no torch"
    changes = {"memory_format": "channels_last", "compiled": True, "torch": "2.9", "mode": "training"}
    assert plain.model_copy(update=changes).label == "A, amp, channels_last, compiled, torch 2.9, training"


def test_costs_are_pulled_together_by_kinds_of_work() -> None:
    groups = {feature: COARSE[FEATURES.index(feature)] for feature in FEATURES}
    assert groups["convolution:gflop"] == 0
    assert groups["depthwise_convolution:gflop"] == groups["grouped_convolution:gflop"] == 1
    assert groups["addmm:gflop"] == groups["scaled_dot_product_attention:gflop"] == 2
    assert {groups[name] for name in FEATURES if name.endswith(":gb")} == {3}
    assert {groups[name] for name in FEATURES if name.endswith(":call")} == {4}


def test_device_can_be_fitted_to_two_families_and_takes_the_first_timing_of_a_model(table: pd.DataFrame) -> None:
    i7 = devices.find(devices.shipped(), "i7")[0]
    fields = {"device": "mine", "precision": "float32", "source": "test"}
    two = table[table["family"].isin(["resnet", "vision_transformer"])]
    timed = pd.concat([timings(two[::2], 2 * i7.vector, 1), timings(two[1::2][:9], 2 * i7.vector, 8)])
    device, _ = devices.fit_device(timed, table, i7, **fields)
    assert device.median_error < 0.01
    assert (device.batch_sizes, device.typical_batch) == ((1, 8), 1)
    assert all(device.costs.values()), "a feature without a cost is left out"
    again = pd.concat([timed, timed.assign(seconds=9.0)])
    assert devices.fit_device(again, table, i7, **fields)[0] == device


def test_interval_of_a_published_device_overlaps_published_speeds(table: pd.DataFrame) -> None:
    device = devices.find(devices.shipped(), "4090 eager 2.4.0 amp")[0]
    published = speeds.read().query("model == 'resnet50' and image_size == '224' and torch == '2.4.0'")
    published = published[(published["device"] == device.device) & ~published["compiled"]]
    estimate = devices.estimate(device, table.loc[[("timm:resnet50", "224")]]).iloc[0]
    assert estimate["in_range"]
    assert estimate["samples_per_s_low"] < published["samples_per_s"].max()
    assert estimate["samples_per_s_high"] > published["samples_per_s"].min()


def test_models_for_calibration_are_fast_and_of_many_families(table: pd.DataFrame) -> None:
    i7 = devices.find(devices.shipped(), "i7")[0]
    chosen = calibrate.choose(table, i7, batch_size=1, budget_s=150)
    models = table[(table.index.get_level_values("image_size") == table["timed_size"])].filter(like="timm:", axis=0)
    latency = devices.estimate(i7, models, 1)["latency_ms"].groupby("name").min()
    assert latency[chosen].max() <= latency.quantile(0.7), "the slowest models use up the budget and add little"
    families = table.reset_index().drop_duplicates("name").set_index("name")["family"]
    assert len(chosen) == len(set(chosen)) == 30
    assert families[chosen].nunique() >= 25
    for batch_size in (1, 8):  # at batch size 8, fewer than the quickest 70 % are quick enough
        chosen = calibrate.choose(table, i7, batch_size, budget_s=150)
        latency = devices.estimate(i7, table, batch_size)["latency_ms"].groupby("name").min()
        assert latency[chosen].max() * calibrate.CALLS < 150e3 / 30
    assert latency[chosen].max() * calibrate.CALLS > 0.9 * 150e3 / 30, "the budget is used"
    for budget_s, enough in ((1, "0"), (2400, "12")):
        with pytest.raises(Refused, match=f"enough for {enough} models .* give a longer budget or a smaller batch"):
            calibrate.choose(table, i7, batch_size=4096, budget_s=budget_s)


@pytest.mark.parametrize("budget_s", [30, 300])
def test_models_for_calibration_are_counted_at_the_size_that_they_are_timed_at(
    table: pd.DataFrame, budget_s: float
) -> None:
    chosen = calibrate.choose(table, devices.find(devices.shipped(), "i7")[0], batch_size=1, budget_s=budget_s)
    configs = {name: timm.get_pretrained_cfg(name.removeprefix("timm:")) for name in chosen}
    sizes = {name: str((config.test_input_size or config.input_size)[-1]) for name, config in configs.items()}
    assert [key for key in sizes.items() if key not in table.index] == []


def test_calibrated_device_names_its_prior(table: pd.DataFrame) -> None:
    priors = devices.shipped()
    i7 = devices.find(priors, "i7")[0]
    timed_models = table.sample(40, random_state=1)
    device = calibrate.calibrate_device(
        timings(timed_models, 3 * i7.vector, 1), table, priors[:3], device="mine", precision="float32"
    )
    assert device.source == f"timed here; prior {i7.label}"
    assert all(device.most[name] >= most for name, most in i7.most.items())
    assert device.median_error < 0.01


def test_error_of_a_calibrated_device_includes_the_choice_of_prior(table: pd.DataFrame) -> None:
    priors = [known for known in devices.shipped() if known.mode == "inference"][:6]
    noise = np.exp(np.random.default_rng(7).normal(0, 0.5, 40))  # with this seed, folds choose different priors
    noisy_timings = timings(table.sample(40, random_state=1), priors[0].vector, 1)
    noisy_timings["seconds"] *= noise
    fields = {"device": "mine", "precision": "float32"}
    held_out = pd.concat(
        devices.fit_device(noisy_timings, table, prior, **fields, source="")[1].assign(prior=number)
        for number, prior in enumerate(priors)
    )
    held_out["error"] = (held_out["predicted"] / held_out["seconds"] - 1).abs()
    errors = [
        part.loc[part["prior"] == other_folds.groupby("prior")["error"].median().idxmin(), "error"]
        for fold, part in held_out.groupby("fold")
        if len(other_folds := held_out[held_out["fold"] != fold])
    ]
    device = calibrate.calibrate_device(noisy_timings, table, priors, **fields)
    assert device.median_error == pytest.approx(pd.concat(errors).median(), abs=1e-4)
    assert device.median_error > held_out.groupby("prior")["error"].median().min(), (
        "the error of the best of six priors is too low"
    )


def test_read_works_without_the_file_of_sizes(tmp_path: Path, table: pd.DataFrame) -> None:
    (tmp_path / work.OPERATORS).symlink_to(Settings().catalog_dir / work.OPERATORS)
    counts = pd.read_csv(Settings().catalog_dir / "timm.csv", dtype=str)
    counts.loc[counts["model"] == "resnet34", "status"] = "error"
    counts.loc[counts["model"] == "resnet50", "complete"] = "False"
    counts.to_csv(tmp_path / "timm.csv", index=False)
    without_sizes = work.read(tmp_path)
    assert not without_sizes.index.isin(["timm:resnet34", "timm:resnet50"], level="name").any()
    assert without_sizes.loc[("timm:resnet18", "224")].equals(table.loc[("timm:resnet18", "224")])


def test_catalogue_without_operators_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"no counted operators in .*: `python -m engine catalog-build` counts them"):
        work.read(tmp_path)


def test_file_of_timm_without_timings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bench.csv"
    path.write_text("model,infer_img_size,infer_batch_size,infer_samples_per_sec\n")
    with pytest.raises(Refused, match="must be positive numbers in at least one line"):
        calibrate.read_timm(path)
