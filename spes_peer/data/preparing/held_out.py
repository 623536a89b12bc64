"""Which documents no peer trains on, decided while they stream by.

Held out are the documents of a source with the lowest hashes of their content, so many as hold the tokens that are
wanted, and at most a tenth of the source. Copies of a document have its hash, so all fall on the same side: those of a
held-out one are left out of training, in its own source and in every other. A document that one source trains on is
held out of no other: each source keeps the lowest hashes of what it trains on for those that come after it.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spes_peer.data.preparing.encoders import TokenIds
from spes_peer.files import replacing

MOST_PART = 0.1
"""Of a source's tokens that are held out."""
KEPT_KEYS = 1 << 17
"""Lowest hashes of trained documents that a source keeps. Sources come by size, smallest first, so the next one holds
out documents with hashes below those, unless they are very many."""
_NO_KEY = (1 << 64) - 1


class Document(NamedTuple):
    key: int
    number: int
    """In its source."""
    tokens: TokenIds


@dataclass(frozen=True)
class Elsewhere:
    """What sources that are finished say to those that follow."""

    held_out: frozenset[int] = frozenset()
    trained: frozenset[int] = frozenset()
    """The lowest hashes of what they train on, …"""
    known_below: int = _NO_KEY
    """… complete up to here: nothing above it can be held out."""

    @cached_property
    def highest_held_out(self) -> int:
        return max(self.held_out, default=0)


@dataclass
class HeldOut:
    """The held-out documents of one source, so far."""

    target_tokens: int
    elsewhere: Elsewhere
    num_tokens: int = 0
    num_duplicates: int = 0
    _documents: dict[int, Document] = field(default_factory=dict)
    _highest: list[int] = field(default_factory=list)
    """A heap of their negated hashes."""
    _trained: "LowestKeys" = field(default_factory=lambda: LowestKeys(KEPT_KEYS))

    def offer(self, document: Document) -> Iterator[Document]:
        """Take a document, or not; yields those to train on: it, or one that it has displaced."""
        key = document.key
        if key in self._documents or key in self.elsewhere.held_out:
            self.num_duplicates += 1
        elif self._may_hold(key):
            self._documents[key] = document
            heapq.heappush(self._highest, -key)
            self.num_tokens += document.tokens.size
            yield from self._without_surplus(self.target_tokens)
        else:
            self._trained.add(key)
            yield document

    @property
    def threshold(self) -> int:
        """Hashes above it are trained on without another look; 0, of documents that are never held out, too."""
        mine = 0 if not self._highest else -self._highest[0]
        if self.num_tokens < self.target_tokens:
            mine = _NO_KEY
        return max(mine, self.elsewhere.highest_held_out, self._trained.bound)

    def shrink(self, num_trained_tokens: int) -> Iterator[Document]:
        """At the end of the source, with so many tokens trained: what is too much of it goes back into training."""
        most = int(MOST_PART * (num_trained_tokens + self.num_tokens))
        while self.num_tokens > most:
            yield self._released()

    def documents(self) -> list[Document]:
        """By hash."""
        return [self._documents[key] for key in sorted(self._documents)]

    def keys(self) -> frozenset[int]:
        return frozenset(self._documents)

    def trained(self) -> "LowestKeys":
        return self._trained

    def _may_hold(self, key: int) -> bool:
        if not key or key in self.elsewhere.trained or key > self.elsewhere.known_below:
            return False
        return self.num_tokens < self.target_tokens or (bool(self._highest) and key < -self._highest[0])

    def _without_surplus(self, target: int) -> Iterator[Document]:
        while self._highest and self.num_tokens - self._documents[-self._highest[0]].tokens.size >= target:
            yield self._released()

    def _released(self) -> Document:
        document = self._documents.pop(-heapq.heappop(self._highest))
        self.num_tokens -= document.tokens.size
        self._trained.add(document.key)
        return document

    # ---- on disk ----

    def save(self, path: Path) -> None:
        documents = self.documents()
        sizes = np.array([one.tokens.size for one in documents], dtype=np.int64)
        with replacing(path) as file:
            np.savez(
                file,
                counts=np.array([self.num_duplicates], dtype=np.int64),
                keys=np.array([one.key for one in documents], dtype=np.uint64),
                numbers=np.array([one.number for one in documents], dtype=np.int64),
                sizes=sizes,
                tokens=np.concatenate([np.empty(0, np.uint16), *(one.tokens for one in documents)]),
                trained=self._trained.array(),
                bound=np.array([self._trained.bound], dtype=np.uint64),
            )

    @classmethod
    def load(cls, path: Path, target_tokens: int, elsewhere: Elsewhere, dtype: str) -> "HeldOut":
        with np.load(path, allow_pickle=False) as saved:
            held_out = cls(target_tokens, elsewhere, num_duplicates=int(saved["counts"][0]))
            cuts = np.cumsum(saved["sizes"])[:-1]
            pieces = np.split(saved["tokens"].astype(dtype), cuts) if saved["sizes"].size else []
            for key, number, tokens in zip(saved["keys"].tolist(), saved["numbers"].tolist(), pieces, strict=True):
                held_out._documents[key] = Document(key, number, tokens)
                held_out.num_tokens += tokens.size
            held_out._highest = sorted(-key for key in held_out._documents)
            held_out._trained = LowestKeys(KEPT_KEYS, saved["trained"], int(saved["bound"][0]))
        return held_out


class LowestKeys:
    """The `most` lowest of all keys that were added."""

    def __init__(self, most: int, keys: NDArray[np.uint64] | None = None, bound: int = _NO_KEY) -> None:
        self._most = most
        self._sorted = np.empty(0, np.uint64) if keys is None else keys
        self._new: list[int] = []
        self.bound = bound
        """All keys that were added and are not above it are here."""

    def add(self, key: int) -> None:
        if key and key <= self.bound:
            self._new.append(key)
            if len(self._new) >= self._most:
                self.array()

    def array(self) -> NDArray[np.uint64]:
        """Sorted, each once."""
        if self._new:
            keys = np.unique(np.concatenate([self._sorted, np.array(self._new, dtype=np.uint64)]))
            if keys.size > self._most:
                keys = keys[: self._most]
                self.bound = int(keys[-1])
            self._sorted, self._new = keys, []
        return self._sorted


def elsewhere_of(finished: list[HeldOut]) -> Elsewhere:
    """What these say together to the next source."""
    return Elsewhere(
        frozenset().union(*(one.keys() for one in finished)),
        frozenset().union(*(one.trained().array().tolist() for one in finished)),
        min((one.trained().bound for one in finished), default=_NO_KEY),
    )
