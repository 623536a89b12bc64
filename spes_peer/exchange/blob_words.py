"""What blobs are, in words, for whoever watches them travel: "data shard 12", "offer of expert 3".

Only who names a blob knows what it is, so each that does notes it here. It forgets what was noted longest ago.
"""

from collections.abc import Iterable, Mapping

from spes_peer.run.layout import Block
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId

_MOST = 32_768
_SHOWN_DIGITS = 8


class BlobWords:
    """Of one run's blobs."""

    def __init__(self, manifest: Manifest) -> None:
        data = manifest.data
        self._fixed: dict[str, str] = {shard.blob: f"data shard {number}" for number, shard in enumerate(data.shards)}
        self._fixed[data.held_out.blob] = "held-out data"
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
        return self._fixed.get(name) or self._noted.get(name) or f"blob {name[:_SHOWN_DIGITS]}"


def group_words(expert: int | None) -> str:
    """Of the shared parameters, or of an expert."""
    return "shared parameters" if expert is None else f"expert {expert}"
