"""`spes-peer run pause|resume|finish|amend|invite`: an organizer's changes of a run that goes on."""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from spes_peer.cli.parsing import count, peer_id, positive
from spes_peer.errors import BadConfiguration
from spes_peer.measures import above_zero
from spes_peer.run.rules import Change

_LEAST_DAYS, _MOST_DAYS = 0.001, 3650.0  # less than a minute and a half is over before anybody has read it
_SEARCH = "FOLDER/address, and nodes met before"


def add_amending(actions: Any) -> list[Any]:
    """The parsers, for what is common to all commands."""
    return [_add_pause(actions), _add_resume(actions), _add_finish(actions), _add_amend(actions), _add_invite(actions)]


def _add_pause(actions: Any) -> Any:
    parser = actions.add_parser(
        "pause", help="let all volunteers rest, from the next record on; nothing is lost, and newcomers are admitted"
    )
    _add_common(parser)
    parser.set_defaults(run=_amends(lambda _options: Change(is_paused=True)))
    return parser


def _add_resume(actions: Any) -> Any:
    parser = actions.add_parser("resume", help="let a paused run go on, at once")
    _add_common(parser)
    parser.set_defaults(run=_amends(lambda _options: Change(is_paused=False)))
    return parser


def _add_finish(actions: Any) -> Any:
    parser = actions.add_parser(
        "finish",
        help="end the run with the round that is open, for good: its last state is kept, volunteers are thanked",
        epilog="A run that has ended cannot go on; a new one can begin with its state: spes-peer run sign --from."
        " An end that was set for later can be moved or taken back until then.",
    )
    _add_common(parser)
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--after", type=positive, metavar="ROUND", help="end with this round (the one that is open)")
    end.add_argument("--never", action="store_true", help="take back an end that was set for later with --after")
    parser.set_defaults(run=_finish)
    return parser


def _finish(options: argparse.Namespace) -> None:
    after = 0 if options.never else options.after
    _send(options, Change(finish_after_round=after), finishes=after is None)


def _add_amend(actions: Any) -> Any:
    parser = actions.add_parser(
        "amend",
        help="change who may take part, who organizes, and how long a round lasts",
        description="Change the rules of a run that goes on. Anything else of it is fixed: make a new run that begins"
        " with this one's state (spes-peer run sign --from).",
        epilog="examples:\n"
        "  spes-peer run amend my-run --ban 12D3KooW…\n"
        "  spes-peer run amend my-run --add-organizer NEW --remove-organizer OLD    hand it over, or replace a key",
    )
    _add_common(parser)
    peers: dict[str, str] = {
        "--ban": "shut this peer out, from the next record on",
        "--unban": "let it come back",
        "--list": "let this peer join without an invitation",
        "--unlist": "take it off the list; if it is in it stays in",
        "--add-organizer": "let this key change the rules too",
        "--remove-organizer": "let this key change nothing any more, nor its invitations count",
    }
    for flag, meaning in peers.items():
        parser.add_argument(flag, type=peer_id, action="append", default=[], metavar="PEER_ID", help=meaning)
    parser.add_argument("--round-seconds", type=above_zero, metavar="S", help="time from a record to the deadline")
    parser.add_argument(
        "--quorum", type=count, metavar="N", help="let rounds with fewer members rest; 0: train with whoever is there"
    )
    parser.set_defaults(run=_amends(_amended))
    return parser


def _amended(options: argparse.Namespace) -> Change:
    change = Change(
        round_seconds=options.round_seconds,
        quorum=options.quorum,
        ban=tuple(options.ban),
        unban=tuple(options.unban),
        enlist=tuple(options.list),
        unlist=tuple(options.unlist),
        add_organizers=tuple(options.add_organizer),
        remove_organizers=tuple(options.remove_organizer),
    )
    if change == Change():
        raise BadConfiguration("nothing to change was named; see: spes-peer run amend --help")
    return change


def _add_common(parser: Any) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the run, with its manifest.spes")
    parser.add_argument(
        "--bootstrap",
        action="append",
        default=[],
        metavar="ADDRESS",
        help=f"a node of the run, of whatever kind; may be given several times ({_SEARCH})",
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="the organizer's key (FOLDER/organizer.key)")
    parser.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="wait until a record carries the change, for as long as a round takes (--wait)",
    )


def _amends(change_of: Any) -> Any:
    def run(options: argparse.Namespace) -> None:
        _send(options, change_of(options))

    return run


def _send(options: argparse.Namespace, change: Change, finishes: bool = False) -> None:
    from rich.console import Console

    from spes_peer.amending.command import Asked, amend
    from spes_peer.amending.organizer import Organizer

    organizer = Organizer.of(options.folder, options.key)
    asked = Asked(change, tuple(options.bootstrap), options.wait, finishes)
    with Console(stderr=True, highlight=False).status("") as status:
        asyncio.run(amend(organizer, asked, say=lambda text: status.update(text), tell=lambda text: print(text)))


# ---- invitations ----


def _add_invite(actions: Any) -> Any:
    parser = actions.add_parser(
        "invite",
        help="make an invitation to hand over, for a run that asks for one",
        description="Make an invitation, and print it. Whoever has its text can join until it ends, unless it is --for"
        " one peer: hand it over as you would a password.",
        epilog="examples:\n"
        "  spes-peer run invite my-run --days 7\n"
        "  spes-peer run invite my-run --show\n"
        "  spes-peer run invite my-run --revoke 4fWq2b",
    )
    _add_common(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--show", action="store_true", help="list the invitations that were made here")
    what.add_argument(
        "--revoke",
        action="append",
        default=[],
        metavar="ID",
        help="let nobody join any more with the invitation of this id, as --show prints it; its last characters do",
    )
    what.add_argument("--out", type=Path, metavar="FILE", help="write it there, readable by you alone (print it)")
    parser.add_argument("--for", dest="peer", type=peer_id, metavar="PEER_ID", help="for this peer alone (for anybody)")
    parser.add_argument("--days", type=above_zero, default=14.0, metavar="N", help="how long one can join with it (14)")
    parser.set_defaults(run=_invite)
    return parser


def _invite(options: argparse.Namespace) -> None:
    from spes_peer.amending.organizer import Organizer

    organizer = Organizer.of(options.folder, options.key)
    if options.show:
        for one in organizer.invitations():
            until = time.strftime("%Y-%m-%d", time.localtime(float(one["expires_at"])))
            print(f"{one['id']}  until {until}  for {one['for'] or 'whoever has it'}")
    elif options.revoke:
        revoked = tuple(organizer.invitation_called(one) for one in options.revoke)
        _send(options, Change(revoke=revoked))
    else:
        _make_invitation(organizer, options)


def _make_invitation(organizer: Any, options: argparse.Namespace) -> None:
    from spes_peer.files import write_whole

    if (mode := organizer.manifest.admission.mode) != "invitation":
        how = (
            "everybody may join it" if mode == "open" else "put a peer on its list: spes-peer run amend --list PEER_ID"
        )
        raise BadConfiguration(f"this run asks for no invitations: {how}")
    if not _LEAST_DAYS <= options.days <= _MOST_DAYS:
        raise BadConfiguration(f"--days {options.days:g}: from {_LEAST_DAYS:g} to {_MOST_DAYS:g}")
    if options.out is not None and not (options.out.absolute().parent.is_dir() and not options.out.is_dir()):
        raise BadConfiguration(f"--out {options.out}: that is no file in a folder that is there; nothing was made")
    invitation = organizer.invite(options.days, options.peer or "")
    text = invitation.to_text()
    if options.out is not None:
        write_whole(options.out, text.encode() + b"\n", mode=0o600)
        print(f"{options.out} is an invitation; join with: spes-peer join --bootstrap ADDRESS --invitation FILE")
        return
    print(text)
