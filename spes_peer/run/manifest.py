"""The manifest: the immutable description of a run, validated, then signed by its organizer.

An organizer writes TOML with the sections below (`spes-peer run new`); `run sign` adds the data shards and the
organizer's key. What travels is canonical JSON (sorted keys, no spaces) of `Manifest`, and the run id is the sha256 of
those bytes. Unknown keys are refused with the nearest valid one.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from spes_peer.errors import BadConfiguration, BadSignature, TooNew, TooOld
from spes_peer.identity import Identity, PeerId, public_key_of, verify
from spes_peer.run.data import Data
from spes_peer.run.encodings import TOPK_CHUNK, TOPK_KEPT, Dtype, Encoding
from spes_peer.run.section import Printable, Section
from spes_peer.toml import parsed_file
from spes_peer.wire import convert

PROTOCOL_VERSION = 6  # of manifest, records and messages together; a change that old clients misread raises it
MOST_ORGANIZERS = 16
MOST_PEERS = 2**20
MOST_SECONDS = 10**8  # three years: timers of operating systems cannot count much further
MOST_LISTED = 1_024  # peers that may join, or keys: every record carries them once they have changed
_SIGNED_AS = b"spes-peer manifest\0"


def _peer_ids(named: tuple[str, ...]) -> tuple[str, ...]:
    for one in named:
        try:
            public_key_of(one)
        except BadSignature as error:
            raise ValueError(str(error)) from None
    return named


PeerIds = Annotated[tuple[str, ...], AfterValidator(_peer_ids)]


class Run(Section):
    """Name, seed, and how many it takes."""

    name: Printable = Field(min_length=1, max_length=64)
    """What people call it; volunteers read it before they join."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the first weights and of the order of the data."""
    min_peers: int = Field(default=1, ge=1, le=MOST_PEERS)
    """Round 1 opens when so many are admitted."""
    organizers: PeerIds = Field(default=(), max_length=MOST_ORGANIZERS - 1)
    """Peer ids of further keys, beside the one that signs, that may sign amendments: other people's, or a spare one."""

    def misfits(self) -> Iterator[str]:
        if len(set(self.organizers)) < len(self.organizers):
            yield "run.organizers names a key twice"


class Model(Section):
    """The decoder of SPES §2; every block's feed-forward part is a dropless mixture of experts.

    The highest sizes are far above any model's, and low enough that whoever reads a file can still count with them."""

    vocab_rows: int = Field(ge=2, le=2**24)
    """Rows of the embedding and of the output head: at least as many as the tokenizer has ids."""
    d_model: int = Field(ge=8, le=2**17)
    """Width between the layers."""
    num_layers: int = Field(ge=1, le=1024)
    """Blocks of attention and a mixture of experts."""
    num_heads: int = Field(ge=1, le=1024)
    """Heads of attention, each `d_model` / `num_heads` wide."""
    num_kv_heads: int = Field(ge=1, le=1024)
    """Heads of keys and values: `num_heads`, or a whole part of it (grouped-query attention)."""
    num_experts: int = Field(ge=1, le=4096)
    """Experts of each layer; expert e is the one of this index in every layer."""
    top_k: int = Field(ge=1, le=4096)
    """Experts of a layer that a token passes through."""
    expert_hidden: int = Field(ge=8, le=2**20)
    """Hidden width of an expert."""
    sequence_length: int = Field(ge=8, le=2**24)
    """Tokens of a sequence, the context that is trained."""
    rope_theta: float = Field(default=500_000.0, gt=0)
    """Base of the rotary positions."""
    qk_norm: Literal["width", "head"] = "width"
    """RMSNorm of queries and keys over the full width (OLMoE's kind) or over each head (Qwen3's)."""
    renormalize_top_k: bool = False
    """Whether the probabilities of the chosen experts are divided by their sum."""

    def misfits(self) -> Iterator[str]:
        if self.d_model % self.num_heads or (self.d_model // self.num_heads) % 2:
            yield f"d_model must be an even multiple of num_heads ({self.d_model}, {self.num_heads})"
        if self.num_heads % self.num_kv_heads:
            yield f"num_heads must be a multiple of num_kv_heads ({self.num_heads}, {self.num_kv_heads})"
        if self.top_k > self.num_experts:
            yield f"top_k cannot exceed num_experts ({self.top_k}, {self.num_experts})"

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads


class Training(Section):
    """Local training: AdamW, cosine to 10 % after a linear warm-up, global-norm clip."""

    num_subsets: int = Field(ge=1, le=4096)
    """Experts are cut into so many subsets of equal size; subset i holds experts [i·n, (i+1)·n)."""
    rotation_rounds: int = Field(default=10, ge=1, le=2**40)
    """With fewer places than subsets, a trained one is swapped for the one longest untrained every so many rounds."""
    steps_per_round: int = Field(ge=1, le=2**40)
    """H: local steps between two exchanges."""
    total_steps: int = Field(ge=1, le=2**40)
    """Length of the run in local steps; also the length of the cosine."""
    batch_sequences: int = Field(ge=1, le=2**24)
    """Sequences per step over all peers together; each peer gets a part by its speed, at least one, and at
    most an equal part or twice what it last trained."""
    lr: float = Field(gt=0)
    """The highest learning rate, reached after the warm-up."""
    warmup_steps: int = Field(default=2000, ge=0, le=2**40)
    """Steps over which the learning rate rises to `lr`."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Of AdamW, on all that is trained."""
    clip_norm: float = Field(default=1.0, gt=0)
    """The most that the norm of a peer's gradient may be; a longer one is scaled down."""
    z_loss: float = Field(default=1e-4, ge=0)
    """Weight of the mean square of the logits' logsumexp."""
    load_balance_loss: float = Field(default=0.01, ge=0)
    """Weight of what the router pays for uneven use of its experts."""
    router_z_loss: float = Field(default=0.001, ge=0)
    """Weight of the mean square of the router logits' logsumexp."""
    final_phase_fraction: float = Field(default=0.3, ge=0, lt=1)
    """Part of the run's tokens that is trained in a final phase of smaller batches (SPES §2); 0 for none."""
    final_phase_batch_sequences: int = Field(default=0, ge=0, le=2**24)
    """In place of `batch_sequences` in that phase; 0 for half of it."""
    final_phase_steps_per_round: int = Field(default=50, ge=1, le=2**40)
    """H in that phase."""
    max_epochs: float = Field(default=1.0, gt=0)
    """How often a source of data may be gone through; a run that needs more of one is not signed."""

    @property
    def final_phase_step(self) -> int:
        """The step at which the final phase begins: `final_phase_fraction` of all tokens lie behind it."""
        late = self.final_phase_fraction / self._final_batch_sequences
        early = (1 - self.final_phase_fraction) / self.batch_sequences
        return round(self.total_steps * early / (early + late))

    def steps_per_round_at(self, step: int) -> int:
        """H of a round that begins at this step of the run; a round ends in the phase in which it began."""
        return self.final_phase_steps_per_round if step >= self.final_phase_step else self.steps_per_round

    def batch_sequences_at(self, step: int) -> int:
        """Sequences per step, over all peers together, of a round that begins at this step of the run."""
        return self._final_batch_sequences if step >= self.final_phase_step else self.batch_sequences

    @property
    def _final_batch_sequences(self) -> int:
        return self.final_phase_batch_sequences or max(1, self.batch_sequences // 2)


Outer = Literal["mean", "nesterov"]


class Sync(Section):
    """Blocks, how deltas of them are encoded, averaged and applied, and the merge of experts in the warm-up."""

    block_elements: int = Field(ge=1024, le=16 << 20)
    """Values of a block, the unit in which parameters are encoded, reduced and fetched; the last is shorter."""
    shared_dtype: Dtype = "fp32"
    """Of the shared parameters in the public state."""
    expert_dtype: Dtype = "fp32"
    """Of the experts in the public state; owners train on fp32 masters, whatever it is."""
    shared_offer_encoding: Encoding = "bf16"
    """What peers send to the reducers of a shared block."""
    shared_update_encoding: Encoding = "bf16"
    """What reducers make of it for everybody."""
    expert_encoding: Encoding = "bf16"
    """Experts have one encoding: with one owner the offer is the update."""
    shared_offer_kept: int = Field(default=TOPK_KEPT, ge=1, le=TOPK_CHUNK)
    """Values that `topk` keeps of each 4096 of a shared offer."""
    shared_update_kept: int = Field(default=TOPK_KEPT, ge=1, le=TOPK_CHUNK)
    """Values that `topk` keeps of each 4096 of a shared update, in which several offers come together, each with places
    of its own."""
    expert_kept: int = Field(default=TOPK_KEPT, ge=1, le=TOPK_CHUNK)
    """Values that `topk` keeps of each 4096 of an expert's update."""
    topk_residual_decay: float = Field(default=0.95, gt=0, le=1)
    """Part of what `topk` left out of a shared offer or update that is offered again; of what other encodings lose,
    all is."""
    shared_outer: Outer = "mean"
    """What is done with the mean update of a shared block: added as it is (SPES), or a step of SGD with Nesterov
    momentum (DiLoCo)."""
    expert_outer: Outer = "mean"
    """The same for experts."""
    outer_lr: float = Field(default=0.7, gt=0)
    """Learning rate of `nesterov`."""
    outer_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Of `nesterov`; part of the public state."""
    overlap_steps: int = Field(default=0, ge=0, le=2**40)
    """Steps that a peer trains on while a round's exchange runs; 0 waits for it (SPES)."""
    overlap_keep: float = Field(default=0.5, ge=0, lt=1)
    """Part of what it was ahead of the others that a peer keeps in its own shared parameters when it has trained on."""
    reducers_per_block: int = Field(default=2, ge=1, le=8)
    """Peers that average each shared block apart from each other, and must come to the same bytes."""
    most_weight: float = Field(default=4.0, ge=1)
    """Nobody weighs more in an average than so many times the median of those whose offers are in it."""
    most_growth: float = Field(default=4.0, ge=1)
    """What is offered counts by a norm of at most so many times what was usual in the records before (run.norms)."""
    most_harm: float = Field(default=0.03, ge=0)
    """Peers object to an expert's updates that raise the held-out loss by more than this part; 0: none is tested."""
    merge_alpha: float = Field(default=0.0, ge=0, le=1)
    """α0: how far an expert moves towards those most like it, at first; 0 never merges."""
    merge_interval_steps: int = Field(default=300, ge=1, le=2**40)
    """T_i: experts are merged at synchronizations whose step is a multiple of it."""
    merge_warmup_steps: int = Field(default=12_500, ge=0, le=2**40)
    """T_w: merging fades out until this step."""
    snapshot_rounds: int = Field(default=10, ge=1, le=2**40)
    """Every so many rounds peers keep the whole public state for those who join later."""


class Timing(Section):
    """Every wait of the run, in seconds; the ladder between them is checked."""

    heartbeat_seconds: float = Field(default=3.0, gt=0, le=MOST_SECONDS)
    """Between two signs of life of a peer and its coordinator."""
    round_seconds: float = Field(default=600.0, gt=0, le=MOST_SECONDS)
    """From a record to the deadline for contributions."""
    fetch_stall_seconds: float = Field(default=15.0, gt=0, le=MOST_SECONDS)
    """A transfer that made no progress for so long goes on with another source."""
    round_grace_seconds: float = Field(default=30.0, gt=0, le=MOST_SECONDS)
    """For the reduce, after contributions are closed, and again for the signatures."""
    coordinator_timeout_seconds: float = Field(default=60.0, gt=0, le=MOST_SECONDS)
    """Without life of the coordinator for so long, peers elect another."""
    stall_timeout_seconds: float = Field(default=900.0, gt=0, le=MOST_SECONDS)
    """When more than half of a roster is gone for so long, the rest may go on without them."""
    dht_beat_seconds: float = Field(default=12.0, gt=0, le=MOST_SECONDS)
    """Between two announcements of a peer in the DHT."""
    dht_ttl_seconds: float = Field(default=50.0, gt=0, le=MOST_SECONDS)
    """How long an announcement is believed."""
    lease_seconds: float = Field(default=1300.0, gt=0, le=MOST_SECONDS)
    """How long a claim on experts stands without life of its owner."""

    def misfits(self) -> Iterator[str]:
        rungs = [
            ("heartbeat_seconds", "coordinator_timeout_seconds", 1 / 3),
            ("fetch_stall_seconds", "round_grace_seconds", 1.0),
            ("round_grace_seconds", "coordinator_timeout_seconds", 1.0),
            ("coordinator_timeout_seconds", "stall_timeout_seconds", 1.0),
            ("dht_beat_seconds", "dht_ttl_seconds", 1 / 3),
            ("dht_ttl_seconds", "lease_seconds", 1.0),
            ("round_seconds", "lease_seconds", 1 / 2),
        ]
        for low, high, part in rungs:
            if not getattr(self, low) < getattr(self, high) * part:
                fraction = "" if part == 1 else f" / {1 / part:.0f}"
                yield f"{low} ({getattr(self, low):g}) must be below {high}{fraction} ({getattr(self, high) * part:g})"


class Origin(Section):
    """The run whose state this one began with."""

    run_id: str = Field(pattern="^[0-9a-f]{64}$")
    """Of that run."""
    round: int = Field(ge=0)
    """The record behind which that state stood."""


class Admission(Section):
    """Who may join."""

    mode: Literal["open", "invitation", "list"] = "open"
    """Whoever has an address of the run (`open`), only whom an organizer has invited or listed (`invitation`), or only
    who is listed (`list`)."""
    listed: PeerIds = Field(default=(), max_length=MOST_LISTED)
    """Peer ids that may join without an invitation; an organizer may change the list during the run."""

    def misfits(self) -> Iterator[str]:
        if len(set(self.listed)) < len(self.listed):
            yield "listed names a peer twice"
        if self.listed and self.mode == "open":
            yield 'listed says who may join, and mode "open" lets everybody: set mode to "list" or "invitation"'


class RunFile(Section):
    """What an organizer writes (run.toml)."""

    run: Run
    model: Model
    training: Training
    sync: Sync
    timing: Timing = Timing()
    admission: Admission = Admission()

    def misfits(self) -> Iterator[str]:
        training, sync = self.training, self.sync
        if self.model.num_experts % training.num_subsets:
            yield f"num_subsets ({training.num_subsets}) must divide num_experts ({self.model.num_experts})"
        merges = sync.merge_alpha > 0 and sync.merge_warmup_steps > 0
        if merges and sync.merge_interval_steps % training.steps_per_round:
            yield (
                f"merge_interval_steps ({sync.merge_interval_steps}) never meets a synchronization: make it a multiple"
                f" of steps_per_round ({training.steps_per_round})"
            )
        # of the run's last step, not of the one behind it: there a run without a final phase would have one
        shortest_round = min(training.steps_per_round_at(step) for step in (0, training.total_steps - 1))
        if sync.overlap_steps > shortest_round:
            yield f"overlap_steps ({sync.overlap_steps}) exceeds the {shortest_round} steps of a round"


class Manifest(RunFile):
    """What all peers share; see the module docstring."""

    protocol: int = Field(default=PROTOCOL_VERSION, ge=PROTOCOL_VERSION, le=PROTOCOL_VERSION)
    """Of manifest, records and messages together."""
    data: Data
    organizers: tuple[str, ...] = Field(min_length=1, max_length=MOST_ORGANIZERS)
    """Peer ids of the keys that may sign this manifest, record 0 and amendments."""
    origin: Origin | None = None
    """Where its first weights come from, if they are another run's."""

    def misfits(self) -> Iterator[str]:
        yield from super().misfits()
        rows, tokenizer = self.model.vocab_rows, self.data.tokenizer
        if rows < tokenizer.num_ids:
            yield f"vocab_rows is {rows}; the tokenizer {tokenizer.name!r} needs {tokenizer.num_ids}"
        shortest = self.model.sequence_length + 1
        shards = {f"a shard of {source.name!r}": source.shards.tokens_of(0) for source in self.data.sources}
        for what, found in (shards | {"the held-out split": self.data.held_out.num_tokens}).items():
            if found < shortest:
                yield f"the corpus is too short: {what} has {found} tokens, a sequence needs {shortest}"

    @property
    def num_sequences(self) -> int:
        """Sequences in the training shards of all sources, each taken once."""
        return sum(source.shards.num_sequences(self.model.sequence_length) for source in self.data.sources)

    def experts_of(self, subset: int) -> tuple[int, ...]:
        size = self.model.num_experts // self.training.num_subsets
        return tuple(range(subset * size, (subset + 1) * size))

    def to_bytes(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True)
class SignedManifest:
    """A manifest's bytes and its organizer's signature over them."""

    manifest: bytes
    organizer: PeerId
    signature: bytes

    @property
    def run_id(self) -> bytes:
        return hashlib.sha256(self.manifest).digest()

    def open(self) -> Manifest:
        """The manifest, once its signature, its version and its content are found good."""
        verify(self.organizer, _SIGNED_AS + self.manifest, self.signature)
        manifest = parse_manifest(self.manifest)
        if self.organizer not in manifest.organizers:
            raise BadSignature("the manifest is signed by a key that it does not name as an organizer's")
        return manifest

    def to_bytes(self) -> bytes:
        return convert.encode(self)

    @classmethod
    def from_bytes(cls, content: bytes) -> "SignedManifest":
        return convert.decode(cls, content)


def sign_manifest(manifest: Manifest, organizer: Identity) -> SignedManifest:
    content = manifest.to_bytes()
    return SignedManifest(content, organizer.peer_id, organizer.sign(_SIGNED_AS + content))


def parse_manifest(content: bytes) -> Manifest:
    """A manifest from its canonical JSON; `TooOld`, or `BadConfiguration` naming the first thing wrong with it."""
    try:
        raw = json.loads(content, parse_int=_whole_number)
    except (ValueError, RecursionError):
        raise BadConfiguration("the manifest is not JSON, or has a number beyond all measure") from None
    # first, because a newer manifest also has keys that we do not know
    protocol = raw.get("protocol") if isinstance(raw, dict) else None
    if isinstance(protocol, int) and protocol > PROTOCOL_VERSION:
        raise TooOld(f"the run speaks protocol {protocol}, this program {PROTOCOL_VERSION}: install a newer spes-peer")
    if isinstance(protocol, int) and protocol < PROTOCOL_VERSION:
        raise TooNew(
            f"the run speaks protocol {protocol}, and this program {PROTOCOL_VERSION}: join it with the version of"
            " spes-peer with which it was made"
        )
    return validated(Manifest, raw, "manifest")


def _whole_number(digits: str) -> int:
    if len(digits) > 20:  # of 64 bits
        raise ValueError
    return int(digits)


def parse_run_file(text: str, name: str = "run.toml") -> RunFile:
    """An organizer's run.toml; `BadConfiguration` names the first thing wrong with it."""
    return validated(RunFile, parsed_file(text, name), name)


S = TypeVar("S", bound=BaseModel)


def validated(cls: type[S], raw: Any, name: str) -> S:
    """`raw` as `cls`, or one line that says where it is wrong and, for an unknown key, which one was likely meant."""
    try:
        return cls.model_validate(raw)
    except ArithmeticError:  # of our own rules, on whole numbers that no float holds
        raise BadConfiguration(f"{name}: a number in it is beyond all measure") from None
    except ValidationError as error:
        raise BadConfiguration(f"{name}: {in_words(cls, error)[0]}") from None


def in_words(cls: type[BaseModel], error: ValidationError) -> list[str]:
    """A sentence for each thing that is wrong with what should be a `cls`, misspelt keys first: one is also missed
    under its right name, and the misspelling says more."""
    errors = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    return [_sentence(cls, one["loc"], one["type"], str(one["msg"])) for one in errors]


def _sentence(cls: type[BaseModel], location: tuple[int | str, ...], kind: str, said: str) -> str:
    where = ".".join(str(part) for part in location)
    if kind == "extra_forbidden":
        valid = _keys_at(cls, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), valid, n=1, cutoff=0.0)
        return f"unknown key {where}; did you mean {near[0] if near else valid}?"
    return f"{where + ': ' if where else ''}{said.removeprefix('Value error, ')}"


def _keys_at(cls: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        annotation = cls.model_fields[str(part)].annotation if str(part) in cls.model_fields else None
        for one in (annotation, *get_args(annotation)):  # the section itself, or those of a list of them
            if isinstance(one, type) and issubclass(one, BaseModel):
                cls = one
    return list(cls.model_fields)
