"""One change of the rules, from the organizer's wish to the record that carries it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from spes_peer.amending.network import Network, network_at
from spes_peer.amending.organizer import Organizer
from spes_peer.amending.words import changes
from spes_peer.errors import BadConfiguration, NotAdmitted, PeerError, SpesError
from spes_peer.run.certificates import Checks
from spes_peer.run.lineage import Lineage
from spes_peer.run.records import Record
from spes_peer.run.rules import (
    Change,
    Rules,
    amendment_in,
    faults_in_rules,
    number_of,
    open_amendment,
    rules_in,
    rules_of,
    sign_amendment,
)
from spes_peer.run.signed import Signed

_LOOK_SECONDS = 1.0
_MOST_TRIES = 4  # another organizer may change the rules at the same time
_LEAST_LATER_SECONDS = 0.001
Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What an organizer wants, and how long they wait to see it."""

    change: Change
    named: tuple[str, ...] = ()
    """Addresses of nodes of the run."""
    waits: bool = True
    finishes: bool = False
    """After the round that is open, whichever that is."""


async def amend(organizer: Organizer, asked: Asked, say: Say, tell: Say) -> None:
    """Make the change and bring it to the run. `say` gets what goes on, `tell` what has come of it.

    `BadConfiguration` for a change that cannot be, `NotAdmitted` for a key that is no organizer's any more,
    `NoBootstrap` where no node answers, `SpesError` where none takes it."""
    say("checking the records in the folder")
    base = await asyncio.to_thread(organizer.records)
    checks = Checks.of(organizer.manifest, organizer.run_id)
    say("asking nodes of the run")
    async with network_at(organizer.addresses(asked.named), organizer.run_id, checks, base) as network:
        for _ in range(_MOST_TRIES):
            if await _Attempt(organizer, asked, network, say, tell).make():
                return
            say("another organizer was faster; making the change anew")
    raise SpesError("the rules were changed by others each time; try again")


@dataclass
class _Attempt:
    """To put one amendment behind the newest."""

    organizer: Organizer
    asked: Asked
    network: Network
    say: Say
    tell: Say

    @property
    def first(self) -> Rules:
        return Rules.of(self.organizer.manifest)

    async def make(self) -> bool:
        """False if another amendment has taken its place in the chain."""
        chain = await self.network.newest()
        record = chain.head.record
        before = rules_of(record, self.first)
        self._refuse_without_right(record, before)
        pending = await self._pending(record)
        after = self._changed(rules_in(pending) if pending else before, record)
        if after == before and pending is None:
            self.tell("nothing changes: the run goes by these rules already")
            return True
        now = self.network.now()
        if pending is not None:  # the later of two is passed on, and this one holds both changes
            now = max(now, self._opened_at(pending, record) + _LEAST_LATER_SECONDS)
        amendment = sign_amendment(after, record.amendment, self.organizer.key, self.organizer.run_id, now)
        await self._bring(amendment)
        if not self.asked.waits:
            self.tell(f"amendment {number_of(amendment)} waits for the next record")
            return True
        return await self._seen(amendment, before, after, record)

    def _refuse_without_right(self, record: Record, rules: Rules) -> None:
        if record.is_final:
            raise BadConfiguration(f"the run has ended with round {record.round - 1}: nothing can be changed any more")
        if self.organizer.key.peer_id not in rules.organizers:
            raise NotAdmitted(
                f"the key {self.organizer.key.peer_id} is no organizer's of this run (any more); use another with --key"
            )

    def _changed(self, rules: Rules, record: Record) -> Rules:
        self._refuse_end_in_the_past(record)
        after = self.asked.change.of(rules, self.network.now())
        if self.asked.finishes:
            after = Change(finish_after_round=max(1, record.round)).of(after, self.network.now())
        for fault in faults_in_rules(after, self.organizer.manifest.timing):
            raise BadConfiguration(f"that cannot be: {fault}")
        return after

    def _refuse_end_in_the_past(self, record: Record) -> None:
        """The rules would take it as the round that is open, and there is no way back."""
        last = self.asked.change.finish_after_round
        if last and last < record.round:
            raise BadConfiguration(
                f"round {last} is over, round {record.round} is open; to end the run with that leave --after away"
            )

    async def _pending(self, record: Record) -> Signed | None:
        """The newest amendment that nodes pass on and that is good: what it changes must not get lost."""
        good = [
            one.pending for one in await self.network.bring(None) if one.pending and self._is_good(one.pending, record)
        ]
        return max(good, key=lambda one: self._opened_at(one, record), default=None)

    def _is_good(self, amendment: Signed, record: Record) -> bool:
        try:
            self._opened_at(amendment, record)
        except PeerError:
            return False
        return True

    def _opened_at(self, amendment: Signed, record: Record) -> float:
        return open_amendment(amendment, record, self.first, self.organizer.manifest.timing).amended_at

    async def _bring(self, amendment: Signed) -> None:
        answers = await self.network.bring(amendment)
        taken = sum(not one.why_not for one in answers)
        if not taken:
            reasons = sorted({one.why_not for one in answers}) or ["none of them answers"]
            raise SpesError(f"no node takes the amendment: {'; '.join(reasons)}")
        self.say(f"{taken} of {len(self.network.links)} nodes pass amendment {number_of(amendment)} on")

    async def _seen(self, amendment: Signed, before: Rules, after: Rules, record: Record) -> bool:
        """Wait for the record that carries it; for no longer than an open round and its end may take."""
        number, until = number_of(amendment), self._until(record)
        while True:
            chain: Lineage = await self.network.newest()
            newest = chain.head.record
            carried = amendment_in(newest)
            if carried is not None and carried.number >= number:
                if newest.amendment != amendment:
                    return False
                self.tell(f"record {newest.round} carries amendment {number}:")
                for sentence in changes(before, after):
                    self.tell(f"  {sentence}")
                return True
            if self.network.now() >= until:
                self.tell(f"amendment {number} waits for the next record: {self._why(newest)}")
                return True
            self.say(f"amendment {number} waits for record {newest.round + 1}")
            await asyncio.sleep(_LOOK_SECONDS)

    def _until(self, record: Record) -> float:
        timing, now = self.organizer.manifest.timing, self.network.now()
        if not record.roster:
            return now + timing.coordinator_timeout_seconds
        return max(now, record.deadline_at) + 2 * timing.round_grace_seconds + timing.coordinator_timeout_seconds

    @staticmethod
    def _why(record: Record) -> str:
        if not record.roster:
            return "no volunteer is there, and the first to join brings it into the chain"
        return f"round {record.round} has not closed yet; nodes keep the amendment, and this command may be given again"
