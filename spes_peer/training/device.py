"""What torch says of this machine's devices, asked in a process of its own: it takes seconds to load, and may hang."""

import asyncio
import json
import sys
from dataclasses import dataclass

from spes_peer.errors import NoDevice

_REPORT_SECONDS = 120.0  # on a machine that does much else


@dataclass(frozen=True)
class DeviceReport:
    kind: str
    """"cpu" or "cuda"."""
    name: str
    free_bytes: int
    """That a trainer takes now unless its owner says otherwise."""
    most_bytes: int
    """That there are for it."""
    total_bytes: int
    has_bf16: bool
    num_subsets: int = 0
    """Of the run for which it was asked, that fit."""
    tokens_per_second: float = 0.0
    """At which it trains that run's model with so many."""

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"


async def report_of(name: str, manifest: bytes = b"") -> DeviceReport:
    """Of the device called `name`, or of the best there is; with the speed at which it trains, for a run's manifest.
    `NoDevice` says why there is none."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "spes_peer.training.device_report", name, *(("-",) if manifest else ())),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_REPORT_SECONDS):
            output, complaints = await process.communicate(manifest)
    except TimeoutError:
        raise NoDevice(f"torch says nothing for {_REPORT_SECONDS:.0f} s; see whether the driver hangs") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = complaints.decode(errors="replace").strip().splitlines()[-1:] or ["torch ended without a word"]
        raise NoDevice(last[0] if "; " in last[0] else f"{last[0]}; mend torch's installation")
    return DeviceReport(**json.loads(output))
