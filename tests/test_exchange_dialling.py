"""Several addresses of one node: a dead one costs a moment, and the first to answer wins."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from spes_peer.errors import Unreachable
from spes_peer.exchange.dialling import NoneAnswers, first_that_answers, look_up

Attempt = Callable[[], Awaitable[str]]


def answers(word: str, seconds: float = 0.0) -> Attempt:
    async def attempt() -> str:
        await asyncio.sleep(seconds)
        return word

    return attempt


def fails(word: str, seconds: float = 0.0) -> Attempt:
    async def attempt() -> str:
        await asyncio.sleep(seconds)
        raise Unreachable(word)

    return attempt


async def first(*attempts: Attempt, head_start_seconds: float = 0.05) -> str:
    return await first_that_answers(attempts, head_start_seconds=head_start_seconds)


async def test_the_first_in_order_wins_where_it_answers_within_its_head_start() -> None:
    assert await first(answers("one", 0.02), answers("two"), head_start_seconds=60.0) == "one"


async def test_a_silent_address_costs_its_head_start_alone() -> None:
    started = time.monotonic()
    assert await first(answers("silent", 300.0), answers("two")) == "two"
    assert time.monotonic() - started < 30.0


async def test_an_address_that_refuses_costs_nothing() -> None:
    started = time.monotonic()
    assert await first(fails("refused"), answers("two"), head_start_seconds=60.0) == "two"
    assert time.monotonic() - started < 30.0


async def test_a_slow_address_is_waited_for_when_the_others_fail() -> None:
    assert await first(answers("slow", 0.3), fails("refused")) == "slow"


async def test_when_none_answers_each_says_why_in_the_order_of_the_addresses() -> None:
    with pytest.raises(NoneAnswers, match=r"^late; soon$") as failed:
        await first(fails("late", 0.2), fails("soon"))
    assert [str(one) for one in failed.value.failures] == ["late", "soon"]
    with pytest.raises(NoneAnswers, match="no address"):
        await first()


async def test_of_two_that_answer_in_one_moment_the_second_is_given_back() -> None:
    started, both_wait, discarded = [], asyncio.Event(), []

    def at_once(word: str) -> Attempt:
        async def attempt() -> str:
            started.append(word)
            if len(started) == 2:
                both_wait.set()
            await both_wait.wait()
            return word

        return attempt

    async def discard(word: str) -> None:
        discarded.append(word)

    attempts = [at_once("one"), at_once("two")]
    assert await first_that_answers(attempts, discard, head_start_seconds=0.01) == "one"
    assert discarded == ["two"]


async def test_whoever_waits_no_more_leaves_no_attempt_behind() -> None:
    ended = asyncio.Event()

    async def attempt() -> str:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await first(attempt)
    assert ended.is_set()


async def test_names_are_looked_up_and_those_that_have_no_address_give_none() -> None:
    assert "127.0.0.1" in await look_up("localhost", 1)
    assert await look_up("no-such-host.invalid", 1) == []
