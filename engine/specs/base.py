"""The base class of specs and the fields that several specs have, each with its bounds."""

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import re2
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError
from typing_extensions import TypeAliasType

MAX_PIXELS_PER_SIDE = 4096
MAX_CONTEXT = 8192
MOST_VALUES = 32
"""Maximum number of image sizes, and of batch sizes, in one request."""
LONGEST_PATTERN = 200
EXPRESSION_BYTES = 1 << 20
"""Memory limit of one compiled regular expression: room for 40,000 instructions, far more than model names need."""
TOO_MANY = re.compile(r"\{(?:\d*,)?0*(?!1000\b)[1-9]\d{3,}[,}]")
"""Matches a count in braces above RE2's limit of 1,000. RE2 itself reads a count of ten digits as plain text."""
NOT_IN_RE2 = re.compile(r"\(\?(?:<?[=!]|P=)|\\[1-9]")
"""Matches look-around and back-references."""
ACCELERATORS = ("cuda", "mps", "xpu", "npu", "hpu", "mtia")
UNNUMBERED = ("cpu", "mps")
"""Kinds of device of which torch has only one."""
DEVICE = re.compile(rf"cpu|({'|'.join(ACCELERATORS)})(:\d{{1,3}})?")
CLUSTER = "cluster:"
"""Prefix of the devices of a Ray cluster: `cluster:cpu`, `cluster:gpu`, `cluster:gpu:H100`; `cluster:meta` to count."""
CLUSTER_DEVICE = re.compile(rf"{CLUSTER}(cpu|gpu(:[A-Za-z0-9][\w.-]{{0,39}})?)")
INVALID_VALUES = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "int_parsing_size": "has too many digits",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "greater_than": "must be greater than {gt:,}",
    "greater_than_equal": "must be at least {ge:,}",
    "less_than": "must be less than {lt:,}",
    "less_than_equal": "must be at most {le:,}",
    "literal_error": "must be {expected}",
    "too_short": "has too few values, at least {min_length:,}",
    "too_long": "has too many values, at most {max_length:,}",
    "string_too_short": "has too few characters, at least {min_length:,}",
    "string_too_long": "has too many characters, at most {max_length:,}",
    "missing": "is required",
}
"""By pydantic's type of error: what an invalid value must be instead."""


def describe_error(error: Any) -> str:
    """Return a sentence part on one of the `errors()` of a ValidationError, such as `must be at least 1`."""
    template = INVALID_VALUES.get(error["type"])
    if template is None:
        return str(error["msg"]).removeprefix("Value error, ")
    limits = error.get("ctx", {})
    return template.format(
        **{name: int(v) if isinstance(v, float) and v.is_integer() else v for name, v in limits.items()}
    )


class Refused(ValueError):
    """Raised for a request that cannot be served. The message names the given value and what is allowed instead."""


def error_message(error: BaseException) -> str:
    """Return the message of an error, after the name of its type unless it is Refused or from a validation.

    Of a ValidationError, return the first problem, such as `models is required`.
    """
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return " ".join([*map(str, first["loc"]), describe_error(first)])
    return str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}".removesuffix(": ")


def matching(pattern: str, meaning: str) -> AfterValidator:
    """Return a validator of texts that match a whole pattern. meaning: what such a text is, for the message."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"must be {meaning}")
        return text

    return AfterValidator(check)


def split_patterns(text: str) -> list[str]:
    """Split text at commas and line breaks, but not inside braces: `a,{b,{c,d}}-32` gives `a` and `{b,{c,d}}-32`."""
    depth, ends = 0, [-1]
    for character in re.finditer(r"[{},\n]", text):
        if character[0] == "{":
            depth += 1
        elif character[0] == "}":
            depth = max(0, depth - 1)
        elif depth == 0:
            ends.append(character.start())
    parts = [text[before + 1 : end].strip() for before, end in pairwise([*ends, len(text)])]
    return [part for part in parts if part]


def find_expression(expression: str) -> Callable[[str], bool]:
    """Return a function that tells whether a text contains a match of a user's regular expression, ignoring case.

    RE2 compiles within EXPRESSION_BYTES and searches in time linear in the text, unlike Python's engine.
    Errors: Refused when RE2 does not accept the expression.
    """
    if TOO_MANY.search(expression):
        raise Refused(f"{expression!r} repeats too often: a count in braces is at most 1,000")
    options = re2.Options()
    options.case_sensitive = False
    options.max_mem = EXPRESSION_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(expression, options)
    except re2.error as error:
        message = f"{expression!r} is no regular expression: {error.args[0].decode(errors='replace')}"
        if NOT_IN_RE2.search(expression):
            message += (
                ". RE2 has no look-around and no back-references: to leave out names that contain something, use the "
                "field exclude; instead of a back-reference, write the alternatives, such as aa|bb"
            )
        raise Refused(message) from error
    return lambda text: compiled.search(text) is not None


def parse_image_size(value: Any) -> Any:
    """Return (height, width) in pixels for `224`, `"224"` and `"224x320"`; other values unchanged, for validation.

    Errors: ValueError for a text in another form.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return (value, value)
    if isinstance(value, str):
        if not (match := re.fullmatch(r"(\d{1,12})(?:[xX](\d{1,12}))?", value.strip())):
            raise ValueError(f"image size {value!r} is neither N nor HxW, such as 224 or 224x320")
        return (int(match[1]), int(match[2] or match[1]))
    return value


def split_numbers(text: str) -> list[str]:
    """Split text at commas and white space: `1, 8` and `1 8` give `1` and `8`."""
    return re.findall(r"[^,\s]+", text)


def _image_sizes(value: Any) -> Any:
    """Return one or several image sizes for validation: a text such as `224, 160x224`, a number, a pair, or a list."""
    if isinstance(value, str):
        return split_numbers(value)
    if isinstance(value, int) or (isinstance(value, tuple) and [type(side) for side in value] == [int, int]):
        return (value,)
    return () if value is None else value  # None: stored before requests had several sizes


def json_object(text: str) -> dict[str, Any]:
    """Return the object in a field that holds JSON, such as model_kwargs or class_prompts; empty for no text."""
    return dict(json.loads(text)) if text else {}


def format_image_size(size: tuple[int, int]) -> str:
    """Return an image size as text: `224` for (224, 224), `224x320` for (224, 320)."""
    height, width = size
    return str(height) if height == width else f"{height}x{width}"


unique = AfterValidator(lambda values: tuple(dict.fromkeys(values)))
"""Validator that leaves out repeated values."""
Side = Annotated[int, Field(ge=1, le=MAX_PIXELS_PER_SIDE)]
Pattern = Annotated[str, Field(min_length=1, max_length=LONGEST_PATTERN)]

# Named aliases, because their names are what `--help` shows.
SIZE = TypeAliasType(
    "SIZE", Annotated[tuple[Side, Side], BeforeValidator(parse_image_size), PlainSerializer(format_image_size)]
)
SIZES = TypeAliasType(
    "SIZES", Annotated[tuple[SIZE, ...], BeforeValidator(_image_sizes), unique, Field(max_length=MOST_VALUES)]
)
BATCHES = TypeAliasType(
    "BATCHES",
    Annotated[
        tuple[Annotated[int, Field(ge=1, le=4096)], ...],
        BeforeValidator(lambda value: split_numbers(value) if isinstance(value, str) else value),
        BeforeValidator(lambda value: (value,) if isinstance(value, int | float) else value),
        unique,
        Field(min_length=1, max_length=MOST_VALUES),
    ],
)
PATTERNS = TypeAliasType(
    "PATTERNS",
    Annotated[
        tuple[Pattern, ...],
        BeforeValidator(lambda value: split_patterns(value) if isinstance(value, str) else value),
        Field(min_length=1, max_length=2000),
    ],
)
Precision = Literal["float32", "float16", "bfloat16", "float64"]


def known_device(device: str, *, meta: bool = True) -> str:
    """Return the numbered name of a device. Errors: ValueError for a name that torch cannot have.

    meta: accept meta too, which computes nothing.
    """
    if CLUSTER_DEVICE.fullmatch(device) or (meta and device in ("meta", f"{CLUSTER}meta")):
        return device
    if device == "meta":
        raise ValueError("nothing runs on meta, so nothing can be timed there: choose cpu or an accelerator")
    if not DEVICE.fullmatch(device):
        more_names = "meta, " if meta else ""
        accelerators = ", ".join(f"{kind}[:i]" for kind in ACCELERATORS)
        on_cluster = ", ".join(f"{CLUSTER}{name}" for name in f"{more_names}cpu, gpu[:TYPE]".split(", "))
        raise ValueError(
            f"device {device!r} is not one of {more_names}cpu, {accelerators}, or on a Ray cluster {on_cluster}"
        )
    return numbered(device)


def device_on_node(device: str) -> str:
    """Return the name that a device of the cluster has on its node, such as `cuda:0` for `cluster:gpu`.

    Ray shows a worker only the GPUs that it reserved for it, so the first one is its own. Other names stay unchanged.
    """
    if not device.startswith(CLUSTER):
        return device
    kind = device.removeprefix(CLUSTER)
    return "cuda:0" if kind.startswith("gpu") else kind


def numbered(device: str) -> str:
    """Return the canonical name of a device: `cuda:0` for `cuda`, `mps` for `mps:0`. Other names stay unchanged."""
    if not DEVICE.fullmatch(device):
        return device
    kind, _, number = device.partition(":")
    index = int(number or 0)
    return kind if kind in UNNUMBERED and index == 0 else f"{kind}:{index}"


RealDevice = Annotated[str, AfterValidator(partial(known_device, meta=False))]


class Frozen(BaseModel):
    """A model whose values do not change. It ignores unknown fields, which a newer version may have written."""

    model_config = ConfigDict(frozen=True)


class Closed(Frozen):
    """A model whose values do not change and that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")


class Spec(Closed):
    """The request for one run. A subclass defines its `kind`, which is also the name of the task that runs it."""

    model_config = ConfigDict(allow_inf_nan=False)

    kind: ClassVar[str]
    attempts: ClassVar[int] = 1
    """Number of attempts when the worker is killed from outside."""
    continues: ClassVar[bool] = False
    """True if a later attempt continues the work of an earlier one instead of starting again."""
    exclusive: ClassVar[bool] = False
    """True if no other run may use the host at the same time, as for timings."""
    paced_by: ClassVar[tuple[str, ...]] = ()
    """Fields and properties that determine how long one unit of work takes (a model, a step, or the whole run)."""
    meaning: ClassVar[tuple[str, ...]] = ()
    """Fields that change the meaning of a run's values: runs that differ in them do not compare.

    Fields that are varied to see their effect, such as models, variants or a learning rate, are not listed.
    """
    needs: ClassVar[tuple[str, ...]] = ()
    """Fields besides the batch size that determine files and memory of a training or an evaluation."""
    batch_field: ClassVar[str] = "batch_size"
    """The field with the amount of work per call, which determines the memory, if the spec has such a field."""

    def default(self, name: str) -> Any:
        """Return the value that a field of this spec has when it is left out. It may depend on fields before it."""
        return type(self).model_fields[name].get_default(call_default_factory=True, validated_data=vars(self))

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices that a run of this spec must hold, such as ("cuda:0",)."""
        return (getattr(self, "device", "cpu"),)

    @property
    def pace(self) -> tuple[object, ...]:
        """Return the values of `paced_by`. If they are equal, a unit of work of two specs takes about as long."""
        return tuple(getattr(self, name) for name in self.paced_by)

    @property
    def resolved(self) -> dict[str, Any]:
        """Return the values of empty fields that follow from other fields, by field name."""
        return {}

    @property
    def unused(self) -> dict[str, str]:
        """Return the reason why a field, or one of its values, has no effect beside the other fields.

        The keys are the names of fields, such as `optimizer`, or a name and a value: `held_out_data photos.csv`.
        """
        return {}

    @property
    def half_batch(self) -> int | None:
        """Return half the batch size, to try after out-of-memory; None if the batch is not a number or is 1."""
        batch = getattr(self, self.batch_field, None)
        return batch // 2 if isinstance(batch, int) and batch > 1 else None

    @property
    def refusal(self) -> str:
        """Return why the requested device or this program cannot execute this spec; empty if no reason is known.

        This is not a validation error, because stored runs of other machines and older versions must stay readable.
        """
        return ""

    @property
    def summary(self) -> str:
        """Return a short description for lists of runs."""
        return self.kind
