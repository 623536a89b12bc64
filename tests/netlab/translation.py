"""What a home's router does to packets: address translation and a firewall, as a pure function of packets and time.

Only what the home has asked for comes in: a packet from exactly the address and port to which it sent something less
than `forget_seconds` ago. A cone NAT gives an inside address and port one outside port, the same if it can, whoever is
asked; a symmetric one a random port for every destination. IPv6 passes untranslated, with the same firewall. A TCP
packet that belongs to nothing and opens nothing is dropped in silence. TCP and UDP only. A port that is forwarded lets
everybody in to one inside address and port.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

_TCP, _UDP = 6, 17
_SYN, _ACK = 0x02, 0x10
_PORTS = range(20_000, 60_000)
_SEED = 1
_IPV4_BYTES, _IPV6_BYTES = 20, 40  # headers without options, as systems send them

_Way = bytes
"""Protocol, source, target, source port, target port, as they stand in a packet."""


@dataclass
class Mapping:
    """An outside port that stands for an inside address and port (packed)."""

    inside: bytes
    port: int
    used_at: float


@dataclass(slots=True)
class Flow:
    """Something that the home has asked for, and how to change its packets."""

    mapping: Mapping
    used_at: float
    outward: Callable[[bytes], bytes]
    inward: Callable[[bytes], bytes]


@dataclass
class Translation:
    """Of one router; `public` is its IPv4 address."""

    public: bytes
    is_symmetric: bool
    forget_seconds: float
    num_dropped: int = 0
    """Packets that nobody has asked for, and stray ones from inside."""
    forwards: dict[int, bytes] = field(default_factory=dict)
    """Outside ports, and the inside address and port of each (packed)."""
    _mappings: dict[bytes, Mapping] = field(default_factory=dict)
    _outward: dict[_Way, Flow] = field(default_factory=dict)
    _inward: dict[_Way, Flow] = field(default_factory=dict)
    _random: random.Random = field(default_factory=lambda: random.Random(_SEED))

    def outward(self, packet: bytes, now: float) -> bytes | None:
        """What goes out for a packet of the home; None for nothing."""
        way = way_of(packet)
        if way is None:
            return None
        flow = self._outward.get(way)
        if flow is None or now - flow.used_at >= self.forget_seconds:
            if not _may_open(packet):
                self.num_dropped += 1
                return None
            flow = self._open(way, now)
        flow.used_at = flow.mapping.used_at = now
        return flow.outward(packet)

    def inward(self, packet: bytes, now: float) -> bytes | None:
        """What comes in for a packet from outside; None for nothing."""
        way = way_of(packet)
        if way is None:
            return None
        flow = self._inward.get(way)
        if flow is None or now - flow.used_at >= self.forget_seconds:
            flow = self._let_in(packet, way, now)
        if flow is None:
            self.num_dropped += 1
            return None
        flow.used_at = flow.mapping.used_at = now
        return flow.inward(packet)

    def forget(self) -> None:
        """Everything, as a router does that starts again."""
        for table in (self._mappings, self._outward, self._inward):
            table.clear()

    def _let_in(self, packet: bytes, way: _Way, now: float) -> Flow | None:
        """A flow that somebody outside begins, through a port that is forwarded."""
        port = int.from_bytes(way[-2:], "big")
        if len(way) != 13 or way[5:9] != self.public or port not in self.forwards or not _may_open(packet):
            return None
        inside = self.forwards[port]
        as_if_asked = way[:1] + inside[:4] + way[1:5] + inside[4:] + way[-4:-2]
        return self._open(as_if_asked, now, Mapping(inside, port, now))

    def _open(self, way: _Way, now: float, mapping: Mapping | None = None) -> Flow:
        length = (len(way) - 5) // 2
        source, target = way[1 : 1 + length], way[1 + length : 1 + 2 * length]
        source_port, target_port = way[-4:-2], way[-2:]
        if length == 16:
            flow = Flow(Mapping(source + source_port, 0, now), now, _as_it_is, _as_it_is)
            back = way[:1] + target + source + target_port + source_port
        else:
            mapping = mapping or self._mapping(way, now)
            outside = self.public + mapping.port.to_bytes(2, "big")
            flow = Flow(
                mapping,
                now,
                outward=_replacing(way[0], _IPV4_BYTES - 8, _IPV4_BYTES, mapping.inside, outside),
                inward=_replacing(way[0], _IPV4_BYTES - 4, _IPV4_BYTES + 2, outside, mapping.inside),
            )
            back = way[:1] + target + outside[:4] + target_port + outside[4:]
        self._outward[way] = self._inward[back] = flow
        return flow

    def _mapping(self, way: _Way, now: float) -> Mapping:
        inside = way[1:5] + way[-4:-2]
        key = way if self.is_symmetric else way[:1] + inside
        mapping = self._mappings.get(key)
        if mapping is None or now - mapping.used_at >= self.forget_seconds:
            self._mappings.pop(key, None)
            mapping = self._mappings[key] = Mapping(inside, self._free_port(inside, now), now)
        return mapping

    def _free_port(self, inside: bytes, now: float) -> int:
        """One that no mapping has that is remembered."""
        taken = {one.port for one in self._mappings.values() if now - one.used_at < self.forget_seconds}
        same = int.from_bytes(inside[4:], "big")
        if not self.is_symmetric and same not in taken:
            return same
        return self._random.choice([port for port in _PORTS if port not in taken])


def way_of(packet: bytes) -> _Way | None:
    """None for what is not whole, a fragment, or neither TCP nor UDP."""
    if packet[:1] == b"\x45" and len(packet) >= _IPV4_BYTES + 8 and not (packet[6] & 0x3F or packet[7]):
        protocol, length, way = packet[9], _IPV4_BYTES, packet[9:10] + packet[12:24]
    elif packet[:1] and packet[0] >> 4 == 6 and len(packet) >= _IPV6_BYTES + 8:
        protocol, length, way = packet[6], _IPV6_BYTES, packet[6:7] + packet[8:44]
    else:
        return None
    return way if protocol == _UDP or (protocol == _TCP and len(packet) >= length + 20) else None


def _may_open(packet: bytes) -> bool:
    """Whether a packet like this begins something: all of UDP, and a SYN."""
    is_4 = packet[0] >> 4 == 4
    protocol, flags_at = (packet[9], _IPV4_BYTES + 13) if is_4 else (packet[6], _IPV6_BYTES + 13)
    return protocol == _UDP or packet[flags_at] & (_SYN | _ACK) == _SYN


def _as_it_is(packet: bytes) -> bytes:
    return packet


def _replacing(protocol: int, address_at: int, port_at: int, old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """Puts the address and port `new` in the place of `old`, and the checksums right (RFC 1624)."""
    address, port = new[:4], new[4:]
    header_change = _words(new[:4]) - _words(old[:4])
    change = _words(new) - _words(old)
    checksum_at = _IPV4_BYTES + (16 if protocol == _TCP else 6)

    def replace(packet: bytes) -> bytes:
        changed = bytearray(packet)
        changed[address_at : address_at + 4] = address
        changed[port_at : port_at + 2] = port
        changed[10:12] = _corrected(changed[10:12], header_change)
        checksum = changed[checksum_at : checksum_at + 2]
        if protocol == _TCP or any(checksum):  # of UDP zero is "none"
            changed[checksum_at : checksum_at + 2] = _corrected(checksum, change)
        return bytes(changed)

    return replace


def _corrected(checksum: bytearray, change: int) -> bytes:
    return (0xFFFF - (0xFFFF - int.from_bytes(checksum, "big") + change) % 0xFFFF).to_bytes(2, "big")


def checksum(header: bytes) -> bytes:
    """Of an IPv4 header whose checksum is 0."""
    return (0xFFFF - _words(header) % 0xFFFF).to_bytes(2, "big")


def _words(data: bytes) -> int:
    """The sum of its 16-bit words."""
    return sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
