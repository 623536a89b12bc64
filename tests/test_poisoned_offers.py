"""By how much hostile offers move what a record makes everybody apply."""

import dataclasses
import hashlib
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rounds_swarm import Swarm, invented, replaced
from torch import Tensor
from training_swarm import Swarm as Trainers

from spes_peer.blobs import BlobName
from spes_peer.identity import PeerId
from spes_peer.rounds.contributions import clips_by_group, copied, weights
from spes_peer.rounds.member import Own, objections
from spes_peer.rounds.messages import Contribution
from spes_peer.rounds.phases import Closing
from spes_peer.run.encodings import Format
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.norms import Norms, norms_by_peer
from spes_peer.run.offers import Offer, ReduceInput
from spes_peer.run.records import BlockId, Contributor, Record, Update
from spes_peer.sync.encoding import encode
from spes_peer.sync.reduce import NORM_TOLERANCE, norm, reduce_offers

SIZE, FP32 = 48, Format("fp32")
SHARED = BlockId("shared/0000")
ATTACKS = ("huge", "nan", "sign-flipped", "stale", "copy", "zero", "noise", "lies about its norm", "claims all tokens")


def drawn(seed: int) -> Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed))


def poison(attack: str, victim: Tensor, seed: int) -> tuple[bytes, float, int]:
    """Bytes, the norm and the tokens that come with them."""
    values, tokens = drawn(seed), 500
    match attack:
        case "huge":
            values = victim * 1e30
        case "sign-flipped" | "lies about its norm":
            values = -victim
        case "copy":
            values = victim
        case "zero":
            values = torch.zeros(SIZE)
        case "claims all tokens":
            values, tokens = -victim, 10**12
    if attack == "nan":
        return b"\0\0\xc0\x7f" * SIZE, 1.0, tokens
    return encode(FP32, values), norm(values) * (1e-6 if attack.startswith("lies") else 1.0), tokens


@dataclasses.dataclass
class Mean:
    """What reducers make of honest and hostile offers of one block, and what of it is whose."""

    manifest: Manifest
    honest: dict[PeerId, tuple[Tensor, int]]
    hostile: dict[PeerId, tuple[bytes, float, int]]
    past: Norms

    def __post_init__(self) -> None:
        offered = {peer: (encode(FP32, values), norm(values), count) for peer, (values, count) in self.honest.items()}
        offered |= self.hostile
        blobs = {peer: hashlib.sha256(content).hexdigest() for peer, (content, _, _) in offered.items()}
        contents = {BlobName(blobs[peer]): content for peer, (content, _, _) in offered.items()}
        contributions = {
            peer: Contribution(1, (Offer(SHARED, BlobName(blobs[peer]), len(content), size),), count, 1, "", 0, 0, 0, 0)
            for peer, (content, size, count) in offered.items()
        }
        gone = copied(contributions)
        counting = {peer: part for peer, part in contributions.items() if peer not in gone}
        weight = weights({peer: part.tokens for peer, part in counting.items()}, self.manifest.sync.most_weight)
        clips = clips_by_group(counting, Layout(self.manifest), self.past)
        inputs = [
            ReduceInput(peer, part.offers[0].blob, 0, part.offers[0].norm, weight[peer], clips["shared", peer])
            for peer, part in counting.items()
        ]
        reduced = reduce_offers(FP32, SIZE, inputs, lambda name: contents[name])
        assert reduced is not None
        self.num_hostile = len(self.hostile.keys() & counting.keys())
        self.num_offers = sum(part.offers[0].norm > 0 for part in counting.values())
        self.rejected, self.share, self.mean = reduced.rejected, reduced.share, reduced.mean
        self.weight = math.fsum(share for peer, share in reduced.share.items() if peer in self.hostile)
        self.clip = {peer: clips["shared", peer] for peer in counting}
        norms = [part.offers[0].norm for part in counting.values() if part.offers[0].norm > 0]
        usual = self.past.usual("shared")
        self.most = min(statistics.median(norms), math.inf if usual is None else usual * self.manifest.sync.most_growth)

    def by(self, peers: Any) -> Tensor:
        """What these honest peers put into the mean."""
        parts = [self.honest[peer][0].double() * self.share[peer] * self.clip[peer] for peer in peers]
        return torch.stack(parts).sum(0)


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.integers(1, 10_000)), min_size=1, max_size=9),
    st.lists(st.sampled_from(ATTACKS), max_size=4),
    st.sampled_from([None, 0.5, 3.0]),
    st.integers(0, 1000),
)
@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_hostile_offers_move_the_mean_by_no_more_than_the_stated_bound(
    manifest: Manifest, honest: list[tuple[float, int]], attacks: list[str], usual: float | None, seed: int
) -> None:
    peers = {PeerId(f"honest {i}"): (drawn(seed + i) * size, count) for i, (size, count) in enumerate(honest)}
    victim = next(iter(peers.values()))[0]
    hostile = {PeerId(f"evil {i}"): poison(attack, victim, seed + 77 + i) for i, attack in enumerate(attacks)}
    past = Norms({"shared": (usual,)}) if usual else Norms()
    found = Mean(manifest, peers, hostile, past)
    slack = 1 + 2 * NORM_TOLERANCE
    theirs = found.mean.double() - found.by(peers)
    assert norm(theirs) <= found.weight * found.most * slack + 1e-6 * norm(found.mean)
    sizes = {peer: norm(values) for peer, (values, _) in peers.items()}
    if 2 * found.num_hostile >= found.num_offers:
        assert usual is None or found.most <= usual * manifest.sync.most_growth
        return
    assert found.most <= max(sizes.values())
    assert found.most >= min(sizes.values()) or usual is not None
    alone = Mean(manifest, peers, {}, past)
    ours = {peer: min(1.0, alone.most / size) for peer, size in sizes.items()}
    rest = 1 - found.weight
    honest_mean = torch.stack(
        [values.double() * (found.share[peer] / rest) * ours[peer] for peer, (values, _) in peers.items()]
    ).sum(0)
    bound = 2 * found.weight * max(found.most, alone.most) + abs(found.most - alone.most)
    assert norm(found.mean.double() - honest_mean) <= bound * slack + 1e-6 * norm(found.mean)


@pytest.mark.parametrize(("num_honest", "num_hostile"), [(2, 1), (7, 1), (9, 3)])
def test_a_claim_of_speed_weighs_no_more_than_a_few_ordinary_peers(
    manifest: Manifest, num_honest: int, num_hostile: int
) -> None:
    tokens = {PeerId(f"honest {i}"): 1000 for i in range(num_honest)}
    tokens |= {PeerId(f"evil {i}"): 10**12 for i in range(num_hostile)}
    most = manifest.sync.most_weight
    weight = weights(tokens, most)
    theirs = sum(weight[PeerId(f"evil {i}")] for i in range(num_hostile))
    assert theirs / sum(weight.values()) == pytest.approx(most * num_hostile / (most * num_hostile + num_honest))


def test_a_copy_of_anothers_offers_does_not_count_and_equal_single_blocks_do(swarm: Swarm) -> None:
    """What no text has a use for decays alike everywhere; the whole of the shared parameters does not."""
    swarm.until(lambda: swarm.round == 2)
    source, honest, partial, copier = swarm.members.values()  # in the order in which they contribute

    def taking(num_blocks: int) -> Callable[[Contribution], Contribution]:
        def change(made: Contribution) -> Contribution:
            theirs = source.contribution
            assert theirs is not None
            return replaced(made, offers=(*theirs.offers[:num_blocks], *made.offers[num_blocks:]))

        return change

    partial.change = taking(len(swarm.layout.shared_blocks) - 1)
    copier.change = taking(len(swarm.layout.shared_blocks))
    swarm.until(lambda: swarm.round == 4)
    counted = {part.peer_id for update in swarm.head.record.updates for part in update.contributors}
    assert counted == {source.peer_id, honest.peer_id, partial.peer_id}
    assert "contribution to round 3: its shared parameters are a copy of another's" in copier.refusals
    assert not any(member.objections for member in swarm.members.values())


# ---- the bound from earlier records ----


def record_of(norm: float, group: str = "expert/00", clip: float = 1.0) -> Record:
    update = Update(BlockId(f"{group}/0000"), invented(norm, group), 1, (Contributor(PeerId("a"), 1, clip, norm),), ())
    return Record(1, b"", 0, b"", "", -1, -1, 1, 0, (update,), 0, (), (), (), 0, (), 0, 0)


def after(*norms: float) -> Norms:
    past = Norms()
    for one in norms:
        past = past.after(record_of(one))
    return past


def test_usual_is_the_median_of_the_last_eight_as_they_were_clipped() -> None:
    assert Norms().usual("expert/00") is None
    assert after(5.0).usual("expert/00") == 5.0
    assert after(*[100.0] * 5, *range(1, 9)).usual("expert/00") == 8.0  # what experts were moved by last
    both = after(*[100.0] * 5, *range(1, 9)).after(record_of(2.0, "expert/01")).after(record_of(3.0, "expert/02"))
    assert both.usual("expert/00") == 4.5
    assert both.usual("expert/07") == 3.0  # never trained
    assert Norms().after(record_of(8.0, clip=0.25)).usual("expert/00") == 2.0
    assert after(5.0).usual("shared") is None


def test_an_owner_can_raise_what_is_usual_for_its_expert_by_one_factor_in_four_rounds(manifest: Manifest) -> None:
    growth, past = manifest.sync.most_growth, after(*[1.0] * 8)
    for other in range(1, 8):
        past = past.after(record_of(1.0, f"expert/{other:02d}"))
    for round in range(1, 13):
        usual = past.usual("expert/00")
        assert usual is not None
        past = past.after(record_of(growth * usual))
        after_it = past.usual("expert/00")
        assert after_it is not None
        assert after_it <= growth ** math.ceil(round / 4)


@pytest.fixture
def swarm(manifest: Manifest) -> Swarm:
    return Swarm(manifest, [(0,), (1,), (2,), (3,)])


def enlarge(swarm: Swarm, number: int, factor: float) -> None:
    """From now on this member's experts are so much too large."""
    swarm[number].change = lambda made: replaced(
        made,
        offers=tuple(
            replaced(one, norm=one.norm * factor) if one.block.startswith("expert") else one for one in made.offers
        ),
    )


def test_an_owners_expert_counts_by_the_norm_that_earlier_records_allow(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 3)
    enlarge(swarm, 1, 1000.0)
    swarm.until(lambda: swarm.round == 5)
    norms = norms_by_peer(swarm.head.record.updates)
    mine = {group: peers[swarm[1].peer_id] for group, peers in norms.items() if swarm[1].peer_id in peers}
    others = {group: peers[swarm[0].peer_id] for group, peers in norms.items() if swarm[0].peer_id in peers}
    most = swarm.layout.manifest.sync.most_growth
    ordinary = next(norm for group, norm in others.items() if group != "shared")
    assert {group: norm for group, norm in mine.items() if group != "shared"} == {
        group: pytest.approx(most * ordinary) for group in mine if group != "shared"
    }
    assert not any(member.objections for member in swarm.members.values())


def test_in_the_first_round_owners_are_held_to_what_experts_have_in_common(swarm: Swarm) -> None:
    enlarge(swarm, 1, 1000.0)
    swarm.until(lambda: swarm.round == 2)
    norms = norms_by_peer(swarm.head.record.updates)
    ordinary, mine = (
        [
            peers[swarm[number].peer_id]
            for group, peers in norms.items()
            if group != "shared" and swarm[number].peer_id in peers
        ]
        for number in (0, 1)
    )
    assert mine == pytest.approx([swarm.layout.manifest.sync.most_growth * one for one in ordinary])


def test_members_refuse_a_record_that_lifts_the_bound(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 3)
    enlarge(swarm, 1, 1000.0)
    swarm.until(lambda: swarm.round == 4)
    swarm.until(lambda: swarm.phase == "closing")
    assert isinstance(swarm.state.phase, Closing)
    record = swarm.state.phase.proposal.record
    lifted = replaced(
        record,
        updates=tuple(
            replaced(one, contributors=tuple(replaced(part, clip=1.0) for part in one.contributors))
            for one in record.updates
        ),
    )
    honest = swarm[0]
    own = Own(honest.peer_id, honest.contribution, honest.reports, honest.incarnation)
    past = swarm.state.past.norms
    assert objections(record.seal(), swarm.head, own, swarm.layout, past) is None
    assert "is the most" in (objections(lifted.seal(), swarm.head, own, swarm.layout, past) or "signed")


def test_a_member_refuses_a_record_with_another_norm_or_clip_of_what_it_knows(swarm: Swarm) -> None:
    swarm.until(lambda: swarm.round == 2)
    swarm.until(lambda: swarm.phase == "closing")
    assert isinstance(swarm.state.phase, Closing)
    record, me = swarm.state.phase.proposal.record, swarm[0]
    reduced = next(one for one in record.updates if me.peer_id in one.reducers)
    own = Own(me.peer_id, me.contribution, me.reports, me.incarnation, me.inputs)
    assert objections(record.seal(), swarm.head, own, swarm.layout) is None

    def changed(peer: str, **changes: float) -> str:
        parts = tuple(replaced(one, **changes) if one.peer_id == peer else one for one in reduced.contributors)
        updates = tuple(replaced(one, contributors=parts) if one == reduced else one for one in record.updates)
        return objections(replaced(record, updates=updates).seal(), swarm.head, own, swarm.layout) or "signed"

    assert "another norm of our offer" in changed(me.peer_id, norm=0.5)
    other = next(part.peer_id for part in reduced.contributors if part.peer_id != me.peer_id)
    assert "counts its offers otherwise than we averaged them" in changed(other, clip=0.5)


# ---- what trainers make of a record that says another length ----


def test_an_update_that_is_longer_than_the_record_says_moves_nothing(tmp_path: Path) -> None:
    swarm = Trainers.create(tmp_path, (0,), (1,))
    updates = swarm.updates(swarm.train())
    roots = {trainer._public.root() for trainer in swarm.trainers.values()}
    shorter = tuple(
        dataclasses.replace(
            one, contributors=tuple(dataclasses.replace(part, norm=part.norm / 3) for part in one.contributors)
        )
        for one in updates
    )
    applied = swarm.apply(shorter)
    assert {one.state_root for one in applied.values()} == roots
    swarm.train()
    assert {one.state_root for one in swarm.apply(updates).values()} != roots


def test_the_norm_is_the_same_number_in_whatever_pieces_the_processor_adds() -> None:
    values = drawn(3).repeat(3000)
    wanted = math.sqrt(math.fsum(float(value) ** 2 for value in values.tolist()))
    assert norm(values) == pytest.approx(wanted, rel=1e-12)
    assert norm(values[:1]) == abs(float(values[0]))
    assert norm(values[:0]) == 0.0
    torch.set_num_threads(1)
    one = norm(values)
    torch.set_num_threads(2)
    assert norm(values) == one
