"""The rules of a run that its organizers may change while it goes on, and how a record says that they have.

An *amendment* is the whole new set of rules, signed by an organizer's key. Records carry the newest one, so whoever has
a record and the one before it can check a change by itself: the amendment is the same as before, or the next after it,
signed by a key that was an organizer's in the record before. All else of the manifest is fixed.

*Quorum* here is how many members a round takes: with fewer it rests, which costs time and nothing else. That more than
half of a roster must sign a record is what keeps one chain one, and no organizer can change it.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from spes_peer.errors import BadMessage, BadSignature, PeerError
from spes_peer.identity import Identity, PeerId, public_key_of
from spes_peer.run.manifest import MOST_LISTED, MOST_ORGANIZERS, Manifest, Timing
from spes_peer.run.records import Record
from spes_peer.run.signed import Signed, Signer, unpack
from spes_peer.wire import convert

T = TypeVar("T")

MOST_QUORUM = 16_384  # far more than a run has peers
MAX_AMENDMENT_BYTES = 256 << 10  # as it travels; lists as long as they may be take 220,000 bytes before compression
_LEAST_ROUND_SECONDS = 1.0


@dataclass(frozen=True)
class Rules:
    """What holds from a record on; see proto/record.proto for each field."""

    organizers: tuple[PeerId, ...]
    round_seconds: float
    paused_at: float = 0.0
    finish_after_round: int = 0
    quorum: int = 0
    banned: tuple[PeerId, ...] = ()
    listed: tuple[PeerId, ...] = ()
    revoked: tuple[PeerId, ...] = ()

    @classmethod
    def of(cls, manifest: Manifest) -> "Rules":
        """Those with which the run began."""
        return cls(
            organizers=_ordered(manifest.organizers),
            round_seconds=manifest.timing.round_seconds,
            listed=_ordered(manifest.admission.listed),
        )

    @property
    def is_paused(self) -> bool:
        return self.paused_at > 0

    def finishes(self, round: int) -> bool:
        """Whether the record that closes `round` is the last."""
        return 0 < self.finish_after_round <= round

    def rests(self, num_members: int) -> bool:
        """Whether nobody trains in a round of so many."""
        return self.is_paused or num_members < self.quorum


@dataclass(frozen=True)
class Amendment:
    """The rules from the record on that carries it."""

    number: int
    follows: bytes
    amended_at: float
    rules: Rules


def _ordered(peers: Sequence[str]) -> tuple[PeerId, ...]:
    return tuple(PeerId(peer) for peer in sorted(set(peers)))


@functools.lru_cache(maxsize=64)
def _decoded(body: bytes) -> Amendment:
    return convert.decode(Amendment, unpack(body))


def amendment_in(record: Record) -> Amendment | None:
    """What `record` carries, whose signature was checked with it."""
    return None if record.amendment is None else _decoded(record.amendment.body)


def number_of(amendment: Signed) -> int:
    """Of one that was found good."""
    return _decoded(amendment.body).number


def rules_in(amendment: Signed) -> Rules:
    """Of one that was found good."""
    return _decoded(amendment.body).rules


def rules_of(record: Record, first: Rules) -> Rules:
    """The rules that `record` goes by; `first` are the manifest's."""
    amendment = amendment_in(record)
    return first if amendment is None else amendment.rules


def hash_of(amendment: Signed | None) -> bytes:
    """By which the next names it; empty for none."""
    return b"" if amendment is None else hashlib.sha256(amendment.signed_bytes()).digest()


def sign_amendment(rules: Rules, previous: Signed | None, organizer: Identity, run_id: bytes, now: float) -> Signed:
    """The amendment behind `previous`, the one that the chain has; `now` in Unix seconds."""
    number = 1 if previous is None else _decoded(previous.body).number + 1
    # who signs twice signs two things: the second must not look like the first sent again
    signer = Signer(organizer, run_id, incarnation=max(0, int(now * 1000)))
    return signer.sign(Amendment(number, hash_of(previous), now, rules))


def open_amendment(amendment: Signed, record: Record, first: Rules, timing: Timing) -> Amendment:
    """What is in `amendment`, if a record behind `record` may carry it; else `BadSignature` or `BadMessage`.

    Cheap for what is no organizer's: then nothing is decoded and no signature verified."""
    rules, before = rules_of(record, first), amendment_in(record)
    if len(amendment.body) > MAX_AMENDMENT_BYTES:
        raise BadMessage(f"an amendment of {len(amendment.body)} bytes; {MAX_AMENDMENT_BYTES} are the most")
    if amendment.peer_id not in rules.organizers:
        raise BadSignature(f"{amendment.peer_id[:64]!r} is no organizer of this run")
    opened = amendment.open(Amendment, record.run_id)
    number = before.number if before else 0
    if opened.number <= number:
        raise BadMessage(f"amendment {opened.number} is over: the run has amendment {number}")
    if opened.number != number + 1:
        raise BadMessage(f"amendment {opened.number} does not follow amendment {number}, which the run has")
    if opened.follows != hash_of(record.amendment):
        raise BadMessage(f"amendment {opened.number} follows another amendment {number} than the run has")
    if fault := next(faults_in_rules(opened.rules, timing), None):
        raise BadMessage(f"amendment {opened.number}: {fault}")
    return opened


def faults_in_rules(rules: Rules, timing: Timing) -> Iterator[str]:
    """Why these can be nobody's rules."""
    for name, peers, most in (
        ("organizers", rules.organizers, MOST_ORGANIZERS),
        ("banned", rules.banned, MOST_LISTED),
        ("listed", rules.listed, MOST_LISTED),
        ("revoked", rules.revoked, MOST_LISTED),
    ):
        if len(peers) > most:
            yield f"{len(peers)} {name}, and {most} are the most"
            continue
        if list(peers) != sorted(set(peers)):
            yield f"{name} are not in order, or one is there twice"
        yield from (f"{name}: {one[:64]!r} is no peer id" for one in peers if not _is_peer_id(one))
    if not rules.organizers:
        yield "nobody would be an organizer any more"
    if rules.paused_at < 0:
        yield "it pauses before there was time"
    if rules.quorum > MOST_QUORUM:
        yield f"a quorum of {rules.quorum}, and {MOST_QUORUM} is the most"
    yield from _faults_in_round_seconds(rules.round_seconds, timing)


def _faults_in_round_seconds(seconds: float, timing: Timing) -> Iterator[str]:
    if seconds < _LEAST_ROUND_SECONDS:
        yield f"round_seconds ({seconds:g}) must be at least {_LEAST_ROUND_SECONDS:g}"
    yield from timing.model_copy(update={"round_seconds": seconds}).misfits()


def _is_peer_id(text: str) -> bool:
    try:
        public_key_of(text)
    except BadSignature:
        return False
    return True


def fault_in_amendment(record: Record, previous: Record, first: Rules, timing: Timing) -> str | None:
    """Why `record` may not carry what it carries behind `previous`, or go by it as it does; None if it may."""
    if record.amendment != previous.amendment:
        if record.amendment is None:
            return f"record {record.round} drops the amendment of the rules that the record before has"
        try:
            open_amendment(record.amendment, previous, first, timing)
        except PeerError as error:
            return f"record {record.round} carries an amendment that is not valid: {error}"
    banned = set(rules_of(record, first).banned)
    if there := banned.intersection((*record.members, *record.candidates)):
        return f"record {record.round} names {min(there)}, whom an organizer has banned"
    return None


def supersedes(one: Signed, other: Signed) -> bool:
    """Whether of two that were found good behind one record `one` is to be passed on; of equals the greater hash, so
    that all choose alike."""
    a, b = _decoded(one.body), _decoded(other.body)
    return (a.number, a.amended_at, hash_of(one)) > (b.number, b.amended_at, hash_of(other))


@dataclass(frozen=True)
class Change:
    """What an organizer wants to be otherwise; None leaves a value as it is."""

    is_paused: bool | None = None
    finish_after_round: int | None = None
    round_seconds: float | None = None
    quorum: int | None = None
    ban: tuple[str, ...] = ()
    unban: tuple[str, ...] = ()
    add_organizers: tuple[str, ...] = ()
    remove_organizers: tuple[str, ...] = ()
    enlist: tuple[str, ...] = ()
    unlist: tuple[str, ...] = ()
    revoke: tuple[str, ...] = ()

    def of(self, rules: Rules, now: float) -> Rules:
        """`rules` with it; the same where nothing changes."""
        return replace(
            rules,
            paused_at=self._paused_at(rules.paused_at, now),
            finish_after_round=_either(self.finish_after_round, rules.finish_after_round),
            round_seconds=_either(self.round_seconds, rules.round_seconds),
            quorum=_either(self.quorum, rules.quorum),
            banned=_changed(rules.banned, self.ban, self.unban),
            organizers=_changed(rules.organizers, self.add_organizers, self.remove_organizers),
            listed=_changed(rules.listed, self.enlist, self.unlist),
            revoked=_changed(rules.revoked, self.revoke, ()),
        )

    def _paused_at(self, before: float, now: float) -> float:
        if self.is_paused is None:
            return before
        return (before or now) if self.is_paused else 0.0


def _either(wanted: T | None, before: T) -> T:
    return before if wanted is None else wanted


def _changed(before: tuple[PeerId, ...], added: Sequence[str], removed: Sequence[str]) -> tuple[PeerId, ...]:
    return _ordered([peer for peer in (*before, *added) if peer not in removed])
