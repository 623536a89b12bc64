"""One peer's accounts with the run: what it offered, what its encodings lost, and what no record used (DESIGN.md,
"State"). Tensors in, tensors out; `sync.feedback` keeps the balances.

A record that closes a round answers every offer of that round: those it does not use are offered again.
"""

from collections.abc import Mapping

from torch import Tensor

from spes_peer.identity import PeerId
from spes_peer.run.layout import Block, Layout
from spes_peer.run.records import BlockId, Update
from spes_peer.sync.encoding import decode, encode
from spes_peer.sync.feedback import ExpertFeedback, SharedFeedback
from spes_peer.sync.reduce import norm


class Ledger:
    """Accounts of `peer_id`."""

    def __init__(self, layout: Layout, peer_id: PeerId) -> None:
        self._layout = layout
        self._peer_id = peer_id
        self._shared = SharedFeedback()
        self._experts = ExpertFeedback()
        self._unanswered: dict[BlockId, Tensor] = {}
        """Decoded offers of shared blocks."""
        self._lost: dict[tuple[BlockId, str], tuple[Tensor, float]] = {}
        """As a reducer: what encoding a mean lost, and our share of its tokens, by block and blob."""

    def offer(self, round: int, block: Block, ours: Tensor, public: Tensor) -> tuple[bytes, float]:
        """The encoded offer for a block of which we hold `ours`, and the norm that others will find in it."""
        is_shared = block.expert is None
        if is_shared:
            values = self._shared.offer(block.id, ours - public)
        else:
            values = self._experts.offer(block.id, ours, public)
        format = self._layout.offer_format(block)
        content = encode(format, values)
        decoded = decode(format, content, block.num_elements)
        if is_shared:
            self._shared.encoded(block.id, values, decoded)
            self._unanswered[block.id] = decoded
        else:
            self._experts.encoded(round, block.id, decoded)
        return content, norm(decoded)

    def averaged(self, block: Block, blob: str, lost: Tensor, share: float) -> None:
        """We made `blob` as a reducer; encoding lost `lost`, and our part of its tokens is `share`."""
        self._lost[block.id, blob] = (lost, share)

    def close_shared(self, updates: Mapping[BlockId, Update]) -> None:
        """A record with these updates answers all offers of shared blocks."""
        for block_id, decoded in self._unanswered.items():
            if not self._is_in(updates.get(block_id)):
                self._shared.unused(block_id, decoded)
        self._unanswered.clear()
        for update in updates.values():
            if self._layout.by_id[update.block].expert is None and (found := self._lost_in(update)):
                self._shared.reduce_loss(update.block, *found)

    def master_after(
        self, round: int, block: Block, master: Tensor, displacement: Tensor | None, update: Update | None
    ) -> Tensor:
        """Our master of an expert's block after the record that closes `round`, and displaces the block so."""
        master = self._experts.answered(round, block.id, master, displacement, self._is_in(update))
        if update is not None and (found := self._lost_in(update)):
            lost, share = found
            master = master + lost / share
        return master

    def forget_reduced(self) -> None:
        """The round is closed: means that no record took do not matter any more."""
        self._lost.clear()

    def residuals(self) -> dict[str, Tensor]:
        """What a checkpoint keeps; taken when nothing is unanswered."""
        return self._shared.state_dict()

    def load_residuals(self, residuals: dict[str, Tensor]) -> None:
        self._shared.load(residuals)

    def _is_in(self, update: Update | None) -> bool:
        return update is not None and any(part.peer_id == self._peer_id for part in update.contributors)

    def _lost_in(self, update: Update) -> tuple[Tensor, float] | None:
        """What we lost in making `update`, if we are the reducer who keeps it and have offers to bring it back in."""
        if update.reducers[:1] != (self._peer_id,) or not self._is_in(update):
            return None
        return self._lost.get((update.block, update.blob))
