"""Every value of a run file in a line: its unit, what it is, and what follows from it."""

from collections.abc import Iterator, Mapping
from typing import Any

from spes_peer.measures import amount, duration
from spes_peer.planning.lines import count, folded, number, percent
from spes_peer.run.checking import epochs_of, state_bytes, update_bytes
from spes_peer.run.data import Data
from spes_peer.run.explained import keys_of
from spes_peer.run.layout import RunLayout
from spes_peer.run.length import Length, num_merges
from spes_peer.run.manifest import RunFile
from spes_peer.run.writing import as_toml

_LABEL_WIDTH = 38
_UNITS = ("seconds", "tokens", "steps", "rounds", "sequences", "elements", "peers")
_SHOWN_AS = {"elements": "values"}


def explained(run: RunFile, data: Data | None) -> Iterator[str]:
    """Lines for a person."""
    follows = {**_of_run(run), **_of_training(run), **_of_sync(run)}
    for name in RunFile.model_fields:
        section = getattr(run, name)
        yield f"[{name}]"
        for key in keys_of(type(section)):
            text = key.meaning
            if then := follows.get(f"{name}.{key.name}"):
                text = f"{text} → {then}"
            yield folded(f"  {key.name} = {_value(key.name, getattr(section, key.name))}", text, _LABEL_WIDTH)
        yield ""
    yield "[data]"
    yield from _data(run, data)


def num_parameters(run: RunFile) -> int:
    layout = RunLayout(run)
    return layout.num_shared + run.model.num_experts * layout.num_per_expert


def num_active(run: RunFile) -> int:
    """Parameters that a token passes through."""
    layout = RunLayout(run)
    return layout.num_shared + run.model.top_k * layout.num_per_expert


def _value(name: str, value: Any) -> str:
    unit = next((unit for unit in _UNITS if name.endswith(f"_{unit}") and not name.startswith("num_")), "")
    shown = f"{value:g}" if isinstance(value, float) else as_toml(value)
    return f"{shown} {_SHOWN_AS.get(unit, unit)}".rstrip()


def _of_run(run: RunFile) -> Mapping[str, str]:
    layout, subsets, peers = RunLayout(run), run.training.num_subsets, run.run.min_peers
    per_subset = run.model.num_experts // subsets
    held = "one subset each" if peers == subsets else f"{subsets / peers:.3g} subsets each, on average"
    if peers > subsets:
        held = f"{peers / subsets:.3g} owners for each subset, on average"
    return {
        "run.min_peers": f"{count(subsets, 'subset')} of experts: {held}",
        "model.vocab_rows": f"{number(2 * run.model.vocab_rows * run.model.d_model)} parameters",
        "model.num_layers": f"{number(layout.num_shared)} shared parameters in all",
        "model.num_experts": f"{number(layout.num_per_expert)} parameters each, {number(num_parameters(run))} with the"
        " shared ones",
        "model.top_k": f"{number(num_active(run))} parameters at work on a token",
        "training.num_subsets": f"{count(per_subset, 'expert')} each, {number(per_subset * layout.num_per_expert)}"
        " parameters",
        "admission.mode": _ADMISSION[run.admission.mode],
    }


_ADMISSION = {
    "open": "everybody with an address of the run may join",
    "invitation": "spes-peer run invite makes invitations",
    "list": "others are told so and sent away",
}


def _of_training(run: RunFile) -> Mapping[str, str]:
    training, length = run.training, Length.of(run)
    first, last = length.phases[0], length.phases[-1]
    tokens_per_step = training.batch_sequences * run.model.sequence_length
    warmup = training.warmup_steps / training.total_steps
    found = {
        "training.steps_per_round": f"{number(first.steps_per_round * tokens_per_step)} tokens a round",
        "training.total_steps": f"{number(length.num_tokens)} tokens in {count(length.num_rounds, 'round')},"
        f" {length.num_tokens / num_parameters(run):.3g} for each parameter",
        "training.batch_sequences": f"{number(tokens_per_step)} tokens a step",
        "training.warmup_steps": f"{percent(warmup)} of the run",
        "training.final_phase_fraction": "none"
        if last is first
        else f"from step {last.first_step:,} on:"
        f" {count(last.num_rounds, 'round')}, {number(last.num_sequences * length.sequence_length)} tokens",
    }
    if last is not first:
        late_tokens = last.batch_sequences * length.sequence_length
        found["training.final_phase_batch_sequences"] = f"{last.batch_sequences}, {number(late_tokens)} tokens a step"
    return found


def _of_sync(run: RunFile) -> Mapping[str, str]:
    layout, sync, timing, length = RunLayout(run), run.sync, run.timing, Length.of(run)
    shared, each = (-(-one // sync.block_elements) for one in (layout.num_shared, layout.num_per_expert))
    merges = sum(num_merges(phase, sync) for phase in length.phases)
    longest = duration(length.num_rounds * timing.round_seconds)
    return {
        "sync.block_elements": f"{count(shared, 'shared block')}, {each} of each expert",
        "sync.merge_alpha": "never" if not sync.merge_alpha else f"{count(merges, 'merge')} in the run",
        "sync.merge_warmup_steps": f"{percent(sync.merge_warmup_steps / run.training.total_steps)} of the run",
        "sync.snapshot_rounds": f"{amount(state_bytes(run))} each, beside {amount(update_bytes(run))} of updates a"
        f" round, kept for {2 * sync.snapshot_rounds} rounds",
        "timing.round_seconds": f"{duration(timing.round_seconds)}; {longest} for all rounds, if each took so long",
        "timing.lease_seconds": duration(timing.lease_seconds),
    }


def _data(run: RunFile, data: Data | None) -> Iterator[str]:
    if data is None:
        text = "spes-peer data prepare makes it; without, a run of bytes trains on Python's standard library"
        yield folded("  none yet", text, _LABEL_WIDTH)
        return
    tokenizer = data.tokenizer
    kind = "the bytes of UTF-8" if tokenizer.kind == "bytes" else "a tokenizer.json"
    yield folded(
        f"  tokenizer {tokenizer.name}",
        f"{kind} with {tokenizer.num_ids:,} ids, for {run.model.vocab_rows:,} rows",
        _LABEL_WIDTH,
    )
    epochs = epochs_of(run, data)
    for source, share in zip(data.sources, data.shares(), strict=True):
        text = f"{percent(float(share))} of what is trained: {number(source.shards.num_tokens)} tokens"
        text += f", gone through {epochs[source.name]:.3g} times" if source.name in epochs else ", too few"
        yield folded(f"  source {source.name}", text, _LABEL_WIDTH)
    held_out = data.held_out
    text = f"{count(held_out.num_sequences(run.model.sequence_length), 'sequence')} that nobody trains on"
    yield folded(f"  held out {number(held_out.num_tokens)} tokens", text, _LABEL_WIDTH)
