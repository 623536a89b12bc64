"""A router's NAT-PMP (RFC 6886), as a pure function of what comes to its own address."""

import struct
from dataclasses import dataclass

from translation import checksum, way_of  # as a part of the router, which is run as a script

_PORT = (5351).to_bytes(2, "big")
_UDP = 17
_LONGEST_LEASE_SECONDS = 900
_OTHERS = 30_000  # by so much is the outside port higher where somebody else has the one that is wished for


@dataclass
class NatPmp:
    """Of one router."""

    forwards: dict[int, bytes]
    """Outside ports, and the inside address and port of each (packed)."""
    address: bytes = b""
    """Its own in the home; empty while it is not offered."""
    taken: frozenset[int] = frozenset((4511,))
    """Ports that somebody else has."""

    def answer(self, packet: bytes, public: bytes) -> bytes | None:
        """The packet that answers; None for what is not for it."""
        way = way_of(packet)
        if way is None or len(way) != 13 or way[0] != _UDP or way[5:9] != self.address or way[-2:] != _PORT:
            return None
        source, question = way[1:5], packet[28:]
        head = struct.pack("!BBHI", 0, 128 | question[1], 0, 9)
        if question[1] == 0:
            body = public
        else:
            inside, outside, lease = struct.unpack("!HHI", question[4:12])
            target = source + inside.to_bytes(2, "big")
            lease = min(lease, _LONGEST_LEASE_SECONDS)
            held = [port for port, one in self.forwards.items() if one == target]
            for port in held:
                del self.forwards[port]
            if lease:
                outside = (held or [outside + _OTHERS if outside in self.taken else outside])[0]
                self.forwards[outside] = target
            body = struct.pack("!HHI", inside, outside, lease)
        return _datagram(self.address, source, way[-4:-2], head + body)


def _datagram(source: bytes, target: bytes, port: bytes, content: bytes) -> bytes:
    udp = _PORT + port + (8 + len(content)).to_bytes(2, "big") + bytes(2) + content  # no checksum, as IPv4 allows
    header = bytearray(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, _UDP, 0, source, target))
    header[10:12] = checksum(header)
    return bytes(header) + udp
