"""Fields that training and evaluation of CLIP share: data, model, loading."""

import json
import math
import os
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from pydantic_core import from_json
from pydantic_settings import CliSuppress
from typing_extensions import TypeAliasType

from engine.model_name import OWN, ModelName
from engine.specs.base import MAX_CONTEXT, SIZE, matching
from engine.specs.fields.configs import Configs

DIGITS_MODEL = "digits-clip"
"""Our own small configuration, which fits scikit-learn's handwritten digits (engine/models/clip/own_configs/)."""
OPEN_CLIP = "open_clip"
"""The library of all models that can be trained and evaluated."""
EMBEDDED = ("digits", "synthetic")
"""Data sources that need no file."""
MAX_CLASSES = 10_000
IMAGENET = "imagenet"
"""This word instead of class names stands for the class names of ImageNet."""
TEMPLATE_SETS = ("openai-80", "openai-7")
"""Names of open_clip's lists of templates for ImageNet. A name may be used like a template."""
LONGEST_TEXT = 1000
LONGEST_PROMPTS = 10_000_000
"""Maximum number of characters in the prompts of all classes, as JSON. CuPL's prompts for ImageNet have 4 million."""
MOST_DEFAULT_WORKERS = 8
"""Default limit of loading processes. More rarely help a single training process, and each takes about 500 MB."""

SAME_PAIRS = (
    *("data", "data_kind", "csv_img_key", "csv_caption_key", "csv_class_key", "json_split", "samples", "val_fraction"),
    *("classes", "templates"),
)
"""Fields that must be equal for two runs to use the same pairs and classes."""

FILE_FIELDS = ("csv_separator", "csv_img_key", "csv_caption_key", "csv_class_key", "csv_class_separator", "json_split")
"""Fields that say how to read a file of pairs."""
LINE_FIELDS = ("classes", "templates", "more_models", "more_data", "held_out_data")
"""Fields that hold a list of texts, with one text per line."""

DataKind = Literal["auto", "digits", "synthetic", "csv", "folder", "webdataset", "parquet", "coco"]
JsonSplit = Literal["auto", "train", "val", "test"]
ClipPrecision = Literal["fp32", "bf16", "fp16", "amp", "amp_bf16"]
TrainPrecision = Literal["auto", "fp32", "bf16", "fp16", "amp", "amp_bf16"]

MODEL = r"[\w.:/@-]+"
MODEL_LENGTH = 200
"""Most characters of a model's name."""
ClipModel = Annotated[str, matching(MODEL, "the name of a model: letters, digits and . : / @ _ -")]


def run_number(weights: str) -> str:
    """Return the number of a run for weights such as `best of run 7`; other texts unchanged."""
    match = re.fullmatch(r"(?:best of )?run (\d+)", weights.strip())
    return match[1] if match else weights


Pretrained = Annotated[
    str,
    AfterValidator(run_number),
    Field(
        max_length=1000,
        description="An open_clip tag (downloaded if needed), the path of a checkpoint, or the number of a training "
        "run. Default: none.",
    ),
]


def split_lines(value: Any) -> Any:
    """Return the non-empty lines of a text; other values unchanged."""
    return [line.strip() for line in value.splitlines() if line.strip()] if isinstance(value, str) else value


def check_templates(templates: tuple[str, ...], *, sets: Sequence[str] = TEMPLATE_SETS) -> tuple[str, ...]:
    """Return the templates. Errors: ValueError when one neither has {} for the class name nor is one of `sets`."""
    for template in templates:
        if "{}" not in template and template not in sets:
            hint = f"; lists with a name are {', '.join(sets)}" if sets else ""
            raise ValueError(f"a template has {{}} where the class name goes, unlike {template!r}{hint}")
    return templates


Line = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT), matching(r"[^\0]*", "a text without NUL")]
Column = Annotated[str, Field(max_length=200)]
Sources = Annotated[
    str,
    Field(max_length=4000),
    matching(r"[^\0]*", "a text without NUL"),
    matching(r"|[^\0]*[^\s:][^\0]*", "a path or a name, or several separated by ::"),
]
"""Data sources, joined by `::`."""
# Named aliases, because their names are what `--help` shows.
LINES = TypeAliasType("LINES", Annotated[tuple[Line, ...], BeforeValidator(split_lines), Field(max_length=MAX_CLASSES)])
TEMPLATES = TypeAliasType("TEMPLATES", Annotated[LINES, AfterValidator(check_templates)])


def parse_class_prompts(given: Any) -> str:
    """Return prompts per class as the text of a JSON object; empty for none.

    given: `{"class": ["prompt", ...]}` as an object or as JSON. It may be inside an object with the name of a data set,
    as in CuPL's files. The result is a string, so that specs can be compared. Errors: ValueError for another form.
    """
    form = 'prompts per class must be JSON: {"cat": ["a photo of a cat, a small animal.", ...], ...}'
    if not given:
        return ""
    try:
        classes = from_json(given.encode()) if isinstance(given, str) else given
    except ValueError as error:
        raise ValueError(f"{form}; the given text is not JSON: {error}") from error
    if isinstance(classes, dict) and len(classes) == 1 and isinstance(inner := next(iter(classes.values())), dict):
        classes = inner
    if not isinstance(classes, dict) or not classes:
        raise ValueError(f"{form}; not {str(classes)[:60]!r}")
    for name, prompts in classes.items():
        if not isinstance(prompts, list) or not prompts or not all(isinstance(p, str) and p.strip() for p in prompts):
            raise ValueError(f"{form}; the class {str(name)[:60]!r} has {str(prompts)[:60]!r}")
    text = json.dumps(classes, ensure_ascii=False)
    if len(text) > LONGEST_PROMPTS:
        raise ValueError(f"prompts per class have at most {LONGEST_PROMPTS:,} characters together, not {len(text):,}")
    return text


ClassPrompts = Annotated[
    str,
    BeforeValidator(parse_class_prompts),
    Field(
        description="Prompts of each class, instead of templates. JSON as in CuPL's files: "
        '{"cat": ["a photo of a cat, a small animal."], ...}. Every class needs a prompt.'
    ),
]


class ClipFields(BaseModel):
    """The fields that a training and an evaluation have in common, except for those with other defaults."""

    data: Sources = Field(
        "digits",
        min_length=1,
        description="digits, synthetic, or the path of a CSV, Parquet, captions JSON, folder or shards {00..07}.tar.",
    )
    data_kind: DataKind = Field("auto", description="Format of the data. auto: recognise it by the path.")
    json_split: JsonSplit = Field(
        "auto", description="The split of a Karpathy JSON to use. auto: train and restval to train on, val held out."
    )
    csv_separator: str = Field(
        "", max_length=4, description="Character between a CSV's columns. Default: from its header."
    )
    csv_img_key: Column = Field(
        "",
        description="Column of a CSV or Parquet with the images. Default: by its name; filepath, filename, image or a "
        "similar one.",
    )
    csv_caption_key: Column = Field(
        "",
        description="Column of a CSV or Parquet with the captions. Default: by its name; title, caption, text or a "
        "similar one.",
    )
    csv_class_key: Column = Field(
        "",
        description="Column of a CSV or Parquet with the class names, for zero-shot. Default: none; in a training's "
        "zero-shot data, class, label or a similar name.",
    )
    samples: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="Maximum number of pairs. Default: all. For synthetic data, the number to make, by default 100.",
    )
    classes: LINES = Field(
        (),
        description="Class names for zero-shot, one per line (on the command line also a file), in the order of the "
        "data's classes; or the word imagenet for ImageNet's names, which are found by synset, number or name. "
        "Default: the data's names.",
    )
    templates: TEMPLATES = Field(
        (),
        description="Prompts with {} for the class name, or openai-80 or openai-7. Default: those of the data, or "
        "openai-7; openai-80 for the classes imagenet.",
    )
    model: ClipModel = Field(
        DIGITS_MODEL,
        max_length=MODEL_LENGTH,
        description="An open_clip model, digits-clip, or a configuration of your own: FILE.json on the command line, "
        "an added file in the form.",
    )
    configs: CliSuppress[Configs] = Field(default_factory=dict)
    image_size: SIZE | None = Field(None, description="Image size, N or HxW in pixels. Default: the model's own.")
    context_length: int | None = Field(
        None, ge=1, le=MAX_CONTEXT, description="Tokens per text. Default: the model's own."
    )


def warmup_steps(warmup: str, steps: int) -> int:
    """Return the warm-up steps of a training with `steps` optimizer steps. Errors: ValueError for neither N nor S%."""
    if match := re.fullmatch(r"(\d{1,9})", warmup):
        return int(match[1])
    if (match := re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*%", warmup)) and float(match[1]) <= 100:
        share = math.ceil(Fraction(match[1]) * steps / 100)
        return min(share, max(0, steps - 1))  # leaves at least one step at the full rate
    raise ValueError(f"warm-up {warmup!r} is neither a number of steps nor a share of them, such as 200 or 10%")


def _check_warmup(value: Any) -> str:
    warmup_steps(warmup := str(value).strip(), 1)
    return warmup


WARMUP = TypeAliasType("WARMUP", Annotated[str, BeforeValidator(_check_warmup)])
"""A number of steps such as `200`, or a share of them such as `10%`."""


def registered(*models: str) -> tuple[ModelName, ...]:
    """Return the qualified names of these models, without digits-clip and run numbers: the catalogue lacks them."""
    named = (model for model in models if model and model != DIGITS_MODEL and not model.isdecimal())
    return tuple(
        name if name.library in (OWN, OPEN_CLIP) else ModelName.of(OPEN_CLIP, name) for name in map(ModelName, named)
    )


def split_sources(data: str) -> list[str]:
    """Return the sources of mixed data, which are separated by `::`."""
    return [part.strip() for part in data.split("::") if part.strip()]


def unused_of_data(*data: str) -> dict[str, str]:
    """Return the reason why a field of FILE_FIELDS has no effect, by field name; empty if any of the data is a file."""
    sources = [source for text in data for source in split_sources(text)]
    if any(source not in EMBEDDED for source in sources):
        return {}
    return dict.fromkeys(FILE_FIELDS, f"the data are {' and '.join(dict.fromkeys(sources))}, not a file")


def short_name(path: str) -> str:
    """Return the last part of each path in a text such as `a::b`.

    For a checkpoint of a run it is `run 7: best.pt`, for an upload the name without its digest.
    """
    return f"run {path}" if path.isdecimal() else "::".join(map(_short, split_sources(path)))


def _short(path: str) -> str:
    if found := re.search(r"/(\d+)/checkpoints/([^/]+)$", path):
        return f"run {found[1]}: {found[2]}"
    if found := re.search(r"/uploads/([^/]+)-[0-9a-f]{16}(?:/|$)", path):
        return found[1]
    return path.rstrip("/").rpartition("/")[2] or path


def same_sources(one: str, other: str) -> bool:
    """Return whether two texts name the same data, even if the paths are written differently."""
    parts = [[part if part in EMBEDDED else os.path.realpath(part) for part in split_sources(d)] for d in (one, other)]
    return parts[0] == parts[1]


def default_workers(device: str, data: str, cpus: int, nproc: int) -> int:
    """Return the number of processes that load images for each of `nproc` training processes on a host with `cpus`
    CPUs.

    0 for data in memory, and for training on the CPU, which needs all cores itself.
    """
    if device == "cpu" or all(source in EMBEDDED for source in split_sources(data)):
        return 0
    return max(1, min(MOST_DEFAULT_WORKERS, cpus // nproc - 1))


def default_precision(device: str, *, bf16: bool) -> ClipPrecision:
    """Return the precision for `auto`: amp_bf16 on an accelerator that computes bfloat16 natively, else fp32."""
    return "amp_bf16" if device != "cpu" and bf16 else "fp32"
