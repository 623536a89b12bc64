"""`spes-peer runs`: what was joined on this machine, and where it lies."""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from spes_peer.cli.parsing import add_log_level, sentence
from spes_peer.logs import plain
from spes_peer.measures import amount

if TYPE_CHECKING:
    from spes_peer.known_runs import KnownRun

_LONGEST_NAME = 24


def add_runs(commands: Any) -> None:
    about = "list the runs that are known on this machine: which runs, which ended and why, and what they take"
    parser = commands.add_parser(
        "runs", help="list the runs that are known on this machine", description=sentence(about)
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    add_log_level(parser, "ERROR")
    parser.set_defaults(run=_runs)


def _runs(options: argparse.Namespace) -> None:
    from spes_peer.known_runs import folders, look_at

    known = [look_at(folder) for folder in folders()]
    if options.json:
        print(json.dumps([{**dataclasses.asdict(one), "folder": str(one.folder)} for one in known], indent=2))
    elif not known:
        print("no run is known here; join one: spes-peer join --bootstrap ADDRESS")
    else:
        print("\n".join(table(known)))


def table(known: "list[KnownRun]") -> list[str]:
    """A line for each, and below it how it ended."""
    rows = [("RUN", "ID", "STATE", "ROUND", "DISK", "FOLDER")]
    for one in known:
        state = f"running, pid {one.pid}" if one.pid else "not running"
        round_ = str(one.round) if one.round >= 0 else "-"
        name = plain(one.name, _LONGEST_NAME) or "?"
        rows.append((name, one.run_id[:12] or "?", state, round_, amount(one.size_bytes), str(one.folder)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row, of in zip(rows, (None, *known), strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join((*cells, row[-1])))
        if of is not None and of.ended:
            lines.append(f"  {of.ended}")
    return lines
