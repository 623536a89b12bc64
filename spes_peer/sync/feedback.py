"""Error feedback: what an encoding loses is offered again (DESIGN.md, "State"). Tensors in, tensors out, without I/O.

*Shared blocks, every peer.* A peer owes the run its residual. An offer is progress + residual, and what its encoding
loses becomes the residual. An offer that no record used goes back into it. So, without decay,

    Σ decoded offers that records used + residual = Σ progress.

*Blocks of experts, their owners.* An owner owes the run master − public, and that is what it offers. What an encoding
loses needs no residual: it is in the master still, and not in the public state. When a record has moved the public
block by D, before rounding, the master follows it:

    master' = master + D − decode(own offer, if the record used it).

So a master keeps all that it was trained, and what it is ahead of the public state is what was lost and not used.

*Reducers.* What encoding a mean loses, one of its reducers offers again, divided by its share of the tokens, because
by that share its offer will count.

*Clips.* What a clip factor below 1 takes from an offer is not owed: an offer that is too large is meant to lose it. The
sum above holds without clips.
"""

from torch import Tensor

from spes_peer.run.records import BlockId


class SharedFeedback:
    """Of one peer, for the shared blocks: what was trained and has not reached the others yet."""

    def __init__(self, decay: float = 1.0, mean_decay: float = 1.0) -> None:
        """The parts of an offer's and of a mean's loss that are kept: with an encoding that leaves most values out,
        what is left out for long describes a model that is no more, and without decay it would pile up."""
        self._decay = decay
        self._mean_decay = mean_decay
        self._residual: dict[BlockId, Tensor] = {}

    def offer(self, block: BlockId, progress: Tensor) -> Tensor:
        """What to encode: `progress` since the last encode, and the residual."""
        return progress + self._residual[block] if block in self._residual else progress

    def encoded(self, block: BlockId, offered: Tensor, decoded: Tensor) -> None:
        """`offered` was encoded, and `decoded` is what others read."""
        self._residual[block] = (offered - decoded).mul_(self._decay)

    def unused(self, block: BlockId, decoded: Tensor) -> None:
        """No record used the offer: all of it is still to be offered."""
        self._residual[block] = self.offer(block, decoded)

    def reduce_loss(self, block: BlockId, loss: Tensor, share: float) -> None:
        """As a reducer: encoding the mean lost `loss`. This peer's next offer brings it back, and counts by `share`."""
        self._residual[block] = self.offer(block, loss * (self._mean_decay / share))

    def state_dict(self) -> dict[str, Tensor]:
        """The residuals; whole, when every offer has been answered."""
        return {str(block): residual for block, residual in self._residual.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        self._residual = {BlockId(block): residual for block, residual in state.items()}


def expert_offer(master: Tensor, public: Tensor) -> Tensor:
    """What an owner has to encode. All its earlier offers have been answered: a record answers a whole round."""
    return master - public


def master_after(
    master: Tensor, displacement: Tensor | None, own_offer: Tensor | None, loss: Tensor | None, share: float
) -> Tensor:
    """The master of a block after a record.

    `displacement` is D, from `PublicState.apply`; None for a block that the record did not move. `own_offer` is this
    owner's decoded offer if the record used it, and `loss` what this owner lost as a reducer in encoding the mean, of
    whose tokens `share` were its own."""
    if displacement is not None:
        master = master + displacement
    if own_offer is not None:
        master = master - own_offer
    return master if loss is None else master + loss / share
