"""Questions of pages that need the heavy libraries but are no runs, such as memory estimates.

`engine/jobs/answers.py` puts them to one process. A subclass has its `name`; `engine/tasks/answers.py` maps names to
modules.
"""

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from engine.specs.evaluate import EvaluateSpec
from engine.specs.train import TrainSpec

LONGEST_TEXT = 10_000
MOST_HITS = 1000


class Question(BaseModel):
    """A question. Equal questions get the same answer for a while."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]


class Search(Question):
    """Find the evaluated images nearest to a text. Answered by `engine.results.answers.Hits`."""

    name: ClassVar[str] = "search"

    spec: EvaluateSpec
    """As the evaluation was run."""
    folder: Path
    """Where it has written its embeddings."""
    text: str = Field(min_length=1, max_length=LONGEST_TEXT)
    top: int = Field(12, ge=1, le=MOST_HITS)


class Outlook(Question):
    """Look whether the files of a training or evaluation are there and its memory suffices. Answered by `Prospect`."""

    name: ClassVar[str] = "outlook"

    spec: TrainSpec | EvaluateSpec
    """With a batch size, which the data may have decided."""

    @classmethod
    def of(cls, spec: TrainSpec | EvaluateSpec, batch_size: int) -> "Outlook":
        """Return the question for a request, without the fields that do not change the answer."""
        fields = {name: getattr(spec, name) for name in spec.needs}
        return cls(spec=type(spec).model_validate(fields | {"batch_size": batch_size}))


def load(name: str, payload: object) -> Question:
    """Return the question of this name. Errors: LookupError of an unknown name, ValidationError of a bad payload."""
    for question in Question.__subclasses__():
        if question.name == name:
            return question.model_validate(payload)
    raise LookupError(f"no question is called {name!r}")
