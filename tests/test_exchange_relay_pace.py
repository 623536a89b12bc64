"""What a relay gives of its owner's line: kept, and shared fairly between those that it relays for."""

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from spes_peer.exchange.relay_limits import OF_BOOTSTRAP, OF_VOLUNTEER, RelayLimits
from spes_peer.exchange.relay_pace import RelayPace

RATE = 1_000_000
SECONDS = 60.0


def in_no_time(program: Callable[[], Awaitable[None]]) -> None:
    """Run with a clock that passes as fast as everybody sleeps."""
    trio.run(program, clock=trio.testing.MockClock(autojump_threshold=0))


async def passed(pace: RelayPace, *clients: str) -> Counter[str]:
    """Bytes for each of `clients` while each of its circuits passes on as much as it may; a client has as many circuits
    as it is named times."""
    counts: Counter[str] = Counter()

    async def circuit(client: str) -> None:
        while True:
            await pace.take(pace.chunk_bytes, client)
            counts[client] += pace.chunk_bytes

    with trio.move_on_after(SECONDS):
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(circuit, client)
    return counts


@pytest.mark.parametrize("rate", [10_000, RATE, 50_000_000])
def test_no_more_bytes_a_second_are_relayed_than_was_said_and_no_less(rate: int) -> None:
    async def program() -> None:
        pace = RelayPace(rate)
        total = (await passed(pace, "a", "b", "b", "c")).total()
        assert total == pytest.approx(rate * SECONDS, rel=0.05)
        assert pace.num_bytes == total

    in_no_time(program)


def test_who_opens_many_circuits_gets_no_more_than_who_has_one() -> None:
    async def program() -> None:
        counts = await passed(RelayPace(RATE), *["greedy"] * 50, "modest", "other")
        assert counts["greedy"] == pytest.approx(counts["modest"], rel=0.02)
        assert counts["modest"] == pytest.approx(RATE * SECONDS / 3, rel=0.02)

    in_no_time(program)


def test_a_small_message_waits_for_one_chunk_of_each_of_the_others() -> None:
    async def program() -> None:
        pace = RelayPace(RATE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(passed, pace, *["greedy"] * 50, "other")
            await trio.sleep(5.0)
            asked_at = trio.current_time()
            await pace.take(100, "quiet")
            assert trio.current_time() - asked_at <= 3 * pace.chunk_bytes / RATE
            nursery.cancel_scope.cancel()

    in_no_time(program)


def test_who_gives_up_waiting_holds_up_nobody_and_nobody_is_remembered() -> None:
    async def program() -> None:
        pace = RelayPace(RATE)
        async with trio.open_nursery() as nursery:
            for number in range(1_000):
                nursery.start_soon(pace.take, pace.chunk_bytes, f"peer {number}")
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        started_at = trio.current_time()
        await pace.take(RATE, "a")
        assert trio.current_time() - started_at == pytest.approx(1.0, abs=0.1)
        assert not pace._places

    in_no_time(program)


def test_without_a_limit_nobody_waits() -> None:
    async def program() -> None:
        pace, started_at = RelayPace(0), trio.current_time()
        for _ in range(100):
            await pace.take(pace.chunk_bytes, "a")
        assert trio.current_time() == started_at
        assert pace.num_bytes == 100 * pace.chunk_bytes

    in_no_time(program)


def test_a_volunteer_gives_less_than_a_bootstrap_node_and_never_more_than_half_of_its_limits() -> None:
    assert OF_BOOTSTRAP.within(0, 0) == OF_BOOTSTRAP
    assert OF_VOLUNTEER.within(0, 0) == OF_VOLUNTEER
    assert OF_VOLUNTEER.within(10_000_000, 10_000_000) == OF_VOLUNTEER
    assert OF_VOLUNTEER.within(500_000, 0).bytes_per_second == 250_000
    assert OF_VOLUNTEER.within(500_000, 100_000).bytes_per_second == 50_000
    assert OF_BOOTSTRAP.within(500_000, 0).bytes_per_second == 250_000
    assert RelayLimits(64, 16, 0).within(1, 0) == RelayLimits(1, 16, 1)


def test_so_many_circuits_are_carried_as_the_limit_on_bytes_lets_move() -> None:
    assert OF_VOLUNTEER.within(160 << 10, 0).max_circuits == 10
    assert OF_BOOTSTRAP.within(160 << 10, 0).max_circuits == 10
