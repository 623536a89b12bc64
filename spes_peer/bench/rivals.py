"""What we measure ourselves against, done as well as it can be done in its own way.

Shapes: N tokens, D d_model, E experts, F expert_hidden, K routes per token, R = N·K routed rows, V vocabulary.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from spes_peer.model.huggingface import architecture_of, config_of
from spes_peer.model.losses import IGNORED_TARGET, Routing
from spes_peer.run.manifest import Model

IMPLEMENTATIONS = ("eager", "grouped_mm")
"""Ways in which transformers computes experts; a third copies the weights of an expert for each token."""


class OfficialExperts(torch.nn.Module):
    """Experts in the style of the paper's code: each expert's weights are parameters of their own, frozen or not; all
    are concatenated in each forward pass and multiplied as one group, so that the backward pass makes weight gradients
    of all of them, of which autograd drops the frozen ones'."""

    def __init__(self, w1_v1_w2: tuple[Tensor, Tensor, Tensor], num_owned: int) -> None:
        super().__init__()

        def parameters(matrices: Tensor) -> torch.nn.ParameterList:
            return torch.nn.ParameterList(
                Parameter(matrix.clone(), requires_grad=expert < num_owned) for expert, matrix in enumerate(matrices)
            )

        self.w1, self.v1, self.w2 = (parameters(matrices) for matrices in w1_v1_w2)

    def forward(self, x_ND: Tensor, routing: Routing) -> Tensor:
        num_routes = routing.expert_NK.shape[1]
        sorted_R, order_R = routing.expert_NK.flatten().sort(stable=True)
        ends_E = torch.bincount(sorted_R, minlength=len(self.w1)).cumsum(0).to(torch.int32)
        w1_EFD, v1_EFD, w2_EDF = (self._all(each, x_ND.dtype) for each in (self.w1, self.v1, self.w2))
        x_RD = x_ND[order_R // num_routes]
        hidden_RF = functional.silu(functional.grouped_mm(x_RD, w1_EFD.mT, offs=ends_E))
        hidden_RF = hidden_RF * functional.grouped_mm(x_RD, v1_EFD.mT, offs=ends_E)
        y_RD = functional.grouped_mm(hidden_RF, w2_EDF.mT, offs=ends_E)
        y_RD = y_RD * routing.gate_NK.flatten()[order_R].unsqueeze(1).to(y_RD.dtype)
        return torch.zeros_like(x_ND).index_add(0, order_R // num_routes, y_RD)

    def _all(self, experts: torch.nn.ParameterList, dtype: torch.dtype) -> Tensor:
        flat = torch.cat([expert.view(-1, expert.shape[1]) for expert in experts]).to(dtype)
        return flat.view(len(experts), *experts[0].shape)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what their import says of libraries that lack a kernel or a GPU."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def full_logits_loss(x_ND: Tensor, head_VD: Tensor, target_N: Tensor, z_coefficient: float) -> Tensor:
    """The head's losses with all logits at once."""
    logits_NV = functional.linear(x_ND, head_VD).to(torch.float32)
    ce = functional.cross_entropy(logits_NV, target_N, ignore_index=IGNORED_TARGET)
    z = logits_NV.logsumexp(dim=-1).square()[target_N != IGNORED_TARGET].mean()
    return ce + z_coefficient * z


def transformers_model(model: Model, device: torch.device) -> tuple[Any, str]:
    """Their model of our shape, fp32, on the device, with losses on, and their version. Raises ImportError."""
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        import transformers

        kind = {"OlmoeForCausalLM": "olmoe"}.get(architecture_of(model), "qwen3_moe")
        settings = {key: value for key, value in config_of(model, "float32", 0).items() if key != "model_type"}
        config = transformers.AutoConfig.for_model(kind, **settings, output_router_logits=True)
        with torch.device(device):
            theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")  # type: ignore[no-untyped-call]
    return theirs.train(), str(transformers.__version__)
