"""The question itself. Nothing is written before the answer, and nothing at all after a no."""

import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spes_peer import config
from spes_peer.daemon.program import JoinSettings
from spes_peer.errors import BadConfiguration
from spes_peer.exchange.known_nodes import KnownNodes
from spes_peer.first_start.facts import Facts, look
from spes_peer.first_start.words import described, folded
from spes_peer.folder import KEY_FILE, MANIFEST_FILE, StateFolder, check_length
from spes_peer.identity import Identity


def has_joined(folder: Path) -> bool:
    """Whether the owner has agreed to the run of this folder before."""
    return (folder / MANIFEST_FILE).exists()


def agree(settings: JoinSettings, typed: Sequence[str]) -> bool:
    """Show what joining means and ask once; whether the owner wants it. Their yes is kept in the folder, for this run.

    `typed` are the arguments of the command. `BadConfiguration` names it where nobody can be asked."""
    folder = settings.data_dir.absolute()
    check_length(folder)
    identity = _identity(folder)
    if not settings.bootstraps:
        raise BadConfiguration(
            f"no run is known yet in {folder}; name one of its nodes: spes-peer join --bootstrap ADDRESS"
        )
    if not _is_watched():
        again = shlex.join(["spes-peer", *typed, "--yes"])
        raise BadConfiguration(
            f"this is the first start in {folder}, and nobody can be asked here; to agree, type: {again}"
        )
    facts = _looked(settings, folder)
    is_new = not (folder / KEY_FILE).exists()
    print(f"This lends this machine to a run for the first time.\n\n{described(facts, identity.peer_id)}")
    print(f"{_about_key(folder, is_new)}\n")
    if not _wants_it():
        print("Nothing was joined, and nothing is left behind." if is_new else "Nothing was joined.")
        return False
    held = StateFolder(folder)
    if is_new:
        identity.save(held.identity_key)
    held.bind(facts.introduction.signed_manifest)
    KnownNodes(held.known_nodes, facts.introduction.run_id).note([facts.introduction.entry])
    return True


def _identity(folder: Path) -> Identity:
    """The folder's, or one that it may get."""
    if folder.exists():
        StateFolder(folder).refuse_a_lost_key()
    return Identity.load(folder / KEY_FILE) or Identity.generate()


def _about_key(folder: Path, is_new: bool) -> str:
    """Where it lies, and the command that copies it, in one piece to be copied too."""
    option = "" if folder == config.usual_folder() else f" --data-dir {shlex.quote(str(folder))}"
    where = folded("its key", f"{'will be' if is_new else 'is'} {folder / KEY_FILE}; keep a copy of it:")
    return f"{where}\n    spes-peer identity export FILE{option}"


def _looked(settings: JoinSettings, folder: Path) -> Facts:
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:
        return asyncio.run(look(settings, folder, say=lambda why, _until_at: status.update(Text(why))))


def _is_watched() -> bool:
    """Whether a person reads what is printed, and can type."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def _wants_it() -> bool:
    try:
        return input("Join? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
