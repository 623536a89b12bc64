"""Decoders that only the DHT node's and the libp2p node's processes have, fuzzed; see `test_fuzz_decoders`."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(("process", "least_refused"), [("dht", 15_000), ("libp2p", 10_000)])
def test_what_strangers_say_to_the_children_is_a_value_or_a_typed_error(process: str, least_refused: int) -> None:
    command = [sys.executable, str(Path(__file__).with_name("fuzz_child.py")), process, "20000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[-1]) > least_refused
