"""What members say of experts' updates before they stand in a record: who tests, and what follows from it.

An expert's updates come from those alone who own it. Up to seven members that do not, drawn anew in each round, apply
them to the public state and measure it on held-out text. Each sends a signed verdict. *The updates of an expert are
left out if more than half of those that tested them object, and at least two (one, where only one could test).* So one
member alone can neither be kept from objecting nor keep another's work out of a record, and which members test which
expert is nobody's choice.

The coordinator decides; its proposal carries the verdicts on every expert to which somebody objects, so that members
see that nothing is listed to which too many object; whose own objection is missing there signs nothing. That what was
left out was objected to nobody need prove: a coordinator may also call it late.

*The record marks who alone owns an expert to which at least four fifths of those drawn to test it object*, and two at
least: three marks cost a seat (`run.marks`). That is more than it takes to leave an expert out, and who was drawn and
said nothing counts against it, so that neither a minority which happens to be drawn together nor a coordinator that
keeps the others' verdicts back drives anybody out.

`sync.most_harm` is the part by which the loss may rise; with 0 nothing is tested, and nobody is waited for.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from spes_peer.blobs import BlobName
from spes_peer.errors import PeerError
from spes_peer.identity import PeerId
from spes_peer.rounds.assignment import rendezvous
from spes_peer.rounds.messages import Verdict
from spes_peer.run.layout import Layout
from spes_peer.run.records import BlockId, Record, SealedRecord, Update
from spes_peer.run.signed import Signed

NUM_TESTERS = 7
MEMBER_PART = 0.4
"""Of the round's grace a member has for its tests, from when it hears of the first update. Of what it has not tested by
then it says so."""
COORDINATOR_PART = 0.5
"""Of the round's grace the coordinator waits for verdicts, from when contributions are closed."""


def who_tests(record: Record, layout: Layout) -> dict[int, tuple[PeerId, ...]]:
    """For each expert those who test its updates in the round that `record` opened; nobody where all own it."""
    if not layout.manifest.sync.most_harm:
        return {}
    known: dict[int, tuple[PeerId, ...]] | None = record.__dict__.get("_testers")
    if known is None:
        known = record.__dict__["_testers"] = {
            expert: rendezvous(f"test {record.round} {expert}", _strangers(record, subset))[:NUM_TESTERS]
            for subset in range(layout.manifest.training.num_subsets)
            if record.owners_of(subset)
            for expert in layout.manifest.experts_of(subset)
        }
    return known


def experts_owned_by_one(record: Record, layout: Layout) -> frozenset[int]:
    """Whose updates come from one member: of several, who did the harm cannot be told."""
    subsets = range(layout.manifest.training.num_subsets)
    alone = [subset for subset in subsets if len(record.owners_of(subset)) == 1]
    return frozenset(expert for subset in alone for expert in layout.manifest.experts_of(subset))


def _strangers(record: Record, subset: int) -> Iterable[PeerId]:
    return (entry.peer_id for entry in record.roster if subset not in entry.subsets)


@functools.lru_cache(maxsize=1024)
def digest_of(blobs: tuple[BlobName, ...]) -> bytes:
    """What a verdict names the updates of an expert by, which are in block order."""
    return hashlib.sha256("\n".join(blobs).encode()).digest()


def digests_in(updates: Iterable[Update], layout: Layout) -> dict[int, bytes]:
    """For each expert whose updates are all there, in block order, what verdicts name them by."""
    by_block: dict[BlockId, BlobName] = {update.block: update.blob for update in updates}
    digests = {}
    for expert in range(layout.manifest.model.num_experts):
        blobs = tuple(by_block[block.id] for block in layout.expert_blocks(expert) if block.id in by_block)
        if blobs and len(blobs) == len(layout.expert_blocks(expert)):
            digests[expert] = digest_of(blobs)
    return digests


def fault_in_verdict(verdict: Verdict, sender: PeerId, record: Record, layout: Layout) -> str | None:
    """Why it is none of the round that `record` opened; None if it is one."""
    if verdict.round != record.round:
        return f"it is of round {verdict.round}, and round {record.round} is open"
    if sender not in who_tests(record, layout).get(verdict.expert, ()):
        return f"expert {verdict.expert} is not the sender's to test"
    if verdict.objects and not verdict.is_tested:
        return "it objects to what it has not tested"
    return None


def is_objected(verdicts: Iterable[Verdict], num_testers: int) -> bool:
    """Whether these verdicts, on the same updates by different members, keep them out; see the module."""
    tested = [verdict for verdict in verdicts if verdict.is_tested]
    num_objections = sum(verdict.objects for verdict in tested)
    return 2 * num_objections > len(tested) and num_objections >= min(2, num_testers)


def is_marked(verdicts: Iterable[Verdict], num_testers: int) -> bool:
    """Whether these verdicts mark those who made the updates; see the module."""
    verdicts = tuple(verdicts)
    return 5 * sum(verdict.objects for verdict in verdicts) >= 4 * num_testers and is_objected(verdicts, num_testers)


def fault_in_verdicts(
    signed_verdicts: Sequence[Signed],
    proposed: Record,
    head: SealedRecord,
    layout: Layout,
    ours: Mapping[int, tuple[PeerId, Verdict]],
    is_bound: bool = False,
) -> str | None:
    """Why the record that is proposed behind `head` does not follow from the verdicts that come with it, or why those
    are not all; None if it does. `ours` are this member's own objections, by expert. If votes bind the proposer to the
    record, another has proposed it before, and the verdicts came with that."""
    record = head.record
    if len(signed_verdicts) > NUM_TESTERS * layout.manifest.model.num_experts:
        return f"it comes with {len(signed_verdicts)} verdicts"
    opened: dict[int, dict[PeerId, Verdict]] = {}
    for signed in signed_verdicts:
        try:
            verdict = signed.open(Verdict, record.run_id)
        except PeerError as error:
            return f"a verdict in the proposal is not good: {error}"
        if fault := fault_in_verdict(verdict, signed.peer_id, record, layout):
            return f"a verdict in the proposal: {fault}"
        opened.setdefault(verdict.expert, {})[signed.peer_id] = verdict
    if not is_bound and (innocent := _unmarked(opened, proposed, record, layout)):
        return f"{innocent[0]} is marked, and the verdicts do not say so"
    if not opened and not ours:
        return None
    testers = who_tests(record, layout)
    for expert, digest in digests_in(proposed.updates, layout).items():
        said = {peer: verdict for peer, verdict in opened.get(expert, {}).items() if verdict.updates == digest}
        if is_objected(said.values(), len(testers[expert])):
            return f"more than half of those that tested expert {expert} object to its updates"
        mine = None if is_bound else ours.get(expert)
        if mine is not None and mine[1].updates == digest and mine[0] not in said:
            return f"our objection to the updates of expert {expert} is not among its verdicts"
    return None


def _unmarked(
    opened: Mapping[int, Mapping[PeerId, Verdict]], proposed: Record, record: Record, layout: Layout
) -> list[PeerId]:
    """Whom the proposed record marks although the verdicts mark none of the experts that it owned alone."""
    if not proposed.harmful:
        return []
    testers, marked = who_tests(record, layout), set()
    for expert, by_peer in opened.items():
        by_digest: dict[bytes, list[Verdict]] = {}
        for verdict in by_peer.values():
            by_digest.setdefault(verdict.updates, []).append(verdict)
        if any(is_marked(verdicts, len(testers[expert])) for verdicts in by_digest.values()):
            marked.add(expert)
    marked &= experts_owned_by_one(record, layout)
    owners = {
        entry.peer_id
        for entry in record.roster
        if any(not marked.isdisjoint(layout.manifest.experts_of(subset)) for subset in entry.subsets)
    }
    return [peer for peer in proposed.harmful if peer not in owners]
