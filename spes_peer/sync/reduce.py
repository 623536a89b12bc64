"""Average the offers for one block: the same inputs give the same bits on every reducer."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spes_peer.blobs import BlobName
from spes_peer.errors import BadMessage
from spes_peer.identity import PeerId
from spes_peer.run.encodings import Format
from spes_peer.run.offers import ReduceInput
from spes_peer.run.records import Update
from spes_peer.sync.encoding import decode

NORM_TOLERANCE = 1e-3  # relative: an offer need not be encoded and measured by a program like ours
_ENCODING_GROWTH = 2.0  # no encoding makes more than twice of a value, so a mean is no longer than twice what is in it
_PIECE = 1 << 16  # values in work at one time, which stay in a core's cache: eight times as fast as a whole block


@dataclass(frozen=True)
class Reduced:
    """The average of the sound offers for a block."""

    mean: Tensor
    rejected: tuple[PeerId, ...]
    """Whose bytes are no offer, or not of the norm they claimed."""
    share: dict[PeerId, float]
    """Part of the tokens, of each peer whose offer is in it."""


def norm(values: Tensor) -> float:
    """Euclidean norm, accumulated in float64 and in a fixed order: everybody finds the same number, to the bit."""
    return math.sqrt(sum(_sum_of_squares(piece) for piece in torch.split(values, _PIECE)))


def _sum_of_squares(values: Tensor) -> float:
    """By halves, elementwise: a library's own sum takes another order on another processor."""
    squares = values.to(torch.float64, copy=True)
    squares.mul_(squares)
    num_left = squares.numel()
    while num_left > 1:
        if num_left % 2:
            squares[0].add_(squares[num_left - 1])
        num_left //= 2
        squares[:num_left].add_(squares[num_left : 2 * num_left])
    return squares[0].item() if num_left else 0.0


def fault_in_length(update: Update, delta: Tensor) -> str | None:
    """Why the decoded `delta` is longer than the record lets it be: an only offer than it claimed, a mean than twice
    the longest offer in it. None if it is not. Everybody comes to the same answer."""
    if update.reducers:
        most = _ENCODING_GROWTH * max(part.clip * part.norm for part in update.contributors)
    else:
        most = update.contributors[0].norm
    found = norm(delta)
    if found > most * (1 + NORM_TOLERANCE):
        return f"its norm is {found:g}, and what is in it allows {most:g}"
    return None


def weighted_mean(inputs: Sequence[tuple[float, Tensor]]) -> Tensor:
    """Σ (weight_i / Σ weights) · values_i: weights in float64, the sum in fp32 and in the order given."""
    total = sum(weight for weight, _ in inputs)
    return _weighted_sum((weight / total, values) for weight, values in inputs)


def reduce_offers(
    format: Format, num_elements: int, inputs: Sequence[ReduceInput], read: Callable[[BlobName], bytes]
) -> Reduced | None:
    """Σ (tokens_i / Σ tokens) · clip_i · offer_i over the sound offers, in peer-id order; None when no offer is sound.

    Holds three blocks at a time, whatever the number of offers: `read` is called twice for each sound one. What it
    raises for a blob that is not here is the caller's to handle."""
    ordered = sorted(inputs, key=lambda given: given.peer_id)
    sound = [given for given in ordered if _is_sound(format, num_elements, given, read)]
    if not sound:
        return None
    total = sum(given.tokens for given in sound)
    share = {given.peer_id: given.tokens / total for given in sound}
    mean = _weighted_sum(
        (share[given.peer_id] * given.clip, decode(format, read(given.blob), num_elements)) for given in sound
    )
    return Reduced(mean, tuple(given.peer_id for given in ordered if given.peer_id not in share), share)


def _is_sound(format: Format, num_elements: int, given: ReduceInput, read: Callable[[BlobName], bytes]) -> bool:
    try:
        found = norm(decode(format, read(given.blob), num_elements))
    except BadMessage:
        return False
    return given.tokens > 0 and abs(found - given.norm) <= NORM_TOLERANCE * found


def _weighted_sum(parts: Iterable[tuple[float, Tensor]]) -> Tensor:
    total: Tensor | None = None
    for weight, values in parts:
        product = values * weight
        total = product if total is None else total.add_(product)
    assert total is not None
    return total
