"""Error feedback: what an encoding loses is offered again (DESIGN.md, "State").

Both classes hold tensors by block and do no I/O; `state_dict` and `load` are for safetensors. A round's order is

    values = feedback.offer(…)  →  content = encode(values)  →  feedback.encoded(…, decode(content))
    →  when a record closes the round: `unused`, `reduce_loss` (shared) or `answered` (experts)
"""

from torch import Tensor

from spes_peer.run.records import BlockId


class SharedFeedback:
    """Of one peer, for the shared blocks: what was trained and has not reached the others yet."""

    def __init__(self, decay: float = 1.0) -> None:
        """`decay` is the part of an encoding's loss that is kept."""
        self._decay = decay
        self._residual: dict[BlockId, Tensor] = {}

    def offer(self, block: BlockId, progress: Tensor) -> Tensor:
        """What to encode: `progress` since the last encode, and the residual."""
        return progress + self._residual[block] if block in self._residual else progress

    def encoded(self, block: BlockId, offered: Tensor, decoded: Tensor) -> None:
        """`offered` was encoded, and `decoded` is what others read."""
        self._residual[block] = (offered - decoded) * self._decay

    def unused(self, block: BlockId, decoded: Tensor) -> None:
        """No record used the offer: all of it is still to be offered."""
        self._add(block, decoded)

    def reduce_loss(self, block: BlockId, loss: Tensor, share: float) -> None:
        """As a reducer: encoding the mean lost `loss`. This peer's next offer brings it back, and counts by `share`."""
        self._add(block, loss / share)

    def state_dict(self) -> dict[str, Tensor]:
        return {str(block): residual for block, residual in self._residual.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        self._residual = {BlockId(block): residual for block, residual in state.items()}

    def _add(self, block: BlockId, values: Tensor) -> None:
        self._residual[block] = self.offer(block, values)


class ExpertFeedback:
    """Of an owner, for the blocks of its experts: which of its offers no record has answered yet.

    What was lost needs no residual: it is still in the master and not in the public state."""

    def __init__(self) -> None:
        self._unanswered: dict[tuple[int, BlockId], Tensor] = {}

    def offer(self, block: BlockId, master: Tensor, public: Tensor) -> Tensor:
        """What to encode: master − public − offers not yet answered."""
        values = master - public
        for round_, offered_block in sorted(self._unanswered):
            if offered_block == block:
                values = values - self._unanswered[round_, block]
        return values

    def encoded(self, round_: int, block: BlockId, decoded: Tensor) -> None:
        """An offer for `block` in that round was encoded, and `decoded` is what others read."""
        self._unanswered[round_, block] = decoded

    def answered(self, round_: int, block: BlockId, master: Tensor, displacement: Tensor | None, used: bool) -> Tensor:
        """The master after the record that closes the round: master + D − own offer, if the record used it.

        `displacement` is D, from `PublicState.apply`; None for a block that the record did not move. Right also
        for a round in which nothing was offered."""
        decoded = self._unanswered.pop((round_, block), None)
        if displacement is not None:
            master = master + displacement
        if used and decoded is not None:
            master = master - decoded
        return master

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{round_}:{block}": decoded for (round_, block), decoded in self._unanswered.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        keys = {key: key.partition(":") for key in state}
        self._unanswered = {(int(keys[key][0]), BlockId(keys[key][2])): decoded for key, decoded in state.items()}
