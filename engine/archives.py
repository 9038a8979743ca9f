"""Read zip and tar files from unknown senders: in order, within limits, and one member in memory at a time."""

import gzip
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, BinaryIO, Literal, NamedTuple, cast

from engine.specs import Refused
from engine.words import plural

LARGEST_HEADER = 16_384
"""Limit in bytes of a tar member's header with long names. Older versions of tarfile take minutes for one megabyte."""
FREE_BYTES, MOST_RATIO = 50_000_000, 100
"""Contents above FREE_BYTES may be at most MOST_RATIO times as large as the archive file. More is a zip bomb."""
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    ValueError,
    OSError,
)
"""Exceptions that zipfile, tarfile and gzip raise for damaged headers or contents."""
Format = Literal["zip", "tar", "gzip", "parquet", ""]
PARQUET = b"PAR1"
CENTRAL_HEADER = b"PK\1\2"


class BadArchive(Refused):
    """Raised for an archive with contents that are not allowed. The message names the file in it and the limit."""


class Limits(NamedTuple):
    """The most that may be unpacked from an archive."""

    files: int
    total_bytes: int
    """Limit of the unpacked size of all files together."""
    file_bytes: int
    """Limit of the unpacked size of one file."""


class Entry(NamedTuple):
    """A file in an archive. Call `read` for its content before the next entry is requested. Errors: DAMAGED."""

    name: str
    size: int
    read: Callable[[], bytes]


def format_of(file: BinaryIO) -> Format:
    """Return the format that a file's first bytes show; empty for any other."""
    file.seek(0)
    start = file.read(265)
    if start.startswith((b"PK\3\4", b"PK\5\6")):
        return "zip"
    if start.startswith(b"\x1f\x8b"):
        return "gzip"
    if start.startswith(PARQUET):
        return "parquet"
    return "tar" if start[257:262] == b"ustar" else ""


def entries(file: BinaryIO, kind: Format, packed: int, limits: Limits) -> Iterator[Entry]:
    """Yield the files in an archive of `packed` bytes.

    Errors: DAMAGED; BadArchive for members that are not files, and for archives that exceed the limits.
    """
    total = 0
    file.seek(0)
    members = _in_zip(file, limits) if kind == "zip" else _in_tar(file, limits, packed=kind == "gzip")
    for count, entry in enumerate(members, start=1):
        total += entry.size
        if count > limits.files or total > limits.total_bytes or total > max(FREE_BYTES, MOST_RATIO * packed):
            raise BadArchive(
                f"it would unpack to {plural(count, 'file')} of {total:,} bytes or more from {packed:,}: at most "
                f"{limits.files:,} files of {limits.total_bytes:,} bytes are taken, and {MOST_RATIO} times its own size"
            )
        if entry.size > limits.file_bytes:
            raise BadArchive(f"{entry.name!r} has {entry.size:,} bytes, at most {limits.file_bytes:,} are taken")
        yield entry


def _in_zip(file: BinaryIO, limits: Limits) -> Iterator[Entry]:
    # count first: zipfile creates an object for every header before it can be asked for their number
    if (headers := _count_occurrences(file, CENTRAL_HEADER)) > limits.files:
        raise BadArchive(f"it holds {headers:,} files, at most {limits.files:,} are taken")
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
                raise BadArchive(f"{info.orig_filename!r} is a link or a device, not a file")
            if info.flag_bits & 1:
                raise BadArchive(f"{info.orig_filename!r} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BadArchive(f"{info.orig_filename!r} is neither stored nor deflated: zip it anew")

            def read(info: zipfile.ZipInfo = info) -> bytes:
                # read with a limit, because zipfile can unpack more than the size that was checked
                with archive.open(info) as member:
                    return _check_size(member.read(info.file_size + 1), info.file_size)

            yield Entry(info.orig_filename, info.file_size, read)


def _in_tar(file: BinaryIO, limits: Limits, *, packed: bool) -> Iterator[Entry]:
    stream = _Bounded(cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file, limits)
    with tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive:
        for info in whole(archive):
            if info.isdir():
                continue
            if not info.isreg() or info.issparse():
                raise BadArchive(f"{info.name!r} is a link or a device, not a file")

            def read(info: tarfile.TarInfo = info) -> bytes:
                member = archive.extractfile(info)
                assert member is not None
                stream.most = limits.file_bytes
                try:
                    return _check_size(member.read(), info.size)
                finally:
                    stream.most = LARGEST_HEADER

            yield Entry(info.name, info.size, read)


def whole(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar. Errors: ReadError, also for a damaged header, which tarfile takes for the end."""
    yield from archive
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
        raise tarfile.ReadError(f"the header at byte {archive.offset:,} is damaged")


def _check_size(content: bytes, size: int) -> bytes:
    if len(content) != size:
        raise EOFError(f"a file does not have the {plural(size, 'byte')} it should")
    return content


def _count_occurrences(file: BinaryIO, sign: bytes) -> int:
    """Return how often a byte string occurs in a file."""
    count, end = 0, b""
    while chunk := file.read(1 << 20):
        block = end + chunk
        count += block.count(sign)
        end = block[1 - len(sign) :]
    file.seek(0)
    return count


class _Bounded:
    """A tar's bytes up to the limits. Huge headers, which tarfile would load into memory, are refused."""

    def __init__(self, stream: IO[bytes], limits: Limits) -> None:
        self._stream, self._limits = stream, limits
        self.most = LARGEST_HEADER
        """Most bytes of one read."""

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, position: int) -> int:
        self._check(position)
        return self._stream.seek(position)

    def read(self, size: int) -> bytes:
        if size > self.most:
            raise BadArchive(f"it has a header of more than {self.most:,} bytes")
        self._check(self.tell() + size)
        return self._stream.read(size)

    def _check(self, position: int) -> None:
        # headers count too, at least half a kilobyte each
        if position > self._limits.total_bytes + 4096 * self._limits.files:
            raise BadArchive(f"it would unpack to more than {self._limits.total_bytes:,} bytes")
