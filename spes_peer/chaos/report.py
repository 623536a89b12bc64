"""From what was seen of a run to what is said of it. Pure: every figure can be tried with made-up observations.

*Lost* is a certified record that some node kept and that the final chain has not, at its place and with its hash.
*Goodput* is the tokens in the records of the final chain, divided by the tokens that all trainers trained for rounds
that the final chain closed, again and in vain included; what the open round had when everything ended is neither.
A fault is *recovered* from when the first record appears that closes a round which began after the fault: the run has
made a whole round since. So a run that no fault touches "recovers" in one to two rounds; compare with `round_seconds`.
*Memory growth* is the slope of a line through resident bytes over rounds (least squares), for each life of a process;
its first rounds, in which libraries and caches fill, are left out, and so are lives that are short.
"""

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spes_peer.chaos.schedule import Fault
from spes_peer.identity import PeerId

FILLING_ROUNDS = 10
LEAST_ROUNDS = 10


@dataclass(frozen=True)
class SeenRecord:
    """One record as it lay on a disk."""

    round: int
    hash: str
    is_certified: bool
    """It and all before it."""
    tokens: int
    tokens_by_peer: Mapping[PeerId, int]
    opened_at: float

    @property
    def key(self) -> tuple[int, str]:
        return self.round, self.hash


@dataclass
class SeenFault:
    """A fault as it really went; moments in Unix seconds."""

    fault: Fault
    began_at: float
    ended_at: float = 0.0
    note: str = ""


@dataclass
class Observations:
    """All that was seen of a run."""

    started_at: float = 0.0
    ended_at: float = 0.0
    final: tuple[SeenRecord, ...] = ()
    """The chain that stands at the end, from record 0 on."""
    certified_at: dict[tuple[int, str], float] = field(default_factory=dict)
    """Every certified record that any node kept: round, hash, and when it was first seen."""
    roots: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)
    """For a record, the state root that each volunteer came to with it."""
    final_roots: dict[str, str] = field(default_factory=dict)
    """The state root of each volunteer after the newest round that all have applied; empty where there is none."""
    trained_tokens: dict[tuple[PeerId, int], int] = field(default_factory=dict)
    """By peer id and round: what its trainers trained, in vain included."""
    memory: dict[tuple[str, int], list[tuple[int, int]]] = field(default_factory=dict)
    """By kind and process id: (round, resident bytes)."""
    faults: list[SeenFault] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    unexpected_ends: list[str] = field(default_factory=list)
    settled_seconds: float | None = None
    """From the end of the last fault until all volunteers had a round that began after it; None if never."""


def build_report(seen: Observations) -> dict[str, Any]:
    lost = lost_records(seen)
    recoveries = [recovery_seconds(seen, one.began_at) for one in seen.faults]
    in_records, trained = tokens_in_records(seen.final), tokens_trained(seen)
    closed = [record for record in seen.final if record.tokens]
    return {
        "seconds": round(seen.ended_at - seen.started_at, 1),
        "rounds_completed": sum(record.is_certified for record in closed),
        "rounds_uncertified": sum(not record.is_certified for record in closed),
        "rounds_lost": len(lost),
        "lost": [{"round": number, "hash": digest} for number, digest in lost],
        "roots_equal": roots_equal(seen),
        "goodput": in_records / trained if trained else None,
        "tokens_in_records": in_records,
        "tokens_trained": trained,
        "round_seconds": _spread(_round_seconds(seen.final)),
        "recovery_seconds": _spread([seconds for seconds in recoveries if seconds is not None]),
        "num_faults": len(seen.faults),
        "num_not_recovered": sum(seconds is None for seconds in recoveries),
        "settled_seconds": seen.settled_seconds,
        "memory_growth": memory_growth(seen.memory),
        "orphans": len(seen.orphans),
        "orphans_found": seen.orphans,
        "unexpected_ends": seen.unexpected_ends,
        "faults": [_fault(one, seconds, seen.started_at) for one, seconds in zip(seen.faults, recoveries, strict=True)],
    }


def is_good(report: Mapping[str, Any]) -> bool:
    """What no run may fail in, however hard it was tried."""
    has_settled = report["settled_seconds"] is not None
    return bool(not report["rounds_lost"] and report["roots_equal"] and not report["orphans"] and has_settled)


def lost_records(seen: Observations) -> list[tuple[int, str]]:
    final = {record.key for record in seen.final}
    return sorted(key for key in seen.certified_at if key not in final)


def roots_equal(seen: Observations) -> bool:
    """Whether each certified record led all that applied it to one root, and all have one at the end."""
    led_to_one = all(len(set(roots.values())) == 1 for key, roots in seen.roots.items() if key in seen.certified_at)
    return led_to_one and len(set(seen.final_roots.values())) == 1 and "" not in seen.final_roots.values()


def tokens_in_records(final: Iterable[SeenRecord]) -> int:
    return sum(record.tokens for record in final)


def tokens_trained(seen: Observations) -> int:
    """Of closed rounds. At least what a record has of a peer: the last steps before a kill may have gone unseen."""
    closed = {record.round - 1: record for record in seen.final if record.round}
    counts = {key: tokens for key, tokens in seen.trained_tokens.items() if key[1] in closed}
    for number, record in closed.items():
        for peer, tokens in record.tokens_by_peer.items():
            counts[peer, number] = max(tokens, counts.get((peer, number), 0))
    return sum(counts.values())


def recovery_seconds(seen: Observations, began_at: float) -> float | None:
    """From a fault to the record that closes the first round that began after it; None if there is none."""
    for opening, closing in itertools.pairwise(seen.final):
        if opening.opened_at >= began_at and closing.key in seen.certified_at:
            return seen.certified_at[closing.key] - began_at
    return None


def memory_growth(memory: Mapping[tuple[str, int], Sequence[tuple[int, int]]]) -> dict[str, Any]:
    """Bytes per round of each kind of process; None where none lived long enough to say."""
    slopes: dict[str, list[float]] = defaultdict(list)
    largest: dict[str, int] = defaultdict(int)
    for (kind, _pid), samples in sorted(memory.items()):
        largest[kind] = max([largest[kind], *(size for _, size in samples)])
        settled = [sample for sample in samples if sample[0] >= samples[0][0] + FILLING_ROUNDS]
        if len({number for number, _ in settled}) >= LEAST_ROUNDS:
            slopes[kind].append(statistics.linear_regression(*zip(*settled, strict=True)).slope)
    return {
        kind: {
            "lives_measured": len(slopes[kind]),
            "bytes_per_round_median": statistics.median(slopes[kind]) if slopes[kind] else None,
            "bytes_per_round_worst": max(slopes[kind], default=None),
            "largest_bytes": size,
        }
        for kind, size in largest.items()
    }


def _round_seconds(final: Sequence[SeenRecord]) -> list[float]:
    pairs = itertools.pairwise(final)
    return [closing.opened_at - opening.opened_at for opening, closing in pairs if closing.tokens]


def _spread(seconds: Sequence[float]) -> dict[str, float] | None:
    return {"median": round(statistics.median(seconds), 2), "worst": round(max(seconds), 2)} if seconds else None


def _fault(one: SeenFault, seconds: float | None, started_at: float) -> dict[str, Any]:
    return {
        "at_seconds": round(one.began_at - started_at, 1),
        "kind": str(one.fault.kind),
        "targets": list(one.fault.targets),
        "what": one.fault.text(),
        "lasted_seconds": round(one.ended_at - one.began_at, 1) if one.ended_at else None,
        "recovered_after_seconds": None if seconds is None else round(seconds, 1),
        **({"note": one.note} if one.note else {}),
    }
