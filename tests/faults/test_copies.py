"""Machines with a runs folder each and one URL for copies: a folder, then a bucket of an S3 server that goes away."""

import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine import jobs
from engine.jobs import checkpoints, supervisor
from engine.jobs.log import BoundedLog
from engine.settings import Settings
from engine.specs import TrainSpec
from engine.store import Exit, Run, State, attempts, mirror, queue
from engine.store.files import RunFiles
from tests.faults.conftest import House, until

STEPS = 120

if TYPE_CHECKING:
    from tests.support.ray import Cluster
    from tests.support.s3 import Bucket


@pytest.fixture
def there(settings: Settings, tmp_path: Path) -> Settings:
    """The settings of a machine that reads."""
    return settings.model_copy(update={"runs_dir": tmp_path / "elsewhere", "artifacts_url": str(tmp_path / "copies")})


def read(settings: Settings, house: House, run_id: int) -> RunFiles:
    """The files of a run, brought to another machine."""
    mirror.fetch(settings, house.store.run(run_id))
    return RunFiles(settings.runs_dir, run_id)


@pytest.mark.slow
def test_a_supervisor_copies_what_its_worker_makes(house: House, there: Settings) -> None:
    house = replace(house, settings=house.settings.model_copy(update={"artifacts_url": there.artifacts_url}))
    long = house.submit(steps=1000, seconds=0.1)
    killed = house.submit(trouble="kill itself", device="cuda:0")
    timing = jobs.submit(house.store, house.settings, house.kinds.TimingSpec(trouble="write an artifact"))
    house.end(killed)
    assert read(there, house, killed).log_tail(1) == "the last line"
    index = mirror.look(there, house.store.run(killed))
    assert index is not None
    assert index.exit == {"code": -9, "out_of_memory": False, "note": "", "host_lost": False}
    until(lambda: "step 1\n" in read(there, house, long).log_tail(1000), "the log of a run under way")
    house.store.request_cancel(long)
    house.end(long)
    until(lambda: (read(there, house, long).dir / "finally.txt").is_file(), "the last files of a cancelled run")
    assert (read(there, house, long).dir / "finally.txt").read_text() == "saved what is worth saving"
    house.end(timing)
    assert (read(there, house, timing).dir / "numbers.txt").read_text() == "1 2 3"


def test_a_run_says_that_its_files_stay_where_they_are(
    house: House, there: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(there.artifacts_url).write_text("no folder")
    settings = house.settings.model_copy(update={"artifacts_url": there.artifacts_url})
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
        alone = settings.model_copy(update={"database_url": f"sqlite:///{unusable}"})  # a folder in place of the file
        supervisor.Copies(alone, run, attempt).finish_with_retries(Exit(0), output)
    assert files.log_tail(9).count("its files are only in") == 2, "also while the store is unavailable"
    error = house.store.run(run_id).error
    assert error.startswith(
        f"its files are only in {files.dir} on a-host, because they could not be copied: the files in"
    )
    assert error.endswith(f"Copy them on that host with `python -m engine runs upload {run_id}`")
    assert error in files.log_tail(1)
    Path(there.artifacts_url).unlink()
    attempts.close(house.store.database, attempt, Exit(0), "", "")
    files.process().write_text("{}")
    mirror.upload(settings, house.store.run(run_id))
    assert error in read(there, house, run_id).log_tail(1)


@pytest.fixture(scope="module")
def bucket() -> "Iterator[Bucket]":
    from tests.support.s3 import bucket

    with bucket() as running:
        yield running


@pytest.fixture
def in_s3(house: House, bucket: "Bucket", there: Settings, monkeypatch: pytest.MonkeyPatch) -> tuple[House, Settings]:
    """The house and the machine that reads, with copies in the bucket."""
    for name, value in bucket.variables.items():
        monkeypatch.setenv(name, value)
    changes = {"artifacts_url": bucket.url}
    return replace(house, settings=house.settings.model_copy(update=changes)), there.model_copy(update=changes)


@pytest.mark.cluster
def test_runs_outlast_a_stop_of_the_s3_server(in_s3: tuple[House, Settings], bucket: "Bucket") -> None:
    house, there = in_s3
    run_id = house.submit(steps=120, seconds=0.1, trouble="write an artifact", at=60)
    until(lambda: "step 1\n" in read(there, house, run_id).log_tail(1000), "the first copy")
    bucket.stop()
    house.steps(run_id, 90)
    with pytest.raises(mirror.Unreachable, match="Could not connect to the endpoint URL"):
        until(lambda: read(there, house, run_id) and False)
    bucket.start()
    run = house.end(run_id)
    assert (run.state, run.attempt, run.error) == (State.FINISHED, 1, "")
    time.sleep(mirror.FAILED_S)  # readers wait that long before they ask again
    until(lambda: read(there, house, run_id).log_tail(1) == "step 120\n", "the last copy")
    assert (read(there, house, run_id).dir / "numbers.txt").read_text() == "1 2 3"

    ended = house.submit(steps=20, seconds=0.1)
    house.steps(ended, 1)
    bucket.stop()
    assert house.end(ended).state is State.FINISHED, "its slot is free although its last files are not copied yet"
    assert house.end(house.submit()).state is State.FINISHED
    bucket.start()
    until(lambda: read(there, house, ended).log_tail(1) == "step 20\n", "a late copy")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the runs folders of both nodes."""
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def postgres_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgres").new_database()
    return url


@pytest.fixture(scope="module")
def ray(bucket: "Bucket", postgres_url: str, nodes: Path) -> "Iterator[Cluster]":
    """A head and a node that share no folder with anybody."""
    from tests.support.ray import cluster

    shared = bucket.variables | {"VITALS_DATABASE_URL": postgres_url}
    with cluster(shared | {"VITALS_RUNS_DIR": str(nodes / "head")}) as running:
        running.add_node(VITALS_RUNS_DIR=str(nodes / "node"))
        yield running


@pytest.mark.cluster
class TestOnACluster:
    """The machine that runs the app, the head and the node have a runs folder each."""

    @pytest.fixture
    def settings(
        self, settings: Settings, postgres_url: str, bucket: "Bucket", ray: "Cluster", monkeypatch: pytest.MonkeyPatch
    ) -> Settings:
        own = {"database_url": postgres_url, "ray_address": ray.address, "artifacts_url": bucket.url}
        variables = {f"VITALS_{name.upper()}": value for name, value in own.items()}
        for name, value in (variables | ray.variables | bucket.variables).items():
            monkeypatch.setenv(name, value)
        return settings.model_copy(update=own | {"lease_s": 5.0, "idle_exit_s": 600.0})

    def test_a_training_whose_node_is_lost_continues_exactly_on_another_one(
        self, house: House, ray: "Cluster", nodes: Path
    ) -> None:
        import torch

        def ended(run_id: int) -> Run:
            until(lambda: house.store.run(run_id).state.ended, f"the end of run {run_id}", 300)
            return house.store.run(run_id)

        jobs.ensure_scheduler(house.settings)
        until(lambda: (seen := house.store.cluster()) and seen.devices and seen.devices[0].model == "on 2 nodes")
        failed = house.submit(device="cluster:cpu", trouble="exit 137")
        assert "its memory ran out" in ended(failed).error, "the record of its exit travels too"
        fields = {"batch_size": 64, "device": "cluster:cpu", "precision": "fp32", "threads": 1}
        spec = TrainSpec.model_validate(fields | {"steps": STEPS, "save_every_steps": 10})
        ids = [jobs.submit(house.store, house.settings, spec) for _ in range(2)]
        folders = [nodes / name / str(run_id) for run_id in ids for name in ("head", "node")]
        until(lambda: sum(folder.is_dir() for folder in folders) == 2, "a training on each node")
        lost, kept = sorted(ids, key=lambda run_id: (nodes / "head" / str(run_id)).is_dir())
        until(lambda: checkpoints.complete(house.settings, house.store.run(lost)), "a copied checkpoint")
        ray.kill_node(-1)
        found = [(ended(run_id).state, ended(run_id).attempt) for run_id in (kept, lost)]
        assert found == [(State.FINISHED, 1), (State.FINISHED, 2)]
        until(lambda: (copies := mirror.look(house.settings, house.store.run(lost))) and copies.exit, "the last copy")
        log = read(house.settings, house, lost).log_tail(1000)
        assert re.search(r"continued from \w+\.pt at step [1-9]", log)
        assert log.index("Train Epoch: 0") < log.index("continued from"), (
            "the log of the node that was lost comes first"
        )
        curves = [
            [metric for metric in house.store.metrics(run_id) if metric.name == "train/loss"] for run_id in (kept, lost)
        ]
        assert curves[0] == curves[1]
        ends = []
        for run_id in (kept, lost):
            run = house.store.run(run_id)
            path = next(path for path in checkpoints.complete(house.settings, run) if path.name != "best.pt")
            assert not path.exists(), "checkpoints are not fetched unasked"
            checkpoints.fetch(house.settings, run, path.name)
            ends.append(torch.load(path, weights_only=True))
        assert [state["vitals"]["done"]["step"] for state in ends] == [STEPS, STEPS]
        weights, others = (state["state_dict"] for state in ends)
        assert weights.keys() == others.keys()
        assert all(torch.equal(weights[name], others[name]) for name in weights)
