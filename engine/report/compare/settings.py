"""Compare settings and environments of runs: which differ, and which differences matter."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from engine.results import Environment
from engine.specs import Spec
from engine.specs.fields.clip import short_name
from engine.store import Run
from engine.words import numbered_runs

REQUEST, ENVIRONMENT = "setting", "run"
TIME_FACTS = ("host", "platform", "cpu", "memory_gb", "device", "device_name", "driver", "tf32", "variables", "python")
"""Facts about an environment that affect times."""
TIMED = ("benchmark", "recurrent", "device", "train")
"""Kinds of runs whose values include times."""
REASONS = {
    **dict.fromkeys(
        (
            *("samples", "data", "val_data", "val_fraction", "held_out", "held_out_data", "more_data"),
            *("csv_img_key", "csv_caption_key"),
        ),
        "values come from different pairs",
    ),
    **dict.fromkeys(
        ("batch_size", "accum_freq", "nproc"), "a contrastive loss depends on the number of pairs in a step"
    ),
    **dict.fromkeys(("probe_data", "shots"), "the probe was trained on different pairs"),
    **dict.fromkeys(("class_prompts", "templates"), "the prompts differ"),
    "zeroshot_data": "zero-shot values come from different images",
    "classes": "the class names differ",
    "seed": "the seed decides which pairs are held out",
    "loss": "values of different losses cannot be compared",
}
"""Why a setting of a training or evaluation matters. Shown after the setting's values."""
VERSION, GPU = "version of ", "GPU "
"""Beginnings of the names of facts: the version of a library, a setting of the GPU."""
BUILT_WITH = ("cuda", "hip", "cudnn", "triton")
"""Versions that affect times, but neither counts nor accuracies."""
COLUMNS = ["where", "what"]
EMPTY: tuple[Any, ...] = (None, "", [], {})
"""Values of settings that a request leaves empty."""
NOT_SET = "not set"


def facts(run: Run) -> dict[tuple[str, str], str]:
    """Return all settings of a run and facts about its environment, except the date, by (section, name).

    For a setting that was empty in the request, the value is the one that the run used.
    """
    used = run.spec.resolved | (run.environment.settings if run.environment else {})
    request = run.spec.model_dump(mode="json")
    timed = run.kind in TIMED  # such a run uses all threads unless the request says how many
    if timed and run.environment is not None:
        used = {"threads": run.environment.threads} | used
    elif timed and request["threads"] is None:
        del request["threads"]  # the number of threads is not recorded
    texts = {
        (REQUEST, name): _text(used.get(name, value) if value in (*EMPTY, "auto") else value)
        for name, value in request.items()
    }
    if run.environment is not None:
        left_out = {"date"} | (request.keys() & ({"seed", "threads"} if timed else {"seed"}))
        run_facts = {name: value for name, value in environment_facts(run.environment).items() if name not in left_out}
        run_facts |= {name: value for name, value in used.items() if name not in request}
        texts |= {(ENVIRONMENT, name): _text(value) for name, value in run_facts.items()}
    return texts


def environment_facts(environment: Environment) -> dict[str, Any]:
    """Return the facts about an environment by name, such as `host` and `version of torch`, without the settings."""
    facts = environment.model_dump(mode="json", exclude={"settings", "versions", "gpu"})
    facts |= {f"{VERSION}{name}": version for name, version in environment.versions.items()}
    return facts | {f"{GPU}{name}": value for name, value in environment.gpu.items()}


def table(runs: Sequence[Run]) -> pd.DataFrame:
    """Return a line per setting and fact of runs of one kind: where, what, a column per run (`run 12`), and `same`."""
    columns = {f"run {run.id}": pd.Series(facts(run)) for run in runs}
    frame = pd.concat(columns, axis="columns", sort=False).fillna("not recorded").rename_axis(COLUMNS)
    frame = frame.assign(same=frame.nunique(axis="columns") < 2).reset_index()
    return frame.assign(what=frame["what"].str.replace("_", " "))


def warnings(runs: Sequence[Run]) -> list[str]:
    """Return one sentence per difference that changes the meaning of the values. The runs are of one kind."""
    kind, columns = runs[0].kind, {run.id: facts(run) for run in runs}
    sentences = [f"The environment of run {run.id} is not recorded." for run in runs if run.environment is None]
    names = dict.fromkeys(name for column in columns.values() for name in column)
    for where, name in names:
        if not _matters(runs[0].spec, where, name):
            continue
        runs_by_value: dict[str, list[int]] = {}
        for run, column in columns.items():
            if (where, name) in column:  # a missing environment has its own sentence
                value = column[where, name]
                if kind not in TIMED and name == f"{VERSION}torch":
                    value = value.partition("+")[0]  # counts and accuracies do not depend on the build
                runs_by_value.setdefault(value, []).append(run)
        if len(runs_by_value) > 1:
            parts = ", ".join(f"{value} ({numbered_runs(run_ids)})" for value, run_ids in runs_by_value.items())
            reason = f"; {REASONS[name]}" if name in REASONS else ""
            sentences.append(f"{name[0].upper()}{name[1:].replace('_', ' ')}: {parts}{reason}.")
    for tuned in runs:
        weights = short_name(getattr(tuned.spec, "pretrained", "")).partition(":")[0]
        sources = [source for source in runs if weights == f"run {source.id}"]
        sentences += [f"Run {tuned.id} starts from a checkpoint of run {source.id}." for source in sources]
    return sentences


def _matters(spec: Spec, where: str, name: str) -> bool:
    if where == REQUEST:
        own_pairs = name == "seed" and bool(getattr(spec, "val_data", ""))  # nothing is drawn to be held out
        return name in spec.meaning and not own_pairs
    if spec.kind in TIMED:
        return name in TIME_FACTS or name.startswith((VERSION, GPU))
    return name.startswith(VERSION) and name.removeprefix(VERSION) not in BUILT_WITH


def _text(value: Any) -> str:
    if value in EMPTY:
        return NOT_SET
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return ("no", "yes")[value] if isinstance(value, bool) else str(value)
