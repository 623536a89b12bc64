"""The run's nodes as an organizer's command calls them: what the chain says, verified, and who takes an amendment.

No node is believed. What the new rules are made from is read out of certified records, each checked from those in the
folder on: or a node could show rules of its own, and get them signed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from spes_peer.errors import BadMessage, BlobMissing, NoBootstrap, PeerError, UserError
from spes_peer.exchange.addresses import NodeAddress
from spes_peer.exchange.introduction import Introduction, describe
from spes_peer.exchange.limits import MAX_RECORDS_PER_CALL
from spes_peer.exchange.link import Link, blaming
from spes_peer.exchange.newcomer import link_to
from spes_peer.identity import Identity
from spes_peer.run.certificates import Checks
from spes_peer.run.lineage import Lineage
from spes_peer.run.pending import AmendReply
from spes_peer.run.records import CertifiedRecord
from spes_peer.run.signed import Signed
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import AmendRequest, RecordsRequest

MOST_NODES = 8
_DESCRIBE_SECONDS = 6.0
_CALL_SECONDS = 10.0


class Network:
    """Some nodes of a run, for the time of one command."""

    def __init__(self, checks: Checks, links: Sequence[Link], introduction: Introduction, base: Lineage | None) -> None:
        self.links = tuple(links)
        self.now: Callable[[], float] = introduction.clock.time
        """The run's time."""
        self._checks = checks
        self._lineage = base

    async def newest(self) -> Lineage:
        """The chain up to the newest certified record that any of the nodes shows; `NoBootstrap` where none shows
        one."""
        reasons = []
        for link in self.links:
            try:
                with blaming(link.peer_id):
                    await self._follow(link)
            except (PeerError, BlobMissing) as error:
                reasons.append(str(error))
        if self._lineage is None:
            raise NoBootstrap(f"no node of the run shows its records: {'; '.join(reasons)}")
        return self._lineage

    async def _follow(self, link: Link) -> None:
        """Take what continues the chain, as far as it is certified."""
        while True:
            first = 0 if self._lineage is None else self._lineage.head.round + 1
            num_taken, request = 0, RecordsRequest(from_round=first)
            async with contextlib.aclosing(link.stream(link.stub.Records, request, _CALL_SECONDS)) as messages:
                async for message in messages:
                    certified = convert.from_message(CertifiedRecord, message)
                    if certified.sealed.round != first + num_taken or num_taken == MAX_RECORDS_PER_CALL:
                        raise BadMessage(f"record {certified.sealed.round}, which was not asked for")
                    after = self._followed_by(certified)
                    if after.tail:
                        return
                    self._lineage = after
                    num_taken += 1
            if not num_taken:
                return

    def _followed_by(self, certified: CertifiedRecord) -> Lineage:
        before = self._lineage
        return before.followed_by(certified) if before else Lineage.begun(certified, self._checks)

    async def bring(self, amendment: Signed | None) -> list[AmendReply]:
        """What each node says that answers, once it was shown the amendment, if there is one."""
        request = AmendRequest()
        if amendment is not None:
            request.amendment.CopyFrom(convert.to_message(amendment))  # type: ignore[arg-type]
        answers = await asyncio.gather(*(self._bring(link, request) for link in self.links))
        return [answer for answer in answers if answer is not None]

    @staticmethod
    async def _bring(link: Link, request: AmendRequest) -> AmendReply | None:
        try:
            with blaming(link.peer_id):
                answer = await link.call(link.stub.Amend, request, timeout_seconds=_CALL_SECONDS)
                return convert.from_message(AmendReply, answer)
        except (PeerError, BlobMissing):
            return None


@contextlib.asynccontextmanager
async def network_at(
    addresses: Sequence[NodeAddress], run_id: bytes, checks: Checks, base: Lineage | None
) -> AsyncIterator[Network]:
    """Links to some of those that answer for this run; `NoBootstrap` where none does."""
    introductions, reasons = await _introduced(addresses, run_id)
    async with contextlib.AsyncExitStack() as stack:
        links = []
        for introduction in introductions[:MOST_NODES]:
            try:
                links.append(await stack.enter_async_context(link_to(introduction, Identity.generate())))
            except PeerError as error:
                reasons.append(str(error))
        if not links:
            raise NoBootstrap(f"no node of the run answers: {'; '.join(reasons[:3])}; name another with --bootstrap")
        yield Network(checks, links, introductions[0], base)


async def _introduced(addresses: Sequence[NodeAddress], run_id: bytes) -> tuple[list[Introduction], list[str]]:
    """Of each node once, those named first in front, and why others are not there."""
    answers = await asyncio.gather(*map(_describe, addresses[: 4 * MOST_NODES]))
    found: dict[str, Introduction] = {}
    reasons = []
    for address, answer in zip(addresses, answers, strict=False):
        if isinstance(answer, str):
            reasons.append(answer)
        elif answer.run_id != run_id:
            reasons.append(f"the node at {address.endpoint} is in another run")
        else:
            found.setdefault(answer.entry.peer_id, answer)
    return list(found.values()), reasons


async def _describe(address: NodeAddress) -> Introduction | str:
    try:
        return await describe(address, _DESCRIBE_SECONDS)
    except UserError as error:
        return str(error)
