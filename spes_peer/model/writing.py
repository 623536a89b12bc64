"""A text continued token by token: what the decoder thinks likely, and a draw among it.

When the context is full, its later half is read again and the text goes on from there: a position beyond the context
was never trained.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spes_peer.model.attention import Past
from spes_peer.model.decoder import Decoder


@dataclass(frozen=True)
class Taste:
    """How a token is drawn."""

    temperature: float = 0.8
    """Logits are divided by it; 0 takes the likeliest."""
    top_p: float = 0.95
    """Only the likeliest tokens that have so much probability together can be drawn."""


_COLDEST, _NARROWEST = 1e-6, 1e-12
"""What is less leaves nothing but the likeliest token, and would be zero in fp32."""


def drawn(logits_V: Tensor, taste: Taste, generator: torch.Generator) -> int:
    """One token, by the taste (nucleus sampling: Holtzman et al. 2020)."""
    if taste.temperature < _COLDEST:
        return int(logits_V.argmax())
    scaled_V = (logits_V - logits_V.max()) / taste.temperature
    sorted_V, ids_V = torch.sort(scaled_V.softmax(dim=-1), descending=True)
    before_V = sorted_V.cumsum(dim=-1) - sorted_V
    kept_V = sorted_V * (before_V < max(taste.top_p, _NARROWEST))  # the likeliest always is
    return int(ids_V[torch.multinomial(kept_V, 1, generator=generator)])


def continued(
    decoder: Decoder, prompt: Sequence[int], num_ids: int, taste: Taste, generator: torch.Generator
) -> Iterator[int]:
    """Tokens behind `prompt`, which is not empty, for ever. Ids from `num_ids` on, which no text has, are not drawn."""
    context = decoder.model.sequence_length
    text = list(prompt)[-context:]
    pasts = [Past() for _ in decoder.layers]
    new = text
    while True:
        tokens_BT = torch.tensor([new], device=decoder.device)
        logits_V = decoder.next_logits(tokens_BT, pasts)[0, :num_ids].cpu()
        token = drawn(logits_V, taste, generator)
        yield token
        text.append(token)
        new = [token]
        if pasts[0].length >= context:
            text = text[-max(1, context // 2) :]
            pasts, new = [Past() for _ in decoder.layers], text
