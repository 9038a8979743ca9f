"""The command `runs`: list, tag, note, export, prune and delete runs."""

import csv
import json
import os
import re
import resource
import stat
import sys
from hashlib import sha256
from pathlib import Path
from typing import get_args
from zipfile import ZipFile

import pandas as pd
import pytest
from sqlalchemy import update

from engine.__main__ import main
from engine.jobs.hosts import this_host
from engine.report.export import bulk
from engine.settings import Settings
from engine.specs import EvaluateSpec
from engine.store import Cause, Exit, State, Store, StoredArtifact, attempts, tables
from engine.store import queue as queueing
from engine.store.files import RunFiles
from engine.store.find import Order
from engine.store.tables import runs
from tests.support.clip import queue_train, record, train_row, write_checkpoints
from tests.support.page import ENVIRONMENT, finish, profile_row, queue


def engine(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Run a command in this process, and return its output to stdout and stderr."""
    assert main(list(map(str, arguments))) == code
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.fixture
def ended(store: Store) -> list[int]:
    """Return the ids of three finished runs."""
    ids = [queue(store, model, device="cpu") for model in ("resnet18", "resnet50", "vit_tiny")]
    for run_id in ids:
        finish(store, run_id, [profile_row(f"row_of_{run_id}")])
    return ids


def test_runs_of_an_empty_store_prints_no_runs_yet(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert engine(capsys, "runs") == engine(capsys, "runs", "list", "--order", "oldest") == "no runs yet\n"
    assert engine(capsys, "runs", "list", "--kind", "train") == "no run matches\n"


@pytest.mark.slow
def test_runs_wait_ends_with_the_last_run_and_tells_of_failures(
    store: Store, ended: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In place of a scheduler, each look finishes one more run."""
    queued = [queue(store, "resnet18"), queue(store, "resnet50")]
    rows = {queued[0]: [profile_row("resnet18")], queued[1]: [profile_row("resnet50", status="error", error="no")]}
    todo = list(queued)

    def finish_one(_settings: Settings, opened: Store) -> None:
        finish(opened, todo[0], list(rows[todo.pop(0)]))

    monkeypatch.setattr("engine.jobs.ensure_scheduler", finish_one)
    monkeypatch.setattr("engine.cli.runs.POLL_S", 0)
    printed = engine(capsys, "runs", "wait", ended[0], *queued, code=1)
    lines = [line for line in printed.splitlines() if not line.startswith("waiting")]
    assert lines == [
        f"run {ended[0]} is finished",
        f"run {queued[0]} is finished",
        f"run {queued[1]} is all failed",
        "1 of 3 runs did not finish or have failed rows",
    ]
    assert engine(capsys, "runs", "wait", ended[0]) == f"run {ended[0]} is finished\n"
    assert "there is no run 99" in engine(capsys, "runs", "wait", ended[0], 99, code=2)
    store.request_cancel(cancelled := queue(store, "resnet18"))
    assert f"run {cancelled} is cancelled" in engine(capsys, "runs", "wait", cancelled, code=1)


@pytest.mark.slow
def test_runs_list_filters_orders_and_exports(
    store: Store, ended: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queued_id = queue(store, "resnet18")

    def listed(*arguments: object) -> list[int]:
        lines = engine(capsys, "runs", "list", *arguments).splitlines()[1:]
        return [int(line.split()[0]) for line in lines if " of " not in line]

    assert listed() == [queued_id, *ended[::-1]]
    assert listed("--model", "resnet*") == [queued_id, ended[1], ended[0]]
    assert listed("--model", f"row_of_{ended[2]}", "--kind", "profile,train") == [ended[2]]
    assert listed("--state", "queued,running") == [queued_id]
    assert listed("--device", "cpu", "--order", "oldest", "--limit", 1, "--page", 2) == [ended[1]]
    assert all(len(listed("--order", order)) == 4 for order in get_args(Order))
    assert "3 of 4 runs" in engine(capsys, "runs", "list", "--limit", 3)
    assert listed("--text", "RESNET50") == [ended[1]]
    out = tmp_path / "runs.csv"
    assert "3 runs written" in engine(capsys, "runs", "list", "--state", "finished", "--limit", 1, "--output", out)
    assert [line["run"] for line in csv.DictReader(out.read_text().splitlines())] == [str(run) for run in ended[::-1]]
    finish(store, queued_id, [profile_row("resnet18", status="error", error="no")])
    assert listed("--state", "all failed") == [queued_id]
    assert listed("--state", "finished") == ended[::-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["list", "--kind", "nonsense"], "kind 'nonsense' is not one of "),
        (["list", "--state", "lost"], "state 'lost' is not one of queued"),
        (["tag", "1", "--add", "x" * 41], "a tag has 1 to 40 characters"),
        (["tag", "77", "--add", "a"], "there is no run 77"),
        (["note", "77", "a"], "there is no run 77"),
        (["rows", "77"], "there is no run 77"),
        (["delete", "77"], "there is no run 77"),
        (["delete"], "required: RUN-IDS"),
        (["delete", "x"], "RUN-IDS: must be a whole number (given: 'x')"),
        (["export", "1", "--output", "-"], "--output: this command writes only to a file: give its name instead of -"),
    ],
)
def test_bad_usage_of_runs_prints_the_reason_and_exits_with_2(
    ended: list[int], arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", *arguments]) == 2
    error = capsys.readouterr().err
    assert answer in error
    assert error.count("error: ") == 1


@pytest.mark.slow
def test_runs_tag_and_runs_note_change_runs(store: Store, ended: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    first, second, _ = ended
    printed = engine(capsys, "runs", "tag", first, second, "--add", "baseline,to keep")
    assert printed.splitlines() == [f"run {run}: baseline, to keep" for run in (first, second)]
    assert engine(capsys, "runs", "tag", second, "--remove", "to keep") == f"run {second}: baseline\n"
    assert "#baseline  #to keep" in engine(capsys, "runs", "list", "--tag", "to keep,baseline")
    engine(capsys, "runs", "note", first, "as the paper has it")
    assert store.run(first).notes == "as the paper has it"
    assert str(first) in engine(capsys, "runs", "list", "--text", "paper")
    assert "no notes" in engine(capsys, "runs", "note", first, "")


@pytest.mark.slow
def test_delete_of_several_runs_needs_confirmation(
    store: Store, ended: list[int], settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    queued_id = queue(store, "resnet18")
    path = RunFiles(settings.runs_dir, ended[0]).log
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0" * 1_500_000)
    output = engine(capsys, "runs", "delete", *ended[:2], queued_id, code=2)
    assert "This deletes 3 runs with 1 file of 1.5 MB permanently. Add --yes to confirm." in output
    assert "there is no run 99" in engine(capsys, "runs", "delete", ended[0], 99, "--yes", code=2)
    assert len(store.runs()) == 4
    alone = engine(capsys, "runs", "delete", queued_id, code=2)
    assert alone.startswith(f"error: run {queued_id} is queued: cancel it first")
    output = engine(capsys, "runs", "delete", *ended[:2], queued_id, "--yes", code=1)
    assert f"run {queued_id} is queued: cancel it first" in output
    assert "1 of 3 runs could not be deleted" in output
    assert [run.id for run in store.runs()] == [queued_id, ended[2]]
    assert not path.exists()
    best = RunFiles(settings.runs_dir, ended[2]).dir / "checkpoints" / "best.pt"
    evaluation = store.enqueue(EvaluateSpec(model="ViT-B-32", checkpoint=str(best)))
    output = engine(capsys, "runs", "delete", ended[2], code=2)
    assert f"permanently. 1 other run began from it: evaluate {evaluation}. It keeps" in output
    assert output.strip().endswith("search its images. Add --yes to confirm.")
    store.request_cancel(evaluation)
    engine(capsys, "runs", "delete", evaluation)
    engine(capsys, "runs", "delete", ended[2])
    assert [run.id for run in store.runs()] == [queued_id]


@pytest.mark.slow
def test_prune_keeps_tagged_noted_and_recent_runs(
    settings: Settings, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    old, tagged, noted, recent, queued_id = (queue(store, "resnet18", device="cpu") for _ in range(5))
    for run_id in (old, tagged, noted, recent):
        store.request_cancel(run_id)
    store.change_tags([tagged], add=["paper"])
    store.set_notes(noted, "see the paper")
    with store.database.write() as connection:
        for found, days in ((runs.c.id != recent, 8), (runs.c.id == recent, 6)):
            connection.execute(update(runs).where(found).values(ended_at=runs.c.ended_at - days * 86_400))
    RunFiles(settings.runs_dir, old).prepare()
    prune = ("runs", "prune", "--days", "7")
    preview = "1 run with 0 files of 0.0 MB would be deleted permanently. Add --yes to delete.\n"
    assert engine(capsys, *prune) == preview
    assert store.run(old).state is State.CANCELLED
    assert engine(capsys, *prune, "--state", "finished", "--yes").strip() == "no run matches"
    assert engine(capsys, *prune, "--yes").strip() == f"run {old} is deleted"
    assert {run.id for run in store.runs()} == {tagged, noted, recent, queued_id}
    assert not RunFiles(settings.runs_dir, old).dir.exists()


@pytest.mark.slow
def test_runs_rows_exports_rows_and_runs_storage_shows_sizes(
    store: Store,
    ended: list[int],
    settings: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "rows.csv"
    assert engine(capsys, "runs", "rows", *ended, "--output", out) == f"{out}\n"
    assert [line["run"] for line in csv.DictReader(out.read_text().splitlines())] == list(map(str, ended))
    out = tmp_path / "rows.parquet"
    assert "--output ends in .parquet, but --format is csv. Use the same format for both." in engine(
        capsys, "runs", "rows", *ended, "--output", out, "--format", "csv", code=2
    )
    engine(capsys, "runs", "rows", ended[0], "--output", tmp_path / "rows.txt", "--format", "json")
    assert json.loads((tmp_path / "rows.txt").read_text())[0]["run"] == ended[0]
    unknown = tmp_path / "rows.JSON"
    assert f"{unknown} is no .csv, .json, .parquet or .zip file. Rename it, or give --format." in engine(
        capsys, "runs", "rows", *ended, "--output", unknown, code=2
    )
    engine(capsys, "runs", "rows", *ended, "--output", out)
    assert list(pd.read_parquet(out)["run"]) == ended
    assert engine(capsys, "runs", "rows", *ended, "--output", "-") == (tmp_path / "rows.csv").read_text()
    printed = engine(capsys, "runs", "rows", *ended, "--output", "-", "--format", "json")
    assert [row["run"] for row in json.loads(printed)] == ended
    refusal = engine(capsys, "runs", "rows", *ended, "--output", "-", "--format", "parquet", code=2)
    assert "parquet is not for a terminal: give --output FILE instead of -" in refusal
    out = tmp_path / "rows.zip"
    engine(capsys, "runs", "rows", *ended, "--output", out, "--format", "json")
    assert [row["run"] for row in json.loads(ZipFile(out).read("profile.json"))] == ended
    training = store.enqueue(EvaluateSpec())
    with monkeypatch.context() as patched:
        patched.setattr(bulk, "rows", lambda *_: pytest.fail("rows are read before the refusal"))
        refusal = engine(capsys, "runs", "rows", *ended, training, "--output", tmp_path / "m.json", code=2)
    assert "these runs are of 2 kinds (profile, evaluate), and m.json takes one table. Give --output" in refusal
    engine(capsys, "runs", "rows", *ended, training, "--output", out)
    assert ZipFile(out).namelist() == ["profile.csv", "evaluate.csv"]
    path = RunFiles(settings.runs_dir, ended[0]).log
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0" * 2_500_000)
    lines = engine(capsys, "runs", "storage").splitlines()
    assert lines[0].split() == ["runs", "4"]
    assert "2.5 MB in 1 file" in next(line for line in lines if line.startswith("folders"))
    assert f"run {ended[0]:>6}          2.5 MB  profile    " in "\n".join(lines)  # it has no artifacts


@pytest.mark.slow
def test_runs_show_prints_text_or_json(
    store: Store, ended: list[int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queued_ids = [queue(store, "resnet18") for _ in range(2)]
    shown = engine(capsys, "runs", "show", queued_ids[1])
    assert f"run {queued_ids[1]} (profile) is queued" in shown
    assert "position in the queue: 2" in shown
    assert "disk space" not in shown
    monkeypatch.setenv("VITALS_MIN_FREE_GB", "1e9")
    shown = engine(capsys, "runs", "show", queued_ids[1])
    assert "position in the queue: 2\nstarts when there is disk space: " in shown
    assert "VITALS_MIN_FREE_GB asks for 1e+09 GB. Delete runs, or lower it." in shown
    attempt = queueing.claim(store.database, "here", queued_ids[0])
    assert attempt
    attempts.begin(store.database, attempt)
    attempts.record(store.database, attempt, [profile_row("resnet18", status="error", error="no such size")])
    assert "no such size" in engine(capsys, "runs", "show", queued_ids[0]), "also before the run has ended"
    attempts.close(store.database, attempt, Exit(-9), Cause.KILLED, "killed by\nSIGKILL")
    first, second, *_ = engine(capsys, "runs", "show", queued_ids[0]).splitlines()
    assert (first, second) == (f"run {queued_ids[0]} (profile) is failed: killed", "killed by SIGKILL")
    used = ENVIRONMENT.model_copy(update={"settings": {"lr": 0.5}})
    finish(store, queued_ids[1], [profile_row("resnet18")], used)
    shown = engine(capsys, "runs", "show", queued_ids[1]).splitlines()
    assert shown[1:4] == [
        f"{'settings':12} {'models':24} resnet18",
        f"{'used':12} {'lr':24} 0.5",
        f"{'environment':12} {'host':24} here",
    ]
    assert shown[4].startswith(" " * 13)
    facts = json.loads(engine(capsys, "runs", "show", ended[1], "--json"))
    assert (facts["id"], facts["outcome"], facts["spec"]["models"]) == (ended[1], "finished", ["resnet50"])
    assert [row["model"] for row in facts["rows"]] == [f"row_of_{ended[1]}"]


@pytest.mark.slow
def test_runs_show_marks_checkpoints_that_are_gone(
    store: Store, settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ("", "latest.pt", "epoch_1.pt", "latest.pt", "epoch_2.pt")
    rows = [
        train_row(place, step=place, checkpoint=name and f"checkpoints/{name}") for place, name in enumerate(named, 1)
    ]
    run_id = queue_train(store)
    record(store, run_id, rows)
    write_checkpoints(RunFiles(settings.runs_dir, run_id).dir, "latest.pt", "best.pt", "epoch_2.pt")
    shown = [line for line in engine(capsys, "runs", "show", run_id).splitlines() if line.endswith(" ok")]
    texts = ["", "latest.pt (replaced)", "epoch_1.pt (removed)", "latest.pt", "epoch_2.pt"]
    for text, line in zip(texts, shown, strict=True):
        words = line.split("checkpoints/")[1].split() if text else []
        assert " ".join(words[:-2]) == text  # the last two columns are best and status
    out = tmp_path / "rows.csv"
    engine(capsys, "runs", "rows", run_id, "--output", out)
    assert list(pd.read_csv(out)["checkpoint"].fillna("")) == [row.checkpoint for row in rows]


@pytest.mark.slow
def test_queued_run_is_cancelled_and_queued_again(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedulers = list[object]()
    monkeypatch.setattr("engine.jobs.lifecycle.start_scheduler", lambda *_: schedulers.append(1))
    run_id = queue(store, "timm:resnet18")
    assert engine(capsys, "runs", "cancel", run_id) == f"run {run_id} is cancelled\n"
    assert store.run(run_id).state is State.CANCELLED
    assert engine(capsys, "resume", run_id) == f"run {run_id} is queued again\n"
    assert store.run(run_id).state is State.QUEUED
    other = queue(store, "timm:resnet50")
    assert engine(capsys, "runs", "cancel", run_id, other, 99, code=2) == "error: there is no run 99\n"
    assert store.run(run_id).state is State.QUEUED
    lines = f"run {run_id} is cancelled\nrun {other} is cancelled\n"
    assert engine(capsys, "runs", "cancel", f"{run_id},{other}") == lines
    assert engine(capsys, "runs", "cancel", run_id, other, run_id) == lines  # ended runs stay as they are
    assert len(schedulers) == 1, "for the run that was queued again"
    active = queue(store, "timm:resnet18")
    assert queueing.claim(store.database, this_host())
    assert engine(capsys, "runs", "cancel", active) == f"run {active} is asked to stop\n"
    assert len(schedulers) == 2, "that of the run may have exited"
    marked = rf"{this_host()} \(this host\): last heartbeat \d+ s ago, run {active}\n"
    assert re.fullmatch(marked, engine(capsys, "runs", "hosts"))


@pytest.mark.slow
def test_hosts_with_open_runs_are_listed_and_declared_gone(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedulers = list[object]()
    monkeypatch.setattr("engine.jobs.lifecycle.start_scheduler", lambda *_: schedulers.append(1))
    run_id = queue(store, "resnet18")
    attempt = queueing.claim(store.database, "elsewhere#0123456789ab", run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    assert re.fullmatch(
        rf"elsewhere#0123456789ab: last heartbeat \d+ s ago, run {run_id}\n", engine(capsys, "runs", "hosts")
    )
    with store.database.write() as connection:
        connection.execute(update(tables.attempts).values(heartbeat_at=0.0))
    assert schedulers == []
    assert engine(capsys, "runs", "hosts", "--gone", "elsewhere").startswith(f"run {run_id} is ")
    assert len(schedulers) == 1, "its runs may be queued again"
    assert engine(capsys, "runs", "hosts") == "no host has open runs\n"


@pytest.mark.slow
def test_runs_log_explains_a_missing_log(
    settings: Settings, store: Store, ended: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    queued_id = queue(store, "resnet18")
    assert engine(capsys, "runs", "log", queued_id) == f"run {queued_id} has no log yet: it is queued\n"
    store.request_cancel(queued_id)
    assert engine(capsys, "runs", "log", queued_id) == f"run {queued_id} has no log: it never started\n"
    starting_id = queue(store, "resnet50")
    assert queueing.claim(store.database, "elsewhere", starting_id) is not None
    assert engine(capsys, "runs", "log", starting_id) == f"run {starting_id} has no log yet: it is starting\n"
    in_foreground = f"run {ended[0]} has no log here: it ran in a terminal, or on a host with another runs folder\n"
    assert engine(capsys, "runs", "log", ended[0]) == in_foreground
    files = RunFiles(settings.runs_dir, ended[0])
    files.prepare()
    files.log.touch()
    assert engine(capsys, "runs", "log", ended[0]) == f"run {ended[0]} has an empty log\n"


def test_rows_of_a_run_named_twice_are_written_once(
    ended: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    engine(capsys, "runs", "rows", ended[1], ended[0], ended[1], "--output", out)
    assert [row["run"] for row in json.loads(out.read_text())] == [ended[1], ended[0]]
    assert engine(capsys, "runs", "tag", ended[0], ended[0], "--add", "x") == f"run {ended[0]}: x\n"


def test_runs_log_keeps_tabs_and_replaces_escape_characters(
    settings: Settings, ended: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    RunFiles(settings.runs_dir, ended[0]).log.parent.mkdir(exist_ok=True)
    RunFiles(settings.runs_dir, ended[0]).log.write_text("loss\t1.5\x1b[2K\n")
    assert engine(capsys, "runs", "log", ended[0]) == "loss\t1.5\ufffd[2K\n"
    RunFiles(settings.runs_dir, ended[0]).log.write_text("one\ntwo\nthree\n")
    assert engine(capsys, "runs", "log", ended[0], "--lines", 2) == "two\nthree\n"


FILES = {
    "catalog --match resnet18 --output FILE": "c.csv",
    "runs list --output FILE": "runs.parquet",
    "runs rows 1 --output FILE": "rows.csv",
    "runs export 1 --output FILE": "run.zip",
}


@pytest.mark.parametrize(("command", "name"), FILES.items())
def test_full_disk_keeps_the_old_file_and_gives_a_clear_error(
    ended: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    name: str,
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit on file sizes would leave truncated .pyc files
    path = tmp_path / name
    path.write_text("what was here before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
    try:
        output = engine(capsys, *command.replace("FILE", str(path)).split(), code=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert output == f"error: {path} cannot be written: the disk is full\n"
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [name]
    assert path.read_text() == "what was here before"
    path.chmod(0o600)
    engine(capsys, *command.replace("FILE", str(path)).split())
    assert path.stat().st_size > 50
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_pipes_links_and_devices_are_written_directly(
    ended: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    engine(capsys, "runs", "rows", ended[0], "--output", f"/dev/fd/{writer}")
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert "row_of" in pipe.read()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "rows.csv")
    engine(capsys, "runs", "rows", ended[0], "--output", link)
    assert link.is_symlink()
    assert "row_of" in (tmp_path / "rows.csv").read_text()
    assert engine(capsys, "runs", "rows", ended[0], "--output", "/dev/full", code=2) == (
        "error: /dev/full cannot be written: the disk is full\n"
    )


def test_export_names_the_files_it_leaves_out(
    settings: Settings, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id, path = queue_train(store), tmp_path / "run.zip"
    folder = RunFiles(settings.runs_dir, run_id).dir
    write_checkpoints(folder, "best.pt", "latest.pt")
    (folder / "checkpoints" / "latest.pt").write_bytes(bytes(50_000_000))
    recorded = [
        StoredArtifact(name=f"checkpoints/{name}", kind="checkpoint", size=len(data), sha256=sha256(data).hexdigest())
        for name, data in (("best.pt", b"weights"), ("latest.pt", bytes(50_000_000)))
    ]
    record(store, run_id, [train_row(1), *recorded])
    assert engine(capsys, "runs", "export", run_id, "--output", path) == (
        f"{path}\nnot in the bundle, because it takes at most 50 MB of files: checkpoints/latest.pt\n"
    )
    imported = engine(capsys, "runs", "import", path)
    assert imported == f"imported as run {run_id + 1}\n"
