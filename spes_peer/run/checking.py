"""What an organizer must hear of a run before it is signed, for nothing of it can be changed afterwards.

An *error* is a run that cannot be, or that would not do what its file says; it is not signed. A *warning* is one that
can be, and that hardly anybody wants. All are found at once. Pure: what lies on disk is looked at by `organize`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from spes_peer.errors import BadConfiguration
from spes_peer.run.data import BYTES_NUM_IDS, Data
from spes_peer.run.encodings import BYTES_PER_VALUE, Format
from spes_peer.run.layout import RunLayout
from spes_peer.run.length import Length, num_merges
from spes_peer.run.manifest import Model, RunFile, in_words
from spes_peer.toml import parsed

_ROOM_FOR_BYTES = 2 * BYTES_NUM_IDS
_MOST_BLOCKS = 8192  # a record names each block that changed, and everybody gets every record
_MOST_REPLAYED = 3.0
_MOST_LR = 0.02
_UNUSED_PART = 0.05
_PADDING = 127  # rows, to a round number for fast kernels
_FEW_HELD_OUT = 64
MAY_DIFFER = frozenset({"sequence_length", "rope_theta"})
"""Keys of a model that say nothing about its parameters, and that a longer context changes."""


@dataclass(frozen=True)
class Finding:
    """A rule that is broken."""

    text: str
    is_error: bool = True


@dataclass(frozen=True)
class Checked:
    """A run file that was read; `run` is None where a value of it is impossible by itself."""

    run: RunFile | None
    findings: tuple[Finding, ...]
    is_consistent: bool = True
    """Whether no two values contradict each other, so that something follows from them."""

    @property
    def errors(self) -> tuple[str, ...]:
        return tuple(one.text for one in self.findings if one.is_error)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(one.text for one in self.findings if not one.is_error)


def check_text(text: str, data: Data | None) -> Checked:
    """All that is wrong with a run.toml; `data` is what it trains on, if that is known."""
    try:
        raw = parsed(text)
    except BadConfiguration as error:
        return Checked(None, (Finding(str(error)),))
    misfits: list[str] = []
    try:
        run = RunFile.model_validate(raw, context=misfits)
        return Checked(run, (*map(Finding, misfits), *found(run, data)), is_consistent=not misfits)
    except ValidationError as error:
        return Checked(None, tuple(map(Finding, (*in_words(RunFile, error), *misfits))))
    except ArithmeticError:  # of our own rules, on whole numbers that no float holds
        return Checked(None, (Finding("a number in it is beyond all measure"),))


def found(run: RunFile, data: Data | None) -> list[Finding]:
    """What is wrong with a run file, of which each value is possible by itself, beside its misfits."""
    rules: tuple[Callable[[RunFile], Iterator[Finding]], ...] = (_steps, _peers, _merges, _blocks, _snapshots, _rates)
    findings = [finding for rule in rules for finding in rule(run)]
    if data is not None:
        findings += [*_vocabulary(run, data), *_lengths(run, data), *_epochs(run, data)]
    return sorted(findings, key=lambda finding: not finding.is_error)


def refuse_another_model(old: Model, new: Model) -> None:
    """`BadConfiguration` names the first key in which the parameters, or what is done with them, differ."""
    for key in Model.model_fields:
        held, wanted = getattr(old, key), getattr(new, key)
        if key not in MAY_DIFFER and held != wanted:
            raise BadConfiguration(
                f"model.{key} is {wanted}, and {held} in the run that it begins with: a run --from another has the same"
                f" [model], but for {' and '.join(sorted(MAY_DIFFER))}"
            )


def trains_bytes(run: RunFile) -> bool:
    """Whether its vocabulary is one for bytes, as the embedded text has them."""
    return run.model.vocab_rows <= _ROOM_FOR_BYTES


# ---- the rules ----


def _steps(run: RunFile) -> Iterator[Finding]:
    training, length = run.training, Length.of(run)
    if training.warmup_steps >= training.total_steps:
        yield Finding(
            f"warmup_steps ({training.warmup_steps}) must be below total_steps ({training.total_steps}): the learning"
            " rate would never come down"
        )
    if length.num_rounds < 2:
        yield Finding(
            f"total_steps ({training.total_steps}) is one round of {training.steps_per_round} steps: nobody would see"
            " what others have learnt"
        )
    late = training.batch_sequences_at(training.total_steps - 1)
    if training.final_phase_fraction and late >= training.batch_sequences:
        yield Finding(
            f"the batch of the final phase ({late} sequences) is no smaller than that before"
            f" ({training.batch_sequences})",
            is_error=False,
        )


def _peers(run: RunFile) -> Iterator[Finding]:
    training, min_peers = run.training, run.run.min_peers
    for phase in Length.of(run).phases:
        if phase.batch_sequences < min_peers:
            key = "final_phase_batch_sequences" if phase.first_step else "batch_sequences"
            yield Finding(
                f"{key} ({phase.batch_sequences}) must be at least min_peers ({min_peers}): every peer trains one"
                " sequence a step or more"
            )
    if min_peers < training.num_subsets:
        most = -(-training.num_subsets // min_peers)
        yield Finding(
            f"min_peers ({min_peers}) is below num_subsets ({training.num_subsets}): with so few volunteers each must"
            f" hold {most} subsets of experts, or some experts wait untrained",
            is_error=False,
        )


def _merges(run: RunFile) -> Iterator[Finding]:
    sync, training = run.sync, run.training
    if not (sync.merge_alpha and sync.merge_warmup_steps) or sync.merge_interval_steps % training.steps_per_round:
        return  # the last is a misfit
    for phase in Length.of(run).phases:
        begin, end = phase.first_step, min(phase.end_step + 1, sync.merge_warmup_steps)
        is_due = (end - 1) // sync.merge_interval_steps > begin // sync.merge_interval_steps
        if is_due and not num_merges(phase, sync):
            where = " of the final phase" if begin else ""
            yield Finding(
                f"merge_interval_steps ({sync.merge_interval_steps}) never meets a synchronization{where}, which are"
                f" {phase.steps_per_round} steps apart from step {begin} on: make it a multiple of both, or let"
                f" merge_warmup_steps ({sync.merge_warmup_steps}) end before"
            )
    if sync.merge_interval_steps >= sync.merge_warmup_steps:
        yield Finding(
            f"merge_interval_steps ({sync.merge_interval_steps}) must be below merge_warmup_steps"
            f" ({sync.merge_warmup_steps}): experts would never be merged"
        )
    if sync.merge_warmup_steps > training.total_steps:
        yield Finding(
            f"merge_warmup_steps ({sync.merge_warmup_steps}) exceeds total_steps ({training.total_steps}): experts are"
            " merged to the end",
            is_error=False,
        )


def _blocks(run: RunFile) -> Iterator[Finding]:
    layout, sync, min_peers = RunLayout(run), run.sync, run.run.min_peers
    num_shared = -(-layout.num_shared // sync.block_elements)
    num_all = num_shared + run.model.num_experts * -(-layout.num_per_expert // sync.block_elements)
    if num_all > _MOST_BLOCKS:
        yield Finding(
            f"block_elements ({sync.block_elements}) cuts the model into {num_all} blocks, and every record names them"
            f" all: make it larger, so that there are at most {_MOST_BLOCKS}"
        )
    num_reducers = min(sync.reducers_per_block, min_peers)
    if num_shared * num_reducers < min_peers:
        yield Finding(
            f"block_elements ({sync.block_elements}) makes {num_shared} shared blocks: with {num_reducers} reducers"
            f" each, most of {min_peers} volunteers reduce nothing while a few do it all",
            is_error=False,
        )
    if sync.reducers_per_block == 1 and min_peers > 1:
        yield Finding(
            "reducers_per_block is 1: nobody checks what a reducer says", is_error=False
        )  # fmt: skip
    if sync.reducers_per_block > min_peers > 1:
        yield Finding(
            f"reducers_per_block ({sync.reducers_per_block}) exceeds min_peers ({min_peers}): blocks have fewer",
            is_error=False,
        )


def _snapshots(run: RunFile) -> Iterator[Finding]:
    rounds, every = Length.of(run).num_rounds, run.sync.snapshot_rounds
    if every > rounds:
        yield Finding(
            f"snapshot_rounds ({every}) exceeds the run's {rounds} rounds: who joins replays it from the beginning",
            is_error=False,
        )
    elif (part := 2 * every * update_bytes(run) / state_bytes(run)) > _MOST_REPLAYED:
        yield Finding(
            f"snapshot_rounds ({every}): everybody keeps the updates of {2 * every} rounds, and who joins fetches up to"
            f" {part:.1f} times the model; make it smaller",
            is_error=False,
        )


def _rates(run: RunFile) -> Iterator[Finding]:
    if run.training.lr > _MOST_LR:
        yield Finding(f"lr ({run.training.lr:g}) is far above what AdamW bears, some {_MOST_LR}", is_error=False)


def _vocabulary(run: RunFile, data: Data) -> Iterator[Finding]:
    rows, tokenizer = run.model.vocab_rows, data.tokenizer
    if tokenizer.num_ids > rows:
        yield Finding(
            f"vocab_rows ({rows}) must be at least the {tokenizer.num_ids} ids of the tokenizer {tokenizer.name!r}"
        )
    elif rows - tokenizer.num_ids > max(_PADDING, _UNUSED_PART * rows):
        yield Finding(
            f"vocab_rows ({rows}) has {rows - tokenizer.num_ids} rows that the tokenizer {tokenizer.name!r} never uses:"
            " they take memory and traffic",
            is_error=False,
        )


def _lengths(run: RunFile, data: Data) -> Iterator[Finding]:
    length = run.model.sequence_length
    for source in data.sources:
        if not source.shards.num_sequences(length):
            yield Finding(
                f"the data of {source.name!r} has no shard with a whole sequence of {length} tokens and one more"
            )
    held_out = data.held_out.num_sequences(length)
    if not held_out:
        yield Finding(f"the held-out split has {data.held_out.num_tokens} tokens, a sequence needs {length + 1}")
    elif held_out < _FEW_HELD_OUT:
        yield Finding(
            f"the held-out split has {held_out} sequences: the loss on it will be noisy", is_error=False
        )  # fmt: skip


def _epochs(run: RunFile, data: Data) -> Iterator[Finding]:
    most = run.training.max_epochs
    for name, epochs in epochs_of(run, data).items():
        if epochs > most:
            yield Finding(
                f"the data is shorter than the schedule: {name!r} would be gone through {epochs:.2f} times, and"
                f" max_epochs is {most:g}; add text, shorten total_steps, or raise max_epochs"
            )


# ---- what follows from values ----


def epochs_of(run: RunFile, data: Data) -> dict[str, float]:
    """How often the schedule goes through each source; without those that have no sequence."""
    wanted, epochs = Length.of(run).num_sequences, {}
    for source, share in zip(data.sources, data.shares(), strict=True):
        if there := source.shards.num_sequences(run.model.sequence_length):
            epochs[source.name] = float(share * wanted / there)
    return epochs


def state_bytes(run: RunFile) -> int:
    """Of the public state, without momentum: a snapshot."""
    layout, sync = RunLayout(run), run.sync
    shared = layout.num_shared * BYTES_PER_VALUE[sync.shared_dtype]
    return shared + run.model.num_experts * layout.num_per_expert * BYTES_PER_VALUE[sync.expert_dtype]


def update_bytes(run: RunFile) -> int:
    """Of all updates of a record, with one owner for each expert."""
    layout, sync = RunLayout(run), run.sync
    shared = _encoded(Format(sync.shared_update_encoding, sync.shared_update_kept), layout.num_shared, run)
    experts = _encoded(Format(sync.expert_encoding, sync.expert_kept), layout.num_per_expert, run)
    return shared + run.model.num_experts * experts


def _encoded(how: Format, num_elements: int, run: RunFile) -> int:
    """Of one group, cut into blocks."""
    whole, rest = divmod(num_elements, run.sync.block_elements)
    return whole * how.encoded_bytes(run.sync.block_elements) + how.encoded_bytes(rest)
