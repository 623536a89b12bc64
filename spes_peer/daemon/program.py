"""A volunteer's daemon: composes all parts, keeps this peer known in the DHT, and obeys its owner.

    starting → joining → syncing → waiting → training → contributing → closing → applying → training …

What happens in a round is `member`'s; this is the one place that knows all parts. A person's mistake ends it before
anything is started; a fault of one of our own processes is answered by starting it again.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spes_peer.collector import Collector, refuse_if_no_room
from spes_peer.control import ControlServer
from spes_peer.daemon.data_ahead import DataAhead, wanted_shards
from spes_peer.daemon.elsewhere import refuse_if_online, until_online_elsewhere
from spes_peer.daemon.joining import Claiming
from spes_peer.daemon.member import Member
from spes_peer.daemon.organizers_word import proof_for, until_finished, until_unwanted
from spes_peer.daemon.phases import PhaseKeeper
from spes_peer.daemon.recorder import AS_ASKED, BY_SIGNAL, Recorder
from spes_peer.daemon.replica import Replica
from spes_peer.daemon.resting import Resting, Senses
from spes_peer.daemon.status import LogRing, add_machine, add_member
from spes_peer.daemon.trainer_host import TrainerHost, TrainerSettings
from spes_peer.errors import BadConfiguration, BlobMissing, ChildFailed, DiskTrouble, PeerError, SpesError, first_in
from spes_peer.exchange.addresses import Endpoint, NodeAddress, parse_address
from spes_peer.exchange.introduction import Introduction
from spes_peer.exchange.known_nodes import KnownNodes, addresses_of
from spes_peer.exchange.newcomer import newest_of, refuse_if_over
from spes_peer.exchange.relay_limits import RelayLimits
from spes_peer.folder import CACHE, MANIFEST_FILE, StateFolder
from spes_peer.following.arrival import Arrival, Unanswered
from spes_peer.following.records import first_record
from spes_peer.guest.allowance import TODAY_FILE, Today
from spes_peer.guest.rules import GuestRules, in_words
from spes_peer.logs import keep_in
from spes_peer.metrics import Address as MetricsAddress
from spes_peer.metrics import metrics_of
from spes_peer.metrics import served as metrics_served
from spes_peer.node import Node, NodeSettings, usable_name
from spes_peer.organize import read_manifest
from spes_peer.ports import (
    address_towards,
    choose_ports,
    is_loopback,
    is_on_the_internet,
    is_wildcard,
    wildcard_for,
)
from spes_peer.process import on_signals, use_all_descriptors
from spes_peer.run.invitations import Invitation, InvitationProof
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.peers import Head, PeerEntry, Role
from spes_peer.wire.control_pb2 import Phase, Progress, Status

logger = logging.getLogger(__name__)

_GOODBYE_SECONDS = 0.3  # for a departure to reach the coordinator before the stream is closed
_HAND_OVER_SECONDS = 2.0  # at most, for those who are just fetching what this peer alone may have
_LOOK_SECONDS = 0.25
_SHOW_SECONDS = 0.5
_BUSY_BYTES = 64 << 10  # in that time; less is talk
_FIRST_LOOK_SECONDS = 5.0  # for somebody of the run, before a peer goes on from its own folder
_SOMEWHERE = "192.0.2.1"  # any address outside: only the route to it is looked up, nothing is sent there
_SEARCH_SECONDS = 2.0  # between looks into the DHT while somebody in the roster is unknown


@dataclass(frozen=True)
class JoinSettings:
    """What a volunteer may choose for this machine."""

    bootstraps: tuple[str, ...]
    """Addresses of nodes of the run, any live one; none for a folder that has a run."""
    data_dir: Path
    name: str = ""
    host: str = ""
    port: int = 0
    inbound: bool = True
    announce: tuple[Endpoint, ...] = ()
    """Addresses at which others reach this machine; none to find them out."""
    relay: RelayLimits | None = None
    """What is relayed for peers that nobody can dial, if anything."""
    maps_ports: bool = True
    """Whether the router is asked to open ports, where that can help."""
    max_upload: int = 0
    """Bytes a second, like `max_download`; 0 sets no limit."""
    max_download: int = 0
    max_disk: int = 0
    """Bytes that the state folder takes at most; 0 sets no limit."""
    metrics: MetricsAddress | None = None
    """Where Prometheus may read."""
    device: str = ""
    num_threads: int = 0
    max_subsets: int = 0
    memory_bytes: int = 0
    """Of the device, at most; 0 leaves that to `memory_part`."""
    memory_part: float = 0.0
    """Of all the device has, at most; 0 takes what is free."""
    resident: str = ""
    checkpointing: str = "auto"
    optimizer_bits: int = 32
    invitation: Invitation | None = None
    """With which an organizer lets this peer in, where the run asks for one."""
    log_format: str = "text"
    """`text` or `json`."""
    guest: GuestRules = field(default_factory=GuestRules)
    """When it rests by itself."""
    has_low_priority: bool = True
    """Whether training lets other programs of this machine go first."""


class _Ended(Exception):
    """The daemon ends as asked."""


class Daemon:
    """One peer of a run; `run` lasts for its whole life. Implements `control.Controlled`."""

    def __init__(self, settings: JoinSettings) -> None:
        self.settings = settings
        self._recorder = Recorder(self.facts)
        self.board = self._recorder.board
        self._started_at = time.time()
        self._phases = PhaseKeeper(self.board.touch)
        self._log = LogRing()
        self._ending = asyncio.Event()
        self._reasons_changed = asyncio.Event()
        self._member: Member | None = None
        self._collector: Collector | None = None
        self._proof: InvitationProof | None = None
        self._num_records = 0
        """Of the run, as whoever introduced us had it; 0 while nobody has."""
        self._tasks: asyncio.TaskGroup | None = None
        self._main: asyncio.Task[Any] | None = None
        self._control: ControlServer | None = None

    # ---- life ----

    async def run(self) -> int:
        """Join and take part until asked to leave; 0 then. `UserError` when it cannot even start."""
        named = [parse_address(text) for text in self.settings.bootstraps]
        self._folder = StateFolder(self.settings.data_dir)
        logging.getLogger("spes_peer").addHandler(self._log)
        with self._folder.locked():
            log_file = keep_in(self._folder.daemon_log, self.settings.log_format)
            self._main = asyncio.current_task()
            on_signals(lambda: self._stop(BY_SIGNAL))
            use_all_descriptors()
            self._resting = Resting(self._folder.path, self.settings.guest)
            self._resting.on_change = self._rest_or_go_on
            async with self._recorder.running(self._folder.events, log_file):
                try:
                    async with contextlib.AsyncExitStack() as stack:
                        if self.settings.metrics is not None:
                            figures = metrics_served(self.settings.metrics, lambda: metrics_of(self.board.look()))
                            stack.enter_context(figures)
                        await self._live_or_fail(named, stack)
                except asyncio.CancelledError:
                    if not self._ending.is_set():
                        raise
                    logger.info("ended while starting")
        return 0

    async def _live_or_fail(self, named: Sequence[NodeAddress], stack: contextlib.AsyncExitStack) -> None:
        """Watchers, who are told last, see why it failed."""
        try:
            await self._arrive_and_live(named, stack)
        except Exception as error:
            self._phases.message = Phase(name="failed", since_at=time.time(), why=str(error))
            raise

    async def _arrive_and_live(self, named: Sequence[NodeAddress], stack: contextlib.AsyncExitStack) -> None:
        """A folder without a run waits for somebody who introduces it; one with a run goes on without."""
        held = self._held_manifest()
        self._folder.refuse_a_lost_key()
        if held is None and not named:
            raise BadConfiguration(
                f"no run is known yet in {self._folder.path}; name one of its nodes: spes-peer join --bootstrap ADDRESS"
            )
        known = KnownNodes(self._folder.known_nodes, held.run_id) if held is not None else None
        if known is not None and not (named or known.entries or self._folder.snapshots.exists()):
            raise BadConfiguration(
                f"nothing of the run is in {self._folder.path} yet, and none of its nodes is known; name one:"
                " spes-peer join --bootstrap ADDRESS"
            )
        arrival = Arrival(
            named,
            known=lambda: known.addresses if known is not None else (),
            accept=lambda introduction: self._folder.bind(introduction.signed_manifest) if known is not None else None,
            say=lambda why, until_at: self._phases.say("joining", why, until_at=until_at),
        )
        introduction: Introduction | None = None
        if held is None:
            introduction = await arrival.insist(on_waiting=lambda: self._serve_control(stack))
            refuse_if_over(await newest_of(introduction))
            self._folder.bind(introduction.signed_manifest)
        else:
            introduction = await self._introduced_soon(arrival)
        signed = introduction.signed_manifest if introduction is not None else held
        assert signed is not None
        known = known or KnownNodes(self._folder.known_nodes, signed.run_id)
        if introduction is not None:
            known.note([introduction.entry])
        refuse_if_no_room(self._folder.path, Layout(signed.open()))
        await self._serve_control(stack)
        await self._live(signed, introduction, arrival, known, stack)

    def _held_manifest(self) -> SignedManifest | None:
        """Of the run that the folder belongs to; None for a new one."""
        return read_manifest(self._folder.path) if (self._folder.path / MANIFEST_FILE).exists() else None

    async def _introduced_soon(self, arrival: Arrival) -> Introduction | None:
        """By whoever answers in a few seconds: what is needed to go on is in the folder."""
        self._phases.say("joining", "asking the nodes of the run")
        try:
            return await arrival.ask(_FIRST_LOOK_SECONDS)
        except Unanswered as error:
            logger.warning("nobody of the run is here, going on from our own folder reason=%s", error)
            return None

    async def _serve_control(self, stack: contextlib.AsyncExitStack) -> None:
        if self._control is None:
            self._control = await ControlServer.start(self._folder.control_socket, self)
            stack.push_async_callback(self._control.stop)

    async def _live(
        self,
        signed: SignedManifest,
        introduction: Introduction | None,
        arrival: Arrival,
        known: KnownNodes,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        peer_id = self._folder.identity().peer_id
        self._proof = proof_for(self._folder, self.settings.invitation, signed.run_id, peer_id)
        place = _place_among(introduction, known, arrival.addresses)
        host = self.settings.host or place.listening
        settings = NodeSettings(
            role=Role.VOLUNTEER,
            name=usable_name(self.settings.name),
            host=host,
            announce=self.settings.announce,
            ports=choose_ports(host, self.settings.port),
            inbound=self.settings.inbound,
            own_host=place.own if is_wildcard(host) else host,
            towards=place.towards if is_wildcard(host) else "",
            is_public=place.is_public,
            relay=self.settings.relay,
            maps_ports=self.settings.maps_ports,
            max_upload=self.settings.max_upload,
            max_download=self.settings.max_download,
        )
        node = Node(self._folder, signed, settings)
        if introduction is not None:
            node.take_time(introduction.clock.time())
        trainer = self._make_trainer(node)
        stack.push_async_callback(trainer.stop)
        await self._look_whether_to_rest(node, trainer)
        introducers = [introduction.entry] if introduction is not None else []
        await self._start(node, trainer, [*introducers, *known.bootstrap_nodes], stack)
        self._num_records = introduction.head_round + 1 if introduction is not None else 0
        await self._take_part(node, trainer, known, arrival.keep_in_touch(node, introduction is not None))

    async def _look_whether_to_rest(self, node: Node, trainer: TrainerHost) -> None:
        """Before a trainer takes its place on the device."""
        today = Today(self._folder.path / TODAY_FILE, lambda: (node.traffic.sent_bytes, node.traffic.received_bytes))
        self._resting.sense = Senses(self.settings.guest, trainer, today)
        await self._resting.look()
        if reasons := self._resting.reasons:
            await trainer.rest(in_words(reasons))

    def _make_trainer(self, node: Node) -> TrainerHost:
        return TrainerHost(
            TrainerSettings(
                manifest=node.signed_manifest.manifest,
                blob_folder=self._folder.path / "blobs",
                state_folder=self._folder.path / "trainer",
                log_path=self._folder.logs / "trainer.log",
                peer_id=node.peer_id,
                device=self.settings.device,
                num_threads=self.settings.num_threads,
                resident=self.settings.resident,
                checkpointing=self.settings.checkpointing,
                optimizer_bits=self.settings.optimizer_bits,
                memory_bytes=self.settings.memory_bytes,
                memory_part=self.settings.memory_part,
                max_subsets=self.settings.max_subsets,
                has_low_priority=self.settings.has_low_priority,
                cache_folder=self._folder.path / CACHE,
            )
        )

    async def _start(
        self, node: Node, trainer: TrainerHost, known: Sequence[PeerEntry], stack: contextlib.AsyncExitStack
    ) -> None:
        """Trainer, DHT node and libp2p node at once: each takes seconds to import its libraries."""
        self._phases.say("joining", "starting the trainer, the DHT node and the libp2p node")
        opening = asyncio.create_task(trainer.start())
        try:
            await stack.enter_async_context(node.running(known))
            await opening
            trainer.refuse_a_limit_below_every_plan(node.manifest)
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        node.max_subsets = trainer.max_subsets

    async def _take_part(
        self, node: Node, trainer: TrainerHost, known: KnownNodes, keeping_in_touch: Coroutine[Any, Any, None]
    ) -> None:
        assert node.directory is not None
        proof = self._proof
        claiming = Claiming(node.peer_id, node.layout, node.chain, node.directory, node.now)
        replica = Replica(node, trainer)
        node.list_snapshots = lambda: replica.snapshots
        self._collector = collector = Collector(
            node,
            replica.store,
            lambda record, ahead_bytes: wanted_shards(
                node.manifest, node.shard_index.here(), record, node.peer_id, ahead_bytes
            ),
            self.settings.max_disk,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for loop in (keeping_in_touch, node.upkeep()):  # which also tell what time it is
                    tasks.create_task(loop)
                for loop in (trainer.supervise(), self._resting.run(), self._rest_or_wake(trainer)):
                    tasks.create_task(loop)
                await self._unless_ending(refuse_if_online(node))
                tasks.create_task(self._show_what_moves(node))
                await self._unless_ending(self._first_record(node))
                node.max_subsets = trainer.max_subsets  # of another than at the start, if it rested meanwhile
                self._member = member = Member(
                    node, trainer, replica, claiming, self._phases, self._spawn, self._ending.set, self._resting.reasons
                )
                member.proof = proof
                for loop in (
                    until_unwanted(node, proof, lambda why: self._phases.say("waiting", why)),
                    until_finished(node, lambda: self._stop("the run has finished")),
                ):
                    tasks.create_task(loop)
                for loop in (member.live(), member.beat(), self._announce(member, known)):
                    tasks.create_task(loop)
                ahead = DataAhead(node, lambda: collector.ahead_bytes, lambda: bool(self._resting.reasons))
                for loop in (collector.run(), ahead.run()):
                    tasks.create_task(loop)
                tasks.create_task(until_online_elsewhere(node))
                await self._ending.wait()
                self._phases.say("leaving", "saying goodbye")
                member.say_goodbye()
                await _hand_over(node)
                raise _Ended
        except* _Ended:
            logger.info("left the run")
        except* SpesError as failures:
            raise first_in(failures) from None
        except* OSError as failures:
            raise SpesError(f"cannot go on: {first_in(failures)}; mend this and start again") from None

    async def _unless_ending(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, unless the daemon is told to end meanwhile: `_Ended` then."""
        doing, ending = asyncio.create_task(work), asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait((doing, ending), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise _Ended
            doing.result()
        finally:
            doing.cancel()
            ending.cancel()
            await asyncio.gather(doing, ending, return_exceptions=True)

    async def _first_record(self, node: Node) -> None:
        with self._phases.measuring(
            "fetching records", "records", lambda: node.chain.num_records, lambda: self._num_records
        ):
            await first_record(node, lambda why: self._phases.say("syncing", why))

    async def _show_what_moves(self, node: Node) -> None:
        """Let watchers see bytes move and what takes long, for ever: nothing else happens meanwhile."""
        was_moving = False
        while True:
            await asyncio.sleep(_SHOW_SECONDS)
            is_moving = self._phases.progress is not None or bool(node.transfers.in_flight)
            if is_moving or was_moving:
                self.board.touch()
            was_moving = is_moving

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run beside everything else; a fault of a peer or of a child in it is logged and ends it alone."""

        async def guarded() -> None:
            try:
                await work
            except (PeerError, ChildFailed, BlobMissing, DiskTrouble) as error:
                logger.warning("gave up reason=%s", error)

        assert self._tasks is not None
        self._tasks.create_task(guarded())

    def _stop(self, why: str) -> None:
        self._recorder.say_why(why)
        self._ending.set()
        if self._tasks is None and self._main is not None:  # still starting: there is nobody to say goodbye to
            self._main.cancel()

    # ---- the DHT entry ----

    async def _announce(self, member: Member, known: KnownNodes) -> None:
        """Keep our entry and head, and what we know of the others, fresh; at once when our addresses change."""
        node = member.node
        assert node.directory is not None
        while True:
            node.announce_soon.clear()
            try:
                await node.announce()
                if node.chain.head is not None:
                    await node.directory.publish_head(Head(node.head_round, node.head_hash))
            except SpesError as error:
                logger.warning("the DHT does not answer reason=%s", error)
            known.note(node.entries.values())
            await node.use_relays()
            await member.claiming.read()
            await member.reconsider()
            self.board.touch()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._announce_seconds(node)):
                    await node.announce_soon.wait()

    def _announce_seconds(self, node: Node) -> float:
        beat_seconds = node.manifest.timing.dht_beat_seconds
        roster = node.chain.head.record.roster if node.chain.head else ()
        known = {node.peer_id, *node.entries}
        is_complete = roster and all(entry.peer_id in known for entry in roster)
        return beat_seconds if is_complete else min(beat_seconds, _SEARCH_SECONDS)

    # ---- control ----

    async def pause(self) -> str:
        is_in_a_round = self._member is not None and self._member.is_in_a_round
        said = self._resting.pause()
        return "paused from the next round on" if said == "paused" and is_in_a_round else said

    async def resume(self) -> str:
        return self._resting.resume()

    def _rest_or_go_on(self) -> None:
        if self._member is not None:
            self._member.rest_for(self._resting.reasons)
        self._reasons_changed.set()
        self.board.touch()

    async def _rest_or_wake(self, trainer: TrainerHost) -> None:
        """Until there is a member, which does it from then on: the first record may be long in coming."""
        while self._member is None:
            self._reasons_changed.clear()
            if reasons := self._resting.reasons:
                await trainer.rest(in_words(reasons))
            else:
                trainer.wake()
            await self._reasons_changed.wait()

    async def leave(self, at_once: bool) -> str:
        member = self._member
        if member is not None and member.is_in_a_round and not at_once:
            self._recorder.say_why(AS_ASKED)
            seconds = member.leave()
            return f"leaving when the round ends, in {seconds:.0f} s at the latest (leave --at-once does not wait)"
        self._stop(AS_ASKED)
        return "leaving"

    @property
    def progress(self) -> Progress | None:
        """Of what takes long now, if anything does."""
        return self._phases.progress

    def facts(self) -> Status:
        """Everything that a watcher may want to know, as it is now."""
        status = Status(
            pid=os.getpid(),
            name=usable_name(self.settings.name),
            phase=self._phases.message,
            log=list(self._log.lines),
            is_paused=self._resting.is_by_owner,
            pause_why=in_words(self._resting.reasons),
            started_at=self._started_at,
            state_folder=str(self.settings.data_dir),
            held_out_loss_start=-1.0,
            reachability="nobody yet",
            disk_limit_bytes=self.settings.max_disk,
        )
        if self._member is not None:
            add_member(status, self._member)
        else:
            add_machine(status)
        if self._collector is not None:
            status.disk_used_bytes = self._collector.used_bytes
        if (progress := self._phases.progress) is not None:
            status.progress.CopyFrom(progress)
        return status


@dataclass(frozen=True)
class _Place:
    """Where this machine is."""

    own: str
    """Its address on the way to the others; a loopback one while no way leads there."""
    towards: str
    """An IP address of theirs, or any."""
    is_public: bool
    """Whether they are on the internet."""
    is_alone: bool
    """Whether all of them are on this machine."""

    @property
    def listening(self) -> str:
        """The address to listen on: all, because a machine's address changes, unless nobody else is to come in."""
        return self.own if self.is_alone else wildcard_for(self.towards)


def _place_among(introduction: Introduction | None, known: KnownNodes, addresses: Sequence[NodeAddress]) -> _Place:
    """Without an introduction no name is looked up: that may take long."""
    entries = [introduction.entry] if introduction is not None else list(known.entries)
    endpoints = [address.endpoint for address in addresses if address.endpoint.ip_version]
    if introduction is not None:
        endpoints = [introduction.endpoint]
    theirs = [endpoint.host for endpoint in endpoints]
    theirs += [address.host for entry in entries for address in addresses_of(entry)]
    towards = endpoints[0].host if endpoints else _SOMEWHERE
    return _Place(
        own=address_towards(towards, 9),
        towards=towards,
        is_public=any(is_on_the_internet(host) for host in theirs),
        is_alone=bool(theirs) and all(map(is_loopback, theirs)),
    )


async def _hand_over(node: Node) -> None:
    """Let the goodbye out, and serve on while somebody fetches from us: with everybody leaving at once, the updates of
    the newest record may be nowhere else yet."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _HAND_OVER_SECONDS
    await asyncio.sleep(_GOODBYE_SECONDS)
    while loop.time() < until:
        before = node.traffic.sent_bytes
        await asyncio.sleep(_LOOK_SECONDS)
        if node.traffic.sent_bytes - before < _BUSY_BYTES:
            return
