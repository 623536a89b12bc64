"""The learning rate by the run's step: linear warm-up, then a cosine to 10 % (SPES §2)."""

import math

from spes_peer.run.manifest import Training

FINAL_FRACTION = 0.1


def lr_at(step: int, training: Training) -> float:
    """The learning rate of step `step`, counted from 0 over the whole run; constant after its end."""
    if step < training.warmup_steps:
        return training.lr * (step + 1) / training.warmup_steps
    length = max(1, training.total_steps - training.warmup_steps)
    progress = min(1.0, (step - training.warmup_steps) / length)
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return training.lr * (FINAL_FRACTION + (1 - FINAL_FRACTION) * cosine)
