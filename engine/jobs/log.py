"""A log of bounded size that never stops its writer, whatever the disk says."""

from types import TracebackType
from typing import BinaryIO, Self

from engine.store.files import RunFiles


class BoundedLog:
    """Keeps the newest bytes: at half the limit the log becomes the older log, in place of the one before."""

    def __init__(self, files: RunFiles, limit_bytes: int) -> None:
        self._files = files
        self._half = max(limit_bytes // 2, 1)
        self._file: BinaryIO = files.log.open("ab", buffering=0)  # what was written is there even after SIGKILL
        self._size = files.log.stat().st_size

    def write(self, data: bytes) -> None:
        """Append; what the disk does not take is dropped, for a worker blocked on its own output would be worse."""
        try:
            while data:
                if self._size >= self._half:
                    self._turn()
                piece = data[: self._half - self._size]
                written = self._file.write(piece) or 0
                self._size += written
                data = data[len(piece) :]
        except OSError:
            pass

    def _turn(self) -> None:
        self._file.close()
        self._files.log.replace(self._files.older_log)
        self._file = self._files.log.open("ab", buffering=0)
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
