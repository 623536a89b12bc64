"""Hostile callers of a real server: each is refused by name, costs no memory and no descriptor for long, and an honest
one is served meanwhile."""

import asyncio
import contextlib
import dataclasses
import gc
import gzip
import logging
import math
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from exchange_nodes import eventually
from raw_calls import RawCaller, announced
from rounds_swarm import changed
from run_nodes import RunNodes, run_nodes

from spes_peer import coordinating
from spes_peer.coordinating import Coordinating
from spes_peer.daemon.status import LogRing
from spes_peer.errors import BadMessage, BadSignature, PeerError
from spes_peer.exchange import limits, server
from spes_peer.exchange.limits import MAX_CALLS_OF_STRANGERS, MAX_CALLS_PER_CALLER, Busy, max_connections
from spes_peer.exchange.link import Link
from spes_peer.exchange.tokens import TOKEN_KEY, make_token
from spes_peer.exchange.traffic import MAX_PEERS, OTHERS, Traffic
from spes_peer.following import attendance
from spes_peer.following.attendance import Attendance
from spes_peer.following.records import fetch_from
from spes_peer.identity import Identity, PeerId
from spes_peer.rounds.messages import (
    AdmissionRequest,
    Beat,
    Contribution,
    Holding,
    Refusal,
    UpdateReport,
    Vote,
)
from spes_peer.run.manifest import PROTOCOL_VERSION, Manifest
from spes_peer.run.offers import Offer
from spes_peer.run.records import RecordSignature
from spes_peer.run.signed import ReplayGuard, Signed, Signer, pack
from spes_peer.wire import convert, signed_pb2
from spes_peer.wire.peer_pb2 import DESCRIPTOR, HaveRequest, RecordsRequest, StandingRequest

FLAT_BYTES = 24 << 20
"""What an allocator keeps, and what caches with a bound hold; far below what any of the attacks would take."""
ROUND = 1
METHODS = [one.name for one in DESCRIPTOR.services_by_name["Peer"].methods if one.name != "Describe"]
"""All that read what their caller sends."""


class Scene:
    """A bootstrap node that coordinates round 1 of members 1 and 2, an honest node 1, and an attacker."""

    def __init__(self, run: RunNodes) -> None:
        self.run = run
        self.target, self.honest = run.nodes
        record = run.opened(self.target.chain.record(0).sealed, (1, 2), self.target.layout)
        certified = run.signed(record, (0, 1, 2))
        for node in run.nodes:
            node.take_record(certified)
        self.coordinating = Coordinating(self.target)
        self.member = Signer(run.identities[2], self.target.run_id, 7)
        """A key on the roster, in bad hands."""
        self.stranger = Signer(Identity.from_seed(b"\x20" * 32), self.target.run_id, 7)

    @property
    def port(self) -> int:
        (address,) = self.run.entry(self.target).grpc_addresses
        return int(address.rpartition(":")[2])

    def token(self, signer: Signer | None = None, callee: PeerId | None = None, at: float | None = None) -> bytes:
        return make_token(signer or self.stranger, callee or self.target.peer_id, time.time() if at is None else at)

    async def link(self) -> Link:
        return await self.honest.connections.to(self.target.peer_id)

    async def serves_the_honest(self) -> None:
        link = await self.link()
        standing = await link.call(link.stub.Stand, StandingRequest(), 10.0)
        assert standing.head_round == ROUND

    async def refusal(self, token: bytes | None, request: Any = None) -> tuple[grpc.StatusCode, str]:
        """What the server answers to a call with this token."""
        link = await self.link()
        metadata = () if token is None else ((TOKEN_KEY, token),)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await link.stub.Have(request or HaveRequest(name="0" * 64), metadata=metadata, timeout=10)
        await self.serves_the_honest()
        return refused.value.code(), refused.value.details() or ""

    async def said_to(self, *messages: Any, signer: Signer | None = None) -> list[Any]:
        """What the coordinator refuses of what this one says on a stream."""
        signer = signer or self.member
        link, refusals = await self.link(), []
        call = link.stub.Attend(metadata=((TOKEN_KEY, self.token(signer)),), timeout=30)
        for message in messages:
            signed = message if isinstance(message, Signed) else signer.sign(message)
            await call.write(convert.to_message(signed))
        await call.done_writing()
        async for answer in call:
            if answer.kind == "Refusal":
                refusals.append(convert.from_message(Signed, answer).open(Refusal, self.target.run_id).why)
        return refusals


@pytest.fixture
async def scene(tmp_path: Path, manifest: Manifest, organizer: Identity) -> AsyncIterator[Scene]:
    async with run_nodes(tmp_path, manifest, organizer, 2) as run:
        scene = Scene(run)
        await scene.serves_the_honest()
        yield scene


@contextlib.asynccontextmanager
async def flat(attack: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Once as a warm-up; then descriptors are after the block what they were before it, and so is memory. What it takes
    may also be the allocator's, which keeps some once: a leak comes again with each further attack."""
    await attack()
    gc.collect()
    process = psutil.Process()
    bytes_before, files_before = process.memory_info().rss, process.num_fds()
    yield
    for _ in range(3):
        async with asyncio.timeout(10):
            while process.num_fds() > files_before:  # noqa: ASYNC110 - connections end when they end
                await asyncio.sleep(0.05)
        gc.collect()
        grown, bytes_before = process.memory_info().rss - bytes_before, process.memory_info().rss
        if grown < FLAT_BYTES:
            return
        await attack()
    raise AssertionError(f"each attack takes memory, the last one {grown} bytes")


# ---- tokens ----


async def test_a_token_that_is_not_the_callers_for_this_node_now_is_refused_by_name(scene: Scene) -> None:
    honest = scene.token(scene.honest.signer)
    for token, words in [
        (None, "without a token"),
        (b"x" * 2_000, "without a token"),
        (honest[:-1], "cannot be used"),
        (scene.token(callee=scene.honest.peer_id), "for another node"),
        (scene.token(at=time.time() - 120), "has expired"),
        (scene.token(at=time.time() + 120), "lasts too long"),
        (scene.token(at=1e300), "lasts too long"),
        (scene.token(at=-1e300), "has expired"),
        (scene.token(Signer(scene.stranger.identity, b"q" * 32, 1)), "of another run"),
        (_as_if_of(scene.honest.peer_id, scene.token()), "a signature that is not"),
        (_as_if_of(PeerId("nobody"), scene.token()), "not an Ed25519 peer id"),
        (honest + b"\xfa\x38\x01x", "fields that this version does not know"),
    ]:
        code, said = await scene.refusal(token)
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert words in said


def _as_if_of(peer: PeerId, token: bytes) -> bytes:
    return convert.encode(dataclasses.replace(convert.decode(Signed, token), peer_id=peer))


async def test_a_node_of_another_run_is_refused_by_name_on_both_sides_and_shown_on_both(
    scene: Scene, tmp_path: Path, manifest: Manifest, organizer: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows where to call; its run has another model. It tries on at the pace of who waits for a coordinator."""
    monkeypatch.setattr(attendance, "_FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(attendance, "_LONGEST_RETRY_SECONDS", 0.02)
    ring, lost = LogRing(), list[str]()
    other = RunNodes(tmp_path / "other", changed(manifest, "model", top_k=1), organizer)
    other.identities = [Identity.from_seed(b"\x31" * 32)]
    stranger = await other.start(other.make(0))
    logging.getLogger("spes_peer").addHandler(ring)
    try:
        assert stranger.run_id != scene.target.run_id
        stranger.take_entry(scene.run.entry(scene.target))
        link = await stranger.connections.to(scene.target.peer_id)
        for method, request in ((link.stub.Stand, StandingRequest()), (link.stub.Have, HaveRequest(name="0" * 64))):
            with pytest.raises(BadSignature, match="of another run"):
                await link.call(method, request, 10.0)
        attending = Attendance(stranger.connections, stranger.signer, lambda: scene.target.peer_id, 5.0)
        attending.on_lost = lost.append
        running = asyncio.create_task(attending.run())
        await eventually(lambda: len(lost) >= 5, 20)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    finally:
        logging.getLogger("spes_peer").removeHandler(ring)
        await other.stop(stranger)
    assert all("of another run" in why for why in lost)
    assert attending.attended is None
    (shown,) = [line.text for line in ring.lines if "refused a call" in line.text]
    assert "peer=127.0.0.1" in shown
    assert "of another run" in shown
    await scene.serves_the_honest()


async def test_a_token_that_leaked_serves_for_a_minute_and_against_nobody_else(scene: Scene) -> None:
    """A token may be shown again: it ends soon, and its callee can do nothing with it elsewhere."""
    leaked = scene.token(scene.honest.signer)
    assert await (await scene.link()).stub.Have(HaveRequest(name="0" * 64), metadata=((TOKEN_KEY, leaked),), timeout=5)
    link = await scene.target.connections.to(scene.honest.peer_id)
    with pytest.raises(grpc.aio.AioRpcError, match="for another node"):
        await link.stub.Have(HaveRequest(name="0" * 64), metadata=((TOKEN_KEY, leaked),), timeout=5)


# ---- bytes that lie about themselves ----


async def test_a_request_with_unknown_fields_or_of_no_shape_is_refused_by_name(scene: Scene) -> None:
    for method in METHODS:
        for content, words in [(b"\xfa\x38\x01x", "does not know"), (b"\xff" * 30, "bytes that are not a")]:
            async with RawCaller(scene.port) as caller:
                call = await caller.begin(method, scene.token())
                await caller.send(call, announced(len(content), content), is_last=True)
                assert await caller.heard(words), method
    await scene.serves_the_honest()


async def test_a_message_that_grpc_would_unpack_is_refused_by_name(scene: Scene) -> None:
    """Nobody of ours sends any: what compresses well is compressed by us, with a bound on what it may become."""
    bomb = gzip.compress(bytes(8 << 20))
    for method in METHODS:
        async with RawCaller(scene.port) as caller:
            call = await caller.begin(method, scene.token(), encoding=b"gzip")
            await caller.send(call, b"\1" + announced(len(bomb), bomb)[1:], is_last=True)
            assert await caller.heard("is disabled"), method
    await scene.serves_the_honest()


async def test_four_gigabytes_announced_and_one_byte_sent_are_refused_and_take_no_memory(scene: Scene) -> None:
    async def attack() -> None:
        for method in METHODS:
            async with RawCaller(scene.port) as caller:
                call = await caller.begin(method, scene.token())
                await caller.send(call, announced(2**32 - 1, b"x"))
                assert await caller.heard("larger than max"), method

    async with flat(attack):
        for _ in range(2):
            await attack()
        await scene.serves_the_honest()


async def test_one_byte_announced_and_megabytes_sent_are_one_bad_request(scene: Scene) -> None:
    async def attack() -> None:
        async with RawCaller(scene.port) as caller:
            call = await caller.begin("Have", scene.token())
            await caller.send(call, announced(1, b"x" * 60_000))
            assert await caller.heard("bytes that are not")
            with contextlib.suppress(ConnectionError, ssl.SSLError):  # where it is hung up on
                for _ in range(200):
                    await caller.send(call, b"x" * 16_384)

    async with flat(attack):
        for _ in range(5):
            await attack()
        await scene.serves_the_honest()


async def test_a_request_of_one_byte_a_second_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_SECONDS", 0.4)

    async def attack() -> None:
        async with RawCaller(scene.port) as caller:
            unary = [method for method in METHODS if method != "Attend"]
            for method in unary:
                call = await caller.begin(method, scene.token())
                await caller.send(call, announced(100, b"\n"))
            assert await caller.heard("does not come in 0.4 s", times=len(unary))

    async with flat(attack):
        await attack()
        await scene.serves_the_honest()


async def test_one_without_a_token_is_refused_before_anything_of_its_request_is_read(scene: Scene) -> None:
    async with RawCaller(scene.port) as caller:
        await caller.begin("Have", None)
        assert await caller.heard("without a token")


async def test_who_attends_and_is_silent_loses_its_call(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "ATTENDED_SILENCE_SECONDS", 0.4)
    link = await scene.link()
    call = link.stub.Attend(metadata=((TOKEN_KEY, scene.token()),), timeout=10)
    with pytest.raises(grpc.aio.AioRpcError, match=r"said nothing for 0\.4 s"):
        async for _ in call:
            pass
    await scene.serves_the_honest()


# ---- too many of them ----


async def test_hundreds_of_connections_cost_no_memory_for_long_and_nobody_else_his_call(scene: Scene) -> None:
    async def attack(count: int = 300) -> None:
        async with contextlib.AsyncExitStack() as open_ones:
            for number in range(count):
                if number % 3:
                    raw = socket.create_connection(("127.0.0.1", scene.port))  # says nothing at all
                    open_ones.callback(raw.close)
                else:
                    await open_ones.enter_async_context(RawCaller(scene.port))
            await scene.serves_the_honest()

    async with flat(attack):
        await attack()


def test_a_server_takes_no_more_connections_than_half_of_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((64, 32), (1024, 512), (1 << 20, 4096), (limits.resource.RLIM_INFINITY, 4096)):
        monkeypatch.setattr(limits.resource, "getrlimit", lambda _what, soft=soft: (soft, soft))
        assert max_connections() == most


@pytest.fixture
def most_strangers(monkeypatch: pytest.MonkeyPatch) -> int:
    """Few enough for a test; ask for it before the scene."""
    monkeypatch.setattr(server, "MAX_CALLS_OF_STRANGERS", 100)
    return 100


async def test_one_caller_has_so_many_calls_and_strangers_together_leave_room_for_members(
    most_strangers: int, scene: Scene
) -> None:
    link = await scene.link()

    async def opened(token: bytes) -> Any:
        """A call that stays open: its request never comes."""
        call = link.stub.Attend(metadata=((TOKEN_KEY, token),))
        await call.write(convert.to_message(scene.stranger.sign(Beat(0, "", 0))))
        return call

    slots = server.Slots(3, 2)
    with slots.hold(PeerId("a")), slots.hold(PeerId("a")):
        with pytest.raises(Busy), slots.hold(PeerId("a")):
            pass
        with slots.hold(PeerId("b")), pytest.raises(Busy), slots.hold(PeerId("c")):
            pass
    assert MAX_CALLS_PER_CALLER < MAX_CALLS_OF_STRANGERS < limits.MAX_CALLS
    tokens = [
        make_token(Signer(Identity.generate(), scene.target.run_id, 1), scene.target.peer_id, time.time())
        for _ in range(most_strangers + 20)
    ]
    calls = [await opened(token) for token in tokens]
    codes = [asyncio.ensure_future(call.code()) for call in calls]
    async with asyncio.timeout(60):
        while sum(code.done() for code in codes) < 20:  # noqa: ASYNC110 - the calls signal nothing
            await asyncio.sleep(0.05)
    await scene.serves_the_honest()
    refused = [code.result() for code in codes if code.done()]
    assert set(refused) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert len(refused) == 20
    for call in calls:
        call.cancel()
    await asyncio.gather(*codes, return_exceptions=True)


async def test_who_attends_again_ends_its_older_call(scene: Scene) -> None:
    link = await scene.link()
    older = link.stub.Attend(metadata=((TOKEN_KEY, scene.token()),))
    await older.read()
    newer = link.stub.Attend(metadata=((TOKEN_KEY, scene.token()),))
    await newer.read()
    with pytest.raises(grpc.aio.AioRpcError, match="by a newer call"):
        await _read_to_its_end(older)
    newer.cancel()


async def _read_to_its_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_ten_thousand_messages_at_once_are_read_at_a_pace(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MESSAGE_BURST", 100.0)
    link, num_taken = await scene.link(), 0
    take = scene.coordinating._take

    def counted(caller: PeerId, signed: Signed) -> bool:
        nonlocal num_taken
        num_taken += 1
        return take(caller, signed)

    monkeypatch.setattr(scene.coordinating, "_take", counted)
    call = link.stub.Attend(metadata=((TOKEN_KEY, scene.token()),))
    beat = convert.to_message(scene.stranger.sign(Beat(1, "x", 0)))

    async def flood() -> None:
        for _ in range(10_000):
            await call.write(beat)

    flooding = asyncio.create_task(flood())
    began_at = time.monotonic()
    for _ in range(5):
        await scene.serves_the_honest()
        await asyncio.sleep(0.1)
    assert 1 < num_taken <= 101 + 500 * (time.monotonic() - began_at)
    flooding.cancel()
    call.cancel()
    await asyncio.gather(flooding, return_exceptions=True)


async def test_who_hangs_up_and_comes_back_is_read_no_faster(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two who attend again and again: one says too much, the other what is not its own. A third is heard meanwhile."""
    monkeypatch.setattr(limits, "MESSAGE_BURST", 100.0)
    monkeypatch.setattr(limits, "MESSAGES_PER_SECOND", 0.01)
    monkeypatch.setattr(coordinating, "BAD_MESSAGES", 25.0)
    caplog.set_level(logging.WARNING)
    link, taken = await scene.link(), Counter[PeerId]()
    take = scene.coordinating._take

    def counted(caller: PeerId, signed: Signed) -> bool:
        taken[caller] += 1
        return take(caller, signed)

    monkeypatch.setattr(scene.coordinating, "_take", counted)
    liar = Signer(Identity.from_seed(b"\x21" * 32), scene.target.run_id, 7)
    for _ in range(8):
        for signer, said in ((scene.stranger, scene.stranger.sign), (liar, scene.member.sign)):
            peer = signer.identity.peer_id
            due = taken[peer] + (20 if signer is scene.stranger and taken[peer] < 100 else 1)
            call = link.stub.Attend(metadata=((TOKEN_KEY, scene.token(signer)),))
            for _ in range(20):
                await call.write(convert.to_message(said(Beat(1, "x", 0))))
            await eventually(lambda peer=peer, due=due: taken[peer] >= due, 20)
            await asyncio.sleep(0.05)  # for what must not come
            call.cancel()
    assert 100 <= taken[scene.stranger.identity.peer_id] <= 110
    assert 8 <= taken[liar.identity.peer_id] <= 14
    assert not await scene.said_to(Beat(1, "training", 0))
    assert taken[scene.member.identity.peer_id] == 1
    await scene.serves_the_honest()


async def test_whose_requests_are_none_again_and_again_is_refused_by_name_for_a_while(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MESSAGES_PER_SECOND", 0.01)
    bad, num_borne = HaveRequest(name="../../etc/passwd"), int(limits.MESSAGE_BURST / limits.BAD_MESSAGES)
    refusals = [await scene.refusal(scene.token(), bad) for _ in range(num_borne + 1)]
    assert {code for code, _ in refusals} == {grpc.StatusCode.INVALID_ARGUMENT}
    async with RawCaller(scene.port) as caller:  # by whatever connection
        call = await caller.begin("Have", scene.token())
        await caller.send(call, announced(0, b""), is_last=True)
        assert await caller.heard("was no request")
    code, _said = await scene.refusal(scene.token())
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    member, link = scene.token(scene.member), await scene.link()
    assert await link.stub.Have(HaveRequest(name="0" * 64), metadata=((TOKEN_KEY, member),), timeout=10)


def test_a_penalty_ends_with_its_time_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now, one, other = 0.0, PeerId("one"), PeerId("other")
    paces = limits.Paces(lambda: now)
    assert [paces.pause_seconds(one, limits.BAD_MESSAGES) for _ in range(21)] == [0.0] * 20 + [0.5]
    assert (paces.debt_seconds(one), paces.debt_seconds(other)) == (0.5, 0.0)
    assert paces.pause_seconds(other, 1.0) == 0.0
    now = 0.6
    assert paces.debt_seconds(one) == 0.0
    monkeypatch.setattr(limits, "MAX_PACES", 3)
    for number in range(10):
        paces.pause_seconds(PeerId(f"p{number}"), 1.0)
    assert len(paces._paces) == 3


def test_a_large_message_counts_for_many_compressed_or_not() -> None:
    def counts(body: bytes) -> float:
        return limits.cost(Signed("Beat", b"", b"", PeerId("p"), 1, 1, body, b""))

    assert counts(b"") == 1.0
    assert counts(bytes(8 << 20)) == 257.0
    assert counts(pack(bytes(8 << 20))) == limits.COMPRESSED_MESSAGES


def test_a_compressed_message_counts_for_many() -> None:
    now = 0.0
    pace = limits.MessagePace(lambda: now)
    assert [pace.pause_seconds(limits.COMPRESSED_MESSAGES) for _ in range(20)] == [0.0] * 20
    assert pace.pause_seconds(limits.COMPRESSED_MESSAGES) == 0.5
    now = 10.0
    assert pace.pause_seconds(1.0) == 0.0


def test_keys_without_end_take_no_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spes_peer.run.signed._MOST_SIGNERS", 3)
    replays, traffic = ReplayGuard(), Traffic()
    signed = [Signed("Beat", b"", b"", PeerId(f"p{number}"), 1, 1, b"", b"") for number in range(5)]
    for one in signed:
        replays.accept(one)
    with pytest.raises(BadSignature):
        replays.accept(signed[-1])
    assert len(replays._newest) == 3
    for number in range(MAX_PEERS + 50):
        traffic.sent(PeerId(f"p{number}"), "grpc", 1)
    traffic.sent(PeerId("p7"), "grpc", 1)
    assert len(traffic.flows()) == MAX_PEERS + 1
    assert {flow.peer: flow.sent_bytes for flow in traffic.flows()}[OTHERS] == 50
    assert traffic.sent_bytes == MAX_PEERS + 51


# ---- what a good signature says ----


async def test_what_is_not_the_callers_own_sound_and_new_is_dropped_by_name(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    again = scene.member.sign(Beat(1, "again", 0))
    forged = dataclasses.replace(scene.member.sign(Beat(1, "", 0)), counter=10**6)
    elsewhere = Signer(scene.member.identity, b"q" * 32, 7).sign(Beat(1, "", 0))
    strange = scene.member.sign(Beat(1, "", 0))
    caplog.set_level(logging.WARNING)
    assert not await scene.said_to(
        again,
        again,
        forged,
        elsewhere,
        dataclasses.replace(strange, kind="Nothing" * 1000),
        scene.stranger.sign(Beat(1, "", 0)),
    )
    text = caplog.text
    for words in ("again, or out of order", "a signature that is not", "of another run", "NothingNothing"):
        assert words in text
    assert "from another peer" in text
    assert max(map(len, text.splitlines())) < 2_000
    await scene.serves_the_honest()


def _contribution(scene: Scene, subset: int, **changes: Any) -> Contribution:
    """What the member that the attacker plays could offer, changed."""
    layout, record = scene.target.layout, scene.target.chain.record(ROUND).sealed.record
    entry = record.entry_of(scene.member.identity.peer_id)
    assert entry is not None
    steps = layout.manifest.training.steps_per_round_at(record.step)
    offers = tuple(
        Offer(block.id, "ab" * 32, layout.offer_bytes(block), 1.0)  # type: ignore[arg-type]
        for block in layout.blocks_offered_by((subset,))
    )
    tokens = entry.sequences_in(steps) * layout.manifest.model.sequence_length
    made = Contribution(ROUND, offers, tokens, steps, "ab" * 32, 4.0, 5.0, 10, 1000.0)
    return dataclasses.replace(made, **changes)


async def test_absurd_contents_under_a_members_signature_are_refused_by_name(scene: Scene) -> None:
    own = 2 % 4
    good = _contribution(scene, own)
    big = 2**32 - 1
    huge_norm = tuple(dataclasses.replace(offer, norm=1e300) for offer in good.offers)
    below_zero = tuple(dataclasses.replace(offer, norm=-1.0) for offer in good.offers)
    for message, words in [
        (AdmissionRequest((big,), 1.0, PROTOCOL_VERSION), f"subset {big}"),
        (AdmissionRequest((0, 0), 1.0, PROTOCOL_VERSION), "a subset twice"),
        (AdmissionRequest((), 1.0, PROTOCOL_VERSION), "no subset"),
        (AdmissionRequest((0,), 1e300, PROTOCOL_VERSION), "tokens/s is none"),
        (AdmissionRequest((0,), -1.0, PROTOCOL_VERSION), "tokens/s is none"),
        (AdmissionRequest((0,), 1.0, big), f"protocol {big}"),
        (_contribution(scene, own, round=2**64 - 1), "round 1 is open"),
        (_contribution(scene, own, steps=big), f"{big} steps"),
        (_contribution(scene, own, tokens=2**64 - 1), "tokens, and its"),
        (_contribution(scene, own, train_loss=1e300), "a loss in it"),
        (_contribution(scene, own, held_out_tokens=2**64 - 1), "held-out tokens"),
        (_contribution(scene, own, offers=huge_norm), "the norm of its offer"),
        (_contribution(scene, own, offers=below_zero), "the norm of its offer"),
        (_contribution(scene, own, offers=good.offers * 2), "twice"),
        (_contribution(scene, own, offers=()), "it lacks"),
        (_contribution(scene, own, state_root="../" * 30), "is not a sha256"),
        (_contribution(scene, (own + 1) % 4), "not the sender's to train"),
        (UpdateReport(ROUND, good.offers[0].block, "ab" * 32, big, (), b""), "nothing is being averaged"),
        (Holding(2**64 - 1, ()), "round 1 is open"),
        (RecordSignature(big, 0, b"x"), "no record is proposed"),
        (Vote(ROUND, b"x", 2**64 - 1, b"", 0), "vote:"),
    ]:
        refusals = await scene.said_to(message)
        assert refusals, f"{message} was taken"
        assert words in refusals[0]
    await scene.serves_the_honest()


async def test_a_number_that_is_none_ends_as_a_bad_message(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """Protobuf carries NaN, and −1 as 2⁶⁴ − 1, which no unsigned index of 32 bits holds."""
    caplog.set_level(logging.WARNING)
    nan = AdmissionRequest((0,), math.nan, PROTOCOL_VERSION)
    norm = _contribution(scene, 2)
    norms = tuple(dataclasses.replace(offer, norm=math.inf) for offer in norm.offers)
    assert not await scene.said_to(nan, dataclasses.replace(norm, offers=norms))
    assert caplog.text.count("is not finite") == 2
    minus_one = signed_pb2.Claim.FromString(b"\x0a\x0a" + b"\xff" * 9 + b"\x01")
    assert list(minus_one.subsets) == [2**32 - 1]


# ---- records ----


async def test_records_with_a_forged_or_stale_certificate_are_refused_and_the_others_asked(scene: Scene) -> None:
    run, head = scene.run, scene.honest.chain.record(ROUND)
    following = run.opened(head.sealed, (1, 2), scene.honest.layout)
    good = run.signed(following, (1, 2))
    forged = dataclasses.replace(good.signatures[0], signature=bytes(64))
    other = run.signed(dataclasses.replace(following, tokens=5), (1, 2))
    strangers = Signer(scene.stranger.identity, scene.target.run_id, 1).sign(
        RecordSignature(good.sealed.round, 0, good.sealed.hash)
    )
    for certified, words in [
        (dataclasses.replace(good, signatures=(forged, good.signatures[1])), "a signature that is not"),
        (dataclasses.replace(good, signatures=head.signatures[1:]), "signed another record"),
        (dataclasses.replace(good, signatures=other.signatures), "signed another record"),
        (dataclasses.replace(good, term=9), "signed another record"),
        (dataclasses.replace(good, signatures=(strangers,)), "has no vote"),
        (dataclasses.replace(good, signatures=good.signatures * 2), "more signatures than|two signatures"),
        (dataclasses.replace(good, signatures=()), "has 0 signatures|needs"),
        (dataclasses.replace(good, record=good.record + b"\xfa\x38\x01x"), "does not know"),
        (run.signed(dataclasses.replace(following, previous_hash=b"x" * 32), (1, 2)), "follows another record"),
        (run.signed(dataclasses.replace(following, run_id=b"q" * 32), (1, 2)), "of another run"),
    ]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scene.target, "records_from", lambda first, one=certified: [one] if first == 2 else [head])
            with pytest.raises((BadSignature, BadMessage), match=words):
                await fetch_from(scene.honest, scene.target.peer_id)
    assert scene.honest.head_round == ROUND
    scene.target.take_record(good)
    await fetch_from(scene.honest, scene.target.peer_id)
    assert scene.honest.head_round == ROUND + 1


async def test_a_stranger_is_not_asked_where_a_node_is_reached(
    tmp_path: Path, manifest: Manifest, organizer: Identity
) -> None:
    async with run_nodes(tmp_path, manifest, organizer, 4) as run:
        bootstrap, asker, member, stranger = run.nodes
        assert asker._witnesses().keys() == {bootstrap.peer_id}  # nobody else is named by record 0
        record = run.opened(asker.chain.record(0).sealed, (1, 2), asker.layout)
        asker.take_record(run.signed(record, (0, 1, 2)))
        assert stranger.peer_id in asker.entries
        assert asker._witnesses().keys() == {bootstrap.peer_id, member.peer_id}


async def test_a_source_that_sends_records_without_end_is_left(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    head = scene.honest.chain.record(ROUND)
    monkeypatch.setattr(scene.target, "records_from", lambda _first: [head] * 5000)
    link = await scene.link()
    with pytest.raises(PeerError):
        await fetch_from(scene.honest, scene.target.peer_id)
    count = 0
    async for _ in link.stream(link.stub.Records, RecordsRequest(from_round=0), 5.0):
        count += 1
    assert count == limits.MAX_RECORDS_PER_CALL
