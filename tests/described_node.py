"""Fixtures of a node of a run that a newcomer may ask: import both, and name them in `__all__`."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from control_program import short_folder
from exchange_nodes import Node, running

from spes_peer.exchange.holdings import Holdings
from spes_peer.run.manifest import SignedManifest


@pytest.fixture
def folder() -> Iterator[Path]:
    """For a volunteer's state: its path is short enough for sockets."""
    with short_folder() as path:
        yield path


@pytest.fixture
async def node(tmp_path: Path, signed_manifest: SignedManifest) -> AsyncIterator[Node]:
    """That introduces newcomers to the run."""
    async with running(tmp_path, Holdings) as (one,):
        one.describe_run(signed_manifest)
        yield one
