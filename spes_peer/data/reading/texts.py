"""Plain text: a file is a document, or each of its sections, lines or paragraphs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from spes_peer.data.reading.records import PART_BYTES, CutOff, Meter, Record, cut
from spes_peer.data.reading.streams import blocks, lines

Documents = Literal["section", "file", "line", "paragraph"]
"""What one document is. A paragraph ends where a line is empty; a section is a file of ordinary size, or a part of a
large one that ends where a line is empty, so that what is held out of three books need not be one of them."""

SECTION_BYTES = 1 << 16
"""A section ends at the first empty line behind so many bytes, or at the first line's end behind twice as many."""
_EMPTY_LINE = re.compile(rb"\n\s*\n")


def text_records(path: Path, documents: Documents, meter: Meter) -> Iterator[Record]:
    """`CutOff` and `Unreadable` as `blocks`."""
    parts = blocks(path, meter)
    if documents == "section":
        yield from _sections(parts)
    elif documents == "file":
        yield from _whole(parts)
    elif documents == "line":
        yield from (Record(b"", "too long") if line is None else Record(line) for line in lines(parts) if line != b"")
    else:
        yield from _paragraphs(lines(parts))


def _sections(parts: Iterator[bytes]) -> Iterator[Record]:
    """Also the last one of a file that is cut off. What has no end of a line for `PART_BYTES` comes in parts, as
    `_whole` has them."""
    pending, is_first, num_cut = bytearray(), True, 0

    def whole_ones() -> Iterator[Record]:
        nonlocal is_first, num_cut
        while (at := _end_of_section(pending)) or len(pending) > 2 * PART_BYTES:
            ends = at > 0
            at = at or cut(bytes(pending[: PART_BYTES + 4]))
            yield Record(bytes(pending[:at]), "text", is_first, ends)
            del pending[:at]
            is_first, num_cut = ends, num_cut + 1

    end = None
    try:
        for part in parts:
            pending += part
            yield from whole_ones()
    except CutOff as error:
        end = error
    if pending or not num_cut:
        yield Record(bytes(pending), "text", is_first, True)
    if end is not None:
        raise end


def _end_of_section(pending: bytearray) -> int:
    """How many bytes of it are a section; 0 where that is not clear yet: what is left must be worth one, too."""
    if len(pending) <= 2 * SECTION_BYTES:
        return 0
    if found := _EMPTY_LINE.search(pending, SECTION_BYTES, 2 * SECTION_BYTES):
        return found.end()
    return pending.find(b"\n", 2 * SECTION_BYTES - 1, PART_BYTES) + 1


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
