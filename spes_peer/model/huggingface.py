"""Our model in Hugging Face's words, and the other way (SPES §2, "Hugging Face names"). No torch, no files.

Two of their architectures are exactly ours: `OlmoeForCausalLM` where QK-norm goes over the full width and the top k
are not renormalised, `Qwen3MoeForCausalLM` where it goes over each head and they are. A dense `Qwen3ForCausalLM` has
the shared parameters of the latter, and one MLP a layer of which experts can be made (`model.upcycle`).

Every one of their tensors is a contiguous part of one of our groups: `tensors_of` says which.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from spes_peer.errors import BadConfiguration
from spes_peer.run.layout import Parameter, expert_parameters_of, shared_parameters_of
from spes_peer.run.manifest import Model, in_words

RMS_NORM_EPS = 1e-6  # of `model.norm`, which loads torch

OLMOE = "OlmoeForCausalLM"
QWEN3_MOE = "Qwen3MoeForCausalLM"
QWEN3_DENSE = "Qwen3ForCausalLM"
_MODEL_TYPES = {OLMOE: "olmoe", QWEN3_MOE: "qwen3_moe", QWEN3_DENSE: "qwen3"}
_KIND_OF: dict[str, tuple[Literal["width", "head"], bool]] = {
    OLMOE: ("width", False),
    QWEN3_MOE: ("head", True),
    QWEN3_DENSE: ("head", True),
}
_SHARED_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attention_norm": "input_layernorm.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "attention_out": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "router": "mlp.gate.weight",
}
_EXPERT_NAMES = {"w1": "gate_proj.weight", "v1": "up_proj.weight", "w2": "down_proj.weight"}


class HuggingFaceTensor(NamedTuple):
    """One of their tensors: its values are elements [start, start + num_elements) of a group, row by row."""

    name: str
    shape: tuple[int, ...]
    expert: int | None
    """The group; None is the shared one."""
    start: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def architecture_of(model: Model) -> str:
    """Whose model this is; `BadConfiguration` for one that is nobody's."""
    for architecture in (OLMOE, QWEN3_MOE):
        if _KIND_OF[architecture] == (model.qk_norm, model.renormalize_top_k):
            return architecture
    top_k = "a renormalized top k" if model.renormalize_top_k else "a top k that is not renormalized"
    raise BadConfiguration(
        f"no Hugging Face model has QK-norm over the {model.qk_norm} and {top_k}: {OLMOE} has the width and does not"
        f" renormalize, {QWEN3_MOE} has the head and does"
    )


def tensors_of(model: Model) -> Iterator[HuggingFaceTensor]:
    """All tensors of a checkpoint of the mixture of experts, in the order of our groups."""
    for parameter in shared_parameters_of(model):
        yield from _shared_tensors(model, parameter)
    for expert in range(model.num_experts):
        for parameter in expert_parameters_of(model):
            layer, _, name = parameter.name.rpartition(".")
            their_name = f"model.{layer}.mlp.experts.{expert}.{_EXPERT_NAMES[name]}"
            yield HuggingFaceTensor(their_name, parameter.shape, expert, parameter.offset)


def dense_tensors_of(model: Model) -> Iterator[HuggingFaceTensor]:
    """All tensors of the dense model of which `model` is made: the shared ones but routers, and its MLPs in the place
    of expert 0."""
    for tensor in tensors_of(model):
        if tensor.expert is None and not tensor.name.endswith(_SHARED_NAMES["router"]):
            yield tensor
        elif tensor.expert == 0:
            yield tensor._replace(name=tensor.name.replace(".experts.0.", "."))


def _shared_tensors(model: Model, parameter: Parameter) -> Iterator[HuggingFaceTensor]:
    layer, _, name = parameter.name.rpartition(".")
    if name != "qkv":
        their_name = f"model.{layer}.{_SHARED_NAMES[name]}" if layer else _SHARED_NAMES[name]
        yield HuggingFaceTensor(their_name, parameter.shape, None, parameter.offset)
        return
    start, kv_width = parameter.offset, model.num_kv_heads * model.head_dim
    for part, rows in (("q", model.d_model), ("k", kv_width), ("v", kv_width)):
        their_name = f"model.{layer}.self_attn.{part}_proj.weight"
        yield HuggingFaceTensor(their_name, (rows, model.d_model), None, start)
        start += rows * model.d_model


def config_of(model: Model, dtype: str, end_of_text: int) -> dict[str, Any]:
    """config.json. What their defaults have wrong for us is written out, in the words of old and new versions."""
    architecture = architecture_of(model)
    config = {
        "architectures": [architecture],
        "model_type": _MODEL_TYPES[architecture],
        "vocab_size": model.vocab_rows,
        "hidden_size": model.d_model,
        "intermediate_size": model.expert_hidden,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": model.sequence_length,
        "initializer_range": 0.02,
        "rms_norm_eps": RMS_NORM_EPS,
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "num_experts": model.num_experts,
        "num_experts_per_tok": model.top_k,
        "norm_topk_prob": model.renormalize_top_k,
        "bos_token_id": None,
        "eos_token_id": end_of_text,
        "pad_token_id": None,
        "use_cache": True,
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if architecture == OLMOE:
        return {**config, "clip_qkv": None}
    own = {"moe_intermediate_size": model.expert_hidden, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return {**config, **own, "use_sliding_window": False}


@dataclass(frozen=True)
class Upcycling:
    """How many experts a dense model's MLP becomes, and how many of them a token meets."""

    num_experts: int
    top_k: int


def model_of(config: Mapping[str, Any], sequence_length: int, upcycling: Upcycling | None = None) -> Model:
    """The [model] section that a config.json describes, with sequences of at most `sequence_length`.

    `BadConfiguration` names the first thing in it that our decoder does not have."""
    architecture = _known_architecture(config, upcycling)
    _check_equal_to_ours(config, architecture)
    qk_norm, renormalize = _KIND_OF[architecture]
    hidden = "moe_intermediate_size" if architecture == QWEN3_MOE else "intermediate_size"
    num_heads = _number(config, "num_attention_heads")
    try:
        model = Model(
            vocab_rows=_number(config, "vocab_size"),
            d_model=_number(config, "hidden_size"),
            num_layers=_number(config, "num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_heads if config.get("num_key_value_heads") is None else config["num_key_value_heads"],
            num_experts=upcycling.num_experts if upcycling else _number(config, "num_experts", "num_local_experts"),
            top_k=upcycling.top_k if upcycling else _number(config, "num_experts_per_tok"),
            expert_hidden=_number(config, hidden),
            sequence_length=min(sequence_length, _number(config, "max_position_embeddings")),
            rope_theta=_rope_theta(config),
            qk_norm=qk_norm,
            renormalize_top_k=renormalize,
        )
    except ValidationError as error:
        raise BadConfiguration(f"config.json: {in_words(Model, error)[0]}") from None
    if config.get("head_dim", model.head_dim) not in (model.head_dim, None):
        raise BadConfiguration(
            f"config.json: head_dim is {config['head_dim']}; our decoder has hidden_size / num_attention_heads,"
            f" {model.head_dim}"
        )
    return model


def check_same_model(wanted: Model, held: Model) -> None:
    """Refuse a run file whose [model] is not the one in the checkpoint, by the first key that differs."""
    for key in Model.model_fields:
        if getattr(wanted, key) != getattr(held, key):
            raise BadConfiguration(
                f"the run file has model.{key} = {getattr(wanted, key)}, the checkpoint {getattr(held, key)}"
            )


def _known_architecture(config: Mapping[str, Any], upcycling: Upcycling | None) -> str:
    named = config.get("architectures") or []
    types = {model_type: architecture for architecture, model_type in _MODEL_TYPES.items()}
    architecture = named[0] if isinstance(named, list) and named else types.get(str(config.get("model_type")))
    if not isinstance(architecture, str) or architecture not in _KIND_OF:
        raise BadConfiguration(
            f"config.json: {architecture or config.get('model_type') or 'no architecture'} is not one of"
            f" {', '.join(_KIND_OF)}"
        )
    if (architecture == QWEN3_DENSE) != (upcycling is not None):
        raise BadConfiguration(
            f"{architecture} is a dense model; --upcycle makes experts of it"
            if upcycling is None
            else f"--upcycle makes experts of a dense {QWEN3_DENSE}; {architecture} has experts already"
        )
    return str(architecture)


def _check_equal_to_ours(config: Mapping[str, Any], architecture: str) -> None:
    wanted: dict[str, Any] = {
        "rms_norm_eps": RMS_NORM_EPS,
        "hidden_act": "silu",
        "attention_bias": False,
        "clip_qkv": None,
        "use_sliding_window": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    # what is not written is the class's default: 1e-5 in Olmoe; both classes do not renormalise
    defaults = {**wanted, "rms_norm_eps": 1e-5 if architecture == OLMOE else RMS_NORM_EPS, "norm_topk_prob": False}
    if architecture != QWEN3_DENSE:
        wanted["norm_topk_prob"] = _KIND_OF[architecture][1]
    for key, value in wanted.items():
        held = config.get(key, defaults[key])
        if held != value and not (held is None and not value):
            raise BadConfiguration(f"config.json: {key} is {held!r}; our decoder has {value!r}")


def _rope_theta(config: Mapping[str, Any]) -> float:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise BadConfiguration("config.json: rope_parameters is not a table")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise BadConfiguration(f"config.json: RoPE of type {kind!r}; our decoder has the default one")
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    if not isinstance(theta, int | float) or theta > 1e30:  # which a float still holds
        raise BadConfiguration(f"config.json: rope_theta is {str(theta)[:80]}, not a number that it can be")
    return float(theta)


def _number(config: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    raise BadConfiguration(f"config.json: {keys[0]} is missing or not a whole number")
