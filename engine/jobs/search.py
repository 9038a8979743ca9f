"""What it takes to search the images of an evaluation by text."""

from engine.jobs.references import check_paths
from engine.settings import Settings
from engine.specs import EvaluateSpec, Refused
from engine.specs.clip import EMBEDDED
from engine.specs.questions import Search
from engine.store import Run
from engine.store.files import RunFiles


def question(settings: Settings, run: Run, text: str, top: int) -> Search:
    """Return the question which images of a run are nearest to a text. Errors: Refused of a run that is not an
    evaluation, of a checkpoint that is gone or lies where nothing may be read; ValidationError."""
    if not isinstance(run.spec, EvaluateSpec):
        raise Refused(f"run {run.id} is a {run.kind}, and only an evaluation's images can be searched")
    check_paths(settings, run.spec.model_copy(update={"data": EMBEDDED[0]}))  # their embeddings will do
    return Search(spec=run.spec, folder=RunFiles(settings.runs_dir, run.id).dir, text=text, top=top)
