"""A manifest is validated as a whole, says in one line what is wrong with it, and is bound to its organizer."""

import hashlib
import json
from typing import Any

import pytest
from data_parts import made_up_source

from spes_peer.errors import BadConfiguration, BadMessage, BadSignature, TooOld
from spes_peer.identity import Identity
from spes_peer.run.manifest import (
    MOST_ORGANIZERS,
    PROTOCOL_VERSION,
    Manifest,
    SignedManifest,
    Timing,
    Training,
    parse_manifest,
    parse_run_file,
    sign_manifest,
    validated,
)
from spes_peer.run.presets import PRESETS
from spes_peer.run.rules import Rules, faults_in_rules


def changed(manifest: Manifest, **sections: Any) -> bytes:
    """The manifest's JSON with other values; a dict changes keys of a section, anything else replaces it."""
    raw = manifest.model_dump(mode="json")
    for name, value in sections.items():
        raw[name] = {**raw[name], **value} if isinstance(value, dict) and name in raw else value
    return json.dumps(raw).encode()


# ---- canonical bytes ----


def test_bytes_are_canonical_and_the_same_after_a_round_trip(manifest: Manifest) -> None:
    content = manifest.to_bytes()
    assert parse_manifest(content) == manifest
    assert parse_manifest(content).to_bytes() == content
    assert content == json.dumps(json.loads(content), sort_keys=True, separators=(",", ":")).encode()


def test_the_order_in_which_keys_were_written_does_not_matter(manifest: Manifest) -> None:
    backwards = dict(reversed(list(manifest.model_dump(mode="json").items())))
    assert parse_manifest(json.dumps(backwards, indent=3).encode()).to_bytes() == manifest.to_bytes()


def test_any_changed_value_gives_another_run_id(manifest: Manifest, organizer: Identity) -> None:
    other = parse_manifest(changed(manifest, run={"seed": manifest.run.seed + 1}))
    assert sign_manifest(other, organizer).run_id != sign_manifest(manifest, organizer).run_id
    assert sign_manifest(manifest, organizer).run_id == hashlib.sha256(manifest.to_bytes()).digest()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_valid_run_file_of_a_valid_manifest(preset: str, manifest: Manifest) -> None:
    run_file = parse_run_file(PRESETS[preset]).model_dump(mode="json")
    parse_manifest(changed(manifest, **run_file))


def test_the_final_phase_has_its_part_of_the_tokens_in_smaller_batches() -> None:
    training = Training(num_subsets=1, steps_per_round=100, total_steps=13_000, batch_sequences=64, lr=1e-3)
    begin = training.final_phase_step
    assert begin == 7000  # 7 000 · 64 sequences are 70 % of the run's, 6 000 · 32 the rest
    assert [training.batch_sequences_at(step) for step in (0, begin - 1, begin, 99_999)] == [64, 64, 32, 32]
    assert [training.steps_per_round_at(step) for step in (0, begin - 1, begin, 99_999)] == [100, 100, 50, 50]
    without = training.model_copy(update={"final_phase_fraction": 0.0})
    assert (without.batch_sequences_at(12_999), without.steps_per_round_at(12_999)) == (64, 100)


# ---- what is refused, and what is said about it ----


@pytest.mark.parametrize(
    ("section", "wrong", "meant"),
    [
        ("model", "num_expert", "num_experts"),
        ("training", "steps_per_rounds", "steps_per_round"),
        ("timing", "heart_beat_seconds", "heartbeat_seconds"),
        ("sync", "merge_alhpa", "merge_alpha"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_one(section: str, wrong: str, meant: str) -> None:
    text = PRESETS["demo"].replace(f"[{section}]\n", f"[{section}]\n{wrong} = 1\n")
    with pytest.raises(BadConfiguration, match=rf"^run\.toml: unknown key {section}\.{wrong}; did you mean {meant}\?$"):
        parse_run_file(text)


def test_an_unknown_section_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(BadConfiguration, match=r"unknown key trainings; did you mean training\?"):
        parse_run_file(PRESETS["demo"] + "\n[trainings]\n")


@pytest.mark.parametrize("text", ["[run", "run = 1\nrun = 2", "\x00"])
def test_what_is_not_toml_is_named(text: str) -> None:
    with pytest.raises(BadConfiguration, match=r"^mine\.toml: not TOML"):
        parse_run_file(text, "mine.toml")


def test_a_missing_section_and_a_missing_key_are_named() -> None:
    with pytest.raises(BadConfiguration, match=r"run\.toml: model: Field required"):
        parse_run_file('[run]\nname = "x"\n')
    with pytest.raises(BadConfiguration, match=r"run\.toml: training\.lr: Field required"):
        parse_run_file(PRESETS["demo"].replace("lr = 3e-3\n", ""))


@pytest.mark.parametrize("name", ["\x1b[2Jrun", "two\nlines", "\u202enur"])
def test_a_name_that_would_move_a_cursor_is_refused_from_a_run_file_and_from_a_manifest(
    name: str, manifest: Manifest
) -> None:
    with pytest.raises(BadConfiguration, match=r"^run\.toml: run\.name: a sign in it cannot be printed$"):
        parse_run_file(PRESETS["demo"].replace('name = "demo"', f"name = {json.dumps(name)}"))
    with pytest.raises(BadConfiguration, match=r"^manifest: run\.name: a sign in it cannot be printed$"):
        parse_manifest(changed(manifest, run={"name": name}))


LADDER = [
    ({"heartbeat_seconds": 20}, "heartbeat_seconds", "coordinator_timeout_seconds / 3"),
    ({"fetch_stall_seconds": 30}, "fetch_stall_seconds", "round_grace_seconds"),
    ({"round_grace_seconds": 60}, "round_grace_seconds", "coordinator_timeout_seconds"),
    ({"coordinator_timeout_seconds": 900}, "coordinator_timeout_seconds", "stall_timeout_seconds"),
    ({"dht_beat_seconds": 17}, "dht_beat_seconds", "dht_ttl_seconds / 3"),
    ({"dht_ttl_seconds": 1300, "dht_beat_seconds": 1}, "dht_ttl_seconds", "lease_seconds"),
    ({"round_seconds": 650}, "round_seconds", "lease_seconds / 2"),
]


@pytest.mark.parametrize(("values", "low", "high"), LADDER, ids=[rung[1] for rung in LADDER])
def test_each_rung_of_the_ladder_is_checked_and_named(values: dict[str, float], low: str, high: str) -> None:
    validated(Timing, {}, "the defaults")
    with pytest.raises(BadConfiguration, match=rf"{low} \([\d.]+\) must be below {high} \([\d.]+\)"):
        validated(Timing, values, "run.toml")


@pytest.mark.parametrize("key", Timing.model_fields)
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_every_wait_is_a_finite_time(key: str, value: float) -> None:
    with pytest.raises(BadConfiguration, match=key):
        validated(Timing, {key: value}, "run.toml")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"training": {"num_subsets": 3}}, r"num_subsets \(3\) must divide num_experts \(8\)"),
        ({"sync": {"merge_interval_steps": 30}}, r"merge_interval_steps \(30\) never meets a synchronization"),
        ({"sync": {"overlap_steps": 21}}, r"overlap_steps \(21\) exceeds the 20 steps of a round"),
        ({"model": {"num_heads": 3}}, "d_model must be an even multiple of num_heads"),
        ({"model": {"num_heads": 128, "num_kv_heads": 128}}, "d_model must be an even multiple"),
        ({"model": {"num_kv_heads": 3}}, "num_heads must be a multiple of num_kv_heads"),
        ({"model": {"top_k": 9}}, "top_k cannot exceed num_experts"),
        ({"sync": {"block_elements": (16 << 20) + 1}}, "sync.block_elements"),
        ({"sync": {"shared_dtype": "fp16"}}, "sync.shared_dtype"),
        ({"organizers": []}, "organizers"),
        ({"data": {"sources": []}}, r"data\.sources"),
        ({"data": {"held_out": {"blob": "../x", "num_tokens": 1000}}}, r"data\.held_out\.blob"),
        ({"data": {"sources": [made_up_source(shard_tokens=128)]}}, "corpus is too short.* 128 .* needs 129"),
        ({"model": {"vocab_rows": 256}}, "vocab_rows is 256; the tokenizer 'bytes' needs 257"),
        ({"data": {"held_out": {"blob": "ab" * 32, "num_tokens": 1}}}, "corpus is too short"),
        ({"protocol": 0}, "protocol"),
    ],
)
def test_parts_that_do_not_fit_are_named(manifest: Manifest, sections: dict[str, Any], said: str) -> None:
    with pytest.raises(BadConfiguration, match=said) as refusal:
        parse_manifest(changed(manifest, **sections))
    assert "\n" not in str(refusal.value)


def test_a_merge_that_never_happens_puts_no_demand_on_its_interval(manifest: Manifest) -> None:
    parse_manifest(changed(manifest, sync={"merge_interval_steps": 30, "merge_alpha": 0.0}))
    parse_manifest(changed(manifest, sync={"merge_interval_steps": 30, "merge_warmup_steps": 0}))


def test_a_round_ahead_is_as_long_as_the_shortest_round_that_the_run_has(manifest: Manifest) -> None:
    sync = {"overlap_steps": 100, "merge_interval_steps": 100}
    training = {"steps_per_round": 100, "total_steps": 1000}
    parse_manifest(changed(manifest, sync=sync, training=training))
    late = {"final_phase_fraction": 0.3, "final_phase_steps_per_round": 50}
    with pytest.raises(BadConfiguration, match=r"overlap_steps \(100\) exceeds the 50 steps"):
        parse_manifest(changed(manifest, sync=sync, training=training | late))


def test_a_newer_protocol_says_what_to_install_even_with_keys_nobody_knows(manifest: Manifest) -> None:
    with pytest.raises(TooOld, match="install a newer spes-peer"):
        parse_manifest(changed(manifest, protocol=PROTOCOL_VERSION + 1, quantum=True))


def test_an_older_protocol_says_what_to_join_it_with(manifest: Manifest) -> None:
    with pytest.raises(BadConfiguration, match="with the version of spes-peer with which it was made"):
        parse_manifest(changed(manifest, protocol=PROTOCOL_VERSION - 1, shared_encoding="bf16"))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000]
)
def test_bytes_that_are_no_manifest_are_refused(content: bytes) -> None:
    with pytest.raises(BadConfiguration, match="manifest"):
        parse_manifest(content)


# ---- signatures ----


def test_a_signed_manifest_travels_and_opens(manifest: Manifest, organizer: Identity) -> None:
    signed = sign_manifest(manifest, organizer)
    assert SignedManifest.from_bytes(signed.to_bytes()) == signed
    assert signed.open() == manifest


def test_a_changed_byte_breaks_the_signature(manifest: Manifest, organizer: Identity) -> None:
    signed = sign_manifest(manifest, organizer)
    tampered = signed.manifest.replace(b'"seed":1', b'"seed":2')
    assert tampered != signed.manifest
    with pytest.raises(BadSignature):
        SignedManifest(tampered, signed.organizer, signed.signature).open()
    with pytest.raises(BadSignature):
        SignedManifest(signed.manifest, signed.organizer, signed.signature[::-1]).open()


def test_only_an_organizer_that_the_manifest_names_may_sign_it(manifest: Manifest) -> None:
    stranger = Identity.from_seed(b"\2" * 32)
    with pytest.raises(BadSignature, match="does not name as an organizer"):
        sign_manifest(manifest, stranger).open()


def test_a_message_signature_is_no_manifest_signature(manifest: Manifest, organizer: Identity) -> None:
    content = manifest.to_bytes()
    with pytest.raises(BadSignature):
        SignedManifest(content, organizer.peer_id, organizer.sign(content)).open()


def test_bytes_that_are_no_signed_manifest_are_a_bad_message() -> None:
    with pytest.raises(BadMessage):
        SignedManifest.from_bytes(b"\xff\xff\xff")


# ---- what follows from it ----


def test_subsets_are_disjoint_consecutive_and_cover_all_experts(manifest: Manifest) -> None:
    subsets = [manifest.experts_of(subset) for subset in range(manifest.training.num_subsets)]
    assert subsets == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_sequence_needs_one_more_token_for_its_last_target(manifest: Manifest) -> None:
    length = manifest.model.sequence_length
    sources = [made_up_source(shard_tokens=3 * length + more, name=f"{more}") for more in (0, 1)]
    assert parse_manifest(changed(manifest, data={"sources": sources})).num_sequences == 2 + 3


def test_a_manifest_may_name_as_many_organizers_as_an_amendment(manifest: Manifest) -> None:
    keys = sorted(Identity.from_seed(bytes([n]) * 32).peer_id for n in range(MOST_ORGANIZERS + 1))
    most = parse_manifest(changed(manifest, organizers=keys[1:]))
    assert list(faults_in_rules(Rules.of(most), most.timing)) == []
    with pytest.raises(BadConfiguration, match="organizers"):
        parse_manifest(changed(manifest, organizers=keys))
    with pytest.raises(BadConfiguration, match=r"run\.organizers"):  # with the one that signs they are too many
        parse_manifest(changed(manifest, run={"organizers": keys[1:]}))
