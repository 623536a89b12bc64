"""A home's router: a process between two TUN devices, one towards the home, one towards the internet.

`python router.py LAN WAN ADDRESS cone|symmetric FORGET_SECONDS DELAY_SECONDS` makes both devices in the namespace in
which it runs, and says "ready". It obeys lines on its standard input ("address A.B.C.D", "forget", "forward PORT
A.B.C.D PORT", "close PORT", "nat-pmp A.B.C.D" with its address in the home), answers each with "done", and ends with
it. Bandwidth is not its business: the devices' queues are shaped with tc.
"""

import contextlib
import fcntl
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable

from nat_pmp import NatPmp
from translation import Translation  # this file is run as a script, from wherever

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MAX_PACKET_BYTES = 1 << 16
_AT_ONCE = 64  # packets of one direction, before the other has its turn
_QUEUED = 2000  # packets under way in one direction, beyond which a router drops


class Direction:
    """From one device to the other, `delay_seconds` later."""

    def __init__(
        self, source: int, target: int, translate: Callable[[bytes, float], bytes | None], delay_seconds: float
    ) -> None:
        self._source = source
        self._target = target
        self._translate = translate
        self._delay_seconds = delay_seconds
        self._under_way: deque[tuple[float, bytes]] = deque()

    @property
    def due_at(self) -> float | None:
        return self._under_way[0][0] if self._under_way else None

    def take(self) -> None:
        """Take in what has come, and send on what need not wait."""
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(self._source, _MAX_PACKET_BYTES)
            except BlockingIOError:
                break
            now = time.monotonic()
            translated = self._translate(packet, now)
            if translated is not None and not self._delay_seconds:
                self._send(translated)
            elif translated is not None and len(self._under_way) < _QUEUED:
                self._under_way.append((now + self._delay_seconds, translated))

    def send_due(self) -> None:
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            self._send(self._under_way.popleft()[1])

    def _send(self, packet: bytes) -> None:
        with contextlib.suppress(OSError):  # a device that is down, or going away: a router drops
            os.write(self._target, packet)


def route(lan: int, wan: int, translation: Translation, delay_seconds: float) -> None:
    """Until standard input ends."""
    nat_pmp = NatPmp(translation.forwards)

    def outward(packet: bytes, now: float) -> bytes | None:
        answer = nat_pmp.answer(packet, translation.public)
        if answer is None:
            return translation.outward(packet, now)
        os.write(lan, answer)
        return None

    directions = {
        lan: Direction(lan, wan, outward, delay_seconds),
        wan: Direction(wan, lan, translation.inward, delay_seconds),
    }
    poll = select.epoll()
    for file in (0, lan, wan):
        poll.register(file, select.EPOLLIN)
    while True:
        due = [one.due_at for one in directions.values() if one.due_at is not None]
        for file, _ in poll.poll(max(0.0, min(due) - time.monotonic()) if due else None):
            if file in directions:
                directions[file].take()
            elif not _obey(os.read(0, 1 << 12).decode(), translation, nat_pmp):
                return
        for direction in directions.values():
            direction.send_due()


def _obey(lines: str, translation: Translation, nat_pmp: NatPmp) -> bool:
    for line in lines.splitlines():
        command, *words = line.split()
        if command == "forward":
            translation.forwards[int(words[0])] = socket.inet_aton(words[1]) + int(words[2]).to_bytes(2, "big")
        elif command == "close":
            translation.forwards.pop(int(words[0]), None)
        elif command == "nat-pmp":
            nat_pmp.address = socket.inet_aton(words[0])
        else:  # a router with a new address forgets, too
            translation.public = socket.inet_aton(words[0]) if words else translation.public
            translation.forget()
        print("done", flush=True)
    return bool(lines)


def _tun(name: str) -> int:
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return file


if __name__ == "__main__":
    lan_name, wan_name, address, nat, forget_seconds, delay_seconds = sys.argv[1:]
    devices = _tun(lan_name), _tun(wan_name)
    print("ready", flush=True)
    route(
        *devices,
        Translation(socket.inet_aton(address), nat == "symmetric", float(forget_seconds)),
        float(delay_seconds),
    )
