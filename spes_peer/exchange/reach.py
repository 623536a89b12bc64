"""How others reach this node: which doors lead to it is measured by dialling back, and announced when it is found so.

The rule: what the owner gives is announced as given, and said to be wrong where nobody gets through; anything else is
announced when half of those that tried got through, or more; and only where all of them did, no relay is needed: one
that lies must not take that away. A private address, or port 0, is never announced to a run on the internet. `settle`
decides, and `Reach` asks, again and again: addresses change.
"""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spes_peer import troubles
from spes_peer.errors import BadConfiguration, SpesError
from spes_peer.exchange.addresses import Endpoint, parse_endpoint
from spes_peer.exchange.connections import Connections
from spes_peer.exchange.dial_back import ask_dial_back
from spes_peer.exchange.link import blaming
from spes_peer.identity import PeerId
from spes_peer.ports import Ports, is_on_the_internet

logger = logging.getLogger(__name__)

Service = str
SERVICES: tuple[Service, ...] = ("grpc", "libp2p", "dht")

WITNESSES = 3
"""Asked at once: one that lies, or cannot dial what others can, is outvoted."""
FIRST_LOOK_SECONDS = 6.0
GLANCE_SECONDS = 25.0  # where we are seen from is asked so often, of one node
RENEW_SECONDS = 600.0  # everything is measured anew
_FIRST_RETRY_SECONDS = 30.0  # after nobody got through, or few were asked; twice as long each time
_LOOK_SECONDS = 2.0  # until somebody is asked again, while nobody has answered; twice as long each time
_MAX_GIVEN = 2  # each has three addresses, and eight may be asked for


@dataclass(frozen=True)
class Door:
    """A way in from outside: the ports at which the three listeners are behind `host`."""

    host: str
    """Empty for wherever others see this machine."""
    ports: Ports

    def port(self, service: Service) -> int:
        return int(getattr(self.ports, service))

    def address(self, service: Service) -> str:
        """As a dial back takes it: ":port" where others see this machine."""
        return str(Endpoint(self.host, self.port(service))) if self.host else f":{self.port(service)}"


def parse_announced(text: str) -> Endpoint:
    """`HOST:PORT`, or HOST alone (port 0 then: as it listens); `BadConfiguration` in one line for anything else."""
    is_bare = text.count(":") > 1 and not text.startswith("[")
    try:
        if is_bare or text.endswith("]") or ":" not in text:
            bare = text.strip("[]")
            return Endpoint(parse_endpoint(f"[{bare}]:1" if ":" in bare else f"{bare}:1").host, 0)
        return parse_endpoint(text)
    except BadConfiguration:
        raise BadConfiguration(
            f"--announce {text[:80]!r} is no address that others can dial;"
            " write HOST:PORT, such as 203.0.113.7:4510, [2001:db8::7]:4510 or home.example.org:4510"
        ) from None


def doors_given(announced: Iterable[Endpoint], listening: Ports) -> tuple[Door, ...]:
    """Behind a port that is given, libp2p and the DHT have the next two; without one, all have those they listen on."""
    return tuple(
        Door(one.host, Ports(one.port, one.port + 1, one.port + 2) if one.port else listening) for one in announced
    )


@dataclass(frozen=True)
class Verdict:
    """What one witness found."""

    witness: str
    observed: str
    failures: Mapping[tuple[Door, Service], str]
    """Why it did not get through, empty where it did."""


@dataclass(frozen=True)
class Findings:
    """What several have found together."""

    open: Mapping[Service, tuple[Endpoint, ...]]
    """Where each listener answers."""
    why: str
    """Of gRPC, in words."""
    observed: frozenset[str]
    num_witnesses: int = 1
    is_agreed: bool = True
    """Whether each of them got through to gRPC somewhere."""


def settle(verdicts: Sequence[Verdict], is_public: bool) -> Findings:
    """Addresses through which half of the witnesses got, or more, in the order in which they were asked for. In a run
    on the internet private ones do not count."""
    votes: Counter[tuple[Service, Endpoint]] = Counter()
    reasons: list[str] = []
    through: set[int] = set()
    for index, verdict in enumerate(verdicts):
        for (door, service), failure in verdict.failures.items():
            endpoint = Endpoint(door.host or verdict.observed, door.port(service))
            if is_public and not door.host and not is_on_the_internet(verdict.observed):
                failure = failure or f"{verdict.witness} sees this machine at {verdict.observed}, a private address"
            votes[service, endpoint] += not failure
            if service == "grpc":
                through |= set() if failure else {index}
                reasons.append(
                    f"{endpoint} answered when {verdict.witness} dialled it back"
                    if not failure
                    else f"{endpoint} did not answer a dial back by {verdict.witness}: {failure}"
                )
    open_ = {one for one, count in votes.items() if count and 2 * count >= len(verdicts)}
    found = {
        kind: tuple(endpoint for (one, endpoint) in votes if (one, endpoint) in open_ and one == kind)
        for kind in SERVICES
    }
    good = [reason for reason in reasons if " answered when " in reason]
    why = (good if found["grpc"] else [one for one in reasons if one not in good] or reasons)[:1]
    observed = frozenset(verdict.observed for verdict in verdicts if verdict.observed)
    return Findings(found, "".join(why), observed, len(verdicts), len(through) == len(verdicts))


@dataclass
class Reach:
    """What this node says of how it is reached, and the loop that finds it out."""

    own_host: str
    """This machine's address on the way to the others."""
    ports: Ports
    certificate: bytes
    given: tuple[Door, ...] = ()
    """What the owner says that others dial."""
    is_public: bool = False
    """Whether the run is on the internet."""
    has_inbound: bool = True
    needs_no_relay: bool = False
    on_change: Callable[[], None] = lambda: None
    mapped: Door | None = None
    """Ports that the router has opened for us."""
    findings: Findings | None = None
    """None before anybody has answered."""
    _soon: asyncio.Event = field(default_factory=asyncio.Event)

    # ---- what is announced ----

    def endpoints(self, service: Service) -> tuple[Endpoint, ...]:
        """Where others are told to dial this listener."""
        if not self.has_inbound:
            return ()
        given = [Endpoint(door.host, door.port(service)) for door in self.given]
        found = self.findings.open[service] if self.findings is not None else self._unmeasured(service)
        return tuple(one for one in dict.fromkeys((*given, *(() if given else found))) if one.port)

    def _unmeasured(self, service: Service) -> tuple[Endpoint, ...]:
        """What is announced until somebody has tried: this machine's own address, where it is one for the run."""
        if self.is_public and not is_on_the_internet(self.own_host):
            return ()
        return (Endpoint(self.own_host, getattr(self.ports, service)),)

    @property
    def is_confirmed(self) -> bool:
        """Whether somebody got through to gRPC."""
        return self.findings is not None and bool(self.findings.open["grpc"])

    @property
    def needs_relay(self) -> bool:
        """Whether others may get here through a relay alone, as far as is known."""
        if self.needs_no_relay or (self.is_confirmed and self.findings is not None and self.findings.is_agreed):
            return False
        return not self.has_inbound or self.findings is not None or not self.endpoints("grpc")

    @property
    def seen_at(self) -> str:
        """The one IP address on the internet at which all see this machine, which others may dial; empty for none."""
        seen = self.findings.observed if self.findings is not None and self.has_inbound else frozenset()
        return next(iter(seen)) if len(seen) == 1 and all(map(is_on_the_internet, seen)) else ""

    @property
    def why(self) -> str:
        """Why it is so, in words."""
        if not self.has_inbound:
            return "its owner wants no inbound connections (--no-inbound)"
        if self.findings is not None:
            return self.findings.why
        if self.given:
            return "as --announce says; nobody has tried yet"
        if self.endpoints("grpc"):
            return "nobody has tried yet"
        return f"{self.own_host} is a private address, and nobody has tried yet what leads to it from outside"

    # ---- finding out ----

    def measure_soon(self) -> None:
        """Something has changed that others should try."""
        self._soon.set()

    def move(self, own_host: str, is_cut: bool) -> None:
        """This machine has another address on the way to others; if `is_cut`, what was found before is void."""
        self.own_host = own_host
        if is_cut:
            self.findings = None
        self.measure_soon()
        self.on_change()

    async def measure(
        self, connections: Connections, witnesses: Mapping[PeerId, str], services: Sequence[Service] = SERVICES
    ) -> bool:
        """Be dialled back by some of `witnesses` (names by peer id); whether any answered. What was found before stands
        until one does."""
        asked = random.sample(sorted(witnesses), min(WITNESSES, len(witnesses)))
        doors = self._doors()
        answers = await asyncio.gather(
            *(self._ask(connections, peer, witnesses[peer], doors, services) for peer in asked)
        )
        verdicts = [verdict for verdict in answers if verdict is not None]
        if verdicts:
            self._take(settle(verdicts, self.is_public))
        return bool(verdicts)

    def _doors(self) -> tuple[Door, ...]:
        if self.given:
            return self.given[:_MAX_GIVEN]
        own = Door("", self.ports)
        return tuple(dict.fromkeys((self.mapped, own))) if self.mapped is not None else (own,)

    async def _ask(
        self,
        connections: Connections,
        peer: PeerId,
        name: str,
        doors: Sequence[Door],
        services: Sequence[Service],
    ) -> Verdict | None:
        grpc = [(door, "grpc") for door in doors if "grpc" in services]
        others = [(door, service) for door in doors for service in services if service != "grpc"]
        to_grpc, to_others = ([door.address(service) for door, service in kind] for kind in (grpc, others))
        try:
            link = await connections.to(peer)
            if link.transport != "grpc":  # it sees its own libp2p node call, and not us
                return None
            with blaming(peer):
                found = await ask_dial_back(link, name, to_grpc, to_others, self.certificate)
        except SpesError as error:
            logger.debug("not dialled back witness=%s reason=%s", name, error)
            return None
        if not found.observed:
            return None
        return Verdict(name, found.observed, dict(zip((*grpc, *others), found.failures, strict=True)))

    def _take(self, findings: Findings) -> None:
        before = [self.endpoints(service) for service in SERVICES], self.needs_relay
        if self.findings is None or self.findings.why != findings.why:
            logger.info("how others reach this node: %s", findings.why)
        self.findings = findings
        if self.given and not findings.open["grpc"]:
            troubles.board.set("announced address", f"nobody gets through to this node: {findings.why}")
        else:
            troubles.board.clear("announced address")
        if ([self.endpoints(service) for service in SERVICES], self.needs_relay) != before:
            self.on_change()

    async def keep(self, connections: Connections, witnesses: Callable[[], Mapping[PeerId, str]]) -> None:
        """Measure again now and then, sooner when nobody got through or few could be asked, and as soon as this machine
        is seen elsewhere; for ever."""
        if not self.has_inbound:
            return
        loop = asyncio.get_running_loop()
        look_seconds, retry_seconds = _LOOK_SECONDS, _FIRST_RETRY_SECONDS
        measured_at = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GLANCE_SECONDS if self.findings is not None else look_seconds):
                    await self._soon.wait()
            due_seconds = RENEW_SECONDS if self._is_sure(len(witnesses())) else retry_seconds
            is_due = self._soon.is_set() or self.findings is None or loop.time() - measured_at >= due_seconds
            self._soon.clear()
            if not is_due and not await self._has_moved(connections, witnesses()):
                continue
            if await self.measure(connections, witnesses()):
                measured_at = loop.time()
                is_sure = self._is_sure(len(witnesses()))
                retry_seconds = _FIRST_RETRY_SECONDS if is_sure else min(2 * retry_seconds, RENEW_SECONDS)
            else:
                look_seconds = min(2 * look_seconds, GLANCE_SECONDS)

    def _is_sure(self, num_known: int) -> bool:
        """Whether somebody got through, and as many were asked as could be."""
        is_asked = self.findings is not None and self.findings.num_witnesses >= min(WITNESSES, num_known)
        return self.is_confirmed and is_asked

    async def _has_moved(self, connections: Connections, witnesses: Mapping[PeerId, str]) -> bool:
        """Whether one of the others sees this machine where it was not seen before."""
        if not witnesses or self.findings is None:
            return False
        peer = random.choice(sorted(witnesses))
        seen = await self._ask(connections, peer, witnesses[peer], (), ())
        return seen is not None and seen.observed not in self.findings.observed
