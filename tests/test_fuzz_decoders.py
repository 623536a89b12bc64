"""Every decoder of bytes that another peer sent, or that lay on another's disk, fuzzed.

Each gives a value that it would encode again, or raises a `SpesError`: no other error, in bounded time and memory. What
is signed is also tried signed: a hostile peer has a key of its own, and may be on the roster, or coordinate.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from fuzzing import Decoder, fuzz
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rounds_swarm import CHECKS, ORGANIZER, RUN_ID, Swarm, changed
from tui_statuses import status as tui_status
from wire_values import values_of, wire_classes

from spes_peer.blobs import BlobName, BlobStore, num_pieces_of
from spes_peer.daemon.status_words import in_words
from spes_peer.data.shards import ShardReader
from spes_peer.errors import BadConfiguration, BadMessage, SpesError
from spes_peer.exchange import introduction
from spes_peer.exchange.addresses import parse_address, parse_endpoint
from spes_peer.exchange.connections import pem_of
from spes_peer.exchange.holdings import Have, PartialBlob
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.exchange.tokens import CallToken, make_token, open_token
from spes_peer.identity import Identity, TlsIdentity
from spes_peer.membership.directory import Memory
from spes_peer.membership.entries import check_dht_address, check_entry, sign_entry
from spes_peer.model.huggingface import OLMOE, model_of, tensors_of
from spes_peer.rounds import coordinator
from spes_peer.rounds.ballot import Ballot
from spes_peer.rounds.member import Own, objections
from spes_peer.rounds.messages import FROM_COORDINATOR, FROM_MEMBER, AdmissionRequest
from spes_peer.rounds.phases import Step
from spes_peer.run.certificates import check_record
from spes_peer.run.data import Shard
from spes_peer.run.encodings import MAX_VALUE, Format
from spes_peer.run.manifest import (
    PROTOCOL_VERSION,
    Manifest,
    SignedManifest,
    parse_manifest,
    sign_manifest,
)
from spes_peer.run.peers import Claim, Head, PeerEntry, PeerState, Role
from spes_peer.run.records import BlockId, BlockName, CertifiedRecord, RecordSignature, SealedRecord, Snapshot
from spes_peer.run.signed import Signed, Signer, open_any, pack, unpack
from spes_peer.snapshots import SnapshotStore
from spes_peer.sync.encoding import decode, encode, from_state_bytes, state_bytes
from spes_peer.training import checkpoint
from spes_peer.training.adopt import Checkpoint
from spes_peer.wire import (
    children_pb2,
    control_pb2,
    convert,
    frames,
    peer_pb2,
    record_pb2,
    round_pb2,
    signed_pb2,
)


def blob_name(number: int) -> BlobName:
    return BlobName(f"{number:064x}")


MODULES = (signed_pb2, record_pb2, round_pb2, peer_pb2, control_pb2, children_pb2)
CLASSES = {cls.__name__: cls for cls in wire_classes()}
ATTACKER = Identity.from_seed(b"\x66" * 32)
SIGNER = Signer(ATTACKER, RUN_ID, 7)
TLS = TlsIdentity.generate()
KINDS = {**FROM_MEMBER, **FROM_COORDINATOR, "CertifiedRecord": CertifiedRecord}
ENTRY = PeerEntry(
    ATTACKER.peer_id,
    "a name",
    "0.1",
    4,
    Role.BOOTSTRAP,
    PeerState.ONLINE,
    7,
    ("203.0.113.7:4510", "[2001:db8::1]:4510", "example.org:4510"),
    TLS.certificate_der,
    (f"/ip4/203.0.113.7/tcp/4511/p2p/{ATTACKER.peer_id}",),
    (f"/ip4/203.0.113.7/tcp/4512/p2p/{ATTACKER.peer_id}",),
    4,
    1e9,
)
MOMENT = 1_000_000.0


class Captured(Swarm):
    """A whole swarm's talk, as it is on the wire: what members say, and what the coordinator says."""

    def __init__(self, manifest: Manifest, subsets: list[tuple[int, ...]]) -> None:
        self.heard: list[tuple[coordinator.Coordinator, Signed]] = []
        self.said: list[Signed] = []
        super().__init__(manifest, subsets)

    def deliver_one(self) -> None:
        self.heard.append((self.state, self.inbox[0][0]))
        super().deliver_one()

    def take(self, step: Step) -> None:
        known = {id(out.message): out.message for out in step.outgoing}
        self.said += [SIGNER.sign(message) for message in known.values()]
        super().take(step)


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    from conftest import manifest as made  # the fixture of all tests, for this module once

    full: Manifest = made.__wrapped__(ORGANIZER)
    small = {"d_model": 16, "num_layers": 1, "num_experts": 4, "expert_hidden": 32, "sequence_length": 16}
    return changed(changed(full, "model", **small), "sync", block_elements=4096, merge_warmup_steps=0)


@pytest.fixture(scope="module")
def swarm(manifest: Manifest) -> Captured:
    swarm = Captured(manifest, [(0,), (1,), (2,), (3,)])
    swarm.until(lambda: swarm.round == 2)
    swarm.until(lambda: swarm.phase == "closing")
    return swarm


# ---- messages of the protos ----


def examples(strategy: "st.SearchStrategy[Any]", count: int) -> list[Any]:
    """Values, the same each time."""
    found: list[Any] = []

    @given(strategy)
    @settings(max_examples=count, phases=[Phase.generate])
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def decoder_of(cls: type) -> Decoder:
    """The one for a message that has a dataclass."""

    def look(content: bytes) -> None:
        value = convert.decode(cls, content)
        assert convert.decode(cls, convert.encode(value)) == value

    return Decoder(cls.__name__, look, [convert.encode(value) for value in examples(values_of(cls), 6)])


def framed_decoder_of(name: str) -> Decoder:
    """The one for a message that is used as it was generated."""
    message = convert.message_class(name)

    def look(content: bytes) -> None:
        found = frames.message_in(children_pb2.Frame(kind=name, body=content))
        assert type(found).FromString(found.SerializeToString()).SerializeToString() == found.SerializeToString()

    full = message()
    for field in full.DESCRIPTOR.fields:
        if field.type in (field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_MESSAGE):
            continue
        getattr(full, field.name).extend([1, 2]) if field.is_repeated else setattr(full, field.name, 1)
    return Decoder(name, look, [full.SerializeToString(), b""])


def message_decoders() -> list[Decoder]:
    """One for every message of every proto: a new one is fuzzed too."""
    names = [name for module in MODULES for name in module.DESCRIPTOR.message_types_by_name]
    assert len(names) > 80
    return [decoder_of(CLASSES[name]) if name in CLASSES else framed_decoder_of(name) for name in names]


# ---- envelopes, tokens, records ----


def signed_decoders(swarm: Captured) -> list[Decoder]:
    talk = [*dict.fromkeys(signed for _, signed in swarm.heard), *swarm.said]
    by_kind = {kind: [one for one in talk if one.kind == kind][:4] for kind in KINDS}
    captures = [convert.encode(one) for some in by_kind.values() for one in some]

    def opened(content: bytes) -> None:
        open_any(convert.decode(Signed, content), KINDS, RUN_ID)

    def compressed(content: bytes) -> None:
        assert unpack(pack(plain := unpack(content))) == plain

    def token(content: bytes) -> None:
        open_token(content, RUN_ID, ORGANIZER.peer_id).check_time(MOMENT)

    def token_inside(content: bytes) -> None:
        unsigned = SIGNER.sign(CallToken(ORGANIZER.peer_id, 0.0))
        body = dataclasses.replace(unsigned, body=content)
        token(convert.encode(dataclasses.replace(body, signature=ATTACKER.sign(body.signed_bytes()))))

    call = CallToken(ORGANIZER.peer_id, MOMENT + 60)
    return [
        Decoder("Signed.open", opened, captures, cost=3),
        Decoder("unpack", compressed, [pack(bytes(5000)), pack(captures[-1] * 40)], cost=20),
        Decoder("open_token", token, [make_token(SIGNER, ORGANIZER.peer_id, MOMENT)], cost=3),
        Decoder("CallToken, signed", token_inside, [convert.encode(call)], cost=4),
    ]


def talk_decoders(swarm: Captured) -> list[Decoder]:
    """What a member with a good key may say to the coordinator: its core never raises, and answers in words."""

    def core(kind: str) -> Decoder:
        heard = [(state, signed) for state, signed in swarm.heard if signed.kind == kind]
        state, honest = heard[-1]
        sender = next(one for one in swarm.members.values() if one.peer_id == honest.peer_id)
        signer = Signer(sender.identity, RUN_ID, honest.incarnation, _counter=honest.counter)

        def take(content: bytes) -> None:
            message = convert.decode(KINDS[kind], content)
            step = coordinator.on_message(state, signer.sign(message), message, swarm.now)
            for seconds in (1.0, 2000.0):
                step = coordinator.on_time(step.state, swarm.now + seconds)

        return Decoder(f"{kind} at the coordinator", take, [unpack(one.body) for _, one in heard[-4:]], cost=40)

    return [core(kind) for kind in sorted({signed.kind for _, signed in swarm.heard})]


def record_decoders(swarm: Captured) -> list[Decoder]:
    previous = check_record(
        swarm.certified[-2], SealedRecord(swarm.records[-3], swarm.records[-3].seal().content), CHECKS
    )
    newest = swarm.certified[-1]
    signers = [member.identity for member in swarm.members.values()]
    own = swarm[0]

    def sealed(content: bytes) -> None:
        found = SealedRecord.from_bytes(content)
        assert SealedRecord.from_bytes(found.record.seal().content).record == found.record

    def certified(content: bytes) -> None:
        check_record(convert.decode(CertifiedRecord, content), previous.sealed, CHECKS)

    def signed_by_all(content: bytes) -> None:
        found = SealedRecord.from_bytes(content)
        word = RecordSignature(found.round, 0, found.hash)
        signatures = tuple(Signer(one, RUN_ID, 1).sign(word) for one in signers)
        check_record(CertifiedRecord(content, 0, signatures), previous.sealed, CHECKS)

    def proposed(content: bytes) -> None:
        said = objections(
            SealedRecord.from_bytes(content), previous.sealed, Own(own.peer_id, None, {}, 2), swarm.layout
        )
        assert said is None or said

    records = [one.sealed.content for one in swarm.certified]
    return [
        Decoder("SealedRecord", sealed, records, cost=3),
        Decoder("check_record", certified, [convert.encode(newest)], cost=6),
        Decoder("check_record, signed by all", signed_by_all, [newest.record], cost=10),
        Decoder("objections", proposed, [newest.record], cost=6),
    ]


# ---- manifests, entries, addresses, lists ----


def manifest_decoders(manifest: Manifest) -> list[Decoder]:
    signed = sign_manifest(manifest, ORGANIZER)

    def resigned(content: bytes) -> None:
        """As a hostile organizer would."""
        named = SignedManifest(content, ORGANIZER.peer_id, ORGANIZER.sign(b"spes-peer manifest\0" + content))
        found = named.open()
        assert found.training.final_phase_step >= 0

    return [
        Decoder(
            "SignedManifest", lambda content: SignedManifest.from_bytes(content).open(), [signed.to_bytes()], cost=3
        ),
        Decoder("manifest, signed", resigned, [manifest.to_bytes()], is_text=True, cost=10),
    ]


def entry_decoders() -> list[Decoder]:
    values = [convert.encode(one) for one in (ENTRY, Claim((0, 3), 5.0), Head(3, b"h" * 32))]

    def entry(content: bytes) -> None:
        """As the DHT has it: 64 bytes of signature behind the value."""
        check_entry("peers", RUN_ID, ATTACKER.peer_id, content[:-64], 1e9, content[-64:])

    def named(content: bytes) -> None:
        signature = sign_entry(ATTACKER, "claims", RUN_ID, content, 1e9)
        check_entry("claims", RUN_ID, ATTACKER.peer_id, content, 1e9, signature)
        for cls in (PeerEntry, Claim, Head):
            try:
                convert.decode(cls, content)
            except BadMessage:
                continue

    signed = [value + sign_entry(ATTACKER, "peers", RUN_ID, value, 1e9) for value in values]
    manifest_message = record_pb2.SignedManifest(manifest=b"{}", organizer=ATTACKER.peer_id)
    description = peer_pb2.Description(
        manifest=manifest_message,
        entry=signed_pb2.Signed.FromString(convert.encode(Signer(ATTACKER, RUN_ID, 1).sign(ENTRY))),
        head_round=3,
        now=1e9,
    )

    def introduced(content: bytes) -> None:
        answer = frames.message_in(children_pb2.Frame(kind="Description", body=content))
        assert isinstance(answer, peer_pb2.Description)
        address = parse_address(ADDRESS)
        with pytest.raises(SpesError):  # nobody signed the manifest
            introduction._checked(answer, address, address.endpoint, TLS.certificate_der)

    return [
        Decoder("DHT entry", entry, signed, cost=3),
        Decoder("DHT entry, signed", named, values, cost=5),
        Decoder("Description", introduced, [description.SerializeToString()], cost=4),
        Decoder("certificate", pem_of, [TLS.certificate_der], cost=2),
    ]


ADDRESS = f"/ip4/203.0.113.7/tcp/4510/p2p/{ATTACKER.peer_id}"


def address_decoders() -> list[Decoder]:
    def text(content: bytes) -> str:
        return content.decode(errors="surrogateescape")

    def endpoint(content: bytes) -> None:
        found = parse_endpoint(text(content))
        assert parse_endpoint(str(found)) == found
        assert found.target.startswith(("ipv4:", "ipv6:", "dns:///"))

    def address(content: bytes) -> None:
        found = parse_address(text(content))
        assert parse_address(found.text()) == found

    endpoints = [one.encode() for one in ENTRY.grpc_addresses]
    addresses = [ADDRESS.encode(), f"/ip6/2001:db8::1/tcp/1/p2p/{ATTACKER.peer_id}".encode(), b"/dns4/a.org/tcp/1"]
    return [
        Decoder("parse_endpoint", endpoint, endpoints, is_text=True),
        Decoder("parse_address", address, addresses[:2], is_text=True),
        Decoder("check_dht_address", lambda content: check_dht_address(text(content)), addresses[:1], is_text=True),
    ]


def list_decoders(tmp_path: Path) -> list[Decoder]:
    store = BlobStore(tmp_path / "blobs")
    blob = store.put(bytes(range(256)) * 10_000)
    digests = store.digests(blob.name)

    def bitmap(content: bytes) -> None:
        reply = frames.message_in(children_pb2.Frame(kind="HaveReply", body=content))
        assert isinstance(reply, peer_pb2.HaveReply)
        have = Have.from_bitmap(reply.size_bytes, reply.bitmap)
        assert Have.from_bitmap(have.size_bytes, have.bitmap()) == have
        assert len(have.pieces) <= num_pieces_of(have.size_bytes)

    def digest_list(content: bytes) -> None:
        PartialBlob(store, blob.name, blob.size_bytes)._take_digests(content)

    def frame(content: bytes) -> None:
        for found in frames.FrameReader().feed(content):
            frames.message_in(found)

    sizes = (0, 1, 5 << 20, 64 << 30)
    replies = [Have(size, frozenset({0, num_pieces_of(size) - 1})) for size in sizes]
    good = [peer_pb2.HaveReply(size_bytes=one.size_bytes, bitmap=one.bitmap()) for one in replies]
    packed = frames.pack(frames.request(3, children_pb2.ReadDictionary(dictionary="peers")))
    answer = frames.event(children_pb2.DhtHealth(num_neighbours=3, trouble="none"))

    def status(content: bytes) -> None:
        """Others' words and numbers are in it, as they came."""
        shown = frames.message_in(children_pb2.Frame(kind="Status", body=content))
        assert isinstance(shown, control_pb2.Status)
        assert all(map(str.isprintable, in_words(shown).split("\n")))

    return [
        Decoder("status in words", status, [tui_status().SerializeToString()], cost=30),
        Decoder("Have", bitmap, [one.SerializeToString() for one in good], cost=20),
        Decoder("digests", digest_list, [digests]),
        Decoder("frames", frame, [packed, packed + frames.pack(answer)]),
    ]


# ---- values ----

NUM_VALUES = 4096 + 77
FORMATS = [Format("fp32"), Format("bf16"), Format("int8"), Format("int4"), Format("topk", 64), Format("topk", 3)]


def value_decoders() -> list[Decoder]:
    values = torch.randn(NUM_VALUES, generator=torch.Generator().manual_seed(1))

    def block(format: Format) -> Callable[[bytes], None]:
        def look(content: bytes) -> None:
            found = decode(format, content, NUM_VALUES)
            assert float(found.abs().max()) <= MAX_VALUE
            assert len(encode(format, found)) == len(content)

        return look

    def state(content: bytes) -> None:
        assert state_bytes("bf16", from_state_bytes("bf16", content, NUM_VALUES)) == content

    blocks = [
        Decoder(f"{one.encoding} {one.topk_kept}", block(one), [encode(one, values), encode(one, values * 0)], cost=15)
        for one in FORMATS
    ]
    return [*blocks, Decoder("state block", state, [state_bytes("bf16", values)], cost=4)]


def test_a_block_of_another_length_is_refused_before_it_takes_memory() -> None:
    for format in FORMATS:
        with pytest.raises(SpesError, match="bytes where"):
            decode(format, b"\0", 1 << 40)


# ---- files that came with somebody else's folder ----


def file_decoders(tmp_path: Path, manifest: Manifest) -> list[Decoder]:
    path, run_id = tmp_path / "file", RUN_ID.hex()

    def written(read: Callable[[], object]) -> Callable[[bytes], object]:
        def look(content: bytes) -> object:
            path.write_bytes(content)
            return read()

        return look

    KnownNodes(path, RUN_ID).note([ENTRY])
    known = path.read_bytes()
    memory = Memory(tmp_path / "dht.json")
    memory.next_expiration("peers", 50.0, 1e9)
    memory.add_addresses(ENTRY.dht_addresses)
    moments = checkpoint.Checkpoint(4, "ab" * 32, {"a": torch.ones(8), "b": torch.ones(4, dtype=torch.bfloat16)})
    checkpoint.save(tmp_path / "own", run_id, "peer", moments)
    own = (tmp_path / "own").read_bytes()

    def own_checkpoint() -> None:
        checkpoint.load(path, run_id, "peer")

    model = manifest.model
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    good = safetensors.torch.save({tensor.name: torch.ones(tensor.shape) for tensor in tensors_of(model)})
    (theirs / "config.json").write_text("{}")

    def foreign(content: bytes) -> None:
        (theirs / "model.safetensors").write_bytes(content)
        held = Checkpoint(theirs)
        held.check(tensors_of(model))
        for tensor in tensors_of(model):
            held.read(tensor)

    def indexed(content: bytes) -> None:
        index = theirs / "model.safetensors.index.json"
        index.write_bytes(content)
        (theirs / "model.safetensors").write_bytes(good)
        try:
            Checkpoint(theirs)
        finally:
            index.unlink()

    index = json.dumps(
        {"weight_map": dict.fromkeys((one.name for one in tensors_of(model)), "model.safetensors")}
    ).encode()
    config = {"architectures": [OLMOE], "rms_norm_eps": 1e-6, "hidden_size": 16, "intermediate_size": 32}
    config |= {"vocab_size": 272, "num_hidden_layers": 1, "num_attention_heads": 4, "num_experts": 4}
    config |= {"num_experts_per_tok": 2, "max_position_embeddings": 16, "rope_theta": 1e4, "rope_parameters": {}}

    def configured(content: bytes) -> None:
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            return
        if isinstance(found, dict):
            model_of(found, 16)

    store = BlobStore(tmp_path / "shards")

    def shard(content: bytes) -> None:
        name = store.put(content).name
        one, reader = Shard(blob=name, num_tokens=170), ShardReader(store, "uint16", 16)
        try:
            for number in range(one.num_sequences(16)):
                assert len(reader.sequence(one, number)) == 17
        finally:
            store.remove(name)

    ballot = Ballot(3, b"h" * 32, 2, b"", 0).to_bytes()
    kept = Snapshot(3, tuple(BlockName(BlockId(f"shared/{number:04}"), blob_name(number), 9) for number in range(4)))
    snapshots = peer_pb2.Snapshots(snapshots=[convert.to_message(kept), convert.to_message(kept)])  # type: ignore[list-item]
    own_snapshots = object.__new__(SnapshotStore)
    own_snapshots._path = path
    return [
        Decoder("own snapshots", written(own_snapshots._read), [snapshots.SerializeToString()], cost=10),
        Decoder("known nodes", written(lambda: KnownNodes(path, RUN_ID)), [known], is_text=True, cost=20),
        Decoder(
            "DHT memory", written(lambda: Memory(path)), [(tmp_path / "dht.json").read_bytes()], is_text=True, cost=10
        ),
        Decoder("ballot", Ballot.from_bytes, [ballot]),
        Decoder("own checkpoint", written(own_checkpoint), [own], is_text=True, cost=30),
        Decoder("their weights", foreign, [good], is_text=True, cost=150),
        Decoder("their index", indexed, [index], is_text=True, cost=150),
        Decoder("their config", configured, [json.dumps(config).encode()], is_text=True, cost=3),
        Decoder("shard", shard, [bytes(340)], cost=150),
    ]


# ---- what was found ----


def test_a_certificate_of_a_version_that_there_is_not_is_no_certificate() -> None:
    version = b"\xa0\x03\x02\x01\x02"
    assert version in TLS.certificate_der
    with pytest.raises(BadMessage, match="not a certificate"):
        pem_of(TLS.certificate_der.replace(version, b"\xa0\x03\x02\x01\x03", 1))


def test_a_manifest_with_a_number_that_no_float_holds_is_refused(manifest: Manifest) -> None:
    for key in ("total_steps", "batch_sequences", "steps_per_round"):
        raw = manifest.model_dump(mode="json")
        raw["training"] |= {"final_phase_fraction": 0.3, key: 10**400}
        with pytest.raises(BadConfiguration):
            parse_manifest(json.dumps(raw).encode())


def test_a_shard_that_is_shorter_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for content in (b"", bytes(339)):
        shard = Shard(blob=store.put(content).name, num_tokens=170)
        with pytest.raises(BadMessage, match="its 170 tokens need 340"):
            ShardReader(store, "uint16", 16).sequence(shard, 0)


@pytest.mark.parametrize("about", ['{"round": 1e999, "generation": 1e999, "state_root": ""}', "[" * 100_000])
def test_a_checkpoint_that_says_nonsense_of_itself_is_damaged(tmp_path: Path, about: str) -> None:
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "file", {"spes_peer": about})
    with pytest.raises(BadConfiguration, match="is damaged"):
        checkpoint.load(tmp_path / "file", RUN_ID.hex(), "peer")


@pytest.mark.parametrize(
    "content", ["[" * 100_000, f'{{"last_expirations": {{"peers": {10**400}}}, "addresses": []}}', "[]"]
)
def test_a_file_of_the_dht_that_makes_no_sense_is_left_out(tmp_path: Path, content: str) -> None:
    (tmp_path / "dht.json").write_text(content)
    assert not Memory(tmp_path / "dht.json").addresses


@pytest.mark.parametrize(
    "index", ["[" * 100_000, '{"weight_map": []}', '{"weight_map": {"a": []}}', '{"weight_map": {"a": {}}}']
)
def test_an_index_of_weights_that_is_none_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(BadConfiguration):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("changes", [{"architectures": [[]]}, {"architectures": [{}]}, {"rope_theta": 10**400}])
def test_a_config_of_nonsense_is_refused(changes: dict[str, Any]) -> None:
    config = {"architectures": [OLMOE], "rms_norm_eps": 1e-6, "num_attention_heads": 4, **changes}
    with pytest.raises(BadConfiguration):
        model_of(
            {**dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"), 8), **config}, 16
        )


def test_losses_whose_sum_is_infinite_do_not_end_the_coordinator(manifest: Manifest) -> None:
    """Two members together: no float holds the sum of what they say."""
    swarm = Swarm(manifest, [(0,), (1,), (2,), (3,)])
    swarm.until(lambda: swarm.round == 1)
    for number in (0, 1):
        swarm[number].change = lambda honest: dataclasses.replace(honest, held_out_loss_sum=1.7e308)
    swarm.until(lambda: swarm.round == 3)
    assert all("a loss in it is more than" in swarm[number].refusals[0] for number in (0, 1))
    assert swarm.records[-1].held_out_loss == 5.0


@pytest.mark.parametrize("speed", [1e13, 1.7e308])
def test_a_speed_that_no_machine_has_gets_no_share_of_the_data(manifest: Manifest, speed: float) -> None:
    swarm = Swarm(manifest, [(0,), (1,), (2,), (3,)])
    swarm.until(lambda: swarm.round == 1)
    assert "is none" in swarm.ask(swarm[0], AdmissionRequest((0,), speed, PROTOCOL_VERSION))


@pytest.fixture
def decoders(tmp_path: Path, manifest: Manifest, swarm: Captured) -> list[Decoder]:
    return [
        *message_decoders(),
        *signed_decoders(swarm),
        *talk_decoders(swarm),
        *record_decoders(swarm),
        *manifest_decoders(manifest),
        *entry_decoders(),
        *address_decoders(),
        *list_decoders(tmp_path),
        *value_decoders(),
        *file_decoders(tmp_path, manifest),
    ]


def test_every_decoder_gives_a_value_or_a_typed_error(decoders: list[Decoder]) -> None:
    assert fuzz(decoders, 6_000, seed=1) > 2_000


@pytest.mark.slow
def test_every_decoder_stands_a_hundred_thousand_hostile_inputs(decoders: list[Decoder]) -> None:
    assert fuzz(decoders, 110_000, seed=2) > 40_000
