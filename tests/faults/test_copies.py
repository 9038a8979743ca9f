"""Copies of run files, for machines with separate runs folders: to a folder, and to an S3 server that is stopped."""

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from engine import jobs
from engine.jobs import checkpoints
from engine.jobs.attempt import supervisor
from engine.jobs.log import BoundedLog
from engine.settings import Settings
from engine.specs import TrainSpec
from engine.store import Exit, Run, State, attempts, queue
from engine.store.copies import mirror, remote
from engine.store.files import RunFiles
from tests.faults.conftest import House, until

STEPS = 120

if TYPE_CHECKING:
    from tests.support.servers.ray import Cluster
    from tests.support.servers.s3 import Bucket


@pytest.fixture
def reader(settings: Settings, tmp_path: Path) -> Settings:
    """Return the settings of a machine that only reads runs."""
    return settings.model_copy(update={"runs_dir": tmp_path / "elsewhere", "artifacts_url": str(tmp_path / "copies")})


def fetch_files(settings: Settings, house: House, run_id: int) -> RunFiles:
    """Fetch the copied files of a run to the machine of `settings` and return them."""
    mirror.fetch(settings, house.store.run(run_id))
    return RunFiles(settings.runs_dir, run_id)


@pytest.mark.slow
def test_supervisor_copies_the_files_of_its_worker(house: House, reader: Settings) -> None:
    house = replace(house, settings=house.settings.model_copy(update={"artifacts_url": reader.artifacts_url}))
    long = house.submit(steps=1000, seconds=0.1)
    killed = house.submit(trouble="kill itself", device="cuda:0")
    timing = jobs.submit(house.store, house.settings, house.kinds.TimingSpec(trouble="write an artifact"))
    house.end(killed)
    assert fetch_files(reader, house, killed).log_tail(1) == "the last line"
    index = mirror.look(reader, house.store.run(killed))
    assert index is not None
    assert index.exit == {"code": -9, "out_of_memory": False, "note": "", "host_lost": False}
    until(lambda: "step 1\n" in fetch_files(reader, house, long).log_tail(1000), "the log of an active run")
    house.store.request_cancel(long)
    house.end(long)
    until(lambda: (fetch_files(reader, house, long).dir / "finally.txt").is_file(), "the last files of a cancelled run")
    assert (fetch_files(reader, house, long).dir / "finally.txt").read_text() == "saved what is worth saving"
    house.end(timing)
    assert (fetch_files(reader, house, timing).dir / "numbers.txt").read_text() == "1 2 3"


def test_copies_take_a_tenth_of_the_time_and_go_on_after_a_failure(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, pauses = 0.0, list[float]()

    def push(*_: object) -> None:
        nonlocal clock
        clock += 2.0 if len(pauses) < 3 else 0.1
        raise OSError("no answer")

    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(mirror, "push", push)
    copies = supervisor.Copies(settings, SimpleNamespace(id=1), SimpleNamespace(number=1))  # type: ignore[arg-type]
    copies._ended.wait = lambda pause: pauses.append(pause) or len(pauses) > 3  # type: ignore[assignment, func-returns-value]
    copies._copy_repeatedly()
    assert pauses == pytest.approx([5.0, 20.0, 20.0, 5.0])
    assert caplog.text.count("copying the files of run 1 failed: no answer") == 1


@pytest.mark.parametrize("timing", [True, False])
def test_files_of_a_timing_are_copied_at_its_end_only(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, timing: bool
) -> None:
    ends = list[object]()

    def push(_settings: object, _run: object, _number: int, end: object = None) -> None:
        ends.append(end)

    monkeypatch.setattr(mirror, "push", push)
    run, attempt = SimpleNamespace(id=1, spec=SimpleNamespace(exclusive=timing)), SimpleNamespace(number=1)
    copies = supervisor.Copies(settings, run, attempt)  # type: ignore[arg-type]
    copies.start()
    assert copies._thread.is_alive() != timing
    assert copies.finish(Exit(code=0)) is None
    (end,) = ends
    assert end


def test_run_has_an_error_when_its_files_cannot_be_copied(
    house: House, reader: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(reader.artifacts_url).write_text("no folder")
    settings = house.settings.model_copy(update={"artifacts_url": reader.artifacts_url})
    run_id = house.store.enqueue(house.kinds.TrialSpec())
    attempt = queue.claim(house.store.database, "a-host#1")
    assert attempt is not None
    run, files = house.store.run(run_id), house.files(run_id)
    files.prepare()
    mirror.begin(settings, run, 1)
    attempts.begin(house.store.database, attempt)
    attempts.finish(house.store.database, attempt, State.FINISHED)
    monkeypatch.setattr(supervisor, "COPY_GIVE_UP_S", 0.0)
    with closing(BoundedLog(files, 10_000)) as output:
        supervisor.Copies(settings, run, attempt).finish_with_retries(Exit(0), output)
        (unusable := house.settings.runs_dir / "no_store").mkdir()
        broken = settings.model_copy(update={"database_url": f"sqlite:///{unusable}"})  # a folder in place of the file
        supervisor.Copies(broken, run, attempt).finish_with_retries(Exit(0), output)
    assert files.log_tail(9).count("its files are only in") == 2, "also while the store is unavailable"
    error = house.store.run(run_id).error
    assert error.startswith(
        f"its files are only in {files.dir} on a-host, because they could not be copied: the files in"
    )
    assert error.endswith(f"Copy them on that host with `python -m engine runs upload {run_id}`")
    assert error in files.log_tail(1)
    Path(reader.artifacts_url).unlink()
    attempts.close(house.store.database, attempt, Exit(0), "", "")
    files.process().write_text("{}")
    mirror.upload(settings, house.store.run(run_id))
    assert error in fetch_files(reader, house, run_id).log_tail(1)


@pytest.fixture(scope="module")
def bucket() -> "Iterator[Bucket]":
    from tests.support.servers.s3 import bucket

    with bucket() as running:
        yield running


@pytest.fixture
def house_and_reader(
    house: House, bucket: "Bucket", reader: Settings, monkeypatch: pytest.MonkeyPatch
) -> tuple[House, Settings]:
    """Return the house and the settings of the reading machine, both with copies in the bucket."""
    for name, value in bucket.variables.items():
        monkeypatch.setenv(name, value)
    changes = {"artifacts_url": bucket.url}
    return replace(house, settings=house.settings.model_copy(update=changes)), reader.model_copy(update=changes)


@pytest.mark.cluster
def test_runs_survive_a_stop_of_the_s3_server(house_and_reader: tuple[House, Settings], bucket: "Bucket") -> None:
    house, reader = house_and_reader
    run_id = house.submit(steps=120, seconds=0.1, trouble="write an artifact", at=60)
    until(lambda: "step 1\n" in fetch_files(reader, house, run_id).log_tail(1000), "the first copy")
    bucket.stop()
    house.steps(run_id, 90)
    with pytest.raises(remote.Unreachable, match="Could not connect to the endpoint URL"):
        until(lambda: fetch_files(reader, house, run_id) and False)
    bucket.start()
    run = house.end(run_id)
    assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, "")
    time.sleep(mirror.FAILED_S)  # readers wait that long before they try again
    until(lambda: fetch_files(reader, house, run_id).log_tail(1) == "step 120\n", "the last copy")
    assert (fetch_files(reader, house, run_id).dir / "numbers.txt").read_text() == "1 2 3"

    short_id = house.submit(steps=20, seconds=0.1)
    house.steps(short_id, 1)
    bucket.stop()
    assert house.end(short_id).state is State.FINISHED, "its slot is free although its last files are not copied yet"
    assert house.end(house.submit()).state is State.FINISHED
    bucket.start()
    until(lambda: fetch_files(reader, house, short_id).log_tail(1) == "step 20\n", "a late copy")


@pytest.fixture(scope="module")
def nodes_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that holds the runs folders of both nodes."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def postgres_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgres").new_database()
    return url


@pytest.fixture(scope="module")
def ray(bucket: "Bucket", postgres_url: str, nodes_dir: Path) -> "Iterator[Cluster]":
    """Yield a cluster of a head and a node that share no folder with each other or with the app."""
    from tests.support.servers.ray import cluster

    shared = bucket.variables | {"VITALS_DATABASE_URL": postgres_url}
    with cluster(shared | {"VITALS_RUNS_DIR": str(nodes_dir / "head")}) as running:
        running.add_node(VITALS_RUNS_DIR=str(nodes_dir / "node"))
        yield running


@pytest.mark.cluster
class TestOnACluster:
    """The machine of the app, the head and the node have separate runs folders."""

    @pytest.fixture
    def settings(
        self, settings: Settings, postgres_url: str, bucket: "Bucket", ray: "Cluster", monkeypatch: pytest.MonkeyPatch
    ) -> Settings:
        changes = {"database_url": postgres_url, "ray_address": ray.address, "artifacts_url": bucket.url}
        variables = {f"VITALS_{name.upper()}": value for name, value in changes.items()}
        for name, value in (variables | ray.variables | bucket.variables).items():
            monkeypatch.setenv(name, value)
        return settings.model_copy(update=changes | {"lease_s": 5.0, "idle_exit_s": 600.0})

    def test_training_of_a_lost_node_continues_exactly_on_another_node(
        self, house: House, ray: "Cluster", nodes_dir: Path
    ) -> None:
        import torch

        def wait_for_end(run_id: int) -> Run:
            until(lambda: house.store.run(run_id).state.ended, f"the end of run {run_id}", 300)
            return house.store.run(run_id)

        jobs.ensure_scheduler(house.settings)
        until(lambda: (found := house.store.cluster()) and found.devices and found.devices[0].model == "on 2 nodes")
        failed = house.submit(device="cluster:cpu", trouble="exit 137")
        assert "its memory ran out" in wait_for_end(failed).error, "the exit record is copied too"
        fields = {"batch_size": 64, "device": "cluster:cpu", "precision": "fp32", "threads": 1}
        spec = TrainSpec.model_validate(fields | {"steps": STEPS, "save_every_steps": 10})
        ids = [jobs.submit(house.store, house.settings, spec) for _ in range(2)]
        folders = [nodes_dir / name / str(run_id) for run_id in ids for name in ("head", "node")]
        until(lambda: sum(folder.is_dir() for folder in folders) == 2, "a training on each node")
        lost, other = sorted(ids, key=lambda run_id: (nodes_dir / "head" / str(run_id)).is_dir())
        until(lambda: checkpoints.complete(house.settings, house.store.run(lost)), "a copied checkpoint")
        ray.kill_node(-1)
        outcomes = [(wait_for_end(run_id).state, wait_for_end(run_id).attempt) for run_id in (other, lost)]
        assert outcomes == [(State.FINISHED, 1), (State.FINISHED, 2)]
        until(lambda: (copies := mirror.look(house.settings, house.store.run(lost))) and copies.exit, "the last copy")
        log = fetch_files(house.settings, house, lost).log_tail(1000)
        assert re.search(r"continued from \w+\.pt at step [1-9]", log)
        assert log.index("Train Epoch: 0") < log.index("continued from"), "the log of the lost node comes first"
        curves = [
            [metric for metric in house.store.metrics(run_id) if metric.name == "train/loss"]
            for run_id in (other, lost)
        ]
        assert curves[0] == curves[1]
        states = []
        for run_id in (other, lost):
            run = house.store.run(run_id)
            path = next(path for path in checkpoints.complete(house.settings, run) if path.name != "best.pt")
            assert not path.exists(), "checkpoints are fetched only on request"
            checkpoints.fetch(house.settings, run, path.name)
            states.append(torch.load(path, weights_only=True))
        assert [state["vitals"]["done"]["step"] for state in states] == [STEPS, STEPS]
        weights, other_weights = (state["state_dict"] for state in states)
        assert weights.keys() == other_weights.keys()
        assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
