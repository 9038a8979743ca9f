"""Requests (specs): frozen, closed and serialisable, one module per kind of run.

Each bound is written once, here; the form, the command line and validation all read it.
"""

from engine.model_name import ModelName
from engine.specs.base import (
    Precision,
    Refused,
    Spec,
    describe_error,
    error_message,
    find_expression,
    format_image_size,
    parse_image_size,
    split_patterns,
)
from engine.specs.benchmark import BenchmarkSpec
from engine.specs.device import DeviceSpec
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.variant import Variant
from engine.specs.profile import ProfileSpec
from engine.specs.recurrent import RecurrentSpec
from engine.specs.train import TrainSpec


def load(kind: str, payload: str) -> Spec:
    """Return the spec of `kind` from its JSON. Errors: LookupError for no such kind; ValidationError for other JSON."""
    for spec in Spec.__subclasses__():
        if spec.kind == kind:
            return spec.model_validate_json(payload)
    raise LookupError(f"no kind of run is called {kind!r}")
