"""Whether this peer is to rest: its owner's word, which outlives a restart, and what the rules for a guest find.

The machine is looked at every few seconds. What no sensor tells is no reason to rest, and is said once.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

from spes_peer import sensors
from spes_peer.clock import boot_seconds
from spes_peer.daemon.trainer_host import TrainerHost
from spes_peer.files import write_whole
from spes_peer.guest.allowance import Today
from spes_peer.guest.hours import day_of
from spes_peer.guest.rules import BY_OWNER, Facts, GuestRules, Judged, Reason, in_words, judge

logger = logging.getLogger(__name__)

PAUSE_MARK = "paused"
"""A file that is there while its owner has paused this peer."""
_LOOK_SECONDS = 3.0
_SENSOR_SECONDS = 10.0  # after which one that does not answer tells nothing


class Resting:
    """The reasons to rest, as they come and go."""

    def __init__(self, folder: Path, rules: GuestRules) -> None:
        self.rules = rules
        self.on_change: Callable[[], None] = lambda: None
        self.sense: Callable[[], Awaitable[Facts]] | None = None
        """What the machine is doing, once that can be known."""
        self._mark = folder / PAUSE_MARK
        self._is_by_owner = self._mark.exists()
        self._judged = Judged()

    @property
    def is_by_owner(self) -> bool:
        return self._is_by_owner

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The owner's first."""
        return (BY_OWNER, *self._judged.reasons) if self._is_by_owner else self._judged.reasons

    def pause(self) -> str:
        """By its owner; the answer to him."""
        if self._is_by_owner:
            return "already paused"
        said = "paused; it rested already" if self.reasons else "paused"
        try:
            write_whole(self._mark, b"")
        except OSError as error:
            said += f", but a restart forgets it: {error.strerror}"
        self._is_by_owner = True
        self.on_change()
        return said

    def resume(self) -> str:
        """By its owner; what else stands in the way goes by itself."""
        others = in_words(self._judged.reasons)
        if not self._is_by_owner:
            return f"not paused by you; it rests by itself: {others}" if others else "not paused"
        said = f"resumed; it still rests by itself: {others}" if others else "taking part again"
        try:
            self._mark.unlink(missing_ok=True)
        except OSError as error:
            said += f", but a restart pauses it again: {error.strerror}"
        self._is_by_owner = False
        self.on_change()
        return said

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Judge by what the machine is doing."""
        if self.sense is not None:
            self.take(await self.sense())

    def take(self, facts: Facts) -> None:
        """Judge by these facts."""
        before, self._judged = self._judged, judge(self.rules, facts, self._judged)
        if before.reasons != self._judged.reasons:
            _log(before.reasons, self._judged.reasons)
            self.on_change()


def _log(before: Sequence[Reason], after: Sequence[Reason]) -> None:
    """Each reason when it comes and when it goes."""
    for reason in after:
        if reason not in before:
            when = "at once" if reason.at_once else "when the round has ended"
            logger.info("resting %s: %s", when, reason.why)
    for reason in before:
        if reason not in after:
            logger.info("no longer a reason to rest: %s", reason.why)


class Senses:
    """Facts of this machine for the rules that need them."""

    def __init__(self, rules: GuestRules, trainer: TrainerHost, today: Today) -> None:
        self._rules = rules
        self._trainer = trainer
        self._today = today
        self._gpus: dict[str, sensors.Gpu | None] = {}
        """By its UUID, each that was asked for; None where NVML does not have it."""
        self._uuid, self._is_known = "", False
        """Of the trainer's device; "" of a CPU."""
        self._said: set[str] = set()
        self._looking: asyncio.Future[Facts] | None = None

    async def __call__(self) -> Facts:
        """Sensors and disks may take their time, or hang, and are asked in a thread: one after the other."""
        at = time.time()
        if self._rules.counts_traffic:
            self._today.count(day_of(at))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.wrap_future(self._begin_to_look(at))
            await asyncio.wait((self._looking,), timeout=_SENSOR_SECONDS)
            if self._looking.done():
                return self._looking.result()
        self._say_once("a sensor of this machine hangs: what it would tell is taken for unknown")
        return self._without_sensors(at)

    def _begin_to_look(self, at: float) -> Future[Facts]:
        """In a thread for which, unlike those of a pool, nobody waits in the end."""
        found: Future[Facts] = Future()

        def look() -> None:
            try:
                found.set_result(self._look(at))
            except Exception as error:  # for whoever awaits it
                found.set_exception(error)

        threading.Thread(target=look, name="sensors", daemon=True).start()
        return found

    def _without_sensors(self, at: float) -> Facts:
        return Facts(
            at,
            boot_seconds(),
            sent_today_bytes=self._today.sent_bytes,
            received_today_bytes=self._today.received_bytes,
        )

    def _look(self, at: float) -> Facts:
        rules = self._rules
        if rules.counts_traffic:
            self._today.keep()
        facts = self._without_sensors(at)
        if not rules.works_on_battery:
            facts = replace(facts, is_on_battery=sensors.is_on_battery())
        return self._with_device(facts) if rules.yields_gpu or rules.max_temperature else facts

    def _with_device(self, facts: Facts) -> Facts:
        """The trainer tells of its device while it runs; while it rests, all that is used of a GPU is others'; while it
        opens or ends, nobody can tell."""
        device = self._trainer.device
        if device is None:
            return self._without_trainer(facts)
        self._uuid, self._is_known = device.uuid, True
        facts = replace(facts, temperature=device.temperature or None)
        if device.uuid and self._yields:
            use = None if device.others_use < 0 else device.others_use
            facts = replace(facts, gpu_use_of_others=use, gpu_bytes_of_others=device.others_bytes)
        self._say_what_is_missing(facts)
        return facts

    def _without_trainer(self, facts: Facts) -> Facts:
        if not self._is_known:
            return facts
        if not self._uuid:
            return replace(facts, temperature=sensors.cpu_temperature())
        has_left, gpu = self._trainer.has_left_device and self._yields, self._gpu
        if gpu is None:
            return facts
        return replace(
            facts,
            temperature=gpu.temperature(),
            gpu_use_of_others=gpu.others_use(None) if has_left else None,
            gpu_bytes_of_others=gpu.used_bytes() if has_left else None,
        )

    @property
    def _gpu(self) -> sensors.Gpu | None:
        """The trainer's, as this process sees it."""
        if self._uuid not in self._gpus:
            self._gpus[self._uuid] = sensors.Gpu.of(self._uuid)
        return self._gpus[self._uuid]

    @property
    def _yields(self) -> bool:
        """Only where it will be seen, also without a trainer, that the GPU is left alone: else it would rest and go on
        for ever."""
        return self._rules.yields_gpu and bool(self._uuid) and self._gpu is not None

    def _say_what_is_missing(self, facts: Facts) -> None:
        if self._rules.max_temperature and facts.temperature is None:
            self._say_once("no sensor tells how warm the device is: --max-temperature has no effect")
        if self._rules.yields_gpu and not self._uuid:
            self._say_once("it trains on the CPU: --yield-gpu has no effect")
        elif self._rules.yields_gpu and not self._yields:
            self._say_once("NVIDIA's driver does not tell of this GPU: --yield-gpu has no effect")
        elif self._rules.yields_gpu and facts.gpu_use_of_others is None:
            self._say_once("the driver does not tell who uses the GPU: --yield-gpu goes by memory alone")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)
