"""The lab itself: what its routers let through, how fast its links are, and that nothing is left of it."""

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from netlab.lab import Home, Host, Lab, lab, needs_lab
from netlab.translation import Translation

from spes_peer.chaos.network import ip, namespaces

__all__ = ["lab"]

# ---- what a router does to packets ----

INSIDE, OUTSIDE, PUBLIC = b"\xc0\xa8\x01\x02", b"\x0b\x4d\x00\x05", b"\x0b\x4d\x01\x07"
SYN, ACK = 0x02, 0x10


def checksum(data: bytes) -> int:
    total = sum(int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def packet(
    source: tuple[bytes, int], target: tuple[bytes, int], flags: int | None = None, data: bytes = b"spes!"
) -> bytes:
    """IPv4 with right checksums: TCP with `flags`, or UDP."""
    ports = source[1].to_bytes(2, "big") + target[1].to_bytes(2, "big")
    if flags is None:
        protocol, checksum_at = 17, 6
        body = ports + (8 + len(data)).to_bytes(2, "big") + b"\0\0" + data
    else:
        protocol, checksum_at = 6, 16
        body = ports + bytes(8) + bytes([0x50, flags]) + b"\xff\xff" + bytes(4) + data
    pseudo = source[0] + target[0] + bytes([0, protocol]) + len(body).to_bytes(2, "big")
    body = body[:checksum_at] + checksum(pseudo + body).to_bytes(2, "big") + body[checksum_at + 2 :]
    header = b"\x45\0" + (20 + len(body)).to_bytes(2, "big") + b"\0\1\x40\0\x40" + bytes([protocol])
    header_sum = checksum(header + b"\0\0" + source[0] + target[0]).to_bytes(2, "big")
    return header + header_sum + source[0] + target[0] + body


def sent(translation: Translation, source_port: int, target_port: int, now: float = 0.0) -> int:
    """Which port the home's packet goes out from."""
    out = translation.outward(packet((INSIDE, source_port), (OUTSIDE, target_port)), now)
    assert out is not None
    return int.from_bytes(out[20:22], "big")


def router(is_symmetric: bool = False) -> Translation:
    return Translation(PUBLIC, is_symmetric, forget_seconds=30.0)


@pytest.mark.parametrize("flags", [None, SYN])
@pytest.mark.parametrize("data", [b"", b"odd", bytes(range(256)), b"\xff" * 64])
def test_a_translated_packet_is_as_if_the_router_had_made_it(flags: int | None, data: bytes) -> None:
    translation = router(is_symmetric=True)
    out = translation.outward(packet((INSIDE, 4510), (OUTSIDE, 443), flags, data), 0.0)
    assert out is not None
    port = int.from_bytes(out[20:22], "big")
    assert out == packet((PUBLIC, port), (OUTSIDE, 443), flags, data)
    answer_flags = None if flags is None else SYN | ACK
    back = translation.inward(packet((OUTSIDE, 443), (PUBLIC, port), answer_flags, data), 0.0)
    assert back == packet((OUTSIDE, 443), (INSIDE, 4510), answer_flags, data)


def test_a_cone_has_one_port_for_all_destinations_and_a_symmetric_router_one_for_each() -> None:
    cone, symmetric = router(), router(is_symmetric=True)
    assert {sent(cone, 4510, port) for port in range(1, 6)} == {4510}
    assert len({sent(symmetric, 4510, port) for port in range(1, 6)}) == 5
    assert sent(symmetric, 4510, 3) == sent(symmetric, 4510, 3)


def test_a_cone_gives_another_port_where_the_same_is_taken() -> None:
    cone = router()
    assert sent(cone, 4510, 1) == 4510
    other = cone.outward(packet((b"\xc0\xa8\x01\x03", 4510), (OUTSIDE, 1)), 0.0)
    assert other is not None
    assert int.from_bytes(other[20:22], "big") != 4510


def test_only_what_was_asked_for_comes_in() -> None:
    cone = router()
    assert cone.inward(packet((OUTSIDE, 443), (PUBLIC, 4510)), 0.0) is None
    sent(cone, 4510, 443)
    assert cone.inward(packet((OUTSIDE, 443), (PUBLIC, 4510)), 0.0) is not None
    assert cone.inward(packet((OUTSIDE, 444), (PUBLIC, 4510)), 0.0) is None
    assert cone.inward(packet((b"\x0b\x4d\x00\x06", 443), (PUBLIC, 4510)), 0.0) is None
    assert cone.inward(packet((OUTSIDE, 443), (PUBLIC, 4510), SYN), 0.0) is None  # of another protocol
    assert cone.num_dropped == 4


def test_what_is_quiet_for_too_long_is_forgotten_and_what_is_used_is_not() -> None:
    cone = router()
    assert cone.outward(packet((INSIDE, 4510), (OUTSIDE, 443), SYN), 0.0)
    for now in (29.0, 58.0):
        assert cone.inward(packet((OUTSIDE, 443), (PUBLIC, 4510), ACK), now)
    assert cone.outward(packet((INSIDE, 4510), (OUTSIDE, 443), ACK), 87.0)
    assert cone.inward(packet((OUTSIDE, 443), (PUBLIC, 4510), ACK), 117.0) is None
    assert cone.outward(packet((INSIDE, 4510), (OUTSIDE, 443), ACK), 117.0) is None  # in the midst of a connection
    assert cone.outward(packet((INSIDE, 4510), (OUTSIDE, 443), SYN), 117.0)


def test_a_port_that_is_forwarded_lets_everybody_in_and_answers_come_from_there() -> None:
    cone = router()
    cone.forwards[4510] = INSIDE + (4510).to_bytes(2, "big")
    inward = cone.inward(packet((OUTSIDE, 443), (PUBLIC, 4510), SYN), 0.0)
    assert inward == packet((OUTSIDE, 443), (INSIDE, 4510), SYN)
    assert cone.outward(packet((INSIDE, 4510), (OUTSIDE, 443), SYN | ACK), 0.0) == packet(
        (PUBLIC, 4510), (OUTSIDE, 443), SYN | ACK
    )
    assert cone.inward(packet((OUTSIDE, 443), (PUBLIC, 4510), ACK), 1.0) is not None
    assert cone.inward(packet((OUTSIDE, 443), (PUBLIC, 4511), SYN), 1.0) is None
    assert cone.inward(packet((OUTSIDE, 444), (PUBLIC, 4510), ACK), 1.0) is None


@pytest.mark.parametrize("junk", [b"", b"\x45", bytes(60), b"\x45" + bytes(30), b"\x60" + bytes(60), b"\x4f" * 40])
def test_what_is_no_packet_goes_nowhere(junk: bytes) -> None:
    assert router().outward(junk, 0.0) is None
    assert router().inward(junk, 0.0) is None


# ---- the lab ----


def listener(host: Host, version: int = 4) -> socket.socket:
    made = host.socket(version=version)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if version == 6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind(("" if version == 4 else "::", 4510))
    made.listen()
    return made


def datagrams(host: Host, port: int = 0) -> socket.socket:
    made = host.socket(socket.SOCK_DGRAM)
    made.bind(("0.0.0.0", port))
    return made


def connected(home: Host, host: Host) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection."""
    with listener(host) as server:
        near = home.socket()
        near.connect((host.address, 4510))
        return near, server.accept()[0]


def is_unanswered(caller: Host, address: str, seconds: float = 0.15) -> bool:
    """Whether dialling ends with neither a connection nor a refusal."""
    with caller.socket(version=6 if ":" in address else 4) as calling:
        calling.settimeout(seconds)
        try:
            calling.connect((address, 4510))
        except TimeoutError:
            return True
    return False


def is_quiet(receiver: socket.socket, seconds: float = 0.2) -> bool:
    receiver.settimeout(seconds)
    try:
        return not receiver.recv(1)
    except TimeoutError:
        return True


@pytest.fixture(scope="module")
def street() -> Iterator[tuple[Host, Host, Home, Home]]:
    """Two public hosts, and two homes: behind a cone and a symmetric NAT."""
    with Lab() as lab:
        yield lab.public(), lab.public(), lab.home(nat="cone"), lab.home(nat="symmetric")


Street = tuple[Host, Host, Home, Home]


@needs_lab
def test_homes_reach_public_hosts_and_nobody_reaches_a_home(street: Street) -> None:
    one, other, *homes = street
    for home in homes:
        near, far = connected(home, one)
        assert far.getpeername()[0] == home.public_address
        far.sendall(b"hello")
        assert near.recv(5) == b"hello"
        with listener(home):
            for stranger in (one, other, *(neighbour for neighbour in homes if neighbour is not home)):
                for address in (home.public_address, home.address):
                    assert is_unanswered(stranger, address)


@needs_lab
def test_a_cone_shows_all_one_port_and_a_symmetric_router_another_to_each(street: Street) -> None:
    one, other, cone, symmetric = street
    servers = [datagrams(host, 4600) for host in (one, other)]
    for home, num_ports in ((cone, 1), (symmetric, 2)):
        asking = datagrams(home)
        seen = []
        for host, server in zip((one, other), servers, strict=True):
            asking.sendto(b"?", (host.address, 4600))
            seen.append(server.recvfrom(1)[1])
        assert len({port for _, port in seen}) == num_ports
        servers[0].sendto(b"!", seen[0])
        assert asking.recv(1) == b"!"
        datagrams(one).sendto(b"!", seen[0])  # from a port that was not asked
        assert is_quiet(asking)


@needs_lab
def test_a_router_forgets_what_is_quiet_and_what_it_is_told_to(lab: Lab) -> None:
    host, home = lab.public(), lab.home(forget_seconds=2.0)
    near, far = connected(home, host)
    for _ in range(12):  # longer than that, but never quiet
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        time.sleep(0.2)
    time.sleep(2.0)
    far.sendall(b"x")
    assert is_quiet(near)
    near.sendall(b"x")
    assert is_quiet(far)

    lasting = lab.home()
    near, far = connected(lasting, host)
    lasting.forget()
    near.sendall(b"x")
    assert is_quiet(far)


@needs_lab
def test_a_home_that_moves_is_seen_at_its_new_address_and_its_connections_are_dead(lab: Lab) -> None:
    host, home = lab.public(), lab.home()
    near, far = connected(home, host)
    before = home.public_address
    lab.move(home)
    near.sendall(b"x")
    assert is_quiet(far)
    _, far = connected(home, host)
    assert far.getpeername()[0] == home.public_address != before


DATAGRAM_BYTES, HEADER_BYTES = 1472, 28
SO_RCVBUFFORCE = 33  # of Linux, where root may


def mbit_per_second(sender: Host, receiver: Host, seconds: float = 0.8) -> float:
    """Of a flood. A home asks for it first, or nothing would come in; what passes at once is not counted."""
    asking, flooding, there = datagrams(receiver, 4601), datagrams(sender, 4600), (receiver.address, 4601)
    asking.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)  # loses nothing while we wait for a core
    if isinstance(receiver, Home):
        asking.sendto(b"?", (sender.address, 4600))
        there = flooding.recvfrom(1)[1]
    is_over = threading.Event()

    def flood() -> None:
        while not is_over.is_set():
            flooding.sendto(bytes(DATAGRAM_BYTES), there)  # waits while the link's queue is full

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        started = time.monotonic()
        while time.monotonic() - started < 0.2:
            asking.recv(DATAGRAM_BYTES)
        started, num_datagrams = time.monotonic(), 0
        while time.monotonic() - started < seconds:
            asking.recv(DATAGRAM_BYTES)
            num_datagrams += 1
        return num_datagrams * (DATAGRAM_BYTES + HEADER_BYTES) * 8 / 1e6 / (time.monotonic() - started)
    finally:
        is_over.set()
        thread.join()
        asking.close()
        flooding.close()


def carries(mbit: float, sender: Host, receiver: Host) -> bool:
    """Within 10 %, in one of ten attempts: a busy machine sends and counts late."""
    return any(mbit_per_second(sender, receiver) == pytest.approx(mbit, rel=0.1) for _ in range(10))


@needs_lab
def test_links_are_as_fast_as_they_were_asked_to_be(lab: Lab) -> None:
    quick, slow = lab.public(), lab.public(up_mbit=40, down_mbit=60)
    home = lab.home(up_mbit=20, down_mbit=30)
    assert carries(20, home, quick)
    assert carries(30, quick, home)
    assert carries(40, slow, quick)
    assert carries(60, quick, slow)


@needs_lab
def test_a_router_takes_less_than_a_core_for_two_hundred_megabit_and_delays_as_asked(lab: Lab) -> None:
    host, home, far_away = lab.public(), lab.home(), lab.home(delay_ms=50)
    process = psutil.Process(home.router.pid)
    before = process.cpu_times()
    mbit = mbit_per_second(home, host, 1.0)
    after = process.cpu_times()
    seconds = after.user + after.system - before.user - before.system  # its own, also where others are busy
    assert mbit / seconds > 200
    started = time.monotonic()
    near, far = connected(far_away, host)
    assert time.monotonic() - started >= 0.1
    near.sendall(b"x")
    far.recv(1)
    started = time.monotonic()
    near.sendall(b"x")
    far.recv(1)
    assert time.monotonic() - started >= 0.05


@needs_lab
def test_hosts_have_the_families_they_were_asked_to_have(lab: Lab) -> None:
    dual, only_6, home = lab.public("dual"), lab.public("6"), lab.home(family="6")
    for host in (only_6, home):
        assert ip("-n", host.space, "-4", "-o", "address", "show", "dev", "eth0") == ""
        with pytest.raises(OSError, match="unreachable"):
            host.socket().connect((dual.addresses[0], 4510))
        with listener(dual, version=6) as server, host.socket(version=6) as caller:
            caller.connect((dual.addresses[1], 4510))
            assert server.accept()[1][0] == host.address
    near, far = connected(lab.public(), dual)
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    with listener(home, version=6):
        assert is_unanswered(dual, home.address)


@needs_lab
@pytest.mark.parametrize(("family", "version"), [("4", 4), ("dual", 6)])
def test_nobody_reaches_a_dead_address_and_nobody_is_told(lab: Lab, family: str, version: int) -> None:
    host, home = lab.public(family, has_dead=True), lab.home(family=family)  # type: ignore[arg-type]
    neighbour = lab.public(family)  # type: ignore[arg-type]
    with listener(host), listener(host, version=6) if version == 6 else contextlib.nullcontext():
        for caller in (home, neighbour):
            caller.socket().connect((host.address, 4510))
            assert is_unanswered(caller, host.dead_address)


_CALL_BY_NAME = """
import asyncio, sys, time
from spes_peer.exchange.dialling import first_that_answers, look_up

async def main():
    started = time.monotonic()
    hosts = await look_up("two.homes", 4510)
    calls = [lambda host=host: asyncio.open_connection(host, 4510) for host in hosts]
    _, writer = await first_that_answers(calls)
    print(hosts[0], writer.get_extra_info("peername")[0], time.monotonic() - started)

asyncio.run(main())
"""


@needs_lab
def test_a_name_with_a_dead_address_first_leads_to_the_good_one_in_a_moment(lab: Lab) -> None:
    host, caller = lab.public("dual", has_dead=True), lab.public("dual")
    good = host.addresses[0]
    hosts = Path("/etc/netns") / caller.space / "hosts"  # stands for /etc/hosts there
    hosts.parent.mkdir(parents=True)
    try:
        hosts.write_text(f"{host.dead_address} two.homes\n{good} two.homes\n")
        with listener(host):
            done = caller.run([sys.executable, "-c", _CALL_BY_NAME])
    finally:
        shutil.rmtree(hosts.parent)
    assert done.returncode == 0, done.stderr
    tried_first, answered, seconds = done.stdout.split()
    assert (tried_first, answered) == (host.dead_address, good)
    assert 0.3 < float(seconds) < 30.0  # the dead one would take two minutes


@needs_lab
def test_the_lab_leads_nowhere_else(lab: Lab) -> None:
    host, home = lab.public("dual"), lab.home(family="dual")
    for one in (host, home):
        assert one.run(["ip", "-o", "link"]).stdout.count("\n") == 2  # loopback and eth0
    done = host.run([sys.executable, "-c", "import socket; socket.create_connection(('1.1.1.1', 53), 1)"])
    assert done.returncode == 1
    assert "unreachable" in done.stderr


_LAB_THAT_STAYS = """
import sys, time
sys.path.insert(0, sys.argv[1])
from netlab.lab import Lab
lab = Lab().__enter__()
home = lab.home()
print(home.start(["sleep", "100"]).pid, home.router.pid, flush=True)
time.sleep(100)
"""


@needs_lab
def test_what_a_killed_lab_left_is_removed_by_the_next_with_its_processes() -> None:
    command = [sys.executable, "-c", _LAB_THAT_STAYS, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        left = [psutil.Process(int(number)) for number in maker.stdout.readline().split()]
        spaces = [name for name in namespaces("spes-netlab-") if f"-{maker.pid}-" in name]
        assert len(spaces) == 2
        maker.send_signal(signal.SIGKILL)
        maker.wait(timeout=10)
    with Lab() as lab:
        assert not set(spaces) & set(namespaces("spes-netlab-"))
        _, alive = psutil.wait_procs(left, timeout=10)
        assert not alive
        own = {lab.public().space, lab.home().space}
        assert own < set(namespaces("spes-netlab-"))
    assert not own & set(namespaces("spes-netlab-"))
