"""One source on its way to shards: documents to lanes or held out, and where it stands on disk."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spes_peer.blobs import BlobStore
from spes_peer.data.preparing.documents import DOCUMENTS, Counts
from spes_peer.data.preparing.held_out import Document, Elsewhere, HeldOut
from spes_peer.data.preparing.journal import SourceState
from spes_peer.data.preparing.lanes import Lanes
from spes_peer.data.preparing.workers import Batch, Encoded, Position
from spes_peer.run.data import TokenDtype


@dataclass(frozen=True)
class Finished:
    """What became of a source."""

    index: bytes
    """The names of its shards, as in an index."""
    num_tokens: int
    num_documents: int
    held_out: HeldOut
    counts: Counts


class SourceWork:
    """The work on one source, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        blobs: BlobStore,
        dtype: TokenDtype,
        shard_tokens: int,
        held_out_tokens: int,
        elsewhere: Elsewhere,
        state: SourceState | None,
    ) -> None:
        self._folder = folder
        self._lanes = Lanes(folder, blobs, dtype, shard_tokens, state["lanes"] if state else None)
        self.position = Position(*state["position"]) if state else Position()
        self.num_bytes_read = state["num_bytes_read"] if state else 0
        self._number = state["num_records"] if state else 0
        self._counts: Counts = Counter(state["counts"]) if state else Counts()
        self._saved = state["held_out"] if state else ""
        self.is_done = bool(state and state["is_done"])
        if state:
            self._held_out = HeldOut.load(folder / self._saved, held_out_tokens, elsewhere, dtype)
        else:
            self._held_out = HeldOut(held_out_tokens, elsewhere)

    @property
    def num_tokens(self) -> int:
        """Of both kinds, so far."""
        return self._lanes.num_tokens + self._held_out.num_tokens

    def take(self, batch: Batch, encoded: Encoded) -> None:
        threshold = self._held_out.threshold  # it only falls: above it nothing is held out
        start = 0
        rows = zip(encoded.ends_at.tolist(), encoded.keys.tolist(), encoded.closes.tolist(), strict=True)
        for end, key, closes in rows:
            if end > start:
                tokens = encoded.tokens[start:end]
                if 0 < key <= threshold:
                    self._train(self._held_out.offer(Document(key, self._number, tokens.copy())))
                else:
                    self._lanes.append(self._number, tokens)
            start = end
            self._number += closes
        self._counts += batch.counts
        self._counts += encoded.counts
        self.position, self.num_bytes_read = batch.next, batch.num_bytes_read

    def _train(self, documents: Iterator[Document]) -> None:
        for document in documents:
            self._lanes.append(document.number, document.tokens)

    def checkpoint(self, is_done: bool = False) -> SourceState:
        """What stands on disk when this returns; `forget_old` when the journal has it."""
        turn = int(self._saved.removeprefix("held-out-").removesuffix(".npz") or 0) + 1 if self._saved else 0
        self._old = self._saved
        self._saved = f"held-out-{turn}.npz"
        self._held_out.save(self._folder / self._saved)
        return SourceState(
            position=list(self.position),
            num_records=self._number,
            num_bytes_read=self.num_bytes_read,
            counts=dict(self._counts),
            lanes=self._lanes.checkpoint(),
            held_out=self._saved,
            is_done=is_done,
        )

    def forget_old(self) -> None:
        """What the journal names no more."""
        if self._old:
            (self._folder / self._old).unlink(missing_ok=True)
        self._lanes.forget_old()

    def shrink(self) -> None:
        """When all documents have come: no source gives more than its part to the held-out split."""
        self._train(self._held_out.shrink(self._lanes.num_tokens))

    def finish(self) -> Finished:
        """The last shards; what was made. May be repeated."""
        num_tokens = self._lanes.num_tokens
        index = self._lanes.finish()
        self._lanes.close()
        counts = Counter({**self._counts, "duplicates": self._held_out.num_duplicates})
        return Finished(index, num_tokens, self._counts[DOCUMENTS], self._held_out, +counts)
