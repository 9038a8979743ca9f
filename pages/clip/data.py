"""The data section of a form: the field for the data, and a preview of its images, captions and classes."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from engine.datasets import (
    FIELDS,
    DataProblem,
    DataSummary,
    Pairs,
    Unreadable,
    columns_of,
    columns_of_zeroshot,
    count_shared,
    hold_out,
    open_pairs,
    readable,
    sample,
    summarise,
    with_classes_split,
)
from engine.datasets.formats import tables
from engine.report.checks import Data
from engine.roots import expand_home, scan_within, stat_within
from engine.specs import Spec, TrainSpec
from engine.specs.fields.clip import EMBEDDED, split_sources
from engine.words import count_captions, plural
from pages.clip import uploads
from pages.shared import backend
from pages.shared.form import spec_form
from pages.shared.rerun import fold
from pages.shared.text import plain, show_error

LOOK_S = 3
"""Maximum seconds in which the preview opens images, so that the form stays responsive."""
THUMBNAIL, SHOWN_WIDTH = 128, 84
"""Largest side of a thumbnail, and the width at which it is drawn, in pixels."""
GROUP, GAP = 5, 16
"""Number of example images that stay side by side, and the pixels between them."""
FEW_CLASSES = 12
"""Maximum number of classes that are listed in a sentence. More are listed in a table."""
MOST_STAMPED = 1000
"""Maximum number of files per folder whose modification times are read, because each redraw of the form reads them."""


@dataclass(frozen=True)
class Preview:
    """A preview of the data with thumbnails, or the problem that prevents it."""

    summary: DataSummary | None = None
    thumbnails: tuple[bytes | None, ...] = ()
    templates: tuple[str, ...] = ()
    """Prompt templates that belong to the data."""
    problem: str = ""


def field(spec: type[Spec]) -> str:
    """Draw the field for the data and the upload beside it. Return the field's value, empty for the default."""
    uploads.take_in(spec.kind)
    left, right = st.columns([3, 2], vertical_alignment="top")
    choices = [*EMBEDDED, *(str(upload.data) for upload in uploads.earlier()), *_data_of_runs()]
    hint = "Choose, or type the path of a CSV, a folder of class folders, or shards"
    data = spec_form.field(spec, "data", choices, hint=hint, place=left)
    with right:
        uploads.draw(spec.kind)
    return data or ""


def _data_of_runs() -> list[str]:
    """Return the data of earlier runs, latest first, without uploads, which are listed separately."""
    runs = [run for kind in ("train", "evaluate") for run in backend.store().runs(kind=kind, limit=20)]
    names = dict.fromkeys(str(getattr(run.spec, "data", "")) for run in runs)
    return [name for name in names if not Path(name).is_relative_to(uploads.folder())]


COLUMNS = "Columns of CSV or Parquet"
COLUMN_FIELDS = ("csv_img_key", "csv_caption_key", "csv_class_key")


def columns(prefix: str, data: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of a table's columns, and hints on those recognised by their names; empty for other data.

    When other data are chosen, clear the fields whose column they lack. An empty class column is set to one with a
    common name.
    """
    kind, separator = (st.session_state.get(spec_form.key(prefix, name)) for name in ("data_kind", "csv_separator"))
    separator = separator if isinstance(separator, str) else ""  # the field may not be drawn yet
    try:
        names = _columns(data, kind if isinstance(kind, str) else "auto", separator, stamp(data))
    except DataProblem:  # the preview shows the problem
        names = []
    seen = f"{prefix}_columns_of"
    if names and st.session_state.get(seen, data) != data:
        keys = [spec_form.key(prefix, name) for name in COLUMN_FIELDS]
        for key in keys:
            if st.session_state.get(key) not in names:
                st.session_state[key] = None
        if not st.session_state[keys[-1]]:
            st.session_state[keys[-1]] = tables.recognised(names, tables.CLASS_NAMES) or None
    st.session_state[seen] = data
    common = zip(COLUMN_FIELDS, (tables.IMAGE_NAMES, tables.CAPTION_NAMES), strict=False)
    return names, {field: f"default: {name}" for field, known in common if (name := tables.recognised(names, known))}


@st.cache_data(max_entries=16, show_spinner=False)
def _columns(data: str, kind: Any, separator: str, stamp: int) -> list[str]:
    return columns_of(data, kind, separator=separator, roots=backend.settings().roots)


def source(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `open_pairs` for the values of a form or a spec, and the separator of classes.

    The time of the last change is one of them, so that functions cached by these arguments read changed data again.
    """
    data = values.get("data") or EMBEDDED[0]
    given = {name: values.get(field) or TrainSpec.model_fields[field].default for name, field in FIELDS.items()}
    if values.get("zeroshot_data"):
        given["class_column"] = ""
    return {
        **given,
        "data": data,
        "modified_ns": stamp(data),
        "samples": values.get("samples"),
        "class_separator": values.get("csv_class_separator") or "",
    }


def zeroshot_source(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `open_pairs` for zeroshot_data, or for the pairs if it is empty. Errors: DataProblem."""
    if not (data := values.get("zeroshot_data")):
        return source(values)
    options: dict[str, Any] = {"separator": values.get("csv_separator") or "", "roots": backend.settings().roots}
    columns = columns_of_zeroshot(data, {name: values.get(name) or "" for name in COLUMN_FIELDS}, **options)
    if not columns["csv_class_key"] and columns_of(data, **options):
        common = ", ".join(tables.CLASS_NAMES)
        raise DataProblem(f"{data} has no class column with a common name ({common}): type its name in Class column")
    return source({**values, **columns, "data": data, "data_kind": "auto", "samples": None, "zeroshot_data": ""})


def stamp(data: str) -> int:
    """Return the latest modification time of the data's files and folders, in ns."""
    roots, times = backend.settings().roots, [0]
    for part in split_sources(data):
        path = expand_home(part.partition("{")[0])
        path = path if stat_within(path, roots) else path.parent
        if not (status := stat_within(path, roots)):
            continue
        times.append(status.st_mtime_ns)
        with suppress(OSError):  # a file has no entries; unreadable data get a message when they are opened
            times += [entry.status.st_mtime_ns for entry in islice(scan_within(path, roots), MOST_STAMPED)]
    return max(times)


@st.cache_resource(max_entries=4, show_spinner="Reading the data")
def pairs(arguments: Mapping[str, Any]) -> Pairs:
    """Return the pairs of the data, cached until they change. arguments: from `source`. Errors: DataProblem."""
    samples, separator = arguments["samples"], arguments["class_separator"]
    embedded = set(EMBEDDED).intersection(split_sources(arguments["data"]))
    # Files are opened once for all numbers of samples and seeds; synthetic images are made with them.
    found = _open({**arguments, "class_separator": ""} | ({} if embedded else {"samples": None, "seed": 0}))
    if samples and samples < len(found):
        found = sample(found, samples, arguments["seed"])
    return with_classes_split(found, separator)


@st.cache_resource(max_entries=4, show_spinner=False)
def _open(arguments: Mapping[str, Any]) -> Pairs:
    options = {name: value for name, value in arguments.items() if name not in ("class_separator", "modified_ns")}
    return open_pairs(**options, roots=backend.settings().roots)


@st.cache_data(max_entries=16, show_spinner="Reading the data")
def preview(arguments: Mapping[str, Any]) -> Preview:
    """Return a preview of the data. arguments: from `source`."""
    try:
        opened = pairs(arguments)
        result = summarise(opened, deadline_s=LOOK_S)
    except DataProblem as problem:
        return Preview(problem=str(problem))
    return Preview(result, tuple(thumbnail(opened, index) for index, _ in result.examples), opened.templates)


def thumbnail(pairs: Pairs, index: int) -> bytes | None:
    """Return a small PNG of an image, or None if the image cannot be read."""
    try:
        image = pairs.image(index)
    except Unreadable:
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def grid(pictures: Iterable[tuple[bytes | None, str, str]], *, width: int) -> None:
    """Draw pictures side by side, without unreadable ones. pictures: (image, caption in Markdown, alt text)."""
    with st.container(horizontal=True, gap="small"):
        for image, caption, alt in pictures:
            if image:
                st.image(image, caption=caption, width=width, alt=alt)


def count_pairs(
    arguments: Mapping[str, Any],
    preview: DataSummary,
    *,
    val_data: str,
    val_fraction: float,
    zeroshot: Mapping[str, Any] | None,
) -> Data:
    """Return the numbers of training and held-out pairs with the facts of the preview. Errors: DataProblem.

    arguments, zeroshot: from `source` and `zeroshot_source`. Without zero-shot data, `zeroshot` is None.
    """
    if preview.none_readable:
        return Data(0, 0, preview)
    unreadable = tuple(source for source, _ in preview.unreadable)
    val_source = {"data": val_data, "modified_ns": stamp(val_data), "samples": None} if val_data else {}
    train, held_out, shared, zeroshot_shared = _split(arguments, unreadable, val_source, val_fraction, zeroshot)
    if zeroshot is None:
        return Data(train, held_out, preview, shared)
    labelled = pairs(zeroshot)
    facts = replace(preview, classes=labelled.classes)
    return Data(train, held_out, facts, shared, len(labelled), zeroshot_shared)


@st.cache_data(max_entries=16, show_spinner=False)
def _split(
    arguments: Mapping[str, Any],
    unreadable: Sequence[str],
    val_source: Mapping[str, Any],
    fraction: float,
    zeroshot: Mapping[str, Any] | None,
) -> tuple[int, int, int, int]:
    """Return the numbers of training and held-out pairs, and of held-out and zero-shot images that are also trained on.

    As in a training, unreadable images are left out first. val_source: changes of the arguments that give the
    validation data; empty if a fraction is held out. zeroshot: the arguments that give the zero-shot data.
    """
    usable, left_out = pairs(arguments), set(unreadable)
    if left_out:
        usable, _ = readable(usable, [index for index in range(len(usable)) if usable.source(index) not in left_out])
    val = pairs({**arguments, **val_source}) if val_source else None
    train, held_out = hold_out(usable, val, fraction, arguments["seed"])
    evaluated = (held_out, pairs(zeroshot) if zeroshot else None)
    shared, zeroshot_shared = (count_shared(train, part) if part else 0 for part in evaluated)
    return len(train), len(held_out or ()), shared, zeroshot_shared


def draw(preview: Preview) -> None:
    """Draw counts, ten example images, and the images that cannot be read."""
    if preview.summary is None:
        show_error(preview.problem)
        return
    facts = preview.summary
    st.text(_counts(facts))
    _draw_examples(preview, facts)
    _draw_classes(facts)
    for note in facts.notes:
        st.caption(plain(note))
    if facts.unreadable:
        label = f"{len(facts.unreadable):,} of {plural(facts.opened, 'image')} opened cannot be read"
        table = pd.DataFrame(facts.unreadable, columns=["image", "reason"])
        draw_table = partial(st.dataframe, table, hide_index=True, alt="Images that cannot be read")
        fold(label, draw_table, icon=":material/broken_image:", key="clip_data_unreadable")


def _draw_examples(preview: Preview, facts: DataSummary) -> None:
    """Draw the example images. A group of five stays side by side, so ten images fill one row or two."""
    examples = [
        (image, caption) for image, (_, caption) in zip(preview.thumbnails, facts.examples, strict=True) if image
    ]
    with st.container(horizontal=True, gap=GAP):
        for place in range(0, len(examples), GROUP):
            # at most as wide as the images; five columns of at least 40 px fit on a phone
            with st.grid(GROUP, min_column_width=40, gap=GAP, width=GROUP * (SHOWN_WIDTH + GAP) - GAP):
                for image, caption in examples[place : place + GROUP]:
                    st.image(image, caption=plain(caption[:60]), width="stretch", alt=caption)


def _counts(facts: DataSummary) -> str:
    """Return one line with the counts and the image sizes."""
    parts = [plural(facts.count, "pair"), count_captions(facts.captions, facts.distinct_captions)]
    parts += [plural(len(facts.classes), "class", "es") if facts.classes else "no classes"]
    if facts.smallest and facts.median and facts.largest:
        smallest, median, largest = (
            " × ".join(map(str, size)) for size in (facts.smallest, facts.median, facts.largest)
        )
        one_size = facts.smallest == facts.largest
        parts.append(f"images {median} px" if one_size else f"median image {median} px ({smallest} to {largest})")
    parts.append(f"{plural(facts.opened, 'image')} opened")
    return "; ".join(parts)


def _draw_classes(facts: DataSummary) -> None:
    counts = list(zip(facts.classes, facts.per_class, strict=True))
    if 0 < len(counts) <= FEW_CLASSES:
        st.caption(plain("Pairs per class: " + ", ".join(f"{name} {count:,}" for name, count in counts)))
    elif counts:
        label = f"Pairs per class: {min(facts.per_class):,} to {max(facts.per_class):,}"
        table = pd.DataFrame(counts, columns=["class", "pairs"])
        options: dict[str, Any] = {"hide_index": True, "height": 240, "alt": "Pairs per class"}
        fold(label, partial(st.dataframe, table, **options), key="clip_data_classes")
