"""Nodes of the run that this one has met, kept in its state folder: through any of them it finds the run again when no
bootstrap node is up.

Hints, not facts: a node at one of these addresses must prove that it has the peer id (introduction.py). What cannot be
used in the file is left out.
"""

import base64
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from spes_peer.errors import BadConfiguration, BadMessage, BadSignature
from spes_peer.exchange.addresses import NodeAddress, parse_endpoint
from spes_peer.files import write_whole
from spes_peer.identity import public_key_of
from spes_peer.run.peers import PeerEntry, Role
from spes_peer.wire import convert

logger = logging.getLogger(__name__)

MAX_NODES = 32
_VERSION = 1
_MAX_FILE_BYTES = 1 << 20
_ADDRESSES_PER_NODE = 2
_WRITE_SECONDS = 5.0  # at most one write in this time


class KnownNodes:
    """The nodes met last: those that are there first, bootstrap nodes before volunteers."""

    def __init__(self, path: Path, run_id: bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._run_id = run_id
        self._clock = clock
        self._written_at = -_WRITE_SECONDS
        self.entries = self._read()
        self._written = self._essence()

    @property
    def addresses(self) -> tuple[NodeAddress, ...]:
        """Where to ask for an introduction."""
        return tuple(address for entry in self.entries for address in addresses_of(entry))

    @property
    def bootstrap_nodes(self) -> tuple[PeerEntry, ...]:
        """As they were when they were met: to relay and to join the DHT through, should they be there still."""
        return tuple(entry for entry in self.entries if entry.role == Role.BOOTSTRAP)

    def note(self, present: Iterable[PeerEntry]) -> None:
        """These are there now. Written when that changes anything, but not too often: call it again."""
        there = {entry.peer_id: entry for entry in present if addresses_of(entry)}
        merged = {entry.peer_id: entry for entry in self.entries} | there
        ranked = sorted(merged.values(), key=lambda entry: (entry.peer_id not in there, entry.role != Role.BOOTSTRAP))
        self.entries = tuple(ranked[:MAX_NODES])
        if self._essence() != self._written and self._clock() - self._written_at >= _WRITE_SECONDS:
            self._write()

    def _essence(self) -> list[tuple[object, ...]]:
        return [(entry.peer_id, entry.role, addresses_of(entry), entry.certificate) for entry in self.entries]

    def _write(self) -> None:
        entries = [base64.b64encode(convert.encode(entry)).decode() for entry in self.entries]
        content = {"version": _VERSION, "run": self._run_id.hex(), "entries": entries}
        self._written_at = self._clock()
        try:
            write_whole(self._path, json.dumps(content).encode())
        except OSError as error:
            logger.warning("cannot write down whom we know path=%s reason=%s", self._path, error)
            return
        self._written = self._essence()

    def _read(self) -> tuple[PeerEntry, ...]:
        try:
            with self._path.open("rb") as file:
                content = json.loads(file.read(_MAX_FILE_BYTES))
            if content["version"] != _VERSION or content["run"] != self._run_id.hex():
                raise ValueError("of another version, or of another run")
            entries = [_checked(text) for text in content["entries"][:MAX_NODES]]
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            logger.warning("starting without those met before path=%s reason=%s", self._path, error)
            return ()
        return tuple(entry for entry in entries if entry is not None)


def addresses_of(entry: PeerEntry) -> tuple[NodeAddress, ...]:
    """Where a node can be asked who it is; none for a node that cannot be dialled."""
    addresses = []
    for text in entry.grpc_addresses[:_ADDRESSES_PER_NODE]:
        with contextlib.suppress(BadConfiguration):
            endpoint = parse_endpoint(text)
            addresses.append(NodeAddress(endpoint.host, endpoint.port, entry.peer_id))
    return tuple(addresses)


def _checked(text: str) -> PeerEntry | None:
    try:
        entry = convert.decode(PeerEntry, base64.b64decode(text, validate=True))
        public_key_of(entry.peer_id)
    except (BadMessage, BadSignature, ValueError, TypeError) as error:
        logger.warning("left out one of those met before reason=%s", error)
        return None
    return entry if addresses_of(entry) else None
