"""Where text comes from: the embedded default, or a folder that an organizer names.

The default is the source of the installed Python standard library: real text, on every machine, nothing to download.
It differs a little between Python versions; that harms nobody, because an organizer makes the shards once and peers
fetch them as blobs.
"""

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spes_peer.errors import BadConfiguration

DEFAULT_MAX_BYTES = 8 << 20
_TEXT_SUFFIXES = frozenset({".txt", ".py", ".md"})
# Tests of the library are large and repetitive, and not installed everywhere; the rest is not the library's own.
_NOT_THE_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})


@dataclass(frozen=True)
class Corpus:
    """Documents in a seeded order, and what they are, for people."""

    source: str
    documents: tuple[str, ...]
    licence: str = ""
    """Where it is known."""

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.documents)


def standard_library(seed: int, max_bytes: int = DEFAULT_MAX_BYTES) -> Corpus:
    """The embedded default."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path for path in root.rglob("*.py") if not _NOT_THE_LIBRARY & set(path.relative_to(root).parts))
    documents = tuple(_read(_shuffled(root, paths, seed), max_bytes))
    version = sysconfig.get_python_version()
    return Corpus(f"standard library of Python {version}", documents, "PSF License Version 2")


def read_text_folder(folder: Path, seed: int, max_bytes: int = DEFAULT_MAX_BYTES) -> Corpus:
    """Every *.txt, *.py and *.md file under `folder`; `BadConfiguration` if there is no such folder."""
    if not folder.is_dir():
        raise BadConfiguration(f"the corpus {folder} is not a folder; name one that holds .txt, .py or .md files")
    paths = (path for path in folder.rglob("*") if path.suffix in _TEXT_SUFFIXES and path.is_file())
    name = "".join(sign for sign in folder.resolve().name if sign.isprintable())[:100]
    return Corpus(name or "texts", tuple(_read(_shuffled(folder, paths, seed), max_bytes)))


def _shuffled(root: Path, paths: Iterable[Path], seed: int) -> list[Path]:
    """In an order that only the seed and the names decide, so that a cap on bytes takes from everywhere."""

    def key(path: Path) -> bytes:
        return hashlib.sha256(f"{seed} {path.relative_to(root).as_posix()}".encode(errors="surrogateescape")).digest()

    return sorted(paths, key=key)


def _read(paths: Iterable[Path], max_bytes: int) -> Iterator[str]:
    """The files that are UTF-8, until the next one would exceed `max_bytes`."""
    num_bytes = 0
    for path in paths:
        try:
            content = path.read_bytes()
            text = content.decode()
        except (OSError, UnicodeDecodeError):
            continue
        if num_bytes + len(content) > max_bytes:
            return
        num_bytes += len(content)
        if text:
            yield text
