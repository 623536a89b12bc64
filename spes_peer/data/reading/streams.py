"""Bytes of a file, unpacked where they are packed, and lines of them."""

import gzip
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from spes_peer.data.reading.records import BLOCK_BYTES, MAX_LINE_BYTES, CutOff, Meter, Unreadable
from spes_peer.errors import BadConfiguration

PACKED = (".gz", ".zst")
_BOM = b"\xef\xbb\xbf"
_OTHER_UNICODE = (b"\xff\xfe", b"\xfe\xff")


class _Stream(Protocol):
    def read1(self, size: int, /) -> bytes: ...


def blocks(path: Path, meter: Meter) -> Iterator[bytes]:
    """Of the text in `path`, without a byte order mark. `CutOff` behind the last good one of a damaged file;
    `Unreadable` for what is not UTF-8 from its first bytes on."""
    with path.open("rb") as file:
        is_first = True
        for block in _unpacked(file, path.suffix):
            meter.num_bytes = file.tell()
            if is_first:
                if block.startswith(_OTHER_UNICODE):
                    raise Unreadable("it is UTF-16; convert it to UTF-8")
                block, is_first = block.removeprefix(_BOM), False
            yield block


def _unpacked(file: BinaryIO, suffix: str) -> Iterator[bytes]:
    if suffix == ".gz":
        yield from _read(cast(_Stream, gzip.GzipFile(fileobj=file)), (EOFError, zlib.error, gzip.BadGzipFile))
    elif suffix == ".zst":
        zstd = _zstd()
        yield from _read(zstd.ZstdFile(file), (EOFError, zstd.ZstdError))
    else:
        while block := file.read(BLOCK_BYTES):
            yield block


def _zstd() -> Any:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise BadConfiguration("to read .zst files, install: pip install 'spes-peer[data]'") from None
    return zstd


def _read(stream: _Stream, broken: tuple[type[Exception], ...]) -> Iterator[bytes]:
    try:
        while block := stream.read1(BLOCK_BYTES):
            yield block
    except broken as error:
        raise CutOff(str(error)) from None


def lines(parts: Iterable[bytes], max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes | None]:
    """Without their ends, LF or CRLF; None for one that is longer than `max_bytes`. What a file that is cut off has of
    its last line is not a line."""
    pending: list[bytes] = []
    num_pending, is_too_long = 0, False
    for part in parts:
        *whole, rest = part.split(b"\n")
        for line in whole:
            if is_too_long or num_pending + len(line) > max_bytes:
                yield None
            else:
                yield (b"".join((*pending, line)) if pending else line).removesuffix(b"\r")
            pending, num_pending, is_too_long = [], 0, False
        num_pending += len(rest)
        if num_pending > max_bytes:
            pending, is_too_long = [], True
        elif rest:
            pending.append(rest)
    if is_too_long:
        yield None
    elif pending:
        yield b"".join(pending).removesuffix(b"\r")
