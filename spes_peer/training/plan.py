"""Where memory goes when a run's model is trained here, and so how much of it this machine can take on (SPES §1.5).

Pure numbers, no torch: commands and daemons ask it too. What it predicts is the peak of a step that gathers gradients
over micro-batches: all that is held between steps, the gradients of earlier micro-batches, the activations of this
one, and the largest temporary on top of them. It is checked against measured steps (tests/test_plan.py).

The public state never lies on a GPU. It, and what a peer has offered and not been answered yet, is in *host* memory;
on a CPU both are the same memory. Units: bytes, and "values" for numbers of parameters or activations.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import get_args

from spes_peer.errors import NoDevice
from spes_peer.run.encodings import BYTES_PER_VALUE, Format
from spes_peer.run.layout import expert_parameters_of, shared_parameters_of
from spes_peer.run.manifest import Model, Outer, RunFile
from spes_peer.training.choices import Choices, Resident

HEAD_CHUNK_LOGITS = 40_000_000  # as in model/losses.py
PIECE_VALUES = 1 << 22  # as in training/optimizer.py
_INT_GROUP = {"int8": 128, "int4": 64}  # values that share a bf16 scale, as in model/resident.py
_FREE_PART = 0.06  # of a GPU's memory: its context, libraries, and holes between tensors
_EIGHT_BIT_TEMPORARY_BYTES = 53  # for each value of a piece, while its moments are fp32


@dataclass(frozen=True)
class Row:
    """One kind of content and its bytes."""

    what: str
    size_bytes: int


@dataclass(frozen=True)
class Plan:
    """What a machine takes on, and the memory that it needs."""

    num_subsets: int
    micro_batch: int
    """Sequences."""
    checkpoints: bool
    """Whether the backward pass makes activations again."""
    rows: tuple[Row, ...]
    """On the device."""
    host_rows: tuple[Row, ...]
    memory_bytes: int
    """What there is on the device."""
    needed_bytes: int
    """Of it: `total_bytes`, on a CPU those of the host too, and what must stay free."""

    @property
    def total_bytes(self) -> int:
        return sum(row.size_bytes for row in self.rows)

    @property
    def host_bytes(self) -> int:
        return sum(row.size_bytes for row in self.host_rows)

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= self.memory_bytes


def memory_plan(run: RunFile, memory_bytes: int, choices: Choices, num_subsets: int = 0) -> Plan:
    """What fits into `memory_bytes` of the device: as many subsets as do (or `num_subsets`), then the largest
    micro-batch, a power of two. Checkpointing "auto" is off wherever one subset fits without it.

    Where nothing fits it is the smallest plan there is, and says so."""

    def plan(subsets: int, micro_batch: int, checkpoints: bool) -> Plan:
        return _plan(run, memory_bytes, choices, subsets, micro_batch, checkpoints)

    least = num_subsets or 1
    checkpoints = choices.checkpointing == "on"
    if choices.checkpointing == "auto":
        checkpoints = not plan(least, 1, checkpoints=False).fits
    subsets = least
    while not num_subsets and subsets < run.training.num_subsets and plan(subsets + 1, 1, checkpoints).fits:
        subsets += 1
    best = plan(subsets, 1, checkpoints)
    while best.micro_batch < run.training.batch_sequences:
        larger = plan(subsets, 2 * best.micro_batch, checkpoints)
        if not larger.fits:
            break
        best = larger
    return best


def fitting_plan(run: RunFile, memory_bytes: int, choices: Choices, may_be_coarser: bool) -> tuple[Plan, Choices]:
    """The plan as above and how it keeps residents: as `choices` say, unless not one subset fits so and they
    `may_be_coarser`."""
    plan = memory_plan(run, memory_bytes, choices)
    while not plan.fits and may_be_coarser and (less := coarser(choices)) is not None:
        choices, plan = less, memory_plan(run, memory_bytes, less)
    return plan, choices


def refuse_if_too_large(plan: Plan, most_bytes: int, device: str) -> None:
    """`NoDevice` if not even this plan, the smallest, can be had of what the device has at most."""
    if plan.needed_bytes > most_bytes:
        raise NoDevice(
            f"{device} has {most_bytes / 1e9:.2f} GB for it, and the smallest part of this run needs"
            f" {plan.needed_bytes / 1e9:.2f} GB; free some, name another with --device, or allow more with --gpu-memory"
        )


def coarser(choices: Choices) -> Choices | None:
    """With residents of the next lower precision; None where there is none."""
    finer = get_args(Resident)[:-1]
    if choices.resident not in finer:
        return None
    return replace(choices, resident=get_args(Resident)[finer.index(choices.resident) + 1])


def choices_for(is_gpu: bool, resident: str = "", checkpointing: str = "auto", optimizer_bits: int = 32) -> Choices:
    """What a person chose; resident "" is bf16 on a GPU, which computes in it whatever is resident, and fp32 on a CPU,
    which does not. `BadConfiguration` for what there is not."""
    resident = resident or ("bf16" if is_gpu else "fp32")
    return Choices(is_gpu, resident, checkpointing, optimizer_bits)  # type: ignore[arg-type]


# ---- the sum ----


def _plan(run: RunFile, memory_bytes: int, choices: Choices, subsets: int, micro_batch: int, checkpoints: bool) -> Plan:
    sizes = _Sizes.of(run, choices, subsets, micro_batch, checkpoints)
    rows, host_rows = sizes.rows(), sizes.host_rows()
    needed = sum(row.size_bytes for row in rows)
    if choices.is_gpu:
        needed += int(_FREE_PART * memory_bytes)
    else:
        needed += sum(row.size_bytes for row in host_rows)
    return Plan(subsets, micro_batch, checkpoints, rows, host_rows, memory_bytes, needed)


@dataclass(frozen=True)
class _Sizes:
    """The terms for one way to train. N = tokens of a micro-batch, R = N · top_k; other letters as in model/."""

    run: RunFile
    choices: Choices
    num_shared: int
    num_per_expert: int
    num_owned: int
    num_tokens: int
    checkpoints: bool

    @classmethod
    def of(cls, run: RunFile, choices: Choices, subsets: int, micro_batch: int, checkpoints: bool) -> "_Sizes":
        model = run.model
        return cls(
            run,
            choices,
            _values(parameter.num_elements for parameter in shared_parameters_of(model)),
            _values(parameter.num_elements for parameter in expert_parameters_of(model)),
            subsets * (model.num_experts // run.training.num_subsets),
            micro_batch * model.sequence_length,
            checkpoints,
        )

    @property
    def model(self) -> Model:
        return self.run.model

    @property
    def width_bytes(self) -> int:
        """Of a value where the model computes."""
        return 2 if self.choices.is_gpu else 4

    @property
    def num_trained(self) -> int:
        return self.num_shared + self.num_owned * self.num_per_expert

    def rows(self) -> tuple[Row, ...]:
        owned = self.num_owned * self.num_per_expert
        return (
            Row("shared parameters", 4 * self.num_shared + self._bf16_copies()),
            Row("resident experts", self._resident_bytes()),
            Row("masters", 4 * owned),
            Row("gradients", 4 * self.num_trained),
            Row("moments", self._moment_bytes()),
            Row("activations", self._activation_bytes()),
            Row("largest temporary", self._temporary_bytes()),
        )

    def host_rows(self) -> tuple[Row, ...]:
        """What `sync` and `training` hold on the CPU besides a few blocks."""
        sync, num_experts_values = self.run.sync, self.model.num_experts * self.num_per_expert
        shared_value = BYTES_PER_VALUE[sync.shared_dtype] + self._momentum_bytes(sync.shared_outer)
        expert_value = BYTES_PER_VALUE[sync.expert_dtype] + self._momentum_bytes(sync.expert_outer)
        return (
            Row("public state", shared_value * self.num_shared + expert_value * num_experts_values),
            Row("residuals and offers", self._account_bytes()),
            Row("apply, measure or save", self._host_temporary_bytes()),
        )

    def _momentum_bytes(self, outer: Outer) -> int:
        """Of the public state, for each value."""
        return 4 if outer == "nesterov" and self.run.sync.outer_momentum > 0 else 0

    def _account_bytes(self) -> int:
        """The residual, as fp32; offers as they travel; what was lost in reducing, of a swarm that is as small as it
        may be; and with overlap the shared parameters as they were offered."""
        sync, owned = self.run.sync, self.num_owned * self.num_per_expert
        offers = Format(sync.shared_offer_encoding, sync.shared_offer_kept).encoded_bytes(self.num_shared)
        offers += Format(sync.expert_encoding, sync.expert_kept).encoded_bytes(owned)
        reduced = self.num_shared * min(sync.reducers_per_block, self.run.run.min_peers) // self.run.run.min_peers
        overlap = 4 * self.num_shared if sync.overlap_steps else 0
        return 4 * self.num_shared + offers + 4 * reduced + overlap

    def _host_temporary_bytes(self) -> int:
        """The largest: the displacements of owned experts and the groups that they are added to; all that is trained
        and its public values, while they take its place; or what a checkpoint copies, which is masters and moments.
        With overlap the shared parameters, and what they gained, once more. The merge takes nothing to speak of."""
        owned, shared = 4 * self.num_owned * self.num_per_expert, 4 * self.num_shared
        is_overlapped = self.run.sync.overlap_steps > 0
        apply = owned + shared + 3 * 4 * self.num_per_expert + 2 * shared * is_overlapped
        save = owned + self._moment_bytes() + shared * is_overlapped
        return max(apply, 2 * (owned + shared), save)

    def _moment_bytes(self) -> int:
        return int(self.num_trained * 2 * (1 + 4 / 256 if self.choices.optimizer_bits == 8 else 4))

    def _resident_bytes(self) -> int:
        num_experts, precision = self.model.num_experts, self.choices.resident
        if precision == "fp32":  # masters lie in the owned experts' place
            return 4 * (num_experts - self.num_owned) * self.num_per_expert
        return num_experts * sum(
            resident_bytes(precision, parameter.num_elements) for parameter in expert_parameters_of(self.model)
        )

    def _bf16_copies(self) -> int:
        """Autocast keeps them of what attention multiplies by, from the first layer's forward to its backward."""
        if not self.choices.is_gpu:
            return 0
        d_model, kv = self.model.d_model, self._kv_width
        return 2 * self.model.num_layers * (d_model * (d_model + 2 * kv) + d_model * d_model)

    @property
    def _kv_width(self) -> int:
        return self.model.num_kv_heads * self.model.head_dim

    def _activation_bytes(self) -> int:
        """What the forward pass keeps for the backward pass, at the end of the forward pass."""
        n_d = self.num_tokens * self.model.d_model
        kept = 4 * n_d if self.checkpoints else self._layer_bytes()
        return self.model.num_layers * kept + 3 * 4 * n_d  # the final norm's input, normed input, and its gradient

    def _layer_bytes(self) -> int:
        """Kept by one layer."""
        model, n = self.model, self.num_tokens
        q, kv, experts = n * model.d_model, n * self._kv_width, n * model.top_k * model.expert_hidden
        c = self.width_bytes
        # the residual stream twice; both norms' outputs; q, k, v; q and k normed, then rotated; mixed values
        values = 2 * 4 * q + 2 * c * q + c * (q + 2 * kv) + (4 + c) * (q + kv) + c * q
        if self.choices.is_gpu:
            values += 4 * q  # what the router reads, in fp32
        else:
            values += 2 * 4 * q  # the norms of a CPU also keep their input divided by its length
        routing = n * (8 * model.num_experts + 32 * model.top_k)
        return values + 2 * c * experts + routing

    def _temporary_bytes(self) -> int:
        """On top of all activations, or what is more than all activations and it where they are gone."""
        peak = max(self._head_bytes(), self._backward_bytes())
        if self.choices.optimizer_bits == 8:
            largest = max(parameter.num_elements for parameter in shared_parameters_of(self.model))
            peak = max(peak, _EIGHT_BIT_TEMPORARY_BYTES * min(PIECE_VALUES, largest) - self._activation_bytes())
        return peak

    def _head_bytes(self) -> int:
        """Logits of a chunk and the head's gradient, which is gathered before it is added to the one of earlier
        micro-batches."""
        vocab, weights = self.model.vocab_rows, self.model.vocab_rows * self.model.d_model
        num_chunks = max(1, math.ceil(self.num_tokens * vocab / HEAD_CHUNK_LOGITS))
        chunk = math.ceil(self.num_tokens / num_chunks) * vocab
        if self.choices.is_gpu:  # the weights, logits and products in bf16 too
            return max(4 * weights + 8 * chunk + 4 * weights, 8 * weights)
        return max(4 * weights + 4 * chunk, 8 * weights)

    def _backward_bytes(self) -> int:
        """Of the last layer, whose backward pass comes while all activations are there."""
        model, rows = self.model, self.num_tokens * self.model.top_k
        matrix = model.d_model * model.expert_hidden
        experts = self.width_bytes * (4 * rows * model.expert_hidden + 3 * rows * model.d_model)
        masters = 3 * 4 * self.num_owned * matrix
        dequantized = (3 + 2 * self.width_bytes) * matrix if self.choices.resident.startswith("int") else 0
        again = self._layer_bytes() if self.checkpoints else 0
        return experts + max(masters, dequantized) + 2 * 4 * self.num_tokens * model.d_model + again


def resident_bytes(precision: Resident, num_elements: int) -> int:
    """Bytes of one matrix of a frozen expert, as `model.resident` holds it."""
    if precision in ("fp32", "bf16"):
        return num_elements * BYTES_PER_VALUE[precision]
    scales = 2 * (num_elements // math.gcd(_INT_GROUP[precision], num_elements))
    return num_elements // (1 if precision == "int8" else 2) + scales


def _values(counts: Iterable[int]) -> int:
    return sum(counts)
