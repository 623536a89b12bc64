"""The run's page as strangers' programs meet it: what it answers, what it costs, and what it does not put up with."""

import argparse
import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
from web_runs import MadeUp
from web_site import Shown, shown

from bootstrap.cli import web_place
from bootstrap.web.limits import Limits, Visits, visitor
from bootstrap.web.page import policy
from spes_peer.errors import BadConfiguration, BlobMissing
from spes_peer.run.manifest import Manifest

PATHS = ("/", "/api/run.json", "/api/rounds.json", "/api/experts.json", "/api/volunteers.json", "/metrics")


@pytest.fixture
async def run(manifest: Manifest) -> AsyncIterator[Shown]:
    async with shown(MadeUp(manifest).facts()) as one:
        yield one


@pytest.fixture
async def visit() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield session


async def raw(run: Shown, *parts: bytes) -> bytes:
    """All that comes back for these bytes until the connection ends."""
    host, _, port = run.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


# ---- what it answers ----


@pytest.mark.parametrize("path", PATHS)
async def test_every_path_answers_with_headers_that_let_a_browser_do_nothing_else(
    run: Shown, visit: aiohttp.ClientSession, path: str
) -> None:
    async with visit.get(run.url + path) as answer:
        assert answer.status == 200
        headers = answer.headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert "Set-Cookie" not in headers


async def test_an_answer_that_has_not_changed_is_not_sent_again(run: Shown, visit: aiohttp.ClientSession) -> None:
    async with visit.get(run.url) as first:
        etag = first.headers["ETag"]
    async with visit.get(run.url, headers={"If-None-Match": etag}) as second:
        assert (second.status, await second.read()) == (304, b"")
    run.facts = replace(run.facts, rules=replace(run.facts.rules, paused_at=1.0))
    run.now = lambda: 1e9
    async with visit.get(run.url, headers={"If-None-Match": etag}) as third:
        assert third.status == 200
        assert b"Paused by the organizer" in gzip.decompress(await third.read())


async def test_who_does_not_unpack_gets_it_plain(run: Shown, visit: aiohttp.ClientSession) -> None:
    async with visit.get(run.url, headers={"Accept-Encoding": "identity"}) as answer:
        assert "Content-Encoding" not in answer.headers
        assert (await answer.read()).startswith(b"<!doctype html>")


async def test_head_tells_the_length_and_sends_nothing(run: Shown, visit: aiohttp.ClientSession) -> None:
    async with visit.head(run.url) as answer:
        assert int(answer.headers["Content-Length"]) > 1000
        assert await answer.read() == b""


async def test_rounds_begin_where_they_are_asked_for(manifest: Manifest, visit: aiohttp.ClientSession) -> None:
    async with shown(MadeUp(manifest, num_closed=600).facts()) as run:
        async with visit.get(f"{run.url}/api/rounds.json?from=512") as answer:
            found = json.loads(gzip.decompress(await answer.read()))
        assert (found["rounds"][0]["record"], found["next"]) == (512, None)
        for bad in ("-1", "x", "1e3", "٣", "9" * 30):
            async with visit.get(f"{run.url}/api/rounds.json?from={bad}") as answer:
                assert answer.status == 400


@pytest.mark.parametrize("path", ["/x", "/api", "/api/../api/run.json/", "//", "/<script>alert(1)</script>", "/%00"])
async def test_what_is_not_there_is_not_repeated(run: Shown, visit: aiohttp.ClientSession, path: str) -> None:
    async with visit.get(run.url + path) as answer:
        assert answer.status == 404
        assert await answer.read() == b"there is nothing here; the run is shown at /\n"
        assert answer.headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
async def test_nothing_but_reading_is_possible(run: Shown, visit: aiohttp.ClientSession, method: str) -> None:
    async with visit.request(method, run.url) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET,HEAD"


# ---- what it costs ----


async def test_a_thousand_visitors_cost_one_page(run: Shown) -> None:
    run.now = lambda: 0.0
    answers = await asyncio.gather(*(run.shelf.page() for _ in range(1000)))
    assert len({answer.etag for answer in answers}) == 1
    assert (run.num_gathered, run.shelf.num_made) == (1, 1)


async def test_a_run_that_stands_still_is_looked_at_each_second_and_drawn_once(run: Shown) -> None:
    for second in range(10):
        run.now = lambda second=second: float(second)  # type: ignore[misc]
        await run.shelf.page()
        await run.shelf.page()
    assert (run.num_gathered, run.shelf.num_made) == (10, 1)


async def test_whatever_stretch_of_rounds_is_asked_for_there_are_only_so_many_answers(run: Shown) -> None:
    run.now = lambda: 0.0
    for first in range(0, 100_000, 177):
        await run.shelf.rounds_json(first)
    assert run.shelf.num_made == 2  # the 41 records, and that there are no more


# ---- what it does not put up with ----


async def test_a_fault_in_the_page_is_an_answer_and_the_next_look_works(
    run: Shown, visit: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    for fault in (BlobMissing("record 7 is not here"), ZeroDivisionError("a secret of the node")):
        run.fault = fault
        async with visit.get(run.url) as answer:
            assert answer.status == 503
            assert b"secret" not in await answer.read()
    assert len(caplog.records) == 1  # not once for every visitor
    run.fault = None
    async with visit.get(run.url) as answer:
        assert answer.status == 200


async def test_a_slow_request_is_cut_off(manifest: Manifest) -> None:
    async with shown(MadeUp(manifest).facts(), Limits(connection_seconds=0.2)) as run:
        assert await raw(run, b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ") == b""
        assert await raw(run) == b""


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-%d: 1\r\n" * 500 + b"\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + b"z" * 60_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"INVENTED / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ],
)
async def test_requests_that_are_too_large_or_none_are_refused_and_hurt_nobody(
    run: Shown, visit: aiohttp.ClientSession, request_bytes: bytes
) -> None:
    answer = await raw(run, request_bytes)
    assert answer == b"" or answer.split(b" ", 2)[1] in (b"400", b"405", b"414", b"431")
    assert b"xxx" not in answer
    assert b"yyy" not in answer
    assert b"aiohttp" not in answer
    assert not answer or b"Content-Security-Policy: default-src 'none'" in answer
    async with visit.get(run.url) as other:
        assert other.status == 200


async def test_a_connection_that_sends_without_end_is_cut_off(run: Shown) -> None:
    answers = await raw(run, *([b"GET /api/run.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100] * 50))
    assert answers.count(b"HTTP/1.1 200") < 32 << 10 // 40


async def test_only_so_many_connections_are_open_at_a_time(manifest: Manifest) -> None:
    async with shown(MadeUp(manifest).facts(), Limits(connections=3, connection_seconds=30.0)) as run:
        host, _, port = run.url.removeprefix("http://").rpartition(":")
        held = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        for _reader, writer in held:
            writer.write(b"GET /api/run.json HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [(await reader.readline())[:12] for reader, _ in held] == [b"HTTP/1.1 200"] * 3
        assert await raw(run, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        held[0][1].close()
        await held[0][1].wait_closed()
        request = b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        while not (answer := await raw(run, request)):  # noqa: ASYNC110 - until the server has noticed
            await asyncio.sleep(0)
        assert answer.startswith(b"HTTP/1.1 404")
        for _reader, writer in held:
            writer.close()


async def test_too_many_requests_are_refused_until_some_time_has_passed(
    manifest: Manifest, visit: aiohttp.ClientSession
) -> None:
    async with shown(MadeUp(manifest).facts(), Limits(requests=5, window_seconds=1e9)) as run:
        found = []
        for _ in range(8):
            async with visit.get(f"{run.url}/api/run.json") as answer:
                found.append(answer.status)
        assert found == [200] * 5 + [429] * 3


def test_one_address_gets_its_part_and_no_more_and_a_proxy_speaks_for_many() -> None:
    visits = Visits(Limits(connections=10, connections_of_one=2, requests=100, requests_of_one=3))
    assert [visits.come("a"), visits.come("a"), visits.come("a"), visits.come("b")] == [True, True, False, True]
    visits.leave("a")
    assert visits.come("a")
    assert [visits.come("") for _ in range(8)] == [True] * 7 + [False]
    assert [visits.ask("a", 0.0) for _ in range(4)] == [True] * 3 + [False]
    assert visits.ask("a", 11.0)
    assert all(visits.ask("", 11.0) for _ in range(50))


@pytest.mark.parametrize(
    ("address", "who"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.1", ""),
        ("::1", ""),
        ("", ""),
    ],
)
def test_who_counts_as_one_visitor(address: str, who: str) -> None:
    assert visitor(address) == who


async def test_a_place_that_is_taken_is_named(manifest: Manifest, run: Shown) -> None:
    from bootstrap.web.server import Site

    port = int(run.url.rpartition(":")[2])
    with pytest.raises(BadConfiguration, match=f"cannot serve the web page at 127.0.0.1:{port}"):
        async with Site(run.shelf).serving("127.0.0.1", port):
            pass


def test_the_policy_names_style_and_script_by_what_they_are() -> None:
    assert policy().count("'sha256-") == 2


@pytest.mark.parametrize(
    ("text", "place"),
    [("8080", ("", 8080)), ("0", ("", 0)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::]:80", ("::", 80))],
)
def test_web_takes_a_port_or_a_host_with_one(text: str, place: tuple[str, int]) -> None:
    assert web_place(text) == place


@pytest.mark.parametrize("text", ["", "run.example.org", "65536", "-1", "http://x:80", "x:y"])
def test_web_refuses_what_is_no_place(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no place for a web page"):
        web_place(text)
