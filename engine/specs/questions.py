"""Questions of pages that need the heavy libraries but are not runs, such as memory estimates.

`engine/jobs/answers.py` sends them to one process. `engine/tasks/answers.py` names the module that answers each class.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Base64Bytes, Field

from engine.specs.base import Closed
from engine.specs.evaluate import EvaluateSpec
from engine.specs.fields.images import ImageFields
from engine.specs.train import TrainSpec

EMBEDDINGS = "embeddings.npz"
"""The file with the embeddings of the first model on the first data set of an evaluation."""
LONGEST_TEXT = 10_000
MOST_HITS = 1000
MOST_TEXTS = 1000
LARGEST_IMAGE_MB = 10
"""Largest file of the image of a `Match`, in MB of 2**20 bytes, as uploads count them."""


class Question(Closed):
    """A question. For a while, equal questions get the same answer."""


class Search(Question):
    """Find the evaluated images nearest to a text. The answer is an `engine.results.answers.Hits`."""

    spec: EvaluateSpec
    """The spec of the evaluation."""
    folder: Path
    """The run's folder."""
    file: str = Field(EMBEDDINGS, pattern=r"^[\w.-]+$")
    """The file with the embeddings of the model and the data of `spec`."""
    text: str = Field(min_length=1, max_length=LONGEST_TEXT)
    top: int = Field(12, ge=1, le=MOST_HITS)


class Outlook(Question):
    """Check the files of a training or evaluation and whether its memory suffices. The answer is a `Prospect`."""

    spec: TrainSpec | EvaluateSpec
    """The spec with a batch size, which may come from the data."""

    @classmethod
    def of(cls, spec: TrainSpec | EvaluateSpec, batch_size: int) -> "Outlook":
        """Return the question for a request, without the fields that do not change the answer."""
        fields = {name: getattr(spec, name) for name in spec.needs}
        return cls(spec=type(spec).model_validate(fields | {"batch_size": batch_size}))


class Match(Question):
    """Compare one image with texts. The answer is an `engine.results.answers.Matches`."""

    spec: EvaluateSpec
    """The spec of an evaluation of the model."""
    image: Base64Bytes = Field(max_length=LARGEST_IMAGE_MB * 2**20 * 4 // 3 + 4)  # 4 characters for 3 bytes
    """The file of the image, in any format that data may have."""
    texts: tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)], ...] = Field(
        min_length=1, max_length=MOST_TEXTS
    )
    templates: tuple[str, ...] = ()
    """Prompts with {} for the text, which is then the name of a class; empty to use the texts as they are."""


class Augment(Question):
    """Augment some images as the training would. The answer is an `Augmented`."""

    spec: TrainSpec

    @classmethod
    def of(cls, spec: TrainSpec) -> "Augment":
        """Return the question for a request, without the fields that do not change the answer."""
        data = ("data", "data_kind", "csv_separator", "csv_img_key", "csv_caption_key", "samples", "seed", "json_split")
        execution = ("device", "nproc", "use_bn_sync", "opt", "eps", "beta1", "beta2", "momentum")
        names = (*data, *ImageFields.model_fields, *(name for name in spec.needs if name not in execution))
        return cls(spec=TrainSpec.model_validate({name: getattr(spec, name) for name in names}))


class Export(Question):
    """Write the model of a checkpoint into a folder that open_clip loads. The answer is an `Exported`."""

    checkpoint: Path
    folder: Path
    """A folder that does not exist yet or is empty."""
    card: str
    """The model card, in Markdown."""


def load(name: str, payload: object) -> Question:
    """Return the question of the class `name`. Errors: LookupError for no such class; ValidationError."""
    for question in Question.__subclasses__():
        if question.__name__ == name:
            return question.model_validate(payload)
    raise LookupError(f"no question is called {name!r}")
