"""Who pauses a peer, what it says to its owner, and what it knows of the machine."""

import dataclasses
import errno
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exchange_nodes import eventually

from spes_peer import sensors
from spes_peer.daemon.resting import Resting, Senses
from spes_peer.errors import DiskTrouble
from spes_peer.guest.allowance import Today
from spes_peer.guest.rules import Facts, GuestRules
from spes_peer.training.work import UNKNOWN, DeviceFigures

BATTERY = "on battery, goes on when it is plugged in"
CPU = DeviceFigures("cpu", 4 << 30, 1 << 30, 8 << 30, 0.5, 0.2, 61.0)
GPU = DeviceFigures("cuda:0 X", 12 << 30, 9 << 30, 24 << 30, 0.9, 0.3, 71.0, "GPU-1234")


def on_battery(is_so: bool, second: float = 0.0) -> Facts:
    return Facts(1e9 + second, second, is_on_battery=is_so)


class Changes:
    def __init__(self, resting: Resting) -> None:
        self.seen: list[tuple[str, ...]] = []
        self._resting = resting
        resting.on_change = self._note

    def _note(self) -> None:
        self.seen.append(tuple(reason.rule for reason in self._resting.reasons))


def test_a_guest_pauses_and_goes_on_by_itself_and_says_each_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    resting = Resting(tmp_path, GuestRules())
    changes = Changes(resting)
    for second in range(0, 12, 3):
        resting.take(on_battery(True, second))
    for second in range(12, 60, 3):
        resting.take(on_battery(False, second))
    assert changes.seen == [("battery",), ()]
    assert [record.getMessage() for record in caplog.records] == [
        f"resting at once: {BATTERY}",
        f"no longer a reason to rest: {BATTERY}",
    ]


def test_what_a_guest_finds_does_not_outlive_a_restart_and_its_owners_word_does(tmp_path: Path) -> None:
    resting = Resting(tmp_path, GuestRules())
    resting.take(on_battery(True))
    assert not Resting(tmp_path, GuestRules()).reasons
    assert resting.pause() == "paused; it rested already"
    again = Resting(tmp_path, GuestRules())
    assert [reason.rule for reason in again.reasons] == ["owner"]
    again.take(on_battery(True))
    assert [reason.rule for reason in again.reasons] == ["owner", "battery"]
    again.take(on_battery(False, 20))
    again.take(on_battery(False, 40))
    assert [reason.rule for reason in again.reasons] == ["owner"]
    assert again.resume() == "taking part again"
    assert not Resting(tmp_path, GuestRules()).reasons


def test_its_owner_is_told_what_it_still_waits_for(tmp_path: Path) -> None:
    resting = Resting(tmp_path, GuestRules())
    assert resting.resume() == "not paused"
    assert resting.pause() == "paused"
    assert resting.pause() == "already paused"
    resting.take(on_battery(True))
    changes = Changes(resting)
    assert resting.resume() == f"resumed; it still rests by itself: {BATTERY}"
    assert resting.resume() == f"not paused by you; it rests by itself: {BATTERY}"
    assert changes.seen == [("battery",)]


def test_its_owners_word_counts_also_where_the_disk_does_not_take_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise DiskTrouble(errno.EROFS, "the disk is read-only")

    resting = Resting(tmp_path, GuestRules())
    changes = Changes(resting)
    monkeypatch.setattr("spes_peer.daemon.resting.write_whole", refuse)
    assert resting.pause() == "paused, but a restart forgets it: the disk is read-only"
    assert resting.is_by_owner
    assert resting.resume() == "taking part again"  # there is no mark
    monkeypatch.undo()
    resting.pause()
    monkeypatch.setattr(Path, "unlink", refuse)
    assert resting.resume() == "taking part again, but a restart pauses it again: the disk is read-only"
    assert not resting.is_by_owner
    assert changes.seen == [("owner",), (), ("owner",), ()]


def senses(tmp_path: Path, device: DeviceFigures | None, **rules: Any) -> Senses:
    trainer: Any = SimpleNamespace(device=device, has_left_device=False)
    return Senses(GuestRules(**rules), trainer, Today(tmp_path / "today.json", lambda: (0, 0)))


async def test_while_it_trains_the_trainer_tells_of_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors.Gpu, "of", lambda uuid: SimpleNamespace())
    facts = await senses(tmp_path, GPU, yields_gpu=True)()
    assert (facts.temperature, facts.gpu_use_of_others, facts.gpu_bytes_of_others) == (71.0, 0.3, 3 << 30)
    facts = await senses(tmp_path, CPU, max_temperature=80.0)()
    assert (facts.temperature, facts.gpu_use_of_others, facts.gpu_bytes_of_others) == (61.0, None, None)
    assert (await senses(tmp_path, GPU)()).temperature is None  # nobody asked


async def test_while_the_trainer_rests_all_use_of_its_gpu_is_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    gpu = SimpleNamespace(
        temperature=lambda: 50.0, others_use=lambda pid: asked.append(pid) or 0.9, used_bytes=lambda: 7 << 30
    )
    monkeypatch.setattr(sensors.Gpu, "of", lambda uuid: asked.append(uuid) or gpu)
    sense = senses(tmp_path, GPU, yields_gpu=True)
    trainer: Any = sense._trainer
    await sense()
    trainer.device, trainer.has_left_device = None, True
    facts = await sense()
    assert (facts.temperature, facts.gpu_use_of_others, facts.gpu_bytes_of_others) == (50.0, 0.9, 7 << 30)
    await sense()
    assert asked == ["GPU-1234", None, None]
    trainer.has_left_device = False  # another opens: what it uses is its own
    facts = await sense()
    assert (facts.temperature, facts.gpu_use_of_others, facts.gpu_bytes_of_others) == (50.0, None, None)


async def test_where_the_driver_does_not_tell_this_process_of_the_gpu_it_is_yielded_to_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(sensors.Gpu, "of", lambda uuid: asked.append(uuid))  # a GPU that torch sees and NVML does not
    sense = senses(tmp_path, GPU, yields_gpu=True)
    trainer: Any = sense._trainer
    for device in (GPU, GPU, None, None, GPU):
        trainer.device, trainer.has_left_device = device, device is None
        facts = await sense()
        assert (facts.gpu_use_of_others, facts.gpu_bytes_of_others) == (None, None)
    assert asked == ["GPU-1234"]
    assert caplog.messages == ["NVIDIA's driver does not tell of this GPU: --yield-gpu has no effect"]


async def test_a_sensor_that_is_missing_is_said_once_and_no_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "cpu_temperature", lambda: None)
    monkeypatch.setattr(sensors.Gpu, "of", lambda uuid: SimpleNamespace())
    blind = dataclasses.replace(GPU, temperature=0.0, others_use=UNKNOWN)
    sense = senses(tmp_path, blind, yields_gpu=True, max_temperature=80.0)
    resting = Resting(tmp_path, sense._rules)
    for _ in range(3):
        resting.take(await sense())
    assert [record.getMessage() for record in caplog.records] == [
        "no sensor tells how warm the device is: --max-temperature has no effect",
        "the driver does not tell who uses the GPU: --yield-gpu goes by memory alone",
    ]
    assert not resting.reasons
    caplog.clear()
    await senses(tmp_path, dataclasses.replace(CPU, temperature=0.0), yields_gpu=True)()
    assert caplog.messages == ["it trains on the CPU: --yield-gpu has no effect"]
    unknown = await senses(tmp_path, None, yields_gpu=True, max_temperature=80.0)()
    assert unknown.temperature is None  # not known yet


async def test_a_sensor_that_hangs_holds_nobody_up_and_is_asked_again_once_it_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spes_peer.daemon.resting._SENSOR_SECONDS", 0.01)
    asked: list[int] = []
    may_answer = threading.Event()

    def hang() -> bool:
        asked.append(threading.get_ident())
        may_answer.wait()
        return True

    monkeypatch.setattr(sensors, "is_on_battery", hang)
    sense = senses(tmp_path, None)
    facts = [await sense() for _ in range(3)]
    assert [(one.is_on_battery, one.at > 1e9, one.passed > 0) for one in facts] == [(None, True, True)] * 3
    await eventually(lambda: len(asked) == 1)
    assert caplog.messages == ["a sensor of this machine hangs: what it would tell is taken for unknown"]
    monkeypatch.setattr("spes_peer.daemon.resting._SENSOR_SECONDS", 60.0)
    may_answer.set()
    looking = sense._looking
    assert looking is not None
    await eventually(looking.done)
    assert (await sense()).is_on_battery  # not what was found long ago
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("battery", "known"),
    [(None, None), (SimpleNamespace(power_plugged=None), None), (SimpleNamespace(power_plugged=False), True)],
)
def test_a_machine_without_a_battery_is_not_on_it(
    monkeypatch: pytest.MonkeyPatch, battery: Any, known: bool | None
) -> None:
    monkeypatch.setattr(sensors, "_POWER_SUPPLIES", Path("/of another system"))
    monkeypatch.setattr("psutil.sensors_battery", lambda: battery, raising=False)
    assert sensors.is_on_battery() is known


MAINS = {"type": "Mains", "online": "1"}
UNPLUGGED = {"type": "Mains", "online": "0"}
MOUSE = {"type": "Battery", "scope": "Device", "status": "Discharging"}


def battery(status: str) -> dict[str, str]:
    return {"type": "Battery", "present": "1", "status": status}


@pytest.mark.parametrize(
    ("supplies", "known"),
    [
        ({}, None),
        ({"hidpp_battery_0": MOUSE}, None),
        ({"AC": UNPLUGGED, "ps-controller-battery-0": MOUSE}, None),
        ({"ADP1": MAINS, "BAT0": battery("Discharging")}, False),
        ({"ADP1": UNPLUGGED, "BAT0": battery("Discharging"), "hidpp_battery_0": MOUSE}, True),
        ({"BAT0": battery("Discharging")}, True),
        ({"BAT0": battery("Charging")}, False),
        ({"BAT0": battery("Full"), "BAT1": battery("Discharging")}, True),
        ({"AC": UNPLUGGED, "usb:1": {"type": "USB", "online": "1"}, "BAT0": battery("Not charging")}, False),
        ({"AC": UNPLUGGED, "BAT0": battery("Unknown")}, True),
        ({"AC": UNPLUGGED, "BAT0": battery("Charging")}, False),
        ({"BAT0": battery("Unknown")}, None),
        ({"BAT0": {"type": "Battery", "present": "0", "status": "Unknown"}, "AC": UNPLUGGED}, None),
        ({"odd": {}, "AC": {"type": "Mains"}, "BAT0": battery("Full")}, False),
    ],
)
def test_only_a_battery_that_drives_the_machine_counts_and_only_without_a_plug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supplies: dict[str, dict[str, str]], known: bool | None
) -> None:
    for name, entries in supplies.items():
        (tmp_path / name).mkdir()
        for entry, content in entries.items():
            (tmp_path / name / entry).write_text(f"{content}\n")
    monkeypatch.setattr(sensors, "_POWER_SUPPLIES", tmp_path)
    assert sensors.is_on_battery() is known


@pytest.mark.parametrize("error", [FileNotFoundError, RuntimeError, ValueError])
def test_a_battery_that_fails_is_not_known(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(sensors, "_POWER_SUPPLIES", Path("/of another system"))
    monkeypatch.setattr("psutil.sensors_battery", fail, raising=False)
    assert sensors.is_on_battery() is None
    monkeypatch.delattr("psutil.sensors_battery")
    assert sensors.is_on_battery() is None
