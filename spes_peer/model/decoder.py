"""The decoder of SPES §2: pre-norm, attention, and a mixture of experts in every layer; untied output head.

Every peer trains the shared parameters, and the masters of the experts it owns. The other experts are resident in a
precision of the machine's own choice (`resident.py`), frozen. An owned expert is its master: loading its group does
nothing, and what an expert given up leaves behind stays until its group is loaded.

Groups are flattened in the order of `run.layout`, as fp32 on the CPU. Shapes: B batch, T sequence, N = B·T tokens,
D d_model, E experts, O owned experts, F expert_hidden.
"""

import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter, functional
from torch.utils.checkpoint import checkpoint

from spes_peer.model.attention import Past, Rotary, attention
from spes_peer.model.experts import ExpertWeights, Routes, routed_experts
from spes_peer.model.losses import Losses, head_losses, load_balance_of, route, router_z_of
from spes_peer.model.norm import rms_norm
from spes_peer.model.resident import ExpertMatrix, Precision
from spes_peer.run.layout import shared_parameters_of
from spes_peer.run.manifest import Model, Training


def compute_dtype_of(device: torch.device) -> torch.dtype:
    """bf16 on GPUs that have it. On CPUs it is slower than fp32 without AMX, and where there is AMX it is untried."""
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if has_bf16 else torch.float32


class Layer(torch.nn.Module):
    """One block of the decoder: its share of the shared parameters, and its experts."""

    attention_norm: Parameter
    qkv: Parameter
    q_norm: Parameter
    k_norm: Parameter
    attention_out: Parameter
    ffn_norm: Parameter
    router: Parameter
    slot_of_E: Tensor

    def __init__(self, model: Model, device: torch.device, resident: Precision, compute_dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.compute_dtype = model, compute_dtype
        num_experts, hidden, d_model = model.num_experts, model.expert_hidden, model.d_model
        self.w1 = ExpertMatrix((num_experts, hidden, d_model), resident, device)
        self.v1 = ExpertMatrix((num_experts, hidden, d_model), resident, device)
        self.w2 = ExpertMatrix((num_experts, d_model, hidden), resident, device)
        self.expert_of_slot = list(range(num_experts))
        self.register_buffer("slot_of_E", torch.arange(num_experts, device=device), persistent=False)

    def weights(self) -> ExpertWeights:
        return ExpertWeights(self.w1, self.v1, self.w2)

    def own(self, experts: tuple[int, ...]) -> None:
        swaps = []
        for slot, expert in enumerate(experts):
            other = self.expert_of_slot.index(expert)
            if other != slot:
                order = self.expert_of_slot
                order[slot], order[other] = order[other], order[slot]
                swaps.append((slot, other))
        for matrix in self.weights().matrices():
            matrix.own(swaps, len(experts))
        self.slot_of_E.copy_(torch.tensor(self.expert_of_slot).argsort())

    def forward(self, x_BTD: Tensor, rotary: Rotary, past: Past | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(activations, load balance, router z, how often each expert was chosen) of this layer."""
        normed = rms_norm(x_BTD, self.attention_norm)
        mixed = attention(normed, self.qkv, self.q_norm, self.k_norm, self.attention_out, rotary, self.model, past)
        x_BTD = x_BTD + mixed
        x_ND = rms_norm(x_BTD, self.ffn_norm).flatten(0, 1)
        routing = route(x_ND, self.router, self.model.top_k, self.model.renormalize_top_k)
        routes = Routes.of(self.slot_of_E[routing.expert_NK], self.model.num_experts)
        y_ND = routed_experts(x_ND.to(self.compute_dtype), routing.gate_NK, routes, self.weights())
        counts_E = routes.counts_E[self.slot_of_E]
        load_balance = load_balance_of(routing, counts_E)
        return x_BTD + y_ND.view_as(x_BTD), load_balance, router_z_of(routing), counts_E


class Decoder(torch.nn.Module):
    """`training` gives the coefficients of the losses, `resident` how frozen experts are held; with `checkpointing` the
    backward pass makes each layer's activations again, instead of the forward pass keeping them."""

    embedding: Parameter
    final_norm: Parameter
    head: Parameter

    def __init__(
        self,
        model: Model,
        device: torch.device | str,
        training: Training,
        *,
        resident: Precision = "fp32",
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.model, self.training_section, self.device = model, training, torch.device(device)
        self.checkpointing, self.compute_dtype = checkpointing, compute_dtype_of(self.device)
        self.layers = torch.nn.ModuleList(
            Layer(model, self.device, resident, self.compute_dtype) for _ in range(model.num_layers)
        )
        self.rotary = Rotary(model, self.device)
        self._chosen_E = torch.zeros(model.num_experts, dtype=torch.int64, device=self.device)
        self._shared_names = [parameter.name for parameter in shared_parameters_of(model)]
        for parameter in shared_parameters_of(model):
            owner, _, name = parameter.name.rpartition(".")
            values = torch.zeros(parameter.shape, device=self.device)
            self.get_submodule(owner).register_parameter(name, Parameter(values))

    def shared_parameters(self) -> list[Parameter]:
        """In the order and shapes of `Layout.shared_parameters`."""
        return [self.get_parameter(name) for name in self._shared_names]

    def own(self, experts: tuple[int, ...]) -> None:
        """Own exactly `experts`. Masters of those owned before stay as they are; a new one has the resident values,
        rounded as those are; the one given up leaves its values resident. Raises ValueError for experts there are not.
        """
        if len(set(experts)) != len(experts) or not set(experts) <= set(range(self.model.num_experts)):
            raise ValueError(f"experts {experts} of {self.model.num_experts}")
        for layer in self._layers():
            layer.own(experts)

    @property
    def owned(self) -> tuple[int, ...]:
        layer = next(self._layers())
        return tuple(layer.expert_of_slot[: layer.w1.num_owned])

    def owned_parameters(self) -> list[Parameter]:
        """Masters, layer by layer: w1 [O, F, D], v1 [O, F, D], w2 [O, D, F]."""
        return [matrix.master for matrix in self._matrices() if matrix.master is not None]

    def load_group(self, expert: int | None, flat: Tensor) -> None:
        """Set the shared parameters (None) or the resident values of an expert that is not owned."""
        if expert is None:
            _scatter(flat, [parameter.detach() for parameter in self.shared_parameters()])
        elif expert not in self.owned:
            self._store(expert, flat)

    def load_master(self, expert: int, flat: Tensor) -> None:
        """Set the master of an owned expert."""
        _scatter(flat, self._master(expert))

    def publish_masters(self) -> None:
        """Let the forward pass see the masters. It calls this itself: nobody else need know when a master has changed,
        and it costs less than casting the owned experts for each pass, as autocast would."""
        for matrix in self._matrices():
            matrix.publish()

    def flatten_shared(self) -> Tensor:
        return _gather([parameter.detach() for parameter in self.shared_parameters()])

    def flatten_master(self, expert: int) -> Tensor:
        """The master of an owned expert."""
        return _gather(self._master(expert))

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Losses:
        """The losses of predicting `targets_BT`, int64 like the tokens; targets of −100 are ignored."""
        self.publish_masters()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.compute_dtype == torch.bfloat16):
            x_BTD = functional.embedding(tokens_BT, self.embedding)
            load_balance = router_z = torch.zeros((), device=x_BTD.device)
            for layer in self._layers():
                x_BTD, layer_load_balance, layer_router_z, counts_E = self._through(layer, x_BTD)
                if torch.is_grad_enabled():
                    self._chosen_E += counts_E
                load_balance = load_balance + layer_load_balance / self.model.num_layers
                router_z = router_z + layer_router_z
            x_ND = rms_norm(x_BTD, self.final_norm).flatten(0, 1)
            head = head_losses(
                x_ND.to(self.compute_dtype), self.head, targets_BT.flatten(), self.training_section.z_loss
            )
        return Losses.of(head, load_balance, router_z, self.training_section)

    def next_logits(self, tokens_BT: Tensor, pasts: list[Past]) -> Tensor:
        """[B, V] in fp32: what the token behind these could be. `pasts`, one for each layer, hold what came before, and
        then these too; where they hold something, T is 1."""
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, self.compute_dtype == torch.bfloat16):
            x_BTD = functional.embedding(tokens_BT, self.embedding)
            for layer, past in zip(self._layers(), pasts, strict=True):
                x_BTD, *_ = layer(x_BTD, self.rotary, past)
            return functional.linear(rms_norm(x_BTD[:, -1], self.final_norm), self.head).to(torch.float32)

    def take_router_choices(self) -> tuple[int, ...]:
        """How often each expert was chosen in training, over all layers, since this was last asked."""
        chosen = tuple(self._chosen_E.tolist())
        self._chosen_E.zero_()
        return chosen

    def _through(self, layer: Layer, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if not (self.checkpointing and torch.is_grad_enabled()):
            return cast(tuple[Tensor, Tensor, Tensor, Tensor], layer(x_BTD, self.rotary))
        # nothing in a layer draws random numbers
        made = checkpoint(layer, x_BTD, self.rotary, use_reentrant=False, preserve_rng_state=False)
        return cast(tuple[Tensor, Tensor, Tensor, Tensor], made)

    def _layers(self) -> Iterator[Layer]:
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer

    def _matrices(self) -> Iterator[ExpertMatrix]:
        """In the order in which an expert is flattened."""
        return (matrix for layer in self._layers() for matrix in layer.weights().matrices())

    def _master(self, expert: int) -> list[Tensor]:
        row = self.owned.index(expert)
        return [master.detach()[row] for master in self.owned_parameters()]

    def _store(self, expert: int, flat: Tensor) -> None:
        slot = next(self._layers()).expert_of_slot.index(expert)
        matrices = list(self._matrices())
        parts = torch.split(flat, [math.prod(matrix.shape[1:]) for matrix in matrices])
        for matrix, part in zip(matrices, parts, strict=True):
            matrix.store(slot, part.view(matrix.shape[1:]))


def _gather(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1).to("cpu", torch.float32) for tensor in tensors])


def _scatter(flat: Tensor, tensors: list[Tensor]) -> None:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
