"""`spes-peer leave --purge`: end the daemon and take away all that is ours: state, key, log, and with the last run the
service and the settings too.

What was not put there by us stays, and links are taken away themselves, never what they lead to. Our names, such as
`logs`, are others' names too: so only a folder goes in which a volunteer's daemon has certainly lived.
"""

import argparse
import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

from spes_peer import config, known_runs, service
from spes_peer.cli.parsing import data_dir
from spes_peer.control import ControlClient, is_live
from spes_peer.errors import BadConfiguration, PeerError, UserError
from spes_peer.files import our_disk
from spes_peer.folder import KEY_FILE, MANIFEST_FILE, ORGANIZER_KEY_FILE, own_content
from spes_peer.identity import Identity
from spes_peer.lock import LOCK_FILE, holder_of, locked
from spes_peer.measures import amount
from spes_peer.run.manifest import SignedManifest

_END_SECONDS = 60.0
_LOOK_SECONDS = 0.1


def purge(options: argparse.Namespace) -> str:
    """What was done, in words, after it was asked for; `UserError` where nothing is there or a daemon does not end."""
    folder = data_dir(options).absolute()
    known = known_runs.folders()
    _refuse_what_is_not_a_volunteers(folder)
    ours, is_last = own_content(folder), set(known) == {folder}
    unit = service.unit_path(Path.home()) if sys.platform in ("linux", "darwin") else None
    unit = unit if unit is not None and _names(unit, folder) else None
    settings = config.default_path()  # another file, which --config names, is its owner's
    beside = [path for path in (unit, settings if is_last else None) if path is not None and path.exists()]
    _show(folder, ours, beside)
    if not _is_wanted(options.yes):
        return "nothing was removed"
    if unit is not None:
        service.remove(Path.home())
    _end_daemon(folder)
    with locked(folder):  # nobody may start here meanwhile
        for path in own_content(folder):
            if path.name != LOCK_FILE:
                _remove(path)
        _remove(folder / LOCK_FILE)
    left = _tidy(folder)
    if settings in beside:
        _remove(settings)
        with contextlib.suppress(OSError):
            settings.parent.rmdir()
    known_runs.forget(folder)
    return f"removed; what was not ours is still in {folder}" if left else f"{folder} is gone"


def _refuse_what_is_not_a_volunteers(folder: Path) -> None:
    """`UserError` where no volunteer's daemon has lived, or an organizer has."""
    if folder.resolve() in (Path.home().resolve(), Path(folder.anchor)):
        raise BadConfiguration(f"{folder} is no folder to remove things from; take away by hand what is not wanted")
    try:
        content = own_content(folder)
    except OSError as error:
        raise BadConfiguration(f"cannot read {folder}: {error.strerror}") from None
    if (folder / ORGANIZER_KEY_FILE).exists():
        raise BadConfiguration(
            f"{folder} is an organizer's: its run and its address would be lost; to end it, remove the folder by hand"
        )
    if not content or not _is_a_volunteers(folder):
        raise UserError(f"nothing of ours is in {folder}; spes-peer runs lists what is known, --data-dir names another")


def _is_a_volunteers(folder: Path) -> bool:
    """Whether a manifest or a key is there; of others' files called `logs` or `records` nobody knows."""
    with contextlib.suppress(OSError, PeerError, UserError):
        return bool(SignedManifest.from_bytes((folder / MANIFEST_FILE).read_bytes()).run_id)
    with contextlib.suppress(UserError):
        return Identity.load(folder / KEY_FILE) is not None
    return False


def _show(folder: Path, ours: list[Path], beside: list[Path]) -> None:
    print(f"This removes from {folder}:")
    for path in (*ours, *beside):
        print(f"  {amount(known_runs.size_of(path)):>8}  {path if path in beside else path.name}")
    if holder_of(folder):
        print("and ends the daemon that runs there, at once.")
    if (folder / KEY_FILE).exists():
        print(
            "The key goes too, and with it this machine's standing in the run; to keep it, first:"
            f" spes-peer identity export FILE --data-dir {shlex.quote(str(folder))}"
        )


def _is_wanted(is_agreed: bool) -> bool:
    if is_agreed:
        return True
    if not sys.stdin.isatty():
        raise BadConfiguration("nobody can be asked here; to agree, add --yes")
    try:
        return input("Remove all this? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _end_daemon(folder: Path) -> None:
    if is_live(folder / "control.sock"):

        async def leave() -> None:
            async with ControlClient(folder / "control.sock") as client:
                await client.leave(at_once=True)

        asyncio.run(leave())
    until = time.monotonic() + _END_SECONDS
    while pid := holder_of(folder):
        if time.monotonic() > until:
            raise UserError(f"the daemon (pid {pid}) does not end, and nothing was removed; see: spes-peer logs")
        time.sleep(_LOOK_SECONDS)


def _names(unit: Path, folder: Path) -> bool:
    """Whether the service is that of the folder."""
    with contextlib.suppress(OSError):
        text = os.fsdecode(unit.read_bytes())
        return f'"{folder}"' in text or f">{folder}<" in text
    return False


def _remove(path: Path) -> None:
    with our_disk(path.parent):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)  # which does not follow links
        else:
            path.unlink(missing_ok=True)


def _tidy(folder: Path) -> bool:
    """Take the folder away if it is empty; whether something is left in it. A folder that is a link stays one."""
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            folder.rmdir()
        return any(folder.iterdir())
    return folder.exists()
