"""The public state in a folder, read block by block: a volunteer's data folder, an organizer's, or a visitor's.

Every block is checked against the name that the snapshot has for it, and the snapshot against the state root in the
run's records where one has it. The records since the snapshot are replayed, as every volunteer does, where their
updates are here and memory has room for the whole state; else the state is the snapshot's.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from google.protobuf.message import DecodeError
from torch import Tensor

from spes_peer.blobs import BlobStore, digests_of, name_of
from spes_peer.errors import BadConfiguration, PeerError
from spes_peer.folder import KEY_FILE, MANIFEST_FILE, RUN_FILE, SNAPSHOTS_FILE
from spes_peer.run.certificates import Checks
from spes_peer.run.chain import Chain
from spes_peer.run.layout import Block, Layout
from spes_peer.run.manifest import SignedManifest
from spes_peer.run.records import BlockId, Record, Snapshot, state_root
from spes_peer.sync.encoding import decode, from_state_bytes
from spes_peer.sync.state import PublicState
from spes_peer.training.replaying import has_room, needed_bytes
from spes_peer.wire import convert
from spes_peer.wire.peer_pb2 import Snapshots

Say = Callable[[str], None]


class StoredState:
    """The newest whole public state in a folder. `round` is the record behind which it stands, `root` its name."""

    def __init__(
        self, folder: Path, round: int | None = None, replays: bool = False, say: Say = lambda _: None
    ) -> None:
        """The state after record `round`, or else the newest; `BadConfiguration` where there is none."""
        self.signed = _manifest_in(folder)
        self.layout = Layout(self.signed.open())
        self.chain = Chain(folder, Checks.of(self.layout.manifest, self.signed.run_id))
        self.blobs = BlobStore(folder / "blobs")
        self.snapshot = self._newest_whole(folder, round)
        self._names = {name.block: name for name in self.snapshot.blocks}
        self.round, self.root = self.snapshot.round, state_root(self.snapshot.blocks)
        self._state: PublicState | None = None
        self._read_block = lru_cache(maxsize=1)(self._checked)  # the next tensor mostly lies in the same block
        if replays:
            self._replay(self._records_until(round), say)

    def read(self, expert: int | None, start: int, num_elements: int) -> Tensor:
        """Values of a group in their public dtype: a copy."""
        blocks = self.layout.shared_blocks if expert is None else self.layout.expert_blocks(expert)
        end, size = start + num_elements, self.layout.manifest.sync.block_elements
        parts = [
            self._read_block(block)[max(start - block.start, 0) : end - block.start]
            for block in blocks[start // size : (end - 1) // size + 1]
        ]
        return torch.cat(parts)

    def sound(self, blob: str, what: str) -> bytes:
        """A blob's bytes; `BadConfiguration` where the disk has changed them."""
        content = self.blobs.read(blob)
        if name_of(digests_of(content)) != blob:
            raise BadConfiguration(f"{what} is damaged on disk; let the volunteer fetch it again")
        return content

    def _checked(self, block: Block) -> Tensor:
        content = self._state.block_bytes(block) if self._state is not None else self._block_bytes(block.id)
        return from_state_bytes(self.layout.dtype_of(block), content, block.num_elements)

    def _block_bytes(self, block: BlockId) -> bytes:
        return self.sound(self._names[block].blob, f"block {block}")

    # ---- the records since the snapshot ----

    def _records_until(self, round: int | None) -> Sequence[Record]:
        """Those behind the snapshot, in order, all of whose updates are here."""
        last = self.chain.num_records - 1 if round is None else min(round, self.chain.num_records - 1)
        records = []
        for number in range(self.round + 1, last + 1):
            record = self.chain.record(number).sealed.record
            if not all(self.blobs.has(update.blob) for update in record.updates):
                break
            records.append(record)
        return records

    def _replay(self, records: Sequence[Record], say: Say) -> None:
        if not records:
            return
        if not has_room(self.layout):
            size = needed_bytes(self.layout) / 1e9
            say(f"not replaying the {len(records)} records since: the state would take {size:.1f} GB of memory")
            return
        state = PublicState.from_blocks(self.layout, self._block_bytes)
        for record in records:
            say(f"replaying record {record.round} of {records[-1].round}")
            updates = {update.block: update for update in record.updates}

            def delta_of(block_id: BlockId) -> Tensor:
                update = updates[block_id]  # noqa: B023 — used before the next record
                content = self.sound(update.blob, f"an update of {block_id}")
                return decode(self.layout.update_format(update), content, self.layout.by_id[block_id].num_elements)

            if record.state_root and record.state_root != state.root():
                raise BadConfiguration(
                    f"the state before record {record.round} is not the run's; export another folder"
                )
            state.apply(tuple(updates), delta_of, record.merge_alpha)
        self._state, self.round, self.root = state, records[-1].round, state.root()
        if self._is_refuted(self.round, self.root):
            raise _not_the_runs(self.round)

    # ---- which snapshot ----

    def _newest_whole(self, folder: Path, round: int | None) -> Snapshot:
        """Of those whose blobs are all here; a volunteer drops the genesis once it has two snapshots."""
        found = []
        for snapshot in self._candidates(folder):
            blocks = [(name.block, name.size_bytes) for name in snapshot.blocks]
            if blocks != [(block.id, self.layout.state_bytes(block)) for block in self.layout.state_blocks]:
                raise BadConfiguration(f"the state after record {snapshot.round} in {folder} is not of its manifest")
            if self._is_refuted(snapshot.round, state_root(snapshot.blocks)):
                continue  # the chain went back behind it
            if all(self.blobs.has(name.blob) for name in snapshot.blocks):
                found.append(snapshot)
        for snapshot in found:
            if round is None or snapshot.round <= round:
                return snapshot
        if found:
            raise BadConfiguration(f"the oldest state in {folder} is the one after record {found[-1].round}")
        raise BadConfiguration(
            f"{folder} holds no whole state yet; volunteers keep one every"
            f" {self.layout.manifest.sync.snapshot_rounds} rounds, and the address of the run brings what others have"
        )

    def _candidates(self, folder: Path) -> Iterator[Snapshot]:
        yield from sorted(_kept_snapshots(folder), key=lambda snapshot: -snapshot.round)
        if self.chain.num_records:
            yield Snapshot(0, self.chain.record(0).sealed.record.genesis)

    def _is_refuted(self, round: int, root: str) -> bool:
        """Whether the record behind it names another state."""
        if round + 1 >= self.chain.num_records:
            return False
        named = self.chain.record(round + 1).sealed.record.state_root
        return bool(named) and named != root


def _not_the_runs(round: int) -> BadConfiguration:
    return BadConfiguration(f"the state after record {round} is not what the run's records say; use another folder")


def _why_no_run(folder: Path) -> str:
    """What a folder without a manifest is instead."""
    if (folder / RUN_FILE).exists():
        return f"the run in {folder} is not signed yet, so it has no weights; do it with: spes-peer run sign {folder}"
    if (folder / KEY_FILE).exists():
        return f"the volunteer in {folder} has not found its run yet; let it join first, or give the run's address"
    return f"{folder} is neither a volunteer's data folder nor a run folder"


def _kept_snapshots(folder: Path) -> list[Snapshot]:
    try:
        kept = Snapshots.FromString((folder / SNAPSHOTS_FILE).read_bytes())
        return [convert.from_message(Snapshot, message) for message in kept.snapshots]
    except FileNotFoundError:
        return []
    except (DecodeError, PeerError) as error:
        raise BadConfiguration(f"{folder / SNAPSHOTS_FILE} is damaged: {error}") from None


def _manifest_in(folder: Path) -> SignedManifest:
    try:
        return SignedManifest.from_bytes((folder / MANIFEST_FILE).read_bytes())
    except FileNotFoundError:
        raise BadConfiguration(_why_no_run(folder)) from None
    except (OSError, PeerError) as error:
        raise BadConfiguration(f"cannot read {folder / MANIFEST_FILE}: {error}") from None
