"""What blobs are, in words, for whoever watches them travel: "data shard 12 of books", "offer of expert 3".

Only who names a blob knows what it is, so each that does notes it here. It forgets what was noted longest ago.
"""

from collections.abc import Callable, Iterable, Mapping

from spes_peer.data.index import ShardIndex
from spes_peer.run.layout import Block
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId

_MOST = 32_768
_SHOWN_DIGITS = 8


class BlobWords:
    """Of one run's blobs."""

    def __init__(self, manifest: Manifest, index: Callable[[], ShardIndex | None] = lambda: None) -> None:
        """`index` tells shards, once it is here."""
        data = manifest.data
        self._index = index
        self._sources = [source.name for source in data.sources]
        self._fixed = {data.held_out.blob: "held-out data"} | dict.fromkeys(data.indexes, "index of data shards")
        if data.tokenizer.blob:
            self._fixed[data.tokenizer.blob] = "tokenizer"
        self._noted: dict[str, str] = {}

    def note(self, names: Iterable[str], words: str) -> None:
        """They are this; what was said before of one counts no more."""
        for name in names:
            self._noted.pop(name, None)
            self._noted[name] = words
        while len(self._noted) > _MOST:
            del self._noted[next(iter(self._noted))]

    def note_of_blocks(self, kind: str, blocks: Iterable[tuple[BlockId, str]], by_id: Mapping[BlockId, Block]) -> None:
        """Of each block's id and blob: "offer of expert 3", say, for the `kind` "offer"."""
        for block_id, name in blocks:
            if (block := by_id.get(block_id)) is not None:
                self.note((name,), f"{kind} of {group_words(block.expert)}")

    def of(self, name: str) -> str:
        """What the blob is; the begin of its name where nobody has said."""
        return self._fixed.get(name) or self._noted.get(name) or self._shard(name) or f"blob {name[:_SHOWN_DIGITS]}"

    def _shard(self, name: str) -> str:
        index = self._index()
        at = index.find(name) if index is not None else None
        if at is None:
            return ""
        return f"data shard {at.number}" + (f" of {self._sources[at.source]}" if len(self._sources) > 1 else "")


def group_words(expert: int | None) -> str:
    """Of the shared parameters, or of an expert."""
    return "shared parameters" if expert is None else f"expert {expert}"
