"""What a trainer tells of its device: measured, or unknown."""

import os
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from spes_peer.sensors import cpu_temperature
from spes_peer.training import __main__ as child
from spes_peer.training.device_figures import reader_of, words_of
from spes_peer.training.work import UNKNOWN, DeviceFigures, TrainerBeat
from spes_peer.wire import convert, frames

OTHER_PID = os.getpid() + 1


def test_of_a_cpu_the_machines_memory_and_ours_are_known_and_its_use_since_the_look_before() -> None:
    read = reader_of(torch.device("cpu"))
    first, second = read(), read()
    assert first.name == "cpu"
    assert 0 < first.own_bytes < first.total_bytes == psutil.virtual_memory().total
    assert 0 < first.used_bytes < first.total_bytes
    assert (first.use, first.others_use) == (UNKNOWN, UNKNOWN)
    assert 0 <= second.others_use <= second.use <= 1


def test_what_others_use_of_a_cpu_is_without_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    read = reader_of(torch.device("cpu"))
    read()
    monkeypatch.setattr(psutil, "cpu_percent", lambda: 75.0)
    monkeypatch.setattr(psutil.Process, "cpu_percent", lambda _self: 100.0)  # one core of four
    monkeypatch.setattr(psutil, "cpu_count", lambda: 4)
    figures = read()
    assert (figures.use, figures.others_use) == (0.75, 0.5)


def test_a_cpu_is_as_warm_as_its_warmest_core_and_unknown_without_a_sensor(monkeypatch: pytest.MonkeyPatch) -> None:
    sensors = {
        "nvme": [SimpleNamespace(current=90.0)],
        "coretemp": [SimpleNamespace(current=61.0), SimpleNamespace(current=74.5), SimpleNamespace(current=None)],
    }
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: sensors, raising=False)
    assert cpu_temperature() == 74.5
    sensors.pop("coretemp")
    assert cpu_temperature() is None
    monkeypatch.delattr(psutil, "sensors_temperatures")
    assert cpu_temperature() is None


class FakeNvml:
    """One GPU, of which the driver tells what `answers` has, and no more."""

    class NVMLError(Exception): ...

    NVML_TEMPERATURE_GPU = 0

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked_since: list[int] = []

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def __getattr__(self, name: str) -> Any:
        def ask(handle: str, *arguments: int) -> Any:
            assert handle == "GPU-1234"
            if name == "nvmlDeviceGetProcessUtilization":
                self.asked_since.extend(arguments)
            if name not in self.answers:
                raise self.NVMLError
            return self.answers[name]

        return ask


def gpu(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> DeviceFigures:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA RTX 4090")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10 << 30, 24 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 5 << 30)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]  # None: it cannot be imported
    read = reader_of(torch.device("cuda:0"))
    read()
    return read()


def process(pid: int, gigabytes: int | None) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=gigabytes and gigabytes << 30)


def sample(pid: int, percent: int, at: int) -> Any:
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=at)


def test_of_a_gpu_its_driver_tells_heat_use_and_what_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=97),
        nvmlDeviceGetTemperature=71,
        nvmlDeviceGetComputeRunningProcesses=[process(os.getpid(), 6), process(OTHER_PID, 8)],
        nvmlDeviceGetProcessUtilization=[
            sample(os.getpid(), 60, 900),
            sample(OTHER_PID, 25, 901),
            sample(OTHER_PID, 75, 902),
        ],
    )
    figures = gpu(monkeypatch, nvml)
    assert figures == DeviceFigures("cuda:0 NVIDIA RTX 4090", 14 << 30, 6 << 30, 24 << 30, 0.97, 0.5, 71.0, "GPU-1234")
    assert figures.others_bytes == 8 << 30
    assert nvml.asked_since[-1] == 902  # only what is new since the look before


def test_nobody_who_used_it_lately_is_no_use_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(nvmlDeviceGetComputeRunningProcesses=[process(os.getpid(), 6)])
    assert gpu(monkeypatch, nvml).others_use == 0.0


def test_in_a_container_that_hides_process_numbers_our_own_work_is_not_taken_for_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = FakeNvml(
        nvmlDeviceGetComputeRunningProcesses=[process(OTHER_PID, None)],
        nvmlDeviceGetProcessUtilization=[sample(OTHER_PID, 99, 900)],
    )
    figures = gpu(monkeypatch, nvml)
    assert (figures.others_use, figures.own_bytes) == (UNKNOWN, 5 << 30)


@pytest.mark.parametrize("nvml", [FakeNvml(), None])
def test_without_its_drivers_library_only_memory_is_known(
    monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None
) -> None:
    figures = gpu(monkeypatch, nvml)
    assert (figures.used_bytes, figures.own_bytes, figures.total_bytes) == (14 << 30, 5 << 30, 24 << 30)
    assert (figures.use, figures.others_use, figures.temperature) == (UNKNOWN, UNKNOWN, 0.0)


def test_devices_are_called_by_number_and_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA RTX 4090")
    assert words_of(torch.device("cuda:1")) == "cuda:1 NVIDIA RTX 4090"
    assert words_of(torch.device("cpu")) == "cpu"


def test_a_driver_that_fails_costs_the_figures_and_never_a_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [True]

    def fail(_device: torch.device) -> Callable[[], DeviceFigures]:
        if fails[0]:
            raise AssertionError("invalid device id")
        return reader_of(torch.device("cpu"))

    monkeypatch.setattr(child, "reader_of", fail)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        service = child.TrainerService(theirs)
        service._trainer = SimpleNamespace(device=torch.device("cuda:7"))  # type: ignore[assignment]
        names = []
        for fails[0] in (True, False):
            service._beat()
            (frame,) = frames.FrameReader().feed(ours.recv(1 << 16))
            beat = convert.from_message(TrainerBeat, frames.message_in(frame))
            names.append(beat.device and beat.device.name)
    assert names == [None, "cpu"]
