"""The decoder of SPES §2: pre-norm, attention, and a mixture of experts in every layer; untied output head.

Every peer trains the shared parameters. Experts are resident: fp32 buffers, all experts of a layer in one tensor per
matrix. For the experts a peer owns, `own` makes masters, which alone are trainable; the forward pass works with them in
place of the resident ones. Loading a group never touches masters, and loading a master never touches residents.

Groups are flattened in the order of `run.layout`, as fp32 on the CPU. Shapes: B batch, T sequence, N = B·T tokens,
D d_model, E experts, O owned experts, F expert_hidden.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from spes_peer.model.attention import Rotary, attention
from spes_peer.model.experts import ExpertWeights, Routes, routed_experts
from spes_peer.model.losses import Losses, head_losses, load_balance_of, route, router_z_of
from spes_peer.model.norm import rms_norm
from spes_peer.run.layout import shared_parameters_of
from spes_peer.run.manifest import Model, Training


class Layer(torch.nn.Module):
    """One block of the decoder: its share of the shared parameters, its experts, and masters of the owned ones."""

    attention_norm: Parameter
    qkv: Parameter
    q_norm: Parameter
    k_norm: Parameter
    attention_out: Parameter
    ffn_norm: Parameter
    router: Parameter
    w1_EFD: Tensor
    v1_EFD: Tensor
    w2_EDF: Tensor

    def __init__(self, model: Model, device: torch.device) -> None:
        super().__init__()
        self.model = model
        num_experts, hidden, d_model = model.num_experts, model.expert_hidden, model.d_model
        self.register_buffer("w1_EFD", torch.zeros(num_experts, hidden, d_model, device=device))
        self.register_buffer("v1_EFD", torch.zeros(num_experts, hidden, d_model, device=device))
        self.register_buffer("w2_EDF", torch.zeros(num_experts, d_model, hidden, device=device))
        self.owned: tuple[int, ...] = ()
        for name in ("w1_OFD", "v1_OFD", "w2_ODF"):
            self.register_parameter(name, None)

    def residents(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.w1_EFD, self.v1_EFD, self.w2_EDF

    def masters(self) -> tuple[Parameter, ...]:
        """w1, v1 and w2 of the owned experts; nothing where there are none."""
        masters = (self.w1_OFD, self.v1_OFD, self.w2_ODF)
        return tuple(master for master in masters if master is not None)

    def own(self, experts: tuple[int, ...]) -> None:
        self.owned = experts
        index = list(experts)
        masters = [Parameter(resident[index].clone()) if experts else None for resident in self.residents()]
        self.w1_OFD, self.v1_OFD, self.w2_ODF = masters

    def forward(self, x_BTD: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """(activations, load balance, router z) of this layer."""
        normed = rms_norm(x_BTD, self.attention_norm)
        mixed = attention(normed, self.qkv, self.q_norm, self.k_norm, self.attention_out, rotary, self.model)
        x_BTD = x_BTD + mixed
        x_ND = rms_norm(x_BTD, self.ffn_norm).flatten(0, 1)
        routing = route(x_ND, self.router, self.model.top_k, self.model.renormalize_top_k)
        routes = Routes.of(routing.expert_NK, self.model.num_experts)
        weights = ExpertWeights(*self.residents(), self.owned, *(self.masters() or (None, None, None)))
        y_ND = routed_experts(x_ND, routing.gate_NK, routes, weights)
        counts_E = torch.tensor(routes.counts, dtype=torch.float32, device=x_ND.device)
        return x_BTD + y_ND.view_as(x_BTD), load_balance_of(routing, counts_E), router_z_of(routing)


class Decoder(torch.nn.Module):
    """`training` gives the coefficients of the losses."""

    embedding: Parameter
    final_norm: Parameter
    head: Parameter

    def __init__(self, model: Model, device: torch.device | str, training: Training) -> None:
        super().__init__()
        self.model, self.training_section, self.device = model, training, torch.device(device)
        self.layers = torch.nn.ModuleList(Layer(model, self.device) for _ in range(model.num_layers))
        self.rotary = Rotary(model, self.device)
        self._shared_names = [parameter.name for parameter in shared_parameters_of(model)]
        for parameter in shared_parameters_of(model):
            owner, _, name = parameter.name.rpartition(".")
            values = torch.zeros(parameter.shape, device=self.device)
            self.get_submodule(owner).register_parameter(name, Parameter(values))

    def shared_parameters(self) -> list[Parameter]:
        """In the order and shapes of `Layout.shared_parameters`."""
        return [self.get_parameter(name) for name in self._shared_names]

    def own(self, experts: tuple[int, ...]) -> None:
        """Make masters of `experts` from their resident values; masters there were are dropped."""
        if len(set(experts)) != len(experts) or not set(experts) <= set(range(self.model.num_experts)):
            raise ValueError(f"experts {experts} of {self.model.num_experts}")
        for layer in self._layers():
            layer.own(experts)

    @property
    def owned(self) -> tuple[int, ...]:
        return next(self._layers()).owned

    def owned_parameters(self) -> list[Parameter]:
        """Masters, layer by layer: w1 [O, F, D], v1 [O, F, D], w2 [O, D, F]."""
        return [master for layer in self._layers() for master in layer.masters()]

    def load_group(self, expert: int | None, flat: Tensor) -> None:
        """Set the shared parameters (None) or the resident values of an expert."""
        if expert is None:
            _scatter(flat, [parameter.detach() for parameter in self.shared_parameters()])
        else:
            _scatter(flat, [resident[expert] for layer in self._layers() for resident in layer.residents()])

    def load_master(self, expert: int, flat: Tensor) -> None:
        """Set the master of an owned expert."""
        _scatter(flat, self._master(expert))

    def flatten_shared(self) -> Tensor:
        return _gather([parameter.detach() for parameter in self.shared_parameters()])

    def flatten_master(self, expert: int) -> Tensor:
        """The master of an owned expert."""
        return _gather(self._master(expert))

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Losses:
        """The losses of predicting `targets_BT`, int64 like the tokens; targets of −100 are ignored."""
        x_BTD = functional.embedding(tokens_BT, self.embedding)
        load_balance = router_z = torch.zeros((), device=x_BTD.device)
        for layer in self._layers():
            x_BTD, layer_load_balance, layer_router_z = layer(x_BTD, self.rotary)
            load_balance = load_balance + layer_load_balance / self.model.num_layers
            router_z = router_z + layer_router_z
        x_ND = rms_norm(x_BTD, self.final_norm).flatten(0, 1)
        ce, z = head_losses(x_ND, self.head, targets_BT.flatten())
        return Losses.of(ce, z, load_balance, router_z, self.training_section)

    def _layers(self) -> Iterator[Layer]:
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer

    def _master(self, expert: int) -> list[Tensor]:
        row = self.owned.index(expert)
        return [master.detach()[row] for master in self.owned_parameters()]


def _gather(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1).to("cpu", torch.float32) for tensor in tensors])


def _scatter(flat: Tensor, tensors: list[Tensor]) -> None:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))
