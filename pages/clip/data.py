"""Which pairs of images and captions: the fields, and a look at what is there before anything is started."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import streamlit as st

from engine.datasets import DataProblem, Look, Pairs, Unreadable, look, open_pairs, split
from engine.report.checks.training import Data
from engine.roots import expand_home, scan_within, stat_within
from engine.specs import Spec
from engine.specs.clip import EMBEDDED, split_sources
from pages.clip import uploads
from pages.shared import backend
from pages.shared.fold import fold
from pages.shared.form import spec_form
from pages.shared.text import plain

LOOK_S = 3
"""So long, at most, are images opened before the form answers."""
THUMBNAIL, SHOWN_WIDTH = 128, 84
FEW_CLASSES = 12
MOST_STAMPED = 1000
"""Entries of a folder whose dates are looked at. A form does so whenever it is drawn."""


@dataclass(frozen=True)
class Seen:
    """A look at data, with thumbnails of its samples, or why there is none."""

    look: Look | None = None
    thumbnails: tuple[bytes | None, ...] = ()
    templates: tuple[str, ...] = ()
    """Prompts of the data's own."""
    problem: str = ""


def fields(spec: type[Spec], prefix: str) -> dict[str, Any]:
    """What the data are, and an upload in their place; answers the fields' values."""
    uploads.take_in(prefix)
    left, right = st.columns([3, 2], vertical_alignment="top")
    with left:
        known = [*EMBEDDED, *(str(each.data) for each in uploads.earlier()), *_used()]
        hint = "Choose, or type the path of a CSV, of a folder with one per class, or of shards"
        values = {"data": spec_form.field(spec, "data", prefix, known, free=True, hint=hint)}
    with right:
        uploads.draw(prefix)
    return values


def _used() -> list[str]:
    """Data of earlier runs, latest first; but for uploads, which stand for themselves as long as they are there."""
    runs = [run for kind in ("train", "evaluate") for run in backend.store().runs(kind=kind, limit=20)]
    names = dict.fromkeys(str(getattr(run.spec, "data", "")) for run in runs)
    return [name for name in names if not Path(name).is_relative_to(uploads.folder())]


def source(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `open_pairs` that fields, or a spec's, stand for."""
    return {
        "data": values.get("data") or EMBEDDED[0],
        "kind": values.get("data_kind") or "auto",
        "separator": values.get("csv_separator") or "",
        "image_column": values.get("csv_img_key") or "filepath",
        "caption_column": values.get("csv_caption_key") or "title",
        "samples": values.get("samples"),
        "seed": values.get("seed") or 0,
    }


def stamp(data: str) -> int:
    """Return when data were changed last: their files, or the folders that hold them."""
    roots, found = backend.settings().roots, [0]
    for part in split_sources(data):
        path = expand_home(part.partition("{")[0])
        path = path if stat_within(path, roots) else path.parent
        if not (status := stat_within(path, roots)):
            continue
        found.append(status.st_mtime_ns)
        with suppress(OSError):  # of a file; and what cannot be read is said when it is opened
            found += [entry.status.st_mtime_ns for entry in islice(scan_within(path, roots), MOST_STAMPED)]
    return max(found)


@st.cache_resource(max_entries=4, show_spinner="Reading the data")
def _pairs(given: tuple[tuple[str, Any], ...], stamp: int) -> Pairs:
    return open_pairs(**dict(given), roots=backend.settings().roots)


def pairs(given: Mapping[str, Any]) -> Pairs:
    """Data as opened last, unless they have changed. given: of source. Errors: DataProblem."""
    return _pairs(tuple(sorted(given.items())), stamp(given["data"]))


@st.cache_data(max_entries=16, show_spinner="Looking at the data")
def _seen(given: tuple[tuple[str, Any], ...], stamp: int) -> Seen:
    try:
        opened = _pairs(given, stamp)
        found = look(opened, deadline_s=LOOK_S)
    except DataProblem as problem:
        return Seen(problem=str(problem))
    return Seen(found, tuple(thumbnail(opened, sample.index) for sample in found.samples), opened.templates)


def seen(given: Mapping[str, Any]) -> Seen:
    """A look at data. given: of source."""
    return _seen(tuple(sorted(given.items())), stamp(given["data"]))


def thumbnail(pairs: Pairs, index: int) -> bytes | None:
    """A small PNG of an image; None of one that cannot be read."""
    try:
        image = pairs.image(index)
    except Unreadable:
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def grid(pictures: Iterable[tuple[bytes | None, str, str]], *, width: int) -> None:
    """Pictures side by side: the image, its caption in Markdown, what it shows. Those that cannot be read are left
    out."""
    with st.container(horizontal=True, gap="small"):
        for image, caption, shows in pictures:
            if image:
                st.image(image, caption=caption, width=width, alt=shows)


def counted(given: Mapping[str, Any], found: Look, *, val_data: str, val_fraction: float) -> Data:
    """How many pairs there are to train on and held out, beside what a look has found. Errors: DataProblem."""
    train = found.count - len(found.unreadable)
    if val_data:
        held = len(pairs({**given, "data": val_data, "samples": None}))
    else:
        held = _held(tuple(sorted(given.items())), stamp(given["data"]), val_fraction) if val_fraction else 0
        train -= held
    return Data(
        train=train,
        held=held,
        captions=found.captions,
        distinct_captions=found.distinct_captions,
        classes=found.classes,
        looked_at=found.looked_at,
        unreadable=found.unreadable,
    )


@st.cache_data(max_entries=16, show_spinner=False)
def _held(given: tuple[tuple[str, Any], ...], stamp: int, fraction: float) -> int:
    return len(split(_pairs(given, stamp), fraction, 0)[1])


def draw(seen: Seen) -> None:
    """Counts and ten samples, and which images cannot be read."""
    if seen.look is None:
        st.error(plain(seen.problem), icon=":material/error:")
        return
    found = seen.look
    st.text(_counts(found))
    pictures = [
        (image, plain(sample.caption[:60]), sample.caption)
        for image, sample in zip(seen.thumbnails, found.samples, strict=True)
    ]
    grid(pictures, width=SHOWN_WIDTH)
    _classes(found)
    for note in found.notes:
        st.caption(plain(note))
    if found.unreadable:
        _unreadable(found)


def _counts(found: Look) -> str:
    """All of it in a line."""
    parts = [f"{found.count:,} pairs", f"{found.distinct_captions:,} different captions"]
    parts += [f"{len(found.classes):,} classes"] if found.classes else ["no classes"]
    if found.smallest and found.median and found.largest:
        sizes = " × ".join(map(str, found.median))
        if found.smallest != found.largest:
            between = [" × ".join(map(str, size)) for size in (found.smallest, found.largest)]
            sizes += f" px in the middle, {between[0]} to {between[1]}"
        parts.append(f"images {sizes} px")
    parts.append(f"{found.looked_at:,} of the images were opened")
    return "; ".join(parts)


def _classes(found: Look) -> None:
    counts = list(zip(found.classes, found.per_class, strict=True))
    if 0 < len(counts) <= FEW_CLASSES:
        st.caption(plain("Pairs per class: " + ", ".join(f"{name} {count:,}" for name, count in counts)))
    elif counts:
        label = f"Pairs per class: {min(found.per_class):,} to {max(found.per_class):,}"
        if part := fold(label, key="clip_data_classes"):
            table = {"class": [name for name, _ in counts], "pairs": [count for _, count in counts]}
            part.dataframe(table, hide_index=True, height=240, alt="Pairs per class")


def _unreadable(found: Look) -> None:
    said = f"{len(found.unreadable):,} of {found.looked_at:,} images opened cannot be read"
    if part := fold(said, icon=":material/broken_image:", key="clip_data_unreadable"):
        table = {"image": [name for name, _ in found.unreadable], "why": [why for _, why in found.unreadable]}
        part.dataframe(table, hide_index=True, alt="Images that cannot be read")
