"""Plain text: a file is a document, or each of its lines, or each of its paragraphs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from spes_peer.data.reading.records import PART_BYTES, CutOff, Meter, Record, cut
from spes_peer.data.reading.streams import blocks, lines

Documents = Literal["file", "line", "paragraph"]
"""What one document is. A paragraph ends where a line is empty."""


def text_records(path: Path, documents: Documents, meter: Meter) -> Iterator[Record]:
    """`CutOff` and `Unreadable` as `blocks`."""
    parts = blocks(path, meter)
    if documents == "file":
        yield from _whole(parts)
    elif documents == "line":
        yield from (Record(b"", "too long") if line is None else Record(line) for line in lines(parts) if line != b"")
    else:
        yield from _paragraphs(lines(parts))


def _whole(parts: Iterator[bytes]) -> Iterator[Record]:
    """The file in parts; also what one that is cut off has."""
    pending, is_first, end = bytearray(), True, None
    try:
        for part in parts:
            pending += part
            while len(pending) > 2 * PART_BYTES:
                at = cut(bytes(pending[: PART_BYTES + 4]))
                yield Record(bytes(pending[:at]), "text", is_first, False)
                del pending[:at]
                is_first = False
    except CutOff as error:
        end = error
    while len(pending) > PART_BYTES:
        at = cut(bytes(pending))
        yield Record(bytes(pending[:at]), "text", is_first, False)
        del pending[:at]
        is_first = False
    yield Record(bytes(pending), "text", is_first, True)
    if end is not None:
        raise end


def _paragraphs(all_lines: Iterator[bytes | None]) -> Iterator[Record]:
    pending: list[bytes] = []
    num_bytes = 0
    for line in all_lines:
        if line is None:
            yield Record(b"", "too long")
        elif line and not line.isspace():
            pending.append(line)
            num_bytes += len(line) + 1
        if pending and (not line or line.isspace() or num_bytes > PART_BYTES):
            yield Record(b"\n".join(pending))
            pending, num_bytes = [], 0
    if pending:
        yield Record(b"\n".join(pending))
