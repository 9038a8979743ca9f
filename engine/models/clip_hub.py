"""Files at Hugging Face: are they in the cache, how large are they, fetch them, or say at once why that cannot be."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled
from tqdm import tqdm  # type: ignore[import-untyped]

from engine.results import Progress
from engine.specs import Refused

ANSWER_S = 5.0
"""So long the hub is waited for. Its own limits do not hold while a name is looked up, which can take a minute."""
TICK_S = 0.5
"""Between two words on a file that is being fetched, each of which gives leave to stop it."""
SITE = "huggingface.co"


class Unreachable(Refused):
    """A file that is not here and cannot be fetched."""


class _Stopped(Exception):
    """Nobody waits for this file any more."""


@dataclass(frozen=True)
class Remote:
    """A file at the hub that is not here."""

    repo: str
    file: str
    size: int | None
    """Bytes, where the hub says so."""

    @property
    def address(self) -> str:
        """`huggingface.co/org/name/file`."""
        return f"{SITE}/{self.repo}/{self.file}"

    def come(self, done: int) -> Progress:
        """Return how far a download is."""
        mb = f"{done / 1e6:,.0f}" + (f" of {self.size / 1e6:,.0f}" if self.size else "")
        return Progress(done=0, note=f"fetching {self.address}: {mb} MB into {cache()}")


def cache() -> Path:
    """Return where fetched files are kept."""
    return Path(constants.HF_HUB_CACHE)


def cached(repo: str, files: Sequence[str]) -> Path | None:
    """Return the first of these files that lies in the cache."""
    found = (try_to_load_from_cache(repo, file) for file in files)
    return next((Path(path) for path in found if isinstance(path, str)), None)


def locate(repo: str, files: Sequence[str]) -> Remote:
    """Return the first of these files that is at the hub. Errors: Unreachable."""
    for file in files:
        try:
            return Remote(repo, file, _in_time(partial(_metadata, repo, file)).size)
        except EntryNotFoundError:
            continue
        except Exception as error:  # of the hub, of HTTP, of sockets, of time, of HF_HUB_OFFLINE
            raise _unreachable(f"{SITE}/{repo}", error) from error
    raise Unreachable(f"{SITE}/{repo} has none of {', '.join(files)}")


def fetch(remote: Remote) -> Generator[Progress, None, Path]:
    """Bring a file into the cache, telling how far it is. Closed, it ends the download, of which nothing stays.

    Errors: Unreachable.
    """
    bar = _told()
    download = _begin(partial(hf_hub_download, remote.repo, remote.file, etag_timeout=ANSWER_S, tqdm_class=bar))
    try:
        while wait([download], TICK_S).not_done:
            yield remote.come(bar.most)
        path = Path(download.result())
    except Exception as error:
        raise _unreachable(remote.address, error) from error
    finally:
        bar.stopped = True
        wait([download], ANSWER_S)  # it tidies up
    yield remote.come(path.stat().st_size)
    return path


def _metadata(repo: str, file: str) -> Any:
    return get_hf_file_metadata(hf_hub_url(repo, file), timeout=ANSWER_S)


def _unreachable(what: str, error: Exception) -> Unreachable:
    if isinstance(error, OfflineModeIsEnabled):
        return Unreachable(f"{what} cannot be reached: HF_HUB_OFFLINE is set")
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return Unreachable(f"{what} cannot be reached: {reason}")


def _in_time(ask: Callable[[], Any]) -> Any:
    """Return an answer within ANSWER_S. Errors: TimeoutError, and those of asking."""
    answer = _begin(ask)
    if wait([answer], ANSWER_S).not_done:
        raise TimeoutError(f"no answer within {ANSWER_S:.0f} seconds")
    return answer.result()


def _begin(ask: Callable[[], Any]) -> Future[Any]:
    """Ask in a thread that no exit of the process waits for, as it would for a pool's."""
    answer: Future[Any] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001 raised again where the answer is taken
            answer.set_exception(error)

    Thread(target=work, daemon=True).start()
    return answer


def _told() -> Any:
    """Return a class of progress bars that draw nothing: it knows the `most` bytes that any of them has seen, and,
    `stopped`, ends the download at its next bytes."""

    class Told(tqdm):  # type: ignore[misc]
        most = 0
        stopped = False

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # huggingface_hub's own bars have one
            super().__init__(*arguments, **{**options, "disable": False, "leave": False})

        def update(self, n: float | None = 1) -> bool | None:
            if Told.stopped:
                raise _Stopped
            drawn: bool | None = super().update(n)
            Told.most = max(Told.most, int(self.n))
            return drawn

        def display(self, *_: Any, **__: Any) -> None:
            """Do nothing: the log is no place for progress bars."""

    return Told
