"""A whole swarm of real processes in which one volunteer ruins the experts that it owns."""

from pathlib import Path

import pytest
from real_swarm import Place, organize, place, small_run, until

from spes_peer.run.marks import MOST_MARKS
from spes_peer.run.records import Record

__all__ = ["place"]

# Put before everything that this volunteer's programs import: its trainer offers noise for its experts.
EVIL = """
import importlib.util, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name != "spes_peer.training.ledger":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            import torch
            offer, close = module.Ledger.offer, module.Ledger.close
            rounds = []

            def evil_offer(self, block, ours, public):
                if block.expert is not None and len(rounds) >= 8:
                    ours = public + 30 * public.std() * torch.randn(len(public))
                return offer(self, block, ours, public)

            module.Ledger.offer = evil_offer
            module.Ledger.close = lambda self: (rounds.append(1), close(self))[1]

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


def experts_of(record: Record, peer: str) -> set[str]:
    """Experts to whose updates in this record a peer contributed."""
    return {
        update.block.rpartition("/")[0]
        for update in record.updates
        if update.block.startswith("expert") and peer in {part.peer_id for part in update.contributors}
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_experts_that_their_owner_ruins_are_kept_out_and_cost_it_its_seat(place: Place, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(EVIL)
    run = organize(place, small_run())
    run.befores["evil"] = ("env", f"PYTHONPATH={tmp_path}")
    for name in ("anna", "ben", "evil"):
        run.join(name)
    evil = run.peer_id("evil")
    for newest in range(10, 25):  # an objection that comes too late on a busy machine lets one more through
        run.until_round("anna", newest, 400.0)
        records = {one.round: one for one in (certified.sealed.record for certified in run.chain("anna").from_round(1))}
        if evil not in records[max(records)].members:
            break
    trained = [round for round in records if round > 1 and evil in records[round - 1].members]
    kept_out = [round for round in trained if not experts_of(records[round], evil)]
    assert all(experts_of(records[round], evil) for round in (2, 3, 4))  # while it was honest
    assert len(kept_out) >= MOST_MARKS, kept_out
    for round in kept_out:  # what it did to the shared parameters was sound, and the others' experts are there
        assert evil in {part.peer_id for part in records[round].updates[0].contributors}
        assert experts_of(records[round], run.peer_id("anna"))
    marked = {round for round in records if records[round].harmful == (evil,)}  # for one expert, too
    assert marked.issuperset(kept_out)
    assert evil not in records[max(records)].members
    until(lambda: "objecting to an expert" in place.read("anna.log"), "anna says what she found")
    assert "makes the run's model worse on held-out text" in place.read("evil.log")
    until(lambda: "a place is yours again with record" in place.read("evil.log"), "it hears why it has no place")
    assert records[max(records)].held_out_loss < records[min(kept_out)].held_out_loss
    run.until_equal("anna", "ben")
