"""The program's modules as a simulation runs them: in virtual time, and so cheaply that an hour takes a fraction of a
second.

A made-up signature is a keyed hash. The same bytes are decoded, and the same certificate and proposal checked, once for
all nodes: these are pure functions of frozen values, so a second call could only say the same again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from spes_peer import coordinating
from spes_peer.errors import BadSignature
from spes_peer.following import follower, records
from spes_peer.identity import PeerId
from spes_peer.rounds import member
from spes_peer.run import lineage, pending, rules, signed
from spes_peer.run.certificates import Checked, Checks, check_record
from spes_peer.run.leases import Leases
from spes_peer.run.records import CertifiedRecord, Record, SealedRecord
from spes_peer.run.signed import Signed
from spes_peer.wire import convert

from .coroutines import VirtualAsyncio
from .disk import DiskVoter, write_whole
from .streams import Attending

if TYPE_CHECKING:
    from .world import World

_OPENED_AGAIN = ("Vote", "RecordSignature", "Verdict", "Amendment", "Grant")  # kinds that travel inside other messages


@dataclass(frozen=True)
class MadeUpIdentity:
    """A readable peer id, and signatures that only its holder makes in a simulation."""

    peer_id: PeerId

    def sign(self, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self.peer_id.encode(), digest_size=64).digest()


def _verify(peer_id: str, message: bytes, signature: bytes) -> None:
    if signature != MadeUpIdentity(PeerId(peer_id)).sign(message):
        raise BadSignature(f"a signature that is not {peer_id}'s")


@dataclass
class QuickSigner:
    """Signs like `Signer`, but leaves out the bytes of what nobody opens again: the value goes along."""

    identity: MadeUpIdentity
    run_id: bytes
    incarnation: int
    _counter: int = 0

    def sign(self, message: Any) -> Signed:
        self._counter += 1
        kind, peer_id = type(message).__name__, self.identity.peer_id
        body, signature = b"", b""
        if kind in _OPENED_AGAIN:
            body = convert.encode(message)
            unsigned = Signed(kind, self.run_id, b"", peer_id, self.incarnation, self._counter, body, b"")
            signature = self.identity.sign(unsigned.signed_bytes())
        made = Signed(kind, self.run_id, b"", peer_id, self.incarnation, self._counter, body, signature)
        made.__dict__["_opened"] = message
        return made


class Memory:
    """Results of pure functions, kept with the values that they are about. Off, everything is done again."""

    def __init__(self) -> None:
        self.is_on = True
        self._sealed: dict[bytes, SealedRecord] = {}
        self._rules: dict[tuple[int, int, int], tuple[Any, Any, str | None]] = {}
        self._leases: dict[tuple[int, int], tuple[Leases, Record, Leases]] = {}
        self._open, self._from_bytes = Signed.open, SealedRecord.from_bytes
        self._leases_after = Leases.after

    def forget(self) -> None:
        """What has been computed so far: a long run would keep all of it."""
        for known in (self._sealed, self._rules, self._leases):
            known.clear()

    def open(self, message: Signed, cls: type[Any], run_id: bytes) -> Any:
        if not self.is_on:
            return self._open(message, cls, run_id)
        opened = message.__dict__.get("_opened")
        if type(opened) is not cls:
            opened = message.__dict__["_opened"] = self._open(message, cls, run_id)
        return opened

    def from_bytes(self, content: bytes) -> SealedRecord:
        if not self.is_on:
            return self._from_bytes(content)
        if content not in self._sealed:
            self._sealed[content] = self._from_bytes(content)
        return self._sealed[content]

    def check_record(self, certified: CertifiedRecord, previous: SealedRecord | None, checks: Checks) -> Checked:
        if not self.is_on:
            return check_record(certified, previous, checks)
        known: dict[bytes, Checked] = certified.__dict__.setdefault("_checked", {})
        key = previous.hash if previous else b""
        if key not in known:
            known[key] = check_record(certified, previous, checks)
        return known[key]

    def leases_after(self, leases: Leases, record: Record) -> Leases:
        if not self.is_on:
            return self._leases_after(leases, record)
        key = (id(leases), id(record))
        if key not in self._leases:
            self._leases[key] = (leases, record, self._leases_after(leases, record))
        return self._leases[key][2]

    def rule(self, number: int, rule: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        """A rule of which every member comes to the same answer."""

        def remembered(case: Any) -> str | None:
            if not self.is_on:
                return rule(case)
            key = (number, id(case.record), id(case.head))
            if key not in self._rules:
                self._rules[key] = (case.record, case.head, rule(case))  # kept, so that no other gets their ids
            return self._rules[key][2]

        return remembered


_OWN_RULES = ("_own_work", "_root")


class _VirtualRandom:
    """Takes the place of `random`."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def shuffle(self, items: list[Any]) -> None:
        self._stage.world.dice.shuffle(items)


class _AsTheyAre:
    """Takes the place of `wire.convert` where values come from a call: they have not become messages."""

    @staticmethod
    def from_message(_cls: type, message: Any) -> Any:
        return message


class Stage:
    """One simulation at a time plays on it."""

    def __init__(self) -> None:
        self.memory = Memory()
        self._world: World | None = None

    @property
    def world(self) -> World:
        assert self._world is not None
        return self._world

    def show(self, world: World) -> None:
        self._world = world


@contextlib.contextmanager
def on_stage(signs_really: bool = False) -> Iterator[Stage]:
    """While this lasts, the program's rim runs in virtual time, and what is known is not computed again. Made-up
    signatures are good unless this `signs_really`."""
    stage = Stage()
    memory = stage.memory
    judged_by = tuple(
        rule if rule.__name__ in _OWN_RULES else memory.rule(number, rule) for number, rule in enumerate(member._RULES)
    )
    loop = VirtualAsyncio(lambda: stage.world.events)
    logger = logging.getLogger("spes_peer")
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            *([] if signs_really else [(signed, "verify", _verify)]),
            (Signed, "open", lambda message, cls, run_id: memory.open(message, cls, run_id)),
            (SealedRecord, "from_bytes", staticmethod(memory.from_bytes)),
            (lineage, "check_record", memory.check_record),
            (Leases, "after", lambda leases, record: memory.leases_after(leases, record)),
            (member, "_RULES", judged_by),
            (follower, "Attendance", lambda connections, *rest: Attending(connections.node, *rest)),
            (follower, "Voter", DiskVoter),
            (follower, "asyncio", loop),
            (follower, "sleep_awake", loop.sleep_awake),
            (follower, "random", _VirtualRandom(stage)),
            (follower, "convert", _AsTheyAre()),
            (records, "convert", _AsTheyAre()),
            (coordinating, "asyncio", loop),
            (coordinating, "write_whole", write_whole),
            (pending, "write_whole", write_whole),
            (rules, "_is_peer_id", lambda _name: True),
            (logger, "level", logging.CRITICAL),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # of a process killed as it starts them
        logger.manager._clear_cache()  # type: ignore[attr-defined]
        stack.callback(logger.manager._clear_cache)  # type: ignore[attr-defined]
        yield stage
