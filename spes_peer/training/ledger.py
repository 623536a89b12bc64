"""One peer's accounts with the run: what it offered, what its encodings lost, and what no record used (DESIGN.md,
"State"). Tensors in, tensors out; `sync.feedback` has the arithmetic.

*Across rounds.* A record that closes a round answers every offer of that round, so at most one offer of a block waits.
What no record used is offered again, shared blocks by their residual, experts by their master. A round that is trained
a second time, without a record between, answers its own first offers with "unused".

*Across a change of owner.* A subset that is taken up starts from exactly the public values, with the moments that it
had here before, if any. What its owner before had not published is dropped: it was said in no record, so nobody else
has it; and the offers of it that wait are forgotten. Who gets a subset back starts from the public values as well.

*Across a restart.* Masters, residuals and moments are in the checkpoint that is written with every applied record,
where nothing waits (`checkpoint`). A restart in the same round goes on from them, bit for bit; one in another round,
or on another public state, drops masters and residuals, and keeps the moments. A trainer that loads a state anew while
it runs does the same.

Memory: the residual, 4 bytes for each shared value; the bytes of the offers that wait, as they travel, because most
are never looked at again; 4 bytes for each value that this peer reduced in the open round.
"""

from collections.abc import Mapping

from torch import Tensor

from spes_peer.identity import PeerId
from spes_peer.run.layout import Block, Layout
from spes_peer.run.records import BlockId, Update
from spes_peer.sync import feedback
from spes_peer.sync.encoding import decode, encode
from spes_peer.sync.feedback import SharedFeedback, expert_offer
from spes_peer.sync.reduce import norm


class Ledger:
    """Accounts of `peer_id`."""

    def __init__(self, layout: Layout, peer_id: PeerId) -> None:
        self._layout = layout
        self._peer_id = peer_id
        sync = layout.manifest.sync
        offers, means = (
            sync.topk_residual_decay if encoding == "topk" else 1.0
            for encoding in (sync.shared_offer_encoding, sync.shared_update_encoding)
        )
        self._shared = SharedFeedback(offers, means)
        self._unanswered: dict[BlockId, bytes] = {}
        """Encoded offers of the round that is open."""
        self._lost: dict[tuple[BlockId, str], tuple[Tensor, float]] = {}
        """As a reducer: what encoding a mean lost, and our share of its tokens, by block and blob."""

    def offer(self, block: Block, ours: Tensor, public: Tensor) -> tuple[bytes, float]:
        """The encoded offer for a block of which we hold `ours`, and the norm that others will find in it."""
        is_shared = block.expert is None
        values = self._shared.offer(block.id, ours - public) if is_shared else expert_offer(ours, public)
        content = encode(self._layout.offer_format(block), values)
        decoded = self._decoded(block, content)
        if is_shared:
            self._shared.encoded(block.id, values, decoded)
        self._unanswered[block.id] = content
        return content, norm(decoded)

    def averaged(self, block: Block, blob: str, lost: Tensor, share: float) -> None:
        """We made `blob` as a reducer; encoding lost `lost`, and our part of its tokens is `share`."""
        self._lost[block.id, blob] = (lost, share)

    def close_shared(self, updates: Mapping[BlockId, Update]) -> None:
        """A record with these updates answers all offers of shared blocks."""
        for block in self._layout.shared_blocks:
            update, content = updates.get(block.id), self._unanswered.pop(block.id, None)
            if content is not None and not self._is_in(update):
                self._shared.unused(block.id, self._decoded(block, content))
            if lost := self._lost_in(update):
                self._shared.reduce_loss(block.id, *lost)

    def master_after(self, block: Block, master: Tensor, displacement: Tensor | None, update: Update | None) -> Tensor:
        """Our master of an expert's block after the record that closes the round, and displaces the block so."""
        content = self._unanswered.pop(block.id, None)
        is_used = content is not None and self._is_in(update)
        own_offer = self._decoded(block, content) if content is not None and is_used else None
        loss, share = self._lost_in(update) or (None, 1.0)
        return feedback.master_after(master, displacement, own_offer, loss, share)

    def close(self) -> None:
        """The round is closed: means that no record took do not matter any more, nor do offers of experts that we gave
        up."""
        self._lost.clear()
        self._unanswered.clear()

    def residuals(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; taken when nothing is unanswered."""
        return self._shared.state_dict()

    def load_residuals(self, residuals: dict[str, Tensor]) -> None:
        self._shared.load(residuals)

    def _decoded(self, block: Block, content: bytes) -> Tensor:
        return decode(self._layout.offer_format(block), content, block.num_elements)

    def _is_in(self, update: Update | None) -> bool:
        return update is not None and any(part.peer_id == self._peer_id for part in update.contributors)

    def _lost_in(self, update: Update | None) -> tuple[Tensor, float] | None:
        """What we lost in making `update`, if we are the one who offers it again: of its reducers the first that has an
        offer in it, because by that offer's share its next one will count."""
        if update is None:
            return None
        contributors = {part.peer_id for part in update.contributors}
        keeper = next((reducer for reducer in update.reducers if reducer in contributors), None)
        return self._lost.get((update.block, update.blob)) if keeper == self._peer_id else None
