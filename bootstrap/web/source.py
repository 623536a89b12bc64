"""What the bootstrap node knows of its run, gathered in one moment: the only part of the web page that touches it."""

import asyncio
from collections.abc import Callable, Sequence, Set

from bootstrap.web.history import History
from bootstrap.web.names import NameBook
from bootstrap.web.view import Facts
from spes_peer.errors import BlobMissing
from spes_peer.identity import PeerId
from spes_peer.node import Node
from spes_peer.rounds.messages import CoordinatorBeat
from spes_peer.run.chain import Switch
from spes_peer.run.peers import PeerState, Role
from spes_peer.run.records import Record, Snapshot
from spes_peer.run.rules import Rules, rules_of

NAMES_FILE = "web-names.json"


class Source:
    """Of one node; give `on_message` what a coordinator says."""

    def __init__(
        self, node: Node, addresses: Callable[[], Sequence[str]], present: Callable[[], Set[PeerId] | None]
    ) -> None:
        """`addresses` are those at which volunteers can join; `present` is who attends the node, if it coordinates."""
        self.node = node
        self._addresses = addresses
        self._present = present
        self._names = NameBook(node.folder.path / NAMES_FILE)
        self._history = History()
        self._first: Record | None = None
        self._first_state: Snapshot | None = None
        self._beat: CoordinatorBeat | None = None
        self._heard_at = 0.0
        node.on_chain.append(self._on_chain)

    def on_message(self, message: object) -> None:
        if isinstance(message, CoordinatorBeat):
            self._beat, self._heard_at = message, self.node.now()

    def _on_chain(self, switch: Switch | None) -> None:
        if switch is not None:
            self._history.drop_from(switch.first_round)

    def note_names(self) -> None:
        """Of who is on the roster now, or gave something: an entry alone anybody can have."""
        record, tallies = self.node.chain.head, self.node.chain.tallies.by_peer
        members = record.record.members if record else frozenset()
        self._names.note(
            (peer, entry.name)
            for peer, entry in self.node.entries.items()
            if entry.role == Role.VOLUNTEER and (peer in members or peer in tallies)
        )

    async def facts(self) -> Facts:
        """Reads the records that are new, and lets others run between them. `BlobMissing` without record 0, or where
        the disk has lost one."""
        while self._history.follow(self.node.chain):
            await _others()
        self.note_names()
        return self._facts()

    def _facts(self) -> Facts:
        node, chain = self.node, self.node.chain
        if chain.head is None:
            raise BlobMissing("record 0 is not here yet")
        snapshot = self.checkpoint()
        return Facts(
            manifest=node.manifest,
            run_id=node.run_id,
            head=chain.head.record,
            certified_round=chain.certified_round,
            rows=tuple(self._history.rows),
            rounds_trained=chain.rounds_trained(node.layout),
            last_trained=chain.last_trained(node.layout),
            tallies=chain.tallies.by_peer,
            labels=self._names.labels(),
            nodes=self._nodes(),
            states=self._states(),
            beat=self._fresh_beat(),
            present=self._present(),
            join_addresses=tuple(self._addresses()),
            checkpoint_round=snapshot.round,
            checkpoint_bytes=sum(block.size_bytes for block in snapshot.blocks),
            rules=rules_of(chain.head.record, Rules.of(node.manifest)),
        )

    def checkpoint(self) -> Snapshot:
        """The newest whole state that this node has."""
        if kept := self.node.list_snapshots():
            return max(kept, key=lambda one: one.round)
        if self._first_state is None:
            self._first_state = Snapshot(0, self._first_record().genesis)
        return self._first_state

    def _first_record(self) -> Record:
        """Record 0, which names every block and never changes: read once, whoever asks."""
        if self._first is None:
            self._first = self.node.chain.record(0).sealed.record
        return self._first

    def _fresh_beat(self) -> CoordinatorBeat | None:
        beat, timing = self._beat, self.node.manifest.timing
        is_fresh = self.node.now() - self._heard_at < timing.coordinator_timeout_seconds
        return beat if beat is not None and beat.round == self.node.head_round and is_fresh else None

    def _nodes(self) -> dict[PeerId, str]:
        """The bootstrap nodes that record 0 names; what they call themselves does not matter."""
        others = [peer for peer in self._first_record().candidates if peer != self.node.peer_id]
        numbered = {peer: f"bootstrap node {number}" for number, peer in enumerate(others, 2)}
        return {self.node.peer_id: "this bootstrap node", **numbered}

    def _states(self) -> dict[PeerId, PeerState]:
        ttl_seconds = self.node.manifest.timing.dht_ttl_seconds
        return {
            peer: entry.state
            for peer, entry in self.node.entries.items()
            if entry.role == Role.VOLUNTEER and self.node.unlisted_seconds(peer) <= ttl_seconds
        }


async def _others() -> None:
    """Let all else that is due run before the next record is read."""
    await asyncio.sleep(0)
