"""Raw records to texts: what can be mended is mended and counted, what cannot be is left out and counted."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from spes_peer.data.reading.records import PART_BYTES, Record, cut

Counts = Counter[str]
"""How often each of `TROUBLES` was met, and `DOCUMENTS`."""

DOCUMENTS = "documents"
EMPTY = "empty"
REPAIRED = "repaired"
TROUBLES = {
    "no field": "JSON without text in that field",
    "no json": "lines that should be JSON and are not",
    REPAIRED: "documents with broken UTF-8, mended with U+FFFD",
    "too long": "lines of more than 256 MiB, left out",
    "cut off": "packed files cut off or damaged, read up to there",
    "unreadable": "files that could not be read",
    "duplicates": "copies of held-out documents, left out",
}
"""What each is, in words."""


@dataclass
class Text:
    """Of one record, ready to be tokenized."""

    parts: list[str] = field(default_factory=list)
    """Together the text; several for a large document."""
    key: int = 0
    """Hash of the content of a document that may be held out; 0 for others."""
    ends: bool = True
    """An end of text follows."""

    @property
    def is_document(self) -> bool:
        return bool(self.parts)


def texts(records: list[Record], text_field: str, counts: Counts) -> Iterator[Text]:
    """One for each record, empty where it holds no document."""
    for record in records:
        raw = record.raw if record.kind == "text" else _from_json(record.raw, text_field, counts)
        yield _text(raw, record, counts) if raw is not None else Text()


def _from_json(line: bytes, text_field: str, counts: Counts) -> bytes | None:
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        try:
            value = json.loads(line.decode(errors="replace"))
            counts[REPAIRED] += 1
        except (ValueError, RecursionError):
            value = None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        counts["no json"] += 1
        return None
    text = value.get(text_field)
    if not isinstance(text, str):
        counts["no field"] += 1
        return None
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a pair of \u escapes
        counts[REPAIRED] += 1
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _text(raw: bytes, record: Record, counts: Counts) -> Text:
    if b"\r\n" in raw and record.kind == "text":
        raw = raw.replace(b"\r\n", b"\n")
    is_whole = record.starts and record.ends
    if is_whole and (not raw or raw.isspace()):
        counts[EMPTY] += 1
        return Text()
    parts = [_decoded(part, counts) for part in _parts(raw)]
    if record.ends:
        counts[DOCUMENTS] += 1
    return Text(parts or [""], key_of(raw) if is_whole and len(parts) == 1 else 0, record.ends)


def _parts(raw: bytes) -> Iterator[bytes]:
    while len(raw) > PART_BYTES:
        at = cut(raw)
        yield raw[:at]
        raw = raw[at:]
    yield raw


def _decoded(raw: bytes, counts: Counts) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        counts[REPAIRED] += 1
        return raw.decode(errors="replace")


def key_of(content: bytes) -> int:
    """The same for documents that are the same but for white space at their ends; never 0."""
    return int.from_bytes(hashlib.blake2b(content.strip(), digest_size=8).digest(), "little") or 1
