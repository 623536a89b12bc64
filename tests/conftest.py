"""What many tests share: values of a small run, and hypothesis set to find the same cases every time."""

import os
import signal

import pytest
from data_parts import made_up_data
from hypothesis import HealthCheck, settings

from spes_peer import troubles
from spes_peer.identity import Identity
from spes_peer.run.manifest import Manifest, SignedManifest, parse_run_file, sign_manifest
from spes_peer.run.presets import PRESETS

# Derandomized: a red test stays red until something is mended. No deadline: the machine is shared.
settings.register_profile(
    "spes-peer", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
settings.load_profile("spes-peer")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it has in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:  # one of as many as there are cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starting processes takes a busy machine many times as long as an idle one."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(autouse=True, scope="session")
def _no_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the owner of this machine likes is nothing that programs under test should read."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def _no_troubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test did to a disk is no trouble of the next."""
    monkeypatch.setattr(troubles, "board", troubles.Troubles())


@pytest.fixture
def organizer() -> Identity:
    return Identity.from_seed(b"\1" * 32)


@pytest.fixture
def manifest(organizer: Identity) -> Manifest:
    """The demo's run with made-up shards."""
    run_file = parse_run_file(PRESETS["demo"]).model_dump(mode="json")
    run_file["sync"]["most_harm"] = 0.0  # made-up members test nothing
    return Manifest.model_validate({**run_file, "data": made_up_data(), "organizers": [organizer.peer_id]})


@pytest.fixture
def signed_manifest(manifest: Manifest, organizer: Identity) -> SignedManifest:
    return sign_manifest(manifest, organizer)
