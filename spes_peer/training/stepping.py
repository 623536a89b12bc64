"""A local step in micro-batches that fit into memory (SPES §1.2).

The gradient of a batch is gathered over micro-batches, each weighted by its part of the batch: cross-entropy and z by
the labels that count, the router's z by tokens. So it is the full batch's, up to the rounding of fp32. One loss is not:
load balance is a product of two means and is taken over each micro-batch on its own, as in all large training; it
balances within a micro-batch then, which asks for a little more than balance within the batch.

The largest micro-batch is found by trial. It begins as planned; when memory runs out in forward or backward, half of it
is tried with the same batch, in the end with layers recomputed, and what fitted is remembered. Parameters do not change
before all gradients are there, so nothing is lost by it.
"""

import logging
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from spes_peer.data.sampler import Batch
from spes_peer.model.decoder import Decoder
from spes_peer.model.losses import Losses
from spes_peer.run.manifest import Training
from spes_peer.training.optimizer import LocalOptimizer

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Stepper:
    """Steps of one decoder and its optimizer on one device."""

    def __init__(
        self, decoder: Decoder, optimizer: LocalOptimizer, training: Training, micro_batch: int, may_recompute: bool
    ) -> None:
        """`micro_batch` sequences to begin with; `may_recompute` layers when nothing else helps."""
        self.micro_batch = micro_batch
        self._known_to_fit: int | None = None
        """After memory ran out: no more than this is tried again."""
        self._decoder = decoder
        self._optimizer = optimizer
        self._training = training
        self._may_recompute = may_recompute

    def expect(self, micro_batch: int) -> None:
        """A new plan holds; what ran out of memory before is not tried again."""
        self.micro_batch = min(micro_batch, self._known_to_fit or micro_batch)

    def step(self, batch: Batch, lr: float) -> float | None:
        """One local step; its cross-entropy, or None if it was skipped because a number was not finite.

        MemoryError when not even one sequence fits."""
        loss = self._fitting(lambda: self._gather_gradient(batch))
        if math.isfinite(loss) and self._optimizer.step(lr):
            return loss
        self._optimizer.clear()
        return None

    def cross_entropy(self, batch: Batch) -> float:
        """Of `batch`, without a gradient. MemoryError as in `step`."""
        return self._fitting(lambda: self._measure(batch))

    def _gather_gradient(self, batch: Batch) -> float:
        ce = torch.zeros((), device=self._decoder.device)
        for part in batch.split(self.micro_batch):
            part_ce, total = self._share(part, batch)
            total.backward()  # type: ignore[no-untyped-call]
            ce += part_ce.detach()
        return float(ce.item())

    @torch.no_grad()
    def _measure(self, batch: Batch) -> float:
        return math.fsum(float(self._share(part, batch)[0].item()) for part in batch.split(self.micro_batch))

    def _share(self, part: Batch, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy and total that `part` adds to those of `batch`."""
        losses: Losses = self._decoder(self._moved(part.tokens_BT), self._moved(part.targets_BT))
        if part.num_tokens == batch.num_tokens:
            return losses.ce, losses.total
        of_labels = part.num_labels / max(1, batch.num_labels)
        of_tokens = part.num_tokens / batch.num_tokens
        router = self._training.load_balance_loss * losses.load_balance
        router = router + self._training.router_z_loss * losses.router_z
        return losses.ce * of_labels, losses.total * of_labels + router * (of_tokens - of_labels)

    def _moved(self, values: Tensor) -> Tensor:
        return values.to(self._decoder.device, non_blocking=True)

    def _fitting(self, work: Callable[[], T]) -> T:
        """Do `work` with the largest micro-batch that memory holds."""
        while True:
            try:
                return work()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = (str(error) or "no memory").splitlines()[0]
            # only here, behind the handler, is what the failed try held free: the traceback held it
            self._optimizer.clear()
            self._take_less(reason)

    def _take_less(self, reason: str) -> None:
        if self.micro_batch > 1:
            self.micro_batch //= 2
            self._known_to_fit = self.micro_batch
        elif self._may_recompute and not self._decoder.checkpointing:
            self._decoder.checkpointing = True
        else:
            raise MemoryError(f"not one sequence fits: {reason}")
        if self._decoder.device.type == "cuda":
            torch.cuda.empty_cache()
        logger.warning(
            "out of memory, trying again sequences=%d recompute=%s reason=%s",
            self.micro_batch,
            self._decoder.checkpointing,
            reason,
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is a device's, the allocator's or Python's way of saying that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in said or "can't allocate memory" in said)
