"""Commands for a volunteer's key: what others know this machine by, to be kept in a safe place and moved to another."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spes_peer.cli.parsing import add_data_dir, add_log_level, data_dir, sentence
from spes_peer.errors import BadConfiguration

if TYPE_CHECKING:
    from spes_peer.identity import Identity


def add_identity(commands: Any) -> list[argparse.ArgumentParser]:
    """Its actions."""
    parser = commands.add_parser(
        "identity",
        help="the key that others know this machine by: show it, keep a copy, put one back",
        epilog="example:\n  spes-peer identity export my-key\n  spes-peer identity import my-key --data-dir FOLDER",
    )
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION", dest="ACTION")
    added = []
    for name, about, run in (
        ("show", "print the peer id, and where the key lies", _show),
        ("export", "copy the key to a new file, that only you can read", _export),
        ("import", "put a key into a folder that has none", _import),
    ):
        action = actions.add_parser(name, help=about, description=sentence(about))
        if run is not _show:
            action.add_argument("file", type=Path, metavar="FILE", help="with the key")
        add_data_dir(action)
        add_log_level(action, "WARNING")
        action.set_defaults(run=run)
        added.append(action)
    return added


def _show(options: argparse.Namespace) -> None:
    from spes_peer.folder import KEY_FILE

    folder = data_dir(options)
    print(f"{_key_of(folder).peer_id}\nits key lies in {folder / KEY_FILE}")


def _export(options: argparse.Namespace) -> None:
    identity = _key_of(data_dir(options))
    if options.file.exists():
        raise BadConfiguration(f"{options.file} is there already, and is left as it is; name a new file")
    _save(identity, options.file)
    print(f"the key of {identity.peer_id} is in {options.file}; whoever has it can be this peer")


def _import(options: argparse.Namespace) -> None:
    from spes_peer.folder import StateFolder
    from spes_peer.identity import Identity

    folder = StateFolder(data_dir(options))
    if (identity := Identity.load(options.file)) is None:
        raise BadConfiguration(f"there is no file {options.file}")
    held = Identity.load(folder.identity_key)
    if held is not None and held.peer_id != identity.peer_id:
        raise BadConfiguration(f"{folder.path} has the key of {held.peer_id}; choose another folder with --data-dir")
    _save(identity, folder.identity_key)
    print(f"{folder.path} is {identity.peer_id} now; let no other machine use this key at the same time")


def _key_of(folder: Path) -> "Identity":
    from spes_peer.folder import KEY_FILE
    from spes_peer.identity import Identity

    if (identity := Identity.load(folder / KEY_FILE)) is None:
        raise BadConfiguration(
            f"{folder} has no key; spes-peer join makes one, spes-peer identity import puts one back"
        )
    return identity


def _save(identity: "Identity", path: Path) -> None:
    try:
        identity.save(path)
    except OSError as error:
        raise BadConfiguration(f"cannot write {path}: {error.strerror}") from None
