"""JSON lines, and plain lines in files that are called so."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from spes_peer.data.reading.records import CutOff, Meter, Record, Unreadable
from spes_peer.data.reading.streams import blocks, lines

_SAMPLE_LINES = 100
_SAMPLE_BYTES = 1 << 20


def line_records(path: Path, meter: Meter) -> Iterator[Record]:
    """Each line that is not empty. `CutOff` and `Unreadable` as `blocks`, and `Unreadable` for JSON that is not in
    lines."""
    parts = blocks(path, meter)
    sample, end = _sample(parts)
    kind = "json" if has_json_lines(sample) else "text"
    for line in lines(_chained(sample, parts, end)):
        if line is None:
            yield Record(b"", "too long")
        elif line and not line.isspace():
            yield Record(line, "json" if kind == "json" else "text")


def has_json_lines(sample: bytes) -> bool:
    """Whether lines are JSON: one of the first is an object. A first sign alone says nothing: `{` may open a line of
    text, or one of JSON. `Unreadable` for one JSON value over many lines."""
    some = [line.strip() for line in sample.split(b"\n")[:_SAMPLE_LINES]]
    some = [line for line in some if line]
    first = some[0] if some else b""
    if first == b"[" or first.startswith((b"[{", b"[ {")):
        raise Unreadable("it is one JSON list; make lines of it: jq -c '.[]' FILE")
    if any(line.startswith(b"{") and _is_object(line) for line in some):
        return True
    if first == b"{":
        raise Unreadable("it is one JSON object over many lines; make one of it: jq -c . FILE")
    is_cut = len(some) == 1 and len(sample) >= _SAMPLE_BYTES  # a line so long that its end is not in the sample
    return is_cut and first.startswith(b"{")


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _sample(parts: Iterator[bytes]) -> tuple[bytes, CutOff | None]:
    """The first bytes, and what ended them early."""
    sample = bytearray()
    try:
        for part in parts:
            sample += part
            if len(sample) >= _SAMPLE_BYTES:
                break
    except CutOff as error:
        return bytes(sample), error
    return bytes(sample), None


def _chained(sample: bytes, parts: Iterable[bytes], end: CutOff | None) -> Iterator[bytes]:
    yield from itertools.chain((sample,), () if end else parts)
    if end is not None:
        raise end
