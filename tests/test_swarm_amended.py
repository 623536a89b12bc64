"""An organizer's commands against a run of real processes: invite, pause, resume, ban, finish."""

import re

import pytest
from real_swarm import Run, organize, place, small_run, until

from spes_peer.errors import NotAdmitted

__all__ = ["place"]


def ordered(run: Run, *words: str) -> str:
    """What the command says of the record that carries the change."""
    action, *rest = words
    done = run.place.run("run", action, str(run.place.path / "run"), *rest)
    assert done.returncode == 0, done.stderr
    return done.stdout


def round_of(said: str) -> int:
    """Of the record that carries the change."""
    found = re.search(r"record (\d+) carries amendment", said)
    assert found, said
    return int(found[1])


def why(run: Run, name: str) -> str:
    return str(run.place.status(name).get("phase", {}).get("why", ""))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_organizer_invites_pauses_resumes_bans_and_finishes(place: place) -> None:  # type: ignore[valid-type]
    run = organize(place, small_run(min_peers=2) + '\n[admission]\nmode = "invitation"\n')
    invitation = ordered(run, "invite").strip()
    saved = run.place.path / "invitation.txt"
    saved.write_text(invitation + "\n")
    anna = run.join("anna", "--invitation", invitation)
    bert = run.join("bert", "--invitation", str(saved))
    guest = run.join("guest")
    run.until_round("anna", 2)
    assert guest.wait(timeout=120) == NotAdmitted.exit_code
    assert "ask for an invitation" in run.place.read("guest.log")

    said = ordered(run, "pause")
    assert "the run is paused since" in said
    paused = round_of(said)
    until(lambda: "paused by its organizer since" in why(run, "anna"), "a volunteer says why it rests")
    assert not run.chain("run").record(paused).sealed.record.trains

    resumed = round_of(ordered(run, "resume", "--bootstrap", run.address))
    assert run.chain("run").record(resumed).sealed.record.trains
    run.until_round("anna", resumed + 1)
    assert run.newest("run").state_root

    round_of(ordered(run, "amend", "--ban", run.peer_id("bert")))
    assert bert.wait(timeout=120) == NotAdmitted.exit_code
    assert "has banned this peer" in run.place.read("bert.log")
    assert run.newest("anna").members == {run.peer_id("anna")}

    said = ordered(run, "finish")
    assert run.chain("run").record(round_of(said)).sealed.record.is_final
    until(lambda: "thank you" in why(run, "anna"), "the volunteer is thanked")
    until(lambda: "the run has finished, thank you" in run.place.read("anna.log"), "its log says so too")
    done = run.place.run("run", "pause", str(run.place.path / "run"))
    assert done.returncode == 2
    assert "has ended" in done.stderr
    assert run.place.run("leave", "--data-dir", str(run.place.path / "anna")).returncode == 0
    assert anna.wait(timeout=120) == 0
