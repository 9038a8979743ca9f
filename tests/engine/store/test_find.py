"""Finding runs, tags, notes and sizes, on a real SQLite file and on a real PostgreSQL server."""

import math
import random
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from engine.results import DeviceRow, Row, kinds
from engine.settings import Settings
from engine.specs import BenchmarkSpec, DeviceSpec, ProfileSpec, Refused, TrainSpec
from engine.specs.evaluate import EvaluateSpec
from engine.store import Filter, Run, State, Store, migrations, open_store, storage
from engine.store.database import Database
from engine.store.files import RunFiles
from engine.store.find import Order
from engine.store.tables import metadata
from tests.engine.store.test_store import settings  # noqa: F401  fixture: each test runs on both databases
from tests.support import store as support_store
from tests.support.clip import evaluate_row, train_row
from tests.support.page import benchmark_row, finish, profile_row

SPECIAL_NAMES = ("100%_of/them", "ÄRGER in Zürich", "a\\b 'quoted'", "<b>bold</b>")
PATTERNS = ("resnet_17", "RESNET", "vit_base_1?", "*_12", "timm:swin_3*", "aten", "a_b%", "100%", "/", "nothing*", "*")
WORDS = (
    "sweep",
    "2 of",
    "cuda",
    "Looked AT",
    "100%",
    "_of/",
    "zürich",
    "'quoted'",
    "b>",
    "timm: and",
    "zzz",
    "\\",
    "12",
    "run 3",
    "Run 999",
)


@pytest.fixture
def filled(store: Store) -> Store:
    """Return a store with 200 runs of every kind, 4 runs with special characters, and a queued run."""
    support_store.fill(store, 200, 4)
    for name in SPECIAL_NAMES:
        run_id = store.enqueue(ProfileSpec(models=("timm:a_b%c", "Ünique*")), name=name)
        store.request_cancel(run_id)
        store.change_tags([run_id], add=["odd", name.replace(",", "")])
        store.set_notes(run_id, f"Notes of {name.upper()}")
    store.enqueue(ProfileSpec(models=("resnet_17",)))
    return store


def matches(criteria: Filter, run: Run, rows: list[Row]) -> bool:
    """Return whether `run` matches the filter, computed without SQL."""
    requested_models = (
        getattr(run.spec, "models", None) or getattr(run.spec, "chosen", None) or (getattr(run.spec, "model", ""),)
    )
    names = {name.casefold() for name in (*requested_models, *(row.name for row in rows)) if name}
    pattern = criteria.model.casefold()
    models = names if ":" in pattern else {re.sub(r"^[^:]*:(?=.)", "", name) for name in names}
    wildcards = {"*": ".*", "?": "."}
    expression = "".join(wildcards.get(character, re.escape(character)) for character in pattern)
    if not set(pattern) & set(wildcards):
        expression = f".*{expression}.*"
    number = criteria.text.casefold().removeprefix("run ")
    contents = "\n".join((run.name, run.spec.summary, run.notes)).casefold()
    failed = run.error.casefold() if run.state is State.FAILED else ""
    return (
        (not criteria.kinds or run.kind in criteria.kinds)
        and (not criteria.states or run.state in criteria.states)
        and (not criteria.device or {"cuda": "cuda:0"}.get(criteria.device, criteria.device) in run.spec.devices)
        and set(criteria.tags) <= set(run.tags)
        and (not criteria.model or any(re.fullmatch(expression, model, re.DOTALL) for model in models))
        and (
            number == str(run.id)
            or all(word in contents or word in failed for word in criteria.text.casefold().split())
        )
    )


def random_filter(rng: random.Random) -> Filter:
    """Return a random filter, most often with one or two conditions."""

    def some(values: tuple[str, ...], most: int) -> tuple[str, ...]:
        return tuple(rng.sample(values, rng.randint(1, most))) if rng.random() < 0.3 else ()

    return Filter(
        kinds=some(tuple(kinds()), 3),
        states=tuple(State(state) for state in some(tuple(State), 3)),
        model=rng.choice(PATTERNS) if rng.random() < 0.4 else "",
        device=rng.choice(("cpu", "cuda:0", "meta", "cuda", "%")) if rng.random() < 0.3 else "",
        tags=some((*support_store.TAGS, "odd", SPECIAL_NAMES[0]), 2),
        text=rng.choice(WORDS) if rng.random() < 0.4 else "",
        order=rng.choice(get_args(Order)),
    )


@pytest.mark.slow
def test_filters_in_sql_equal_the_same_filters_in_python(filled: Store) -> None:
    runs = filled.runs(limit=1000)
    assert len(runs) == 205
    rows = {run.id: filled.rows(run.id) for run in runs}
    rng, lengths = random.Random(1), set()
    filters = [Filter(model=pattern) for pattern in PATTERNS] + [Filter(text=word) for word in WORDS]
    for criteria in [*filters, *(random_filter(rng) for _ in range(110))]:
        expected = [run for run in runs if matches(criteria, run, rows[run.id])]
        if criteria.order == "oldest":
            expected.reverse()
        elif criteria.order != "newest":
            name, sign = {
                "loss": ("loss", 1), "held_out_loss": ("held_out_loss", 1), "accuracy": ("accuracy", -1),
                "latency": ("latency_ms", 1),
            }[criteria.order]  # fmt: skip
            values = {run.id: getattr(run.results, name) for run in expected}
            expected.sort(key=lambda run: math.inf if values[run.id] is None else sign * values[run.id])
        number = criteria.text.casefold().removeprefix("run ")
        expected.sort(key=lambda run: str(run.id) != number)  # the run with this number comes first
        assert filled.count(criteria) == len(expected), criteria
        assert filled.find(criteria, limit=7, offset=5) == expected[5:12], criteria
        lines = [line for batch in filled.lines(criteria) for line in batch]
        assert [line["run"] for line in lines] == [run.id for run in expected], criteria
        lengths.add(len(expected))
    assert len(lengths) > 25, "the filters must have results of different lengths"


def test_run_that_requests_a_bare_name_is_found_by_the_qualified_one_before_it_has_rows(store: Store) -> None:
    run_id = store.enqueue(TrainSpec(model="ViT-B-32"))
    assert [run.id for run in store.find(Filter(only_model="open_clip:ViT-B-32"), limit=9)] == [run_id]
    assert store.count(Filter(only_model="open_clip:ViT-B-16")) == 0


def test_run_is_found_by_models_of_its_rows_as_soon_as_stored(store: Store) -> None:
    run_id = store.enqueue(ProfileSpec(models=("family:resnet",)))
    assert store.count(Filter(model="resnet50")) == 0
    finish(store, run_id, [profile_row("ResNet50"), profile_row("ResNet50")])
    assert [run.id for run in store.find(Filter(model="resnet50"), limit=9)] == [run_id]
    assert [run.id for run in store.find(Filter(only_model="timm:ResNet50"), limit=9)] == [run_id]
    assert store.count(Filter(only_model="resnet5")) == store.count(Filter(only_model="*")) == 0
    store.delete(run_id)
    assert store.count(Filter(model="resnet50")) == 0
    with store.database.read() as connection:
        for table in ("run_models", "run_texts", "run_tags"):
            assert connection.scalar(text(f"SELECT count(*) FROM {table}")) == 0


def test_devices_and_tags_of_all_runs_are_listed(filled: Store) -> None:
    assert filled.devices() == ["cpu", "cuda:0", "cuda:1", "meta"]
    tags = filled.tags()
    assert set(tags) == {*support_store.TAGS, "odd", *(name.replace(",", "") for name in SPECIAL_NAMES)}
    assert tags["odd"] == len(SPECIAL_NAMES)


def test_tags_change_on_all_selected_runs_or_none(store: Store) -> None:
    first, second = store.enqueue(ProfileSpec(models=("a",))), store.enqueue(ProfileSpec(models=("b",)))
    before = store.revision()
    store.change_tags([first, second], add=["  to \n keep ", "b"])
    assert store.run(first).tags == store.run(second).tags == ("b", "to keep")
    assert store.revision() > before
    store.change_tags([second], add=["c"], remove=["b"])
    assert store.run(second).tags == ("c", "to keep")
    with pytest.raises(LookupError, match="no run 99"):
        store.change_tags([first, 99], remove=["b"])
    assert store.run(first).tags == ("b", "to keep")
    for invalid in ("", "a,b", "x" * 41, "a\0b"):
        with pytest.raises(Refused, match="1 to 40 characters and no comma"):
            store.change_tags([first], add=[invalid])
    with pytest.raises(Refused, match="at most 20 tags, and run 1 would have 22"):
        store.change_tags([first], add=[str(number) for number in range(20)])
    with pytest.raises(Refused, match="at most 10,000 characters"):
        store.set_notes(first, "x" * 10_001)
    with pytest.raises(LookupError):
        store.set_notes(99, "")


FIRST_VERSION = {
    "runs": "id key kind name spec devices exclusive state cause error created_at started_at ended_at cancel_requested "
    "attempt_id attempt tries_left done total note environment revision",
    "attempts": "id run_id number host created_at begun_at heartbeat_at stop_at closed_at exit "
    "attempts_by_host attempts_by_run",
    "rows": "id run_id attempt_id kind library model status payload rows_by_run",
    "metrics": "run_id name step value",
    "artifacts": "run_id name kind size sha256",
    "slots": "host device attempt_id run_id exclusive",
    "leases": "name holder fingerprint expires_at",
    "machines": "host payload fingerprint probed_at",
    "changes": "revision",
}
FOURTH_VERSION = FIRST_VERSION | {
    "runs": f"{FIRST_VERSION['runs']} summary notes seconds_left owner runs_by_state runs_by_kind runs_by_owner",
    "run_tags": "run_id tag runs_by_tag",
    "run_models": "run_id model runs_by_model",
    "run_texts": "run_id text",
    "run_results": "run_id rows failed loss accuracy latency_ms flags",
}
"""Columns and indexes of the tables of earlier versions. Later changes do not belong here: migrations make them."""


def downgrade(connection: Connection, version: str, tables: Mapping[str, str]) -> None:
    """Make a store of an earlier version from one of the newest. tables: the names of its columns and indexes."""
    for table in reversed(metadata.sorted_tables):
        if table.name not in tables:
            table.drop(connection)
            continue
        names = tables[table.name].split()
        for index in table.indexes:
            if index.name not in names:
                index.drop(connection)
        for column in table.c:
            if column.name not in names:
                connection.execute(text(f"ALTER TABLE {table.name} DROP COLUMN {column.name}"))
    connection.execute(text("UPDATE alembic_version SET version_num = :version"), {"version": version})


def old_store(settings: Settings) -> Database:  # noqa: F811
    """Return a database of the first version, with two readable runs and one unreadable run."""
    open_store(settings).close()
    database = Database(settings.store_url)
    spec = ProfileSpec(models=("timm:ResNet18", "vit*"), device="cpu")
    with database.write() as connection:
        downgrade(connection, "0001", FIRST_VERSION)
        connection.execute(text("CREATE INDEX runs_by_state ON runs (state, id)"))
        for run_id, kind, name in ((1, "profile", "The First"), (2, "gone", "Another"), (3, "profile", "")):
            values = {"id": run_id, "kind": kind, "name": name, "spec": spec.model_dump_json()}
            values |= {"devices": '["cpu"]', "now": time.time()}
            connection.execute(
                text(
                    "INSERT INTO runs (id, kind, name, spec, devices, exclusive, state, error, created_at, attempt, "
                    "cancel_requested, tries_left, done, note, revision) VALUES (:id, :kind, :name, :spec, :devices, "
                    "false, 'finished', '', :now, 1, false, 0, 1, '', 1)"
                ),
                values,
            )
            for model in ("ViT_tiny", "ViT_tiny", "Ömlaut"):
                row = {"run": run_id, "model": model, "payload": profile_row(model).model_dump_json()}
                connection.execute(
                    text(
                        "INSERT INTO rows (run_id, attempt_id, kind, library, model, status, payload) "
                        "VALUES (:run, 1, 'profile', 'timm', :model, 'ok', :payload)"
                    ),
                    row,
                )
    return database


def test_runs_of_the_first_version_are_found(settings: Settings) -> None:  # noqa: F811
    old_store(settings).close()
    store = open_store(settings)
    with store.database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert [run.id for run in store.runs()] == [3, 1]
    for criteria, run_ids in (
        (Filter(model="resnet18"), [3, 1]),
        (Filter(model="vit_tiny", kinds=("profile",)), [3, 1]),
        (Filter(model="ömlaut", text="first"), [1]),
        (Filter(text="vit* cpu"), [3, 1]),
        (Filter(device="cpu", order="oldest"), [1, 3]),
    ):
        assert [run.id for run in store.find(criteria, limit=9)] == run_ids, criteria
    assert store.count(Filter(model="vit_tiny")) == store.count(Filter()) == 3
    assert len(store.rows(1)) == 3
    assert (store.run(1).notes, store.run(1).tags) == ("", ())
    store.set_notes(1, "Still here")
    assert [run.id for run in store.find(Filter(text="still FIRST"), limit=9)] == [1]
    store.delete(2)
    store.close()


def test_storage_sizes_equal_those_of_the_files(filled: Store, settings: Settings) -> None:  # noqa: F811
    for run_id, sizes in ((1, (10, 2000)), (2, (300,))):
        for place, size in enumerate(sizes):
            path = RunFiles(settings.runs_dir, run_id).dir / "deep" / f"{place}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"0" * size)
    (settings.runs_dir / "1" / "link").symlink_to("/")
    uploads = settings.runs_dir / "uploads"
    uploads.mkdir()
    (uploads / "a.zip").write_bytes(b"0" * 77)
    link = (settings.runs_dir / "1" / "link").lstat().st_size
    assert storage.of_runs(settings, [1]) == storage.Size(3, 2010 + link)
    assert storage.of_runs(settings, [1, 2, 99]) == storage.Size(4, 2310 + link)
    folders, others = storage.folders(settings)
    assert (folders, others) == ({1: storage.Size(3, 2010 + link), 2: storage.Size(1, 300)}, storage.Size(1, 77))
    assert storage.total(folders.values()) == storage.Size(4, 2310 + link)
    used = storage.usage(filled.database, settings)
    recorded = {run.id: sum(file.size for file in filled.artifacts(run.id)) for run in filled.runs(limit=1000)}
    assert (used.runs, used.artifacts) == (205, storage.Size(200, sum(recorded.values())))
    assert used.free > 0
    if filled.database.sqlite:
        assert used.database >= Path(str(filled.database.url.database)).stat().st_size
    else:
        assert used.database > 1e6
    largest = storage.largest(filled.database, {}, 5)
    assert [run.files.bytes for run in largest] == sorted(recorded.values(), reverse=True)[:5]
    assert all(recorded[run.run_id] == run.files.bytes for run in largest)
    # a killed training has checkpoints and no artifacts; the folder of 999 belongs to no run of this store
    killed = max(run_id for run_id, size in recorded.items() if not size)
    top = largest[0]
    sizes = {killed: storage.Size(2, 10**9), 999: storage.Size(1, 10**10), top.run_id: storage.Size(1, 1)}
    first, second, *_ = storage.largest(filled.database, folders | sizes, 5)
    assert (first.run_id, first.files, second) == (killed, storage.Size(2, 10**9), top)


@pytest.mark.parametrize("field", ["text", "model", "only_model"])
def test_too_long_searches_and_characters_that_no_text_has_are_refused(field: str) -> None:
    with pytest.raises(Refused, match="a search has at most 200 characters, this one 6,000"):
        Filter(**{field: "a " * 3000})
    for character in ("\0", "\udcff"):  # the second is how Python reads a byte of an argument that is not UTF-8
        with pytest.raises(Refused, match="has a character that no text of a run has"):
            Filter(**{field: f"resnet{character}"})
        with pytest.raises(Refused, match="has a character that no text of a run has"):
            Filter(tags=(character,))


@pytest.mark.slow
def test_search_for_many_words_works(filled: Store) -> None:
    words = " ".join(chr(ord("a") + place % 26) for place in range(100))
    assert filled.count(Filter(text=words)) == 0
    assert filled.count(Filter(text="a " * 100)) > 0


def test_model_search_with_a_library_finds_only_its_runs(store: Store) -> None:
    of_timm, of_torchvision = (
        store.enqueue(ProfileSpec(models=(f"{lib}:resnet18",))) for lib in ("timm", "torchvision")
    )
    finish(store, of_timm, [profile_row("resnet18d")])
    for pattern, run_ids in {
        "timm:resnet18": [of_timm],
        "TorchVision:resnet1*": [of_torchvision],
        "resnet18": [of_torchvision, of_timm],
        "t*": [],
        "open_clip:*": [],
    }.items():
        assert [run.id for run in store.find(Filter(model=pattern), limit=9)] == run_ids, pattern


def test_results_and_outcome_of_a_run_follow_its_rows(store: Store) -> None:
    """Check numbers of rows, values and outcome for runs with failed, some failed, and no failed rows."""
    all_failed, partly_failed, succeeded, training = (
        store.enqueue(ProfileSpec(models=("resnet18",))) for _ in range(4)
    )
    finish(store, all_failed, [profile_row("a", status="error"), profile_row("b", status="out_of_memory")])
    finish(store, partly_failed, [profile_row("a"), profile_row("b", status="error"), profile_row("c", status="error")])
    finish(
        store, succeeded, [benchmark_row("a", latency_ms=3.0), benchmark_row("b", latency_ms=1.0, flags=("unstable",))]
    )
    losses = [
        train_row(epoch=1, train_loss=2.0, clip_val_loss=2.5, zeroshot_top1=0.5),
        train_row(epoch=2, train_loss=1.5, clip_val_loss=2.25, zeroshot_top1=None),
    ]
    finish(store, training, [*losses, train_row(epoch=3, train_loss=None, status="error")])
    single, evaluation = store.enqueue(BenchmarkSpec(models="a")), store.enqueue(EvaluateSpec())
    finish(store, single, [benchmark_row("a", latency_ms=3.0), benchmark_row("b", status="error", latency_ms=None)])
    finish(store, evaluation, [evaluate_row("zeroshot", acc1=0.75, clip_val_loss=1.0)])
    outcomes = {run.id: (run.state, run.outcome, run.all_failed) for run in store.runs()}
    assert outcomes[all_failed] == (State.FINISHED, "all failed", True)
    assert outcomes[partly_failed] == (State.FINISHED, "finished, 2 errors", False)
    assert outcomes[succeeded] == (State.FINISHED, "finished", False)
    for selected, run_ids in {
        ("all failed",): [all_failed],
        ("finished with errors", "queued"): [single, training, partly_failed],
        ("finished",): [evaluation, succeeded],
    }.items():
        assert [run.id for run in store.find(Filter(outcomes=selected), limit=9)] == run_ids, selected
        assert store.count(Filter(outcomes=selected)) == len(run_ids)
    results = store.run(succeeded).results
    assert (results.rows, results.latency_ms, results.flags) == (2, None, ("unstable",)), (
        "no single latency for two models"
    )
    assert store.run(single).results.latency_ms == 3.0
    results = store.run(training).results
    assert (results.loss, results.held_out_loss, results.accuracy) == (1.5, 2.25, 0.5)
    results = store.run(evaluation).results
    assert (results.loss, results.held_out_loss, results.accuracy) == (None, None, 0.75), (
        "an evaluation has no held-out loss, because its pairs may be any"
    )
    both_tasks, *mixed = (store.enqueue(EvaluateSpec()) for _ in range(4))
    finish(store, both_tasks, [evaluate_row("linear-probe", acc1=0.9), evaluate_row("zeroshot", acc1=0.75)])
    for run_id, field in zip(mixed, ("model", "checkpoint", "data"), strict=True):
        finish(store, run_id, [evaluate_row("zeroshot", acc1=0.75, **{field: value}) for value in ("a", "b")])
    assert [store.run(run_id).results.accuracy for run_id in (both_tasks, *mixed)] == [0.75, None, None, None]
    for data, expected in (("a", 0.6), ("ab", None)):
        run_id = store.enqueue(EvaluateSpec())
        several = {"acc1": None, "mean_average_precision": 0.6}
        finish(store, run_id, [evaluate_row("zeroshot", data=name, **several) for name in data])
        assert store.run(run_id).results.mean_average_precision == expected
        store.delete(run_id)
    measured = store.enqueue(DeviceSpec())
    finish(store, measured, [DeviceRow(device="cpu", operation="copy", dtype="float32", latency_ms=80.0)])
    assert store.run(measured).results.latency_ms is None, "an operation of unknown size has no latency to compare"
    for run_id in (both_tasks, *mixed, measured):
        store.delete(run_id)
    assert [run.id for run in store.find(Filter(order="latency"), limit=2)] == [single, evaluation]
    assert [run.id for run in store.find(Filter(order="held_out_loss"), limit=2)] == [training, evaluation]


def test_migration_adds_mean_average_precisions(store: Store) -> None:
    run_id = store.enqueue(EvaluateSpec())
    finish(store, run_id, [evaluate_row("zeroshot", acc1=None, mean_average_precision=0.6)])
    with store.database.write() as connection:
        connection.execute(text("ALTER TABLE run_results DROP COLUMN mean_average_precision"))
        connection.execute(text("UPDATE alembic_version SET version_num = '0006'"))
    migrations.upgrade(store.database)
    assert store.run(run_id).results.mean_average_precision == 0.6


def test_migration_adds_held_out_losses_and_drops_mixed_latencies(store: Store) -> None:
    trained, several, single = store.enqueue(TrainSpec()), *(store.enqueue(BenchmarkSpec(models="a")) for _ in range(2))
    finish(store, trained, [train_row(epoch=1, train_loss=2.0, clip_val_loss=2.5)])
    finish(store, several, [benchmark_row("a", latency_ms=3.0), benchmark_row("b", latency_ms=1.0)])
    finish(store, single, [benchmark_row("a", latency_ms=3.0)])
    with store.database.write() as connection:
        downgrade(connection, "0004", FOURTH_VERSION)
        connection.execute(text("UPDATE run_results SET latency_ms = 2.0 WHERE run_id = :run"), {"run": several})
    migrations.upgrade(store.database)
    assert {run.id: (run.results.held_out_loss, run.results.latency_ms) for run in store.runs()} == {
        trained: (2.5, None),
        several: (None, None),
        single: (None, 3.0),
    }
