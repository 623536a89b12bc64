"""Which contributions are taken, and what they weigh."""

import math

import pytest
from rounds_swarm import contribution_of, genesis, invented, replaced

from spes_peer.identity import PeerId
from spes_peer.rounds.contributions import clip_factors, fault_in_contribution, findings_in, majority_root
from spes_peer.rounds.messages import Contribution
from spes_peer.run.layout import Layout
from spes_peer.run.manifest import Manifest
from spes_peer.run.records import BlockId, DataRange, RosterEntry

ENTRY = RosterEntry(PeerId("peer"), 1, (1,), (DataRange(0, 160),), 8)
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


@pytest.fixture
def layout(manifest: Manifest) -> Layout:
    return Layout(manifest)


@pytest.fixture
def honest(layout: Layout) -> Contribution:
    return contribution_of(ENTRY, genesis(layout), layout, invented("root"), steps=20)


def fault(given: Contribution, layout: Layout) -> str | None:
    return fault_in_contribution(given, ENTRY, genesis(layout), layout)


def test_what_the_roster_lets_a_member_offer_is_taken(honest: Contribution, layout: Layout) -> None:
    assert fault(honest, layout) is None
    assert honest.tokens == 20 * 8 * 128


def test_fewer_steps_with_their_tokens_are_taken(layout: Layout) -> None:
    assert fault(contribution_of(ENTRY, genesis(layout), layout, invented("root"), steps=7), layout) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 3}, "it is for round 3, and round 0 is open"),
        ({"steps": 21}, "it claims 21 steps of a round that has 20"),
        ({"steps": 0}, "it claims 0 steps of a round that has 20"),
        ({"tokens": 20_481}, "it claims 20481 tokens, and its 20 steps have 20480"),
        ({"train_loss": math.nan}, "a loss or speed in it is negative or not finite"),
        ({"tokens_per_second": math.inf}, "a loss or speed in it is negative or not finite"),
        ({"held_out_loss_sum": -1.0}, "a loss or speed in it is negative or not finite"),
        ({"state_root": "../root"}, "its state root is not a sha256"),
    ],
)
def test_claims_that_cannot_be_are_refused_by_name(
    honest: Contribution, layout: Layout, changes: dict[str, object], reason: str
) -> None:
    assert fault(replaced(honest, **changes), layout) == reason


def test_offers_must_be_exactly_those_of_the_shared_blocks_and_the_owned_experts(
    honest: Contribution, layout: Layout
) -> None:
    first, *others = honest.offers
    foreign = replaced(first, block=BlockId("expert/07/0000"))
    assert fault(replaced(honest, offers=tuple(others)), layout) == "it lacks shared/0000"
    assert fault(replaced(honest, offers=(first, *honest.offers)), layout) == "it offers shared/0000 twice"
    assert (
        fault(replaced(honest, offers=(*honest.offers, foreign)), layout)
        == "it offers expert/07/0000, which is not the sender's to train"
    )


@pytest.mark.parametrize("norm", [-1.0, math.nan, math.inf, 1e39])
def test_a_norm_that_no_values_have_is_refused(honest: Contribution, layout: Layout, norm: float) -> None:
    offers = (replaced(honest.offers[0], norm=norm), *honest.offers[1:])
    assert fault(replaced(honest, offers=offers), layout) == f"the norm of its offer of shared/0000 is {norm}"


def test_an_offer_of_another_size_is_refused(honest: Contribution, layout: Layout) -> None:
    offers = (replaced(honest.offers[0], size_bytes=7), *honest.offers[1:])
    assert (
        fault(replaced(honest, offers=offers), layout)
        == f"its offer of shared/0000 has 7 bytes instead of {honest.offers[0].size_bytes}"
    )


def test_clip_factors_bring_large_norms_to_the_median_and_leave_small_ones() -> None:
    assert clip_factors({A: 1.0, B: 2.0, C: 8.0}) == {A: 1.0, B: 1.0, C: 0.25}


def test_peers_that_offer_nothing_do_not_shrink_the_others() -> None:
    assert clip_factors({A: 0.0, B: 0.0, C: 3.0}) == {A: 1.0, B: 1.0, C: 1.0}


def test_a_clip_factor_is_above_zero_however_large_the_norm() -> None:
    factors = clip_factors({A: 1e-30, B: 1e-30, C: 3e38})
    assert 0 < factors[C] < 1e-11


def test_the_state_root_is_that_of_most_tokens_not_of_most_peers(honest: Contribution) -> None:
    few, many = replaced(honest, tokens=10, state_root="aa"), replaced(honest, tokens=30, state_root="bb")
    assert majority_root({A: few, B: few, C: many}) == "bb"


def test_losses_are_weighted_by_their_tokens(honest: Contribution) -> None:
    one = replaced(honest, tokens=100, train_loss=2.0, held_out_loss_sum=30.0, held_out_tokens=10)
    two = replaced(honest, tokens=300, train_loss=4.0, held_out_loss_sum=30.0, held_out_tokens=20)
    findings = findings_in([one, two])
    assert findings.train_loss == pytest.approx(3.5)
    assert findings.held_out_loss == pytest.approx(2.0)


def test_a_held_out_loss_that_nobody_measured_is_negative(honest: Contribution) -> None:
    assert findings_in([replaced(honest, held_out_tokens=0, held_out_loss_sum=0.0)]).held_out_loss == -1.0
