"""A signed run in words: who may join, on what it trains, how long, and where it comes from."""

from collections.abc import Iterator

from spes_peer.amending.words import changes
from spes_peer.logs import plain
from spes_peer.measures import duration
from spes_peer.planning.explaining import num_active, num_parameters
from spes_peer.planning.lines import count, folded, number, percent
from spes_peer.run.length import Length
from spes_peer.run.manifest import Admission, Manifest, Origin, SignedManifest, Timing
from spes_peer.run.records import Record
from spes_peer.run.rules import Rules

_LABEL_WIDTH = 12
_LONGEST = 200  # characters of what an organizer writes
_SHOWN = 8


def described(
    signed: SignedManifest, manifest: Manifest, newest: Record | None = None, rules: Rules | None = None
) -> str:
    """Lines for a person; `newest` is the newest record that is known, `rules` those that it goes by."""
    return "\n".join(folded(label, text, _LABEL_WIDTH) for label, text in _lines(signed, manifest, newest, rules))


def _lines(
    signed: SignedManifest, manifest: Manifest, newest: Record | None, rules: Rules | None
) -> Iterator[tuple[str, str]]:
    yield "run", f"{plain(manifest.run.name)}, id {signed.run_id.hex()}"
    if newest is not None:
        yield "now", _now(newest, Length.of(manifest).num_rounds)
    yield "who may join", admission(manifest.admission)
    if rules is not None:
        for text in changes(Rules.of(manifest), rules):
            yield "changed", text
    yield "begins with", f"{count(manifest.run.min_peers, 'volunteer')}"
    yield "organizers", ", ".join(manifest.organizers)
    yield "begun from", origin(manifest.origin)
    yield "model", _model(manifest)
    yield "trains", _schedule(manifest)
    yield "experts", _subsets(manifest)
    for text in _data(manifest):
        yield "data", text
    yield "tokenizer", _tokenizer(manifest)
    yield "licence", plain(manifest.data.licence, _LONGEST) or "not stated by the organizer"
    yield "exchange", _exchange(manifest)
    yield "waits", _timing(manifest.timing)
    yield "protocol", str(manifest.protocol)


def admission(rules: Admission) -> str:
    """Who may join, as the run began."""
    if rules.mode == "open":
        return "everybody with an address of the run, unless an organizer bans them"
    listed = f"{count(len(rules.listed), 'peer')} on the organizer's list{_named(rules.listed)}"
    if rules.mode == "list":
        return f"only {listed}"
    return f"whoever has an invitation signed by an organizer, and {listed}"


def origin(source: Origin | None) -> str:
    """Where the first weights come from."""
    if source is None:
        return "first weights of its own"
    return f"the state of run {source.run_id[:12]} after record {source.round}"


def _now(newest: Record, num_rounds: int) -> str:
    if newest.is_final:
        return f"ended with round {newest.round - 1}"
    if not newest.round:
        return f"not begun; {count(num_rounds, 'round')} to go"
    return f"in round {newest.round} of {num_rounds:,}, with {count(len(newest.roster), 'volunteer')}"


def _named(peers: tuple[str, ...]) -> str:
    if not peers:
        return ""
    more = f" and {len(peers) - _SHOWN} more" if len(peers) > _SHOWN else ""
    return f": {', '.join(peers[:_SHOWN])}{more}"


def _model(manifest: Manifest) -> str:
    model = manifest.model
    return (
        f"{number(num_parameters(manifest))} parameters, {number(num_active(manifest))} at work on a token:"
        f" {model.num_layers} layers of width {model.d_model}, {model.num_experts} experts of which {model.top_k} see a"
        f" token; sequences of {model.sequence_length:,} tokens"
    )


def _schedule(manifest: Manifest) -> str:
    length, training = Length.of(manifest), manifest.training
    first, last = length.phases[0], length.phases[-1]
    text = (
        f"{number(length.num_tokens)} tokens in {training.total_steps:,} steps of {first.batch_sequences} sequences,"
        f" {count(length.num_rounds, 'round')} of {first.steps_per_round} steps"
    )
    if last is not first:
        text += (
            f"; from step {last.first_step:,} on {last.batch_sequences} sequences, rounds of {last.steps_per_round}"
            " steps"
        )
    return f"{text}; learning rate {training.lr:g} after {training.warmup_steps:,} steps, then a cosine to a tenth"


def _subsets(manifest: Manifest) -> str:
    training, sync = manifest.training, manifest.sync
    each = manifest.model.num_experts // training.num_subsets
    merged = f"similar ones are drawn together until step {sync.merge_warmup_steps:,}"
    return f"{count(training.num_subsets, 'subset')} of {each}; {merged if sync.merge_alpha else 'never merged'}"


def _data(manifest: Manifest) -> Iterator[str]:
    data = manifest.data
    for source, share in zip(data.sources, data.shares(), strict=True):
        licence = plain(source.licence, _LONGEST)
        yield (
            f"{plain(source.name)}: {percent(float(share))} of what is trained, from"
            f" {number(source.shards.num_tokens)} tokens{f'; licence: {licence}' if licence else ''}"
        )
    yield f"held out: {number(data.held_out.num_tokens)} tokens that nobody trains on"


def _tokenizer(manifest: Manifest) -> str:
    tokenizer = manifest.data.tokenizer
    if tokenizer.kind == "bytes":
        return "the bytes of UTF-8"
    return f"{plain(tokenizer.name)}, {tokenizer.num_ids:,} ids"


def _exchange(manifest: Manifest) -> str:
    sync = manifest.sync
    offers, updates = sync.shared_offer_encoding, sync.shared_update_encoding
    shared = offers if offers == updates else f"{offers} offers and {updates} updates"
    overlap = f"; peers train on for {sync.overlap_steps} steps meanwhile" if sync.overlap_steps else ""
    return (
        f"shared parameters as {shared}, experts as {sync.expert_encoding}; {sync.reducers_per_block} reducers for each"
        f" block; a snapshot every {count(sync.snapshot_rounds, 'round')}{overlap}"
    )


def _timing(timing: Timing) -> str:
    return (
        f"a round ends after {duration(timing.round_seconds)} at the latest; a peer without a sign of life loses its"
        f" experts after {duration(timing.lease_seconds)}; a silent coordinator is replaced after"
        f" {duration(timing.coordinator_timeout_seconds)}"
    )
