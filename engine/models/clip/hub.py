"""Find files of Hugging Face in the cache, get their sizes, and download them; without an answer, fail in seconds."""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, OfflineModeIsEnabled
from tqdm import tqdm  # type: ignore[import-untyped]

from engine.models.built import first_line
from engine.results import Progress
from engine.specs import Refused

ANSWER_S = 5.0
"""Wait at most this many seconds for an answer from Hugging Face. Its own time limits do not cover the name look-up,
which can take a minute."""
TICK_S = 0.5
"""Seconds between two progress reports of a download. It can be stopped at each of them."""
SITE = "huggingface.co"


class Unreachable(Refused):
    """The file is not in the cache and cannot be downloaded."""


@dataclass(frozen=True)
class Remote:
    """A file at Hugging Face that is not in the cache."""

    repo: str
    file: str
    size: int | None
    """Size in bytes, if Hugging Face reports it."""
    what: str
    """Beginning of an error's message, such as `weights 'openai' of RN50 are`."""
    advice: str
    """End of an error's message."""

    @property
    def address(self) -> str:
        """Return the address, such as `huggingface.co/org/name/file`."""
        return f"{SITE}/{self.repo}/{self.file}"

    def progress(self, done: int) -> Progress:
        """Return the progress of a download. done: bytes so far."""
        mb = f"{done / 1e6:,.0f}" + (f" of {self.size / 1e6:,.0f}" if self.size else "")
        return Progress(done=0, note=f"fetching {self.address}: {mb} MB into {cache()}")


def cache() -> Path:
    """Return the folder of downloaded files."""
    return Path(constants.HF_HUB_CACHE)


def find(repo: str, files: Sequence[str], what: str, advice: str = "") -> Path | Remote:
    """Return the first of these files that is in the cache, or else at Hugging Face.

    what, advice: as in Remote. Errors: Unreachable.
    """
    for file in files:
        if isinstance(path := try_to_load_from_cache(repo, file), str):
            return Path(path)
    for file in files:
        try:
            answer = _begin(partial(get_hf_file_metadata, hf_hub_url(repo, file), timeout=ANSWER_S))
            if wait([answer], ANSWER_S).not_done:
                raise TimeoutError(f"no answer within {ANSWER_S:.0f} seconds")
            return Remote(repo, file, answer.result().size, what, advice)
        except EntryNotFoundError:
            continue
        except Exception as error:  # from the hub, HTTP, sockets, a timeout or HF_HUB_OFFLINE
            raise _unreachable(what, f"{SITE}/{repo}", error, advice) from error
    raise Unreachable(f"{what} not in {cache()}, and {SITE}/{repo} has none of {', '.join(files)}{advice}")


def fetch(remote: Remote) -> Generator[Progress, None, Path]:
    """Download a file into the cache, yield progress and return its path. Closing the generator stops the download.

    A stopped download leaves no file. Errors: Unreachable.
    """
    bar = _silent_bars()
    download = _begin(partial(hf_hub_download, remote.repo, remote.file, etag_timeout=ANSWER_S, tqdm_class=bar))
    try:
        while wait([download], TICK_S).not_done:
            yield remote.progress(bar.most)
        path = Path(download.result())
    except Exception as error:
        raise _unreachable(remote.what, remote.address, error, remote.advice) from error
    finally:
        bar.stopped = True
        wait([download], ANSWER_S)  # let it delete the partial file
    yield remote.progress(path.stat().st_size)
    return path


def _unreachable(what: str, address: str, error: Exception, advice: str) -> Unreachable:
    offline = isinstance(error, OfflineModeIsEnabled)
    reason = "HF_HUB_OFFLINE is set" if offline else first_line(error).rstrip(".")
    return Unreachable(f"{what} not in {cache()}, and {address} cannot be reached: {reason}{advice}")


def _begin(ask: Callable[[], Any]) -> Future[Any]:
    """Run `ask` in a daemon thread. Unlike a pool's threads, it does not delay the end of the process."""
    answer: Future[Any] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001 raised again by answer.result()
            answer.set_exception(error)

    Thread(target=work, daemon=True).start()
    return answer


def _silent_bars() -> Any:
    """Return a class of progress bars that draw nothing.

    Its `most` is the largest number of bytes that any bar has reported. Setting `stopped` ends the download at its next
    bytes.
    """

    class SilentBar(tqdm):  # type: ignore[misc]
        most = 0
        stopped = False

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # huggingface_hub passes it, tqdm does not know it
            super().__init__(*arguments, **{**options, "disable": False, "leave": False})

        def update(self, n: float | None = 1) -> bool | None:
            if SilentBar.stopped:
                raise CancelledError
            drawn: bool | None = super().update(n)
            SilentBar.most = max(SilentBar.most, int(self.n))
            return drawn

        def display(self, *_: Any, **__: Any) -> None:
            """Do nothing, because progress bars must not appear in the log."""

    return SilentBar
