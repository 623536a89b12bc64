"""The run as JSON, for programs. GET, no key, no cookies; every answer has an ETag.

    /api/run.json         name, run id, phase, progress, newest losses, who may join and how
    /api/rounds.json      closed rounds, oldest first, 256 at a time: `?from=N` begins with the 256 that N falls into
                          (from=300 with 256), `next` says where to go on, null at the end
    /api/experts.json     the parts into which the experts are cut: owners, rounds trained, rounds since
    /api/volunteers.json  who gave what, by the names they chose

`version` is 1 in all of them; keys may be added to a version, and a change of meaning raises it. Moments are Unix
seconds, losses nats per token, sizes bytes. What is not known is null.
"""

import json
from dataclasses import asdict
from typing import Any

from bootstrap.web.page import join_command
from bootstrap.web.view import Point, RunView

VERSION = 1
ROUNDS_AT_ONCE = 256
_MOST_VOLUNTEERS = 10_000


def run_json(run: RunView) -> bytes:
    return _encoded(
        {
            "name": run.name,
            "run_id": run.run_id,
            "round": run.round,
            "phase": asdict(run.phase),
            "progress": asdict(run.progress),
            "train_loss": _last(run.training_curve),
            "held_out_loss": _last(run.held_out_curve),
            "volunteers": {"training": run.num_training, "waiting": run.num_waiting, "needed": run.min_volunteers},
            "join": {"admission": run.admission, "command": join_command(run), "addresses": run.join_addresses},
            "data": {"sources": [asdict(source) for source in run.sources], "licence": run.licence},
            "checkpoint": {"record": run.checkpoint_round, "bytes": run.checkpoint_bytes}
            if run.checkpoint_round >= 0
            else None,
            "newest_record": len(run.rows) - 1,
            "newest_certified_record": run.certified_round,
        }
    )


def rounds_json(run: RunView, first: int) -> bytes:
    """The stretch of `ROUNDS_AT_ONCE` records that holds `first`."""
    start = first // ROUNDS_AT_ONCE * ROUNDS_AT_ONCE
    end = start + ROUNDS_AT_ONCE
    rounds = [asdict(one) for one in run.closed(start, end)]
    return _encoded({"rounds": rounds, "next": end if end < len(run.rows) else None})


def experts_json(run: RunView) -> bytes:
    return _encoded({"round": run.round, "subsets": [asdict(subset) for subset in run.subsets]})


def volunteers_json(run: RunView) -> bytes:
    return _encoded(
        {"count": len(run.volunteers), "volunteers": [asdict(one) for one in run.volunteers[:_MOST_VOLUNTEERS]]}
    )


def _last(curve: tuple[Point, ...]) -> dict[str, Any] | None:
    return asdict(curve[-1]) if curve else None


def _encoded(content: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **content}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
