"""A run of real processes while somebody without a key does what it can to them."""

import contextlib
import resource
import socket
from collections.abc import Iterator

import psutil
import pytest
from real_swarm import LOOPBACK, Place, organize, place, small_run, until

__all__ = ["place"]

pytestmark = pytest.mark.slow

NUM_CONNECTIONS = 10_000


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """So many that this process can hold all connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = NUM_CONNECTIONS + 1_000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"a process may open {hard} files, and this takes {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def connected(port: int, number: int) -> Iterator[list[socket.socket]]:
    """So many connections on which nothing is ever said; from several addresses, since one has too few ports."""
    connections: list[socket.socket] = []
    try:
        for count in range(number):
            one = socket.socket()
            connections.append(one)
            one.setblocking(False)
            one.bind((f"127.0.0.{2 + count // 5_000}", 0))
            with contextlib.suppress(BlockingIOError):
                one.connect((LOOPBACK, port))
        yield connections
    finally:
        for one in connections:
            one.close()


@pytest.mark.timeout(900)
def test_ten_thousand_silent_connections_hold_up_no_round_and_nobody_who_joins_later(
    many_descriptors: None, place: Place
) -> None:
    run = organize(place, small_run(min_peers=2))
    for name in ("ada", "bo"):
        run.join(name)
    run.until_rounds_more("ada", 1)
    daemons = [psutil.Process(run.bootstrap.pid), run.daemon("ada"), run.daemon("bo")]
    ports = [listening(daemon) for daemon in daemons]
    before = [daemon.memory_info().rss for daemon in daemons]
    with contextlib.ExitStack() as attack:
        for port in ports:
            attack.enter_context(connected(port, NUM_CONNECTIONS // len(ports)))
        run.until_rounds_more("ada", 3)
        limits = [daemon.rlimit(psutil.RLIMIT_NOFILE)[0] for daemon in daemons]
        assert all(daemon.num_fds() < limit for daemon, limit in zip(daemons, limits, strict=True))
    grown = [daemon.memory_info().rss - was for daemon, was in zip(daemons, before, strict=True)]
    assert max(grown) < 200 << 20, grown
    run.join("cy")
    run.until_rounds_more("cy", 1)
    run.until_equal("ada", "bo", "cy")


def listening(daemon: psutil.Process) -> int:
    """The port of its gRPC server: what it listens on itself."""
    found: int = until(
        lambda: next((one.laddr.port for one in daemon.net_connections("tcp") if one.status == psutil.CONN_LISTEN), 0),
        "it listens",
    )
    return found
