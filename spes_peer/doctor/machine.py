"""This machine by itself: programs, device, memory, disk, state folder, ports, what an earlier daemon left."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from spes_peer import __version__
from spes_peer.doctor.finding import Finding
from spes_peer.errors import BadConfiguration, NoDevice, PeerError, UserError
from spes_peer.folder import INCARNATION_FILE, KEY_FILE, MANIFEST_FILE, check_length
from spes_peer.identity import Identity
from spes_peer.logs import plain
from spes_peer.organize import read_manifest
from spes_peer.ports import choose_ports
from spes_peer.training.device import report_of

_LIBRARIES = ("torch", "hivemind", "libp2p", "grpcio", "textual")
_OUR_PROCESSES = "spes_peer.tied"
_LEAST_MEMORY_BYTES = 2 << 30
_LEAST_DISK_BYTES = 2 << 30


def system(name: str = platform.system(), release: str = platform.release()) -> Finding:
    """What there is under us. Native Windows does not come so far (`spes_peer.refuse_windows`)."""
    said = f"{name} {release}"
    if name == "Linux" and "microsoft" not in release.lower():
        return Finding("system", f"{said}, which is supported")
    which = "WSL" if name == "Linux" else name
    return Finding("system", said, f"{which} is untested: it may work; tell us what does not")


def programs() -> Finding:
    found, missing = [], []
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    said = f"spes-peer {__version__}, Python {sys.version.split()[0]}, {', '.join(found)}"
    if missing:
        return Finding("programs", said, f"install again: {', '.join(missing)} is missing", stops=True)
    return Finding("programs", said)


async def device(name: str, manifest: bytes = b"") -> Finding:
    """As torch has it, and how fast it trains the run of a manifest."""
    try:
        report = await report_of(name, manifest)
    except NoDevice as error:
        said, _, advice = str(error).partition("; ")
        return Finding("device", said, advice, stops=True)
    words = f"{report.name}, {report.free_bytes / 1e9:.1f} GB free"
    if report.tokens_per_second:
        words += f", {report.tokens_per_second:,.0f} tokens/s with {report.num_subsets} subsets of this run"
    if not report.is_gpu:
        return Finding("device", words, "a GPU trains many times as fast; torch sees none here")
    if not report.has_bf16:
        return Finding("device", words, "it has no bf16, so it computes in fp32: slower, and with more memory")
    return Finding("device", f"{words}, bf16")


def memory() -> Finding:
    free = psutil.virtual_memory().available
    said = f"{free / 1e9:.1f} GB free of {psutil.virtual_memory().total / 1e9:.1f} GB"
    if free < _LEAST_MEMORY_BYTES:
        return Finding("memory", said, "close other programs, or lend less with --gpu-memory and --max-subsets")
    return Finding("memory", said)


def disk(folder: Path) -> Finding:
    """Of the file system on which the folder is, or will be."""
    check_length(folder)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    said = f"{free / 1e9:.1f} GB free for {folder}"
    if not os.access(there, os.W_OK):
        return Finding("disk", f"{there} cannot be written to", "choose another folder with --data-dir", stops=True)
    if free < _LEAST_DISK_BYTES:
        return Finding("disk", said, "make room, limit it with --max-disk, or choose another folder with --data-dir")
    return Finding("disk", said)


def state(folder: Path) -> Finding:
    """Whose folder it is, and of which run."""
    if folder.exists() and not folder.is_dir():
        return Finding("state folder", f"{folder} is a file", "choose another with --data-dir", stops=True)
    try:
        identity = Identity.load(folder / KEY_FILE)
    except BadConfiguration as error:
        return Finding("state folder", "its key is damaged", str(error), stops=True)
    if identity is None and (folder / INCARNATION_FILE).exists():
        advice = "put a copy back: spes-peer identity import FILE, or choose a new folder with --data-dir"
        return Finding("state folder", f"the key of {folder} is gone", advice, stops=True)
    if identity is None:
        return Finding("state folder", f"{folder} is new; join makes a key there")
    if not (folder / MANIFEST_FILE).exists():
        return Finding("state folder", f"{identity.peer_id}, of no run yet")
    try:
        signed = read_manifest(folder)
        name = signed.open().run.name
    except (UserError, PeerError) as error:
        return Finding("state folder", f"its manifest cannot be used: {error}", "put back a copy that is whole", True)
    return Finding("state folder", f"{identity.peer_id}, of run {plain(name)} {signed.run_id.hex()[:12]}")


def ports(host: str, base: int) -> Finding:
    """Whether they can be listened on; nothing about who gets through from outside."""
    try:
        chosen = choose_ports(host, base)
    except UserError as error:
        return Finding("ports", str(error), "name others with --port, or 0 for free ones", stops=True)
    if not base:
        return Finding(
            "ports", "three free TCP ports are picked at each start; to open some, name them: --port N, to N + 2"
        )
    three = f"TCP {chosen.grpc} (blobs), {chosen.libp2p} (relays) and {chosen.dht} (DHT)"
    return Finding("ports", f"{three} are to be open, and are free here")


def strays() -> Finding:
    """Processes of a daemon that is gone; they end with it, unless something went very wrong."""
    lost = sorted(_orphans())
    if lost:
        pids = " ".join(map(str, lost))
        return Finding("processes", f"left by a daemon that is gone: {pids}", f"end them: kill {pids}")
    return Finding("processes", "none is left of an earlier daemon")


def _orphans() -> Iterator[int]:
    """Whose parent is not the one that its command line names last (see `spes_peer.tied`)."""
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if _OUR_PROCESSES in words and process.uids().real == os.getuid() and words[-1] != str(process.ppid()):
                yield process.pid
        except psutil.Error:
            continue
