"""Files at Hugging Face: are they in the cache, how large are they, fetch them, or say at once why that cannot be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError
from tqdm import tqdm  # type: ignore[import-untyped]

from engine.specs import Refused

ANSWER_S = 5.0
"""So long the hub is waited for. Its own limits do not hold while a name is looked up, which can take a minute."""
SITE = "huggingface.co"
Progress = Callable[[int, int | None], None]
"""Bytes fetched, of how many."""


class Unreachable(Refused):
    """A file that is not here and cannot be fetched."""


@dataclass(frozen=True)
class Remote:
    """A file at the hub that is not here."""

    repo: str
    file: str
    size: int | None
    """Bytes, where the hub says so."""

    @property
    def label(self) -> str:
        """`huggingface.co/org/name/file (605 MB)`."""
        size = f" ({self.size / 1e6:,.0f} MB)" if self.size else ""
        return f"{SITE}/{self.repo}/{self.file}{size}"


def cache() -> Path:
    """Where fetched files are kept."""
    return Path(constants.HF_HUB_CACHE)


def cached(repo: str, files: Sequence[str]) -> Path | None:
    """The first of these files that lies in the cache."""
    found = (try_to_load_from_cache(repo, file) for file in files)
    return next((Path(path) for path in found if isinstance(path, str)), None)


def locate(repo: str, files: Sequence[str]) -> Remote:
    """The first of these files that is at the hub. Errors: Unreachable."""
    for file in files:
        try:
            return Remote(repo, file, _in_time(partial(_metadata, repo, file)).size)
        except EntryNotFoundError:
            continue
        except Exception as error:  # of the hub, of HTTP, of sockets, of time, of HF_HUB_OFFLINE
            raise _unreachable(f"{SITE}/{repo}", error) from error
    raise Unreachable(f"{SITE}/{repo} has none of {', '.join(files)}")


def fetch(remote: Remote, progress: Progress | None = None) -> Path:
    """Bring a file into the cache, going on where an earlier attempt was cut off. Errors: Unreachable."""
    try:
        bar = _reporting(progress) if progress else None
        return Path(hf_hub_download(remote.repo, remote.file, etag_timeout=ANSWER_S, tqdm_class=bar))
    except Exception as error:
        raise _unreachable(remote.label, error) from error


def _metadata(repo: str, file: str) -> Any:
    return get_hf_file_metadata(hf_hub_url(repo, file), timeout=ANSWER_S)


def _unreachable(what: str, error: Exception) -> Unreachable:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return Unreachable(f"{what} cannot be reached: {reason}")


def _in_time(ask: Callable[[], Any]) -> Any:
    """An answer within ANSWER_S. Errors: TimeoutError, and those of asking."""
    answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()

    def work() -> None:
        try:
            answers.put((ask(), None))
        except Exception as error:  # noqa: BLE001 raised again below
            answers.put((None, error))

    Thread(target=work, daemon=True).start()
    try:
        answer, error = answers.get(timeout=ANSWER_S)
    except Empty:
        raise TimeoutError(f"no answer within {ANSWER_S:.0f} seconds") from None
    if error is not None:
        raise error
    return answer


def _reporting(progress: Progress) -> type:
    """A progress bar that is told to someone instead of drawn."""

    class Reporting(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # huggingface_hub's own bars have one
            super().__init__(*arguments, **{**options, "disable": False, "leave": False})

        def display(self, *_: Any, **__: Any) -> None:
            progress(int(self.n), None if self.total is None else int(self.total))

    return Reporting
