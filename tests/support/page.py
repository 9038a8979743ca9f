"""Helpers for tests of pages: a small catalogue, stored runs, and functions that open pages."""

import json
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs

from streamlit import config
from streamlit.components.v2 import manifest_scanner
from streamlit.runtime.scriptrunner.script_cache import ScriptCache
from streamlit.testing.v1 import AppTest, app_test, local_script_runner
from streamlit.util import calc_hash

from engine.estimate import devices, work
from engine.report.timings import estimates
from engine.results import (
    BenchmarkRow,
    Device,
    Environment,
    Machine,
    OperatorCount,
    ProfileRow,
    Progress,
    RecurrentRow,
    Row,
    samples_name,
)
from engine.settings import ROOT
from engine.specs import BenchmarkSpec, ProfileSpec, RecurrentSpec
from engine.specs.fields.runners import RUNNERS
from engine.specs.questions import Question
from engine.store import Exit, State, Store, attempts
from engine.store import queue as queueing
from pages.shared import browser_history

PATIENCE_S = 120
"""Wait at most this many seconds for a page. A loaded machine draws the largest one in this time."""

FOLDERS = sorted(path.parent.name for path in (ROOT / "pages").glob("*/page.py"))
ADDRESSES = {folder: folder for folder in FOLDERS} | {"catalog": "", "history": "runs"}
"""The path of each page's address, by its folder."""

CATALOGUE = """library,model,family,image_size,context_length,mparams,gmacs,gflops,macts,weights_mb,\
inference_peak_mb,kept_mb,complete,uncounted,notes,status,error
open_clip,ViT-B-32,clip_vit,224,77,151.28,7.39,14.78,10.3,605,608,90.5,True,{},[],ok,
open_clip,ViT-L-14,clip_vit,224,77,427.62,87.73,175.46,123.0,1710,1800,700,True,{},[],ok,
timm,resnet18,resnet,224,,11.69,1.82,3.64,2.5,46.8,56,20.7,True,{},[],ok,
timm,resnet50,resnet,224,,25.56,4.09,8.18,11.1,102,113,83.6,True,{},[],ok,
timm,vit_tiny_patch16_224,vision_transformer,224,,5.72,1.26,2.52,5.97,23,30,30.5,True,{},[],ok,
timm,odd_one,oddity,320,,9,3,6,4,36,60,25,False,"{""sort"": 2}",\
"[""work of unknown size is missing: sort (2 calls)""]",ok,
timm,broken,oddity,1024,,,,,,,,,True,{},[],error,RuntimeError: **no** <b>way</b>
"""


# Cached, because each AppTest would read the metadata of all installed packages again, which takes 0.14 s.
manifest_scanner.scan_component_manifests = cache(manifest_scanner.scan_component_manifests)
# One cache of compiled pages for all tests, as a server has. Each run of an AppTest would compile its page again.
app_test.ScriptCache = local_script_runner.ScriptCache = cache(ScriptCache)
config.set_option("secrets.files", [])  # a checkout may have secrets that configure sign-in
Q = TypeVar("Q", bound=Question)


class Answering:
    """Fake of `engine.jobs.answers.Answers`. A test sets the answer to a kind of question in `futures`."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.futures: defaultdict[type[Question], Future[dict[str, Any]]] = defaultdict(Future)
        """The future of each class of questions."""

    def start(self) -> None:
        """Do nothing: there is no process to start."""

    def ask(self, question: Question) -> "Future[dict[str, Any]]":
        self.asked.append(question)
        return self.futures[type(question)]

    def asked_of(self, kind: type[Q]) -> list[Q]:
        """Return the questions of this kind asked so far."""
        return [question for question in self.asked if isinstance(question, kind)]

    def latest(self, question: Question) -> "Future[dict[str, Any]] | None":
        answer = self.futures[type(question)]
        return answer if answer.done() else None


def write_catalogue(folder: Path) -> Path:
    """Write a catalogue of seven rows, one incomplete and one failed, and return its folder."""
    folder.mkdir()
    lines = CATALOGUE.splitlines(keepends=True)
    for library in ("open_clip", "timm"):
        rows = [line for line in lines[1:] if line.startswith(f"{library},")]
        (folder / f"{library}.csv").write_text("".join([lines[0], *rows]))
    (folder / "open_clip_weights.json").write_text('{"ViT-B-32": ["openai", "laion2b_e16"]}')
    (folder / "versions.json").write_text('{"torch": "0.0.1", "counted_on": "2026-11-20"}')
    return folder


def charts(app: AppTest) -> list[dict[str, Any]]:
    """Return the content of each chart on the page: data, layout, and its text for screen readers."""
    return [json.loads(sent.bytes.partition(b"\n")[2]) for sent in _sent(app, "chart")]


def verbatim(app: AppTest) -> list[str]:
    """Return the commands and logs on the page."""
    return [json.loads(sent.json)["text"] for sent in _sent(app, "verbatim")]


def _sent(app: AppTest, component: str) -> list[Any]:
    return [item.proto for item in app.get("bidi_component") if item.proto.component_name == component]


def open_page(path: str = "", **query: str | list[str]) -> AppTest:
    """Open the app at a page such as `profile/page.py`, or at its default page. query: the address's parameters."""
    app = AppTest.from_file(str(ROOT / "pages" / "frame.py"), default_timeout=PATIENCE_S)
    if path:  # AppTest.switch_page would need the default page to be drawn first
        app._page_hash = calc_hash(ADDRESSES[path.partition("/")[0]])
    for name, value in query.items():
        app.query_params[name] = value
    app.session_state[browser_history.MERGING] = True  # a browser reports this
    return app.run()


def followed(app: AppTest, label: str) -> AppTest:
    """Follow the link with this label, and return its page. All links with the label must lead to the same page."""
    links = [element.proto for element in app.get("page_link") if element.proto.label == label]
    ((page, query_string),) = {(link.page, link.query_string) for link in links}
    (folder,) = [folder for folder, address in ADDRESSES.items() if address == page]
    query = {name: values if len(values) > 1 else values[0] for name, values in parse_qs(query_string).items()}
    return open_page(f"{folder}/page.py", **query)


def unfold(app: AppTest, label: str, *, unfolded: bool = True) -> AppTest:
    """Expand the section whose label begins with `label`, or collapse it, and return the page."""
    (expander,) = [element for element in app.get("expander") if element.label.startswith(label)]
    app.session_state[expander.proto.id.split("-", 2)[2]] = unfolded  # $$ID-<digest>-<key>
    return app.run()


def further(app: AppTest, group: str, *, shown: bool = True) -> AppTest:
    """Show or hide a group of the form's further settings, and return the page."""
    (groups,) = [pills for pills in app.pills if pills.label.startswith("Further settings") and group in pills.options]
    return (groups.select(group) if shown else groups.unselect(group)).run()


def texts(app: AppTest) -> str:
    """Return all text on the page outside of tables and charts."""
    kinds = (app.title, app.header, app.caption, app.markdown, app.text, app.error, app.warning, app.info)
    return "\n".join([*(str(element.value) for elements in kinds for element in elements), *verbatim(app)])


def profile_row(model: str, library: str = "timm", **figures: object) -> ProfileRow:
    known: dict[str, object] = {
        **{"library": library, "model": model, "counter": "torch", "device": "meta", "batch_size": 1},
        **{"precision": "float32", "image_size": "224", "mparams": 10.0, "gmacs": 2.0, "gflops": 4.0, "macts": 3.0},
        **{"image_mparams": 10.0, "image_gmacs": 2.0, "image_macts": 3.0, "seconds": 0.5},
        "operators": (
            OperatorCount(
                **{"operator": "mm", "calls": 4, "flops": 4_000_000_000, "activations": 3_000_000},
                **{"read_bytes": 5_000_000, "written_bytes": 1_000_000, "work": "counted"},
            ),
        ),
    }
    return ProfileRow.model_validate(known | figures)


ENVIRONMENT = Environment(
    **{"host": "here", "platform": "Linux", "python": "3.11", "cpu": "cpu", "threads": 2, "memory_gb": 8.0},
    **{"device": "meta", "device_name": "meta", "versions": {"torch": "2.15.0"}, "date": "2026-11-20T00:00:00+00:00"},
)


def events(
    rows: Iterable[Row], total: int, environment: Environment = ENVIRONMENT
) -> list[Environment | Progress | Row]:
    """Return the events that a task yields for these rows."""
    out: list[Environment | Progress | Row] = [environment]
    for done, row in enumerate(rows):
        out += [Progress(done=done, total=total, note=row.model), row]
    return [*out, Progress(done=len(out) // 2, total=total)]


def queue(store: Store, *models: str, **fields: object) -> int:
    """Queue a profile without waking a scheduler, and return its run id."""
    return store.enqueue(ProfileSpec.model_validate({"models": models, **fields}))


def benchmark_row(model: str, variant: str = "eager", **figures: object) -> BenchmarkRow:
    """Return a row of three processes with 30 samples. A variant other than eager is compared with eager."""
    known: dict[str, object] = {
        **{"library": "timm", "model": model, "family": "resnet", "mode": "inference", "variant": variant},
        **{"device": "cpu", "device_name": "a cpu", "threads": 2, "batch_size_requested": "8", "batch_size": 8},
        **{"image_size": "224", "precision": "float32", "dtype": "float32", "latency_ms": 20.0, "mean_ms": 21.0},
        **{"std_ms": 1.5, "samples_per_s": 400.0, "first_call_ms": 90.0, "samples": 30, "calls_per_sample": 1},
        **{"loop_ms": 0.001, "processes": 3, "process_medians_ms": (19.5, 20.0, 20.4), "spread": 0.045},
        **{"process_peak_mb": 300.0, "mparams": 11.69, "gmacs": 1.82, "gflops": 3.64, "macts": 2.5, "seconds": 12.0},
        "samples_file": samples_name("timm", model, 8),
    }
    if variant != "eager":
        known |= {"baseline": "eager", "speedup": 1.25, "speedup_low": 1.2, "speedup_high": 1.3, "verdict": "faster"}
    return BenchmarkRow.model_validate(known | figures)


def write_samples(run_dir: Path, row: BenchmarkRow, **variants: list[list[float]]) -> None:
    """Write a task's file of samples. variants: the samples in ms of each variant, one list per process."""
    path = run_dir / row.samples_file
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["process,mode,variant,round,calls,forward_ms,backward_ms,optimizer_ms"]
    for variant, processes in variants.items():
        for process, samples in enumerate(processes, start=1):
            lines += [f"{process},{row.mode},{variant},{place},1,{ms},," for place, ms in enumerate(samples)]
    path.write_text("\n".join(lines) + "\n")


def finish(
    store: Store,
    run_id: int,
    rows: list[Row],
    environment: Environment = ENVIRONMENT,
    state: State = State.FINISHED,
) -> None:
    """Finish a queued run with these rows, as a worker would."""
    attempt = queueing.claim(store.database, ENVIRONMENT.host, run_id)
    assert attempt
    attempts.begin(store.database, attempt)
    attempts.record(store.database, attempt, events(rows, len(rows), environment))
    attempts.finish(store.database, attempt, state)
    attempts.close(store.database, attempt, Exit(code=0), None, "")


def store_machine(store: Store) -> None:
    """Store a description of this machine, as a probe would."""
    store.save_machine(
        Machine(
            **{"host": ENVIRONMENT.host, "platform": "Linux", "cpu": "a cpu", "threads": 2, "memory_gb": 8.0},
            **{"devices": (Device(name="cpu", model="a cpu", memory_gb=8.0),), "date": ENVIRONMENT.date},
        )
    )


def calibrated_by_hand(store: Store, **figures: object) -> None:
    """Store a calibration whose models take 1.9 or 2.1 times as long as on the published i7. figures: of all rows."""
    counted = work.read(ROOT / "data" / "catalog")
    spec = estimates.calibration(counted)
    known = devices.find(devices.shipped(), "i7")[0]
    default_sizes = counted.reset_index().drop_duplicates("name").set_index(work.KEY)
    latency = devices.estimate(known, default_sizes, 1)["latency_ms"]
    latency *= [1.9 + 0.2 * (place % 2) for place in range(len(latency))]
    rows = [
        benchmark_row(
            name.partition(":")[2],
            **{"image_size": size, "batch_size": 1, "latency_ms": ms, "samples_per_s": 1000 / ms, "flags": ()}
            | figures,
        )
        for (name, size), ms in latency.items()
        if name in spec.models
    ]
    finish(store, store.enqueue(spec, name=estimates.CALIBRATION), rows)


def queue_benchmark(store: Store, *models: str, **fields: object) -> int:
    """Queue a benchmark without waking a scheduler, and return its run id."""
    return store.enqueue(BenchmarkSpec.model_validate({"models": models, **fields}))


def recurrent_row(runner: str, **figures: object) -> RecurrentRow:
    """Return a row of three processes with 30 samples. A runner other than aten is compared with aten."""
    known: dict[str, object] = {
        **{"library": RUNNERS[runner].library, "model": runner, "family": RUNNERS[runner].family},
        **{"network": RUNNERS[runner].network, "device": "cpu", "device_name": "a cpu", "threads": 2},
        **{"precision": "float32", "mini_batch": 8, "seq_length": 20, "num_layers": 1, "input_size": 64},
        **{"hidden_size": 64, "proj_size": 0, "latency_ms": 30.0, "mean_ms": 31.0, "std_ms": 1.5},
        **{"forward_ms": 10.0, "forward_mean_ms": 10.5, "forward_std_ms": 0.5, "forward_spread": 0.02},
        **{"backward_ms": 20.0, "backward_mean_ms": 20.5, "backward_std_ms": 1.25, "backward_spread": 0.03},
        **{"first_call_ms": 90.0, "samples": 30, "calls_per_sample": 1, "loop_ms": 0.001, "processes": 3},
        **{"process_medians_ms": (29.5, 30.0, 30.4), "spread": 0.03, "steps_per_s": 667.0, "gflops_per_step": 0.001},
        **{"gflops": 0.02, "output_error": 1e-7, "gradient_error": 2e-7, "tolerance": 1e-3, "process_peak_mb": 250.0},
        **{"seconds": 12.0, "samples_file": samples_name(RUNNERS[runner].family)},
    }
    if runner != "aten":
        known |= {"baseline": "aten", "speedup": 1.25, "speedup_low": 1.2, "speedup_high": 1.3, "verdict": "faster"}
    if RUNNERS[runner].family == "resnet":
        known |= dict.fromkeys(("seq_length", "num_layers", "input_size", "hidden_size", "proj_size"), None)
    return RecurrentRow.model_validate(known | figures)


def write_recurrent_samples(
    run_dir: Path, row: RecurrentRow, **runners: tuple[list[list[float]], list[list[float]]]
) -> None:
    """Write a task's file of samples. runners: forward and backward samples in ms of each runner, one list per process.

    A runner with an empty backward list has only a forward pass.
    """
    path = run_dir / row.samples_file
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["process,runner,round,calls,forward_ms,backward_ms"]
    for runner, (forward, backward) in runners.items():
        for process, samples in enumerate(forward, start=1):
            for place, ms in enumerate(samples):
                back = backward[process - 1][place] if backward else ""
                lines.append(f"{process},{runner},{place},1,{ms},{back}")
    path.write_text("\n".join(lines) + "\n")


def queue_recurrent(store: Store, **fields: object) -> int:
    """Queue a timing of recurrent layers without waking a scheduler, and return its run id."""
    return store.enqueue(RecurrentSpec.model_validate(fields))


def ticked(app: AppTest) -> list[str]:
    """Return the labels of the presets that match the current fields."""
    return [button.label for button in app.button if "_preset_" in (button.key or "") and button.icon]
