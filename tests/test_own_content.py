"""What of a state folder is ours to remove."""

from pathlib import Path

from spes_peer import events, folder
from spes_peer.daemon.given import GIVEN_FILE
from spes_peer.daemon.resting import PAUSE_MARK
from spes_peer.folder import StateFolder, own_content
from spes_peer.guest.allowance import TODAY_FILE
from spes_peer.lock import LOCK_FILE
from spes_peer.membership.directory import socket_folder


def test_all_that_is_ours_is_known_and_what_is_anothers_is_left(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    state.identity()
    ours = [
        *(state.ballots, state.logs, state.control_socket, state.proposal, state.known_nodes, state.snapshots),
        *(tmp_path / name for name in (GIVEN_FILE, PAUSE_MARK, TODAY_FILE, events.FOLDER, folder.CACHE)),
        *(tmp_path / name for name in (LOCK_FILE, folder.MANIFEST_FILE, folder.INCARNATION_FILE)),
        socket_folder(tmp_path),
        tmp_path / ".incarnation.x1y2.writing",
    ]
    for path in ours:
        path.touch()
    assert own_content(tmp_path) == sorted(tmp_path.iterdir())
    (tmp_path / "thesis.tex").touch()
    (tmp_path / "blobs.bak").mkdir()
    assert not {"thesis.tex", "blobs.bak"} & {path.name for path in own_content(tmp_path)}


def test_of_a_folder_that_is_not_there_nothing_is_ours(tmp_path: Path) -> None:
    assert own_content(tmp_path / "none") == []
