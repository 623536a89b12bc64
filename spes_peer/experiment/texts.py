"""Real text for experiments, cut into documents that a held-out split can be taken from.

The order is the same in all cells, whatever their seed: so the held-out split is too.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from spes_peer.data.corpus import Corpus, read_text_folder, standard_library
from spes_peer.errors import BadConfiguration

STANDARD_LIBRARY = "standard-library"
_ORDER_SEED = 0
_DOCUMENT_CHARACTERS = 8192
_LINE_ENDS = re.compile(r"\n(?:[ \t]*\n)*")


def read_texts(sources: tuple[str, ...], max_bytes: int) -> Corpus:
    """What `sources` hold, equally much of each at most; `BadConfiguration` where one cannot be read."""
    parts = [_read(source, max_bytes // len(sources)) for source in sources]
    documents = [document for part in parts for document in part.documents]
    if len(parts) > 1:
        documents.sort(key=_order)
    return Corpus(" + ".join(part.source for part in parts), tuple(documents))


def _read(source: str, max_bytes: int) -> Corpus:
    whole = _whole(source, max_bytes)
    documents = sorted((part for document in whole.documents for part in _cut(document)), key=_order)
    return Corpus(whole.source, tuple(_up_to(max_bytes, documents)))


def _whole(source: str, max_bytes: int) -> Corpus:
    if source == STANDARD_LIBRARY:
        return standard_library(_ORDER_SEED, max_bytes)
    path = Path(source)
    if path.is_dir():
        return read_text_folder(path, _ORDER_SEED, max_bytes)
    try:
        return Corpus(path.name, (path.read_bytes().decode(),))
    except (OSError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"cannot read the text {path}: {error}") from None


def _cut(text: str) -> Iterator[str]:
    """Pieces of at least `_DOCUMENT_CHARACTERS` that end at blank lines, or at a line's end where those are rare: a
    book is not one document, or all of it were held out, and the text would change its kind in the middle of a run."""
    start = 0
    for end in _LINE_ENDS.finditer(text):
        is_blank_line = end[0].count("\n") > 1
        if end.end() - start >= _DOCUMENT_CHARACTERS * (1 if is_blank_line else 2):
            yield text[start : end.end()]
            start = end.end()
    if text[start:].strip():
        yield text[start:]


def _order(document: str) -> bytes:
    return hashlib.sha256(document.encode()).digest()


def _up_to(max_bytes: int, documents: list[str]) -> Iterator[str]:
    num_bytes = 0
    for document in documents:
        num_bytes += len(document.encode())
        if num_bytes > max_bytes:
            return
        yield document
