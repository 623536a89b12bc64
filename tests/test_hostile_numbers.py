"""Every number of every message at the ends of its range: −1 (which protobuf carries as 2³² − 1 or 2⁶⁴ − 1), and more.

The cases come from the protos, so a new field is tried too. What is refused is refused by a `SpesError`; nothing else
is raised anywhere, and the round of everybody else goes on.
"""

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from daemon_parts import OTHER, QUICK, make_node
from daemon_parts import Scene as MemberScene
from exchange_nodes import eventually
from google.protobuf.message import Message
from rounds_swarm import CHECKS, RUN_ID, Member, Swarm, changed, contribution_of, roots
from run_nodes import run_nodes

from spes_peer.blobs import BlobName
from spes_peer.errors import BlobMissing, ChildFailed, PeerError, UserError
from spes_peer.exchange.addresses import parse_address
from spes_peer.exchange.introduction import describe
from spes_peer.following.follower import Follower
from spes_peer.identity import Identity
from spes_peer.node import Node
from spes_peer.rounds.member import Own, objections
from spes_peer.rounds.messages import (
    FROM_COORDINATOR,
    FROM_MEMBER,
    AdmissionRequest,
    Appeal,
    Beat,
    CoordinatorBeat,
    Departure,
    Excuse,
    Footing,
    Holding,
    MissingOffers,
    PendingAmendment,
    Proposal,
    ReduceInput,
    ReduceOrder,
    ReduceTask,
    Referral,
    Refusal,
    SignedBefore,
    UpdateNotice,
    UpdateReport,
    Verdict,
    Vote,
    VoteRequest,
)
from spes_peer.run.certificates import check_record
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.peers import Standing
from spes_peer.run.records import BlockId, CertifiedRecord, RecordSignature
from spes_peer.run.rules import Change, sign_amendment
from spes_peer.run.signed import Signer
from spes_peer.snapshots import SnapshotStore
from spes_peer.wire import convert, peer_pb2

UINT32 = (0, 1, 2**31 - 1, 2**31, 2**32 - 1)
UINT64 = (0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
DOUBLE = (-1.7e308, -1.0, -0.0, 5e-324, 1.7e308)


def ends_of(field: Any) -> tuple[Any, ...]:
    return {field.TYPE_UINT32: UINT32, field.TYPE_UINT64: UINT64, field.TYPE_DOUBLE: DOUBLE}.get(field.type, ())


def variants(message: Message) -> Iterator[tuple[str, Message]]:
    """Copies, each with one number at an end of its range, and the name of the field. Of many parts the first two."""
    whole = type(message)()
    whole.CopyFrom(message)
    yield from _in(whole, whole, "")


def _in(whole: Message, part: Message, path: str) -> Iterator[tuple[str, Message]]:
    for field in part.DESCRIPTOR.fields:
        name, content = f"{path}{field.name}", getattr(part, field.name)
        if field.type == field.TYPE_MESSAGE:
            parts = content[:2] if field.is_repeated else [content] if part.HasField(field.name) else []
            for one in parts:
                yield from _in(whole, one, f"{name}.")
        elif field.is_repeated:
            for end in ends_of(field):
                content.append(end)
                yield name, _copy(whole)
                del content[-1]
        else:
            for end in ends_of(field):
                setattr(part, field.name, end)
                yield name, _copy(whole)
            setattr(part, field.name, content)


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def values(good: Any) -> Iterator[tuple[str, Any]]:
    """Those of a frozen value that are decoded."""
    for name, message in variants(convert.to_message(good)):
        try:
            yield name, convert.from_message(type(good), message)
        except PeerError:
            continue


def test_the_cases_have_every_number_of_a_message() -> None:
    task = ReduceTask(BlockId("shared/0000"), (), (ReduceInput(OTHER.peer_id, BlobName("ab" * 32), 1, 1.0, 1, 1.0),))
    found = Counter(name for name, _ in variants(convert.to_message(ReduceOrder(3, (task, task, task)))))
    assert found["round"] == len(UINT64)
    assert found["tasks.inputs.tokens"] == 2 * len(UINT64)
    assert found["tasks.inputs.clip"] == 2 * len(DOUBLE)
    assert [name for name, _ in variants(peer_pb2.FetchRequest())] == ["pieces"] * len(UINT32)


# ---- at the coordinator ----


@pytest.fixture
def small(manifest: Manifest) -> Manifest:
    sizes = {"d_model": 16, "num_layers": 1, "num_experts": 4, "expert_hidden": 32, "sequence_length": 16}
    return changed(changed(manifest, "model", **sizes), "sync", block_elements=4096, merge_warmup_steps=0)


def said_by(member: Member, swarm: Swarm) -> Iterator[Any]:
    """One good message of each kind, as good as that can be in whatever phase."""
    round, record = swarm.round, swarm.head.record
    entry = record.entry_of(member.peer_id)
    block = swarm.layout.blocks[0].id
    yield Beat(round, "training", 1)
    yield AdmissionRequest((0,), 1000.0, PROTOCOL_VERSION)
    if entry is not None:
        steps = swarm.layout.manifest.training.steps_per_round_at(record.step)
        yield contribution_of(entry, record, swarm.layout, member.root, steps)
    yield UpdateReport(round, BlockId(block), "ab" * 32, swarm.layout.mean_bytes(swarm.layout.by_id[block]), (), b"")
    yield MissingOffers(round, BlockId(block), (swarm[1].peer_id,))
    yield Excuse(round, "why")
    yield Footing(round, "ab" * 32)
    yield Holding(round, (BlobName("ab" * 32),))
    yield Verdict(round, 0, b"x" * 32, True, True, "why")
    yield RecordSignature(round + 1, 0, b"h" * 32)
    yield Appeal(round, 1)
    yield Vote(round, swarm.head.hash, 1, b"", 0)
    yield SignedBefore(round, swarm.head.content)
    yield PendingAmendment(sign_amendment(swarm.state.rules, None, member.identity, RUN_ID, swarm.now))
    yield Departure("leaving")


def test_no_number_that_a_member_says_holds_up_the_others(small: Manifest) -> None:
    swarm = Swarm(small, [(0,), (1,), (2,), (3,)])
    refused, taken = Counter[str](), Counter[str]()
    for round in (0, 1, 2):
        for phase in ("admitting",) if round == 0 else ("training", "reducing", "closing"):
            swarm.until(lambda: (swarm.round, swarm.phase) == (round, phase))  # noqa: B023
            attacker = swarm[0]
            kinds = set()
            for good in said_by(attacker, swarm):
                kinds.add(type(good).__name__)
                for name, message in values(good):
                    if type(good) is not Departure:
                        words = swarm.ask(attacker, message)
                        (refused if words else taken)[f"{type(good).__name__}.{name}"] += 1
            assert round == 0 or kinds == set(FROM_MEMBER)
    swarm.until(lambda: swarm.round == 4)
    assert len(roots(swarm)) == 1
    assert not any(swarm[number].refusals for number in (1, 2, 3))
    never_refused = {name for name in taken if name not in refused}
    assert never_refused <= {"Beat.round", "Beat.steps_done", "Appeal.term"}, never_refused


# ---- at a member ----


async def test_no_number_that_a_coordinator_says_ends_a_member_or_fills_its_disk(
    tmp_path: Path, manifest: Manifest, organizer: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = manifest.timing.model_copy(update=QUICK)
    node = make_node(tmp_path / "self", manifest.model_copy(update={"timing": timing}), organizer)
    scene, sizes = MemberScene(node, monkeypatch), set[int]()

    async def fetch(_name: str, size_bytes: int, _sources: Any) -> None:
        sizes.add(size_bytes)
        raise BlobMissing("nobody has it")

    async def cannot(*_: Any) -> None:
        raise ChildFailed("it does nothing here")

    monkeypatch.setattr(node.fetcher, "fetch", fetch)
    scene.trainer.reduce_block = scene.trainer.try_expert = cannot  # type: ignore[attr-defined]
    monkeypatch.setattr(scene.member.follower, "_fetch_from", lambda _peer: None)
    block = node.layout.blocks[0]
    offered = node.layout.offer_bytes(block)
    async with scene.living():
        scene.trainer.may_finish.clear()
        certified = scene.next_record(node.identity, OTHER)
        scene.tell(certified)
        await eventually(lambda: bool(scene.trainer.trained), 20)
        sender = certified.sealed.record.candidates[0]
        peers = (node.peer_id, OTHER.peer_id)
        inputs = tuple(ReduceInput(peer, BlobName("ab" * 32), offered, 1.0, 10, 1.0) for peer in sorted(peers))
        following = scene.next_record(node.identity, OTHER)
        said: list[Any] = [
            CoordinatorBeat(0, 1, "training", 1.0, peers, 2.0, "why", 3.0),
            ReduceOrder(1, (ReduceTask(BlockId(block.id), peers, inputs),)),
            UpdateNotice(1, BlockId(block.id), BlobName("cd" * 32), node.layout.mean_bytes(block), peers),
            Proposal(0, following.record),
            VoteRequest(1, 1),
            Referral(1, 0),
            Refusal("why"),
            following,
        ]
        assert {type(good).__name__ for good in said} == {*FROM_COORDINATOR, "CertifiedRecord"}
        for good in said:
            for _name, message in values(good):
                scene.member.follower.attendance.on_message(sender, message)
        for record in _variants_of(following):
            scene.member.follower.attendance.on_message(sender, record)
            scene.member.follower.attendance.on_message(sender, Proposal(0, record.record))
        await asyncio.sleep(0)
        await eventually(lambda: bool(sizes), 20)
        assert sizes <= {offered, node.layout.mean_bytes(block)}
        scene.tell(following)
        scene.trainer.may_finish.set()
        await eventually(lambda: scene.trainer.applied[-1:] == [2], 20)


def _variants_of(certified: CertifiedRecord) -> Iterator[CertifiedRecord]:
    """The same with another number in its record, and with all signatures that it needs, of whom it needs them."""
    for _name, record in values(certified.sealed.record):
        yield dataclasses.replace(certified, record=record.seal().content)


# ---- in a record ----


def test_a_record_with_a_number_at_the_end_of_its_range_is_refused_or_objected_to(small: Manifest) -> None:
    """Though all members have signed it; but for what nobody else can know."""
    swarm = Swarm(small, [(0,), (1,), (2,), (3,)])
    swarm.until(lambda: swarm.round == 2)
    before, own = swarm.records[1].seal(), swarm[1]
    good = swarm.certified[1]
    assert check_record(good, before, CHECKS).sealed == good.sealed
    borne = set()
    for name, record in values(good.sealed.record):
        if record == good.sealed.record:
            continue
        sealed = record.seal()
        word = RecordSignature(sealed.round, 0, sealed.hash)
        signatures = tuple(Signer(one.identity, RUN_ID, 1).sign(word) for one in swarm.members.values())
        try:
            check_record(CertifiedRecord(sealed.content, 0, signatures), before, CHECKS)
            if not objections(sealed, before, Own(own.peer_id, None, {}, own.incarnation), swarm.layout):
                borne.add(name)
        except PeerError:
            continue
    assert borne <= KNOWN_TO_NOBODY_ELSE, borne


KNOWN_TO_NOBODY_ELSE = {
    "held_out_loss",  # averages of what each has measured
    "train_loss",
    "opened_at",
    "deadline_at",
}


# ---- at the server, and in its answers ----


async def test_no_number_in_a_request_is_a_fault_of_ours(
    tmp_path: Path, manifest: Manifest, organizer: Identity
) -> None:
    async with run_nodes(tmp_path, manifest, organizer, 2) as run:
        target, caller = run.nodes
        blob = target.blobs.put(bytes(3_000_000)).name
        requests = {
            "Describe": peer_pb2.DescribeRequest(),
            "Stand": peer_pb2.StandingRequest(),
            "Records": peer_pb2.RecordsRequest(),
            "ListSnapshots": peer_pb2.SnapshotsRequest(),
            "Have": peer_pb2.HaveRequest(name=blob),
            "Fetch": peer_pb2.FetchRequest(name=blob),
            "DialBack": peer_pb2.DialBackRequest(grpc_addresses=[":99999", ":0", ":-1", "127.0.0.1:4294967295"]),
        }
        rules = Change(quorum=3, finish_after_round=9).of(target.rules, 1.0)
        amendment = sign_amendment(rules, None, organizer, target.run_id, 1.0)
        requests["Amend"] = peer_pb2.AmendRequest(amendment=convert.to_message(amendment))
        service = peer_pb2.DESCRIPTOR.services_by_name["Peer"]
        assert {method.name for method in service.methods} == {*requests, "Attend"}
        link = await caller.connections.to(target.peer_id)
        for method in service.methods:
            if method.name == "Attend":
                continue
            codes = set()
            for request in [requests[method.name], *(one for _, one in variants(requests[method.name]))]:
                call = getattr(link.stub, method.name)(request, metadata=link.metadata(), timeout=20)
                try:
                    if method.server_streaming:
                        async for _ in call:
                            pass
                    else:
                        await call
                except grpc.aio.AioRpcError:
                    pass
                codes.add(await call.code())
            is_refused = method.name in ("Fetch", "DialBack")
            assert codes <= {grpc.StatusCode.OK, *([grpc.StatusCode.INVALID_ARGUMENT] if is_refused else [])}
            assert is_refused == (grpc.StatusCode.INVALID_ARGUMENT in codes)


async def test_no_number_in_an_answer_ends_who_asked(tmp_path: Path, manifest: Manifest, organizer: Identity) -> None:
    async with run_nodes(tmp_path, manifest, organizer, 2) as run:
        liar, node = run.nodes
        work: list[Any] = []
        follower = Follower(node, work.append)
        port = run.entry(liar).grpc_addresses[0].rpartition(":")[2]
        address = parse_address(f"/ip4/127.0.0.1/tcp/{port}/p2p/{liar.peer_id}")
        liar.description = lambda: dataclasses.replace(  # type: ignore[method-assign]
            Node.description(liar), entry=liar.signer.sign(run.entry(liar))
        )
        store, genesis = SnapshotStore(node), SnapshotStore(node).genesis
        for _name, standing in values(Standing(0, node.head_hash, 0, 1, True)):
            liar.standing = lambda standing=standing: standing  # type: ignore[misc]
            await follower._learn_from(liar.peer_id)
        for one in work:
            with contextlib.suppress(PeerError):
                await one
        for _name, snapshot in values(genesis):
            liar.list_snapshots = lambda snapshot=snapshot: [snapshot]  # type: ignore[misc]
            assert all(not store.is_vouched_for(one) or one == genesis for one in await store.offered_by_others())
        for _name, described in values(liar.description()):
            liar.description = lambda described=described: described  # type: ignore[method-assign,misc]
            with contextlib.suppress(UserError):
                node.take_time((await describe(address)).clock.time())
        assert node.head_round == 0
