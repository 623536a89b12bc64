"""AdamW over the shared parameters and the masters of owned experts, and the moments of each (SPES §1.2).

Synchronization never resets moments. Moments of an expert that is given up are kept, and taken up again when it comes
back. Clipping is by the global norm over all that is trained.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from spes_peer.model.decoder import Decoder
from spes_peer.run.manifest import Training

_BETAS = (0.9, 0.95)
_EPS = 1e-8
_MOMENTS = ("exp_avg", "exp_avg_sq")


class LocalOptimizer:
    """Steps of one decoder. Change what it owns through `own` alone, so that moments follow."""

    def __init__(self, decoder: Decoder, training: Training) -> None:
        self._decoder = decoder
        self._training = training
        self.num_steps = 0
        """Steps made by this peer in this run."""
        self._kept: dict[int, tuple[Tensor, ...]] = {}
        """Flattened moments of experts that are not owned now."""
        self._adam = self._build()

    def step(self, lr: float) -> bool:
        """Apply the gradients, clipped, and clear them. False, and nothing changes, when one is not finite."""
        parameters = self._parameters()
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._training.clip_norm)
        is_finite = bool(norm.isfinite())
        if is_finite:
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            self.num_steps += 1
        self.clear()
        return is_finite

    def clear(self) -> None:
        """Drop the gradients."""
        self._adam.zero_grad(set_to_none=True)

    def own(self, experts: tuple[int, ...]) -> None:
        """Own exactly `experts`: masters of those owned before stay, others start from the resident values."""
        decoder = self._decoder
        masters = {expert: decoder.flatten_master(expert) for expert in decoder.owned}
        self._kept.update(self._expert_moments())
        shared = [self._adam.state.get(parameter) for parameter in decoder.shared_parameters()]
        decoder.own(experts)
        for expert in set(experts) & set(masters):
            decoder.load_master(expert, masters[expert])
        self._adam = self._build()
        for parameter, state in zip(decoder.shared_parameters(), shared, strict=True):
            if state:
                self._adam.state[parameter] = state
        self._take_up(experts)

    def moments(self) -> dict[str, Tensor]:
        """All moments, for a checkpoint."""
        experts = {**self._kept, **self._expert_moments()}
        named = {f"expert/{expert:02d}": pair for expert, pair in experts.items()}
        if self.num_steps:
            named["shared"] = _flattened(self._state(parameter) for parameter in self._decoder.shared_parameters())
        moments = {f"{moment}/{name}": pair[i] for name, pair in named.items() for i, moment in enumerate(_MOMENTS)}
        return {**moments, "num_steps": torch.tensor([self.num_steps])}

    def load_moments(self, tensors: dict[str, Tensor]) -> None:
        """Take up `moments()` of an earlier process; raises ValueError, KeyError or RuntimeError if they do not fit."""
        self.num_steps = int(tensors["num_steps"].item())
        names = [name.removeprefix("exp_avg/") for name in tensors if name.startswith("exp_avg/")]
        pairs = {name: tuple(tensors[f"{moment}/{name}"] for moment in _MOMENTS) for name in names}
        shared = pairs.pop("shared", None)
        self._kept = {int(name.removeprefix("expert/")): pair for name, pair in pairs.items()}
        if shared is not None:
            self._scatter(self._decoder.shared_parameters(), shared)
        self._take_up(self._decoder.owned)

    def _build(self) -> torch.optim.AdamW:
        training = self._training
        return torch.optim.AdamW(
            self._parameters(),
            lr=training.lr,
            betas=_BETAS,
            eps=_EPS,
            weight_decay=training.weight_decay,
            fused=True,
        )

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [*self._decoder.shared_parameters(), *self._decoder.owned_parameters()]

    def _expert_moments(self) -> dict[int, tuple[Tensor, ...]]:
        """Flattened moments of the owned experts."""
        if not self.num_steps:
            return {}
        states = [self._state(parameter) for parameter in self._decoder.owned_parameters()]
        return {
            expert: _flattened([{name: state[name][row] for name in _MOMENTS} for state in states])
            for row, expert in enumerate(self._decoder.owned)
        }

    def _take_up(self, experts: tuple[int, ...]) -> None:
        """Give owned experts the moments they had, or zeros. The step count, which only corrects the bias of young
        moments, is this peer's: a new expert therefore starts with steps that are a little too small, not too large."""
        if self.num_steps:
            for parameter in self._decoder.owned_parameters():
                self._state(parameter)
        for row, expert in enumerate(experts):
            if pair := self._kept.pop(expert, None):
                self._scatter(self._decoder.owned_parameters(), pair, row)

    def _state(self, parameter: torch.nn.Parameter) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self._adam.state[parameter]
        if not state:
            state["step"] = torch.tensor(float(self.num_steps), device=parameter.device)
            state.update({name: torch.zeros_like(parameter) for name in _MOMENTS})
        return state

    def _scatter(self, parameters: list[torch.nn.Parameter], pair: tuple[Tensor, ...], row: int | None = None) -> None:
        for name, flat in zip(_MOMENTS, pair, strict=True):
            moments = [self._state(parameter)[name] for parameter in parameters]
            targets = moments if row is None else [moment[row] for moment in moments]
            for target, part in zip(targets, torch.split(flat, [target.numel() for target in targets]), strict=True):
                target.copy_(part.view(target.shape))


def _flattened(states: Iterable[dict[str, Tensor]]) -> tuple[Tensor, ...]:
    """First and second moments, each flattened in the order of the states, on the CPU."""
    collected = list(states)
    return tuple(torch.cat([state[name].reshape(-1).to("cpu") for state in collected]) for name in _MOMENTS)
