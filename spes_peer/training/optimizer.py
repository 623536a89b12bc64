"""AdamW over the shared parameters and the masters of owned experts, and the moments of each (SPES §1.2).

Synchronization never resets moments. Moments of an expert that is given up are kept, and taken up again when it comes
back. Clipping is by the global norm over all that is trained, and weight decay is on everything.

The optimizer works on *pieces*: flat views of at most `_PIECE` values that never cross the border between two experts.
So an expert's moments are pieces of their own, whoever owns what else, and an optimizer that computes in fp32 what it
keeps in 8 bits needs temporaries of one piece only. Moments are made before the first step: a step never runs out of
memory half-way for their sake.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adamw import adamw

from spes_peer.model.decoder import Decoder
from spes_peer.run.manifest import Training
from spes_peer.training import eight_bit

_BETAS = (0.9, 0.95)
_EPS = 1e-8
_MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  # whether it is signed
_PIECE = 1 << 22

Stored = dict[str, Tensor]
"""Moments of one piece on the CPU, as a checkpoint has them: fp32, or codes and scales."""


@dataclass(frozen=True)
class _Piece:
    """Values [start, end) of the flattened `source`; `name` says whose they are, on whatever machine."""

    name: str
    source: Parameter
    start: int
    end: int
    values: Parameter

    @classmethod
    def of(cls, name: str, source: Parameter, start: int, end: int) -> "_Piece":
        return cls(name, source, start, end, Parameter(source.detach().view(-1)[start:end]))

    def take_gradient(self) -> None:
        gradient = self.source.grad
        self.values.grad = None if gradient is None else gradient.reshape(-1)[self.start : self.end]


class _FusedAdamW:
    """`torch.optim.AdamW(fused=True)` by the function that it calls: the class imports torch's compiler with its first,
    2 s of a core and 80 MB for what nothing here uses."""

    def __init__(self, parameters: list[Parameter], lr: float, weight_decay: float) -> None:
        self._parameters = parameters
        self._weight_decay = weight_decay
        self.param_groups: list[dict[str, Any]] = [{"lr": lr}]
        self.state: dict[Parameter, dict[str, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Of those that have a gradient."""
        moved = [one for one in self._parameters if one.grad is not None]
        adamw(
            [*moved],
            [one.grad for one in moved if one.grad is not None],
            [self.state[one]["exp_avg"] for one in moved],
            [self.state[one]["exp_avg_sq"] for one in moved],
            max_exp_avg_sqs=[],
            state_steps=[self.state[one]["step"] for one in moved],
            fused=True,
            amsgrad=False,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=self.param_groups[0]["lr"],
            weight_decay=self._weight_decay,
            eps=_EPS,
            maximize=False,
        )


class LocalOptimizer:
    """Steps of one decoder. Change what it owns through `own` alone, so that moments follow."""

    def __init__(self, decoder: Decoder, training: Training, bits: int = 32) -> None:
        """`bits` of each value of the moments, 32 or 8; `BadConfiguration` when 8 cannot be had here."""
        self._decoder = decoder
        self._training = training
        self._bits = bits
        self.num_steps = 0
        """Steps made by this peer in this run."""
        self._kept: dict[str, Stored] = {}
        """Moments of experts that are not owned now, by piece."""
        self._shared = list(_shared_pieces(decoder))
        self._owned: list[_Piece] = []
        self._adam = self._build()

    def step(self, lr: float) -> bool:
        """Apply the gradients, clipped, and clear them. False, and nothing changes, when one is not finite."""
        parameters = [*self._decoder.shared_parameters(), *self._decoder.owned_parameters()]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._training.clip_norm)
        is_finite = bool(norm.isfinite())
        if is_finite:
            self._apply(lr)
            self.num_steps += 1
        self.clear()
        return is_finite

    def clear(self) -> None:
        """Drop the gradients."""
        for piece in self._pieces():
            piece.values.grad = piece.source.grad = None

    def own(self, experts: tuple[int, ...]) -> None:
        """Own exactly `experts`, as `Decoder.own` says."""
        self._kept.update({piece.name: self._stored(piece) for piece in self._owned})
        states = {piece.values: self._adam.state[piece.values] for piece in self._shared}
        self._owned = []
        self._decoder.own(experts)
        self._owned = list(_owned_pieces(self._decoder))
        self._adam = self._build(states)
        self._take_up(self._owned)

    def moments(self) -> dict[str, Tensor]:
        """All moments, for a checkpoint."""
        stored = {**self._kept, **{piece.name: self._stored(piece) for piece in self._pieces()}}
        named = {f"{piece}/{part}": values for piece, parts in stored.items() for part, values in parts.items()}
        return {**named, "num_steps": torch.tensor([self.num_steps])}

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """Take up `moments()` of an earlier process, of whatever bits.

        Raises ValueError, KeyError or RuntimeError if they do not fit, `BadConfiguration` where torchao is lacking."""
        self.num_steps = int(tensors["num_steps"].item())
        self._kept = {}
        for name in tensors.keys() - {"num_steps"}:
            piece, _, part = name.rpartition("/")
            self._kept.setdefault(piece, {})[part] = tensors[name]
        self._take_up([*self._pieces()])
        if lost := [name for name in self._kept if name.startswith("shared/")]:
            raise ValueError(f"moments of {lost[0]}, which there is not")

    def _apply(self, lr: float) -> None:
        for piece in self._pieces():
            piece.take_gradient()
        for group in self._adam.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if self._bits == 8:
            with eight_bit.uncompiled():
                self._adam.step()
        else:
            self._adam.step()

    def _build(self, states: dict[Parameter, Any] | None = None) -> Any:
        """The optimizer of all pieces, with these states and zeros for the rest."""
        parameters = [piece.values for piece in self._pieces()]
        options = {"lr": self._training.lr, "weight_decay": self._training.weight_decay}
        adam: Any
        if self._bits == 8:
            adam = eight_bit.adamw_8bit(parameters, betas=_BETAS, eps=_EPS, **options)
        else:
            adam = _FusedAdamW(parameters, **options)
        for parameter in parameters:
            adam.state[parameter] = (states or {}).get(parameter) or self._zeros(adam, parameter)
        return adam

    def _zeros(self, adam: Any, parameter: Parameter) -> dict[str, Tensor]:
        """Its step count, which only corrects the bias of young moments, is this peer's: a new expert therefore starts
        with steps that are a little too small, not too large."""
        values = parameter.detach()
        if self._bits == 8:
            moments = {name: eight_bit.new_moment(adam, values, signed) for name, signed in _MOMENTS.items()}
        else:
            moments = {name: torch.zeros_like(values) for name in _MOMENTS}
        # where the fused kernel wants it
        return {"step": torch.tensor(float(self.num_steps), device=values.device), **moments}

    def _pieces(self) -> Iterator[_Piece]:
        yield from self._shared
        yield from self._owned

    def _stored(self, piece: _Piece) -> Stored:
        stored: Stored = {}
        for name in _MOMENTS:
            moment = self._adam.state[piece.values][name]
            if eight_bit.is_8bit(moment):
                codes, scale = eight_bit.parts_of(moment)
                stored |= {f"{name}.codes": _on_cpu(codes), f"{name}.scale": _on_cpu(scale)}
            else:
                stored[name] = _on_cpu(moment)
        return stored

    def _take_up(self, pieces: list[_Piece]) -> None:
        """Give pieces the moments that were kept for them."""
        for piece in pieces:
            state = self._adam.state[piece.values]
            state["step"].fill_(float(self.num_steps))
            if stored := self._kept.pop(piece.name, None):
                for name, is_signed in _MOMENTS.items():
                    _load(state[name], stored, name, is_signed)


def _load(moment: Tensor, stored: Stored, name: str, is_signed: bool) -> None:
    if name in stored:
        _copy(moment, stored[name])  # quantizes where the moment has 8 bits
        return
    codes, scale = stored[f"{name}.codes"], stored[f"{name}.scale"]
    if eight_bit.is_8bit(moment):
        for part, values in zip(eight_bit.parts_of(moment), (codes, scale), strict=True):
            _copy(part, values)
    else:
        _copy(moment, eight_bit.from_parts(codes, scale, is_signed))


def _copy(target: Tensor, values: Tensor) -> None:
    if target.shape != values.shape:
        raise ValueError(f"{tuple(values.shape)} values where {tuple(target.shape)} belong")
    target.copy_(values)


def _on_cpu(values: Tensor) -> Tensor:
    return values.detach().to("cpu", copy=True)


def _shared_pieces(decoder: Decoder) -> Iterator[_Piece]:
    number = 0
    for parameter in decoder.shared_parameters():
        for start in range(0, parameter.numel(), _PIECE):
            yield _Piece.of(f"shared/{number:04d}", parameter, start, min(start + _PIECE, parameter.numel()))
            number += 1


def _owned_pieces(decoder: Decoder) -> Iterator[_Piece]:
    for row, expert in enumerate(decoder.owned):
        number = 0
        for master in decoder.owned_parameters():
            size = master[row].numel()
            for start in range(0, size, _PIECE):
                first, end = row * size + start, row * size + min(start + _PIECE, size)
                yield _Piece.of(f"expert/{expert:02d}/{number:04d}", master, first, end)
                number += 1
