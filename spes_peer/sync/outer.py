"""The outer step: how far a block moves on a round's mean update (DiLoCo, arXiv 2311.08105).

Pure, and the same bits on every machine: separate elementwise operations in fp32.
"""

from torch import Tensor

from spes_peer.run.layout import Block
from spes_peer.run.manifest import Sync


def outer_step(sync: Sync, block: Block, delta: Tensor, momentum: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The displacement of `block` by the mean update `delta`, and its momentum after it; all fp32.

    "mean" adds the update as it is (SPES). "nesterov" is `torch.optim.SGD(nesterov=True)` on the negated update:
    momentum' = μ·momentum + delta, displacement = lr·(delta + μ·momentum'). `momentum` is None for a block that has
    none, which with μ = 0 leaves lr·delta."""
    if (sync.shared_outer if block.expert is None else sync.expert_outer) == "mean":
        return delta, None
    if momentum is None:
        return delta * sync.outer_lr, None
    moved_momentum = (momentum * sync.outer_momentum).add_(delta)
    return (moved_momentum * sync.outer_momentum).add_(delta).mul_(sync.outer_lr), moved_momentum
