"""Faults as they are done and undone."""

import asyncio
import time

from spes_peer.chaos.network import Network
from spes_peer.chaos.nodes import Nodes
from spes_peer.chaos.schedule import Fault, Kind


async def strike(fault: Fault, nodes: Nodes, network: Network) -> str:
    """Do it, wait for as long as it lasts, undo it; what is to be said of it, if anything."""
    match fault.kind:
        case Kind.KILL:
            await asyncio.gather(*(_kill(nodes, name, fault.seconds) for name in fault.targets))
        case Kind.KILL_CHILD:
            if not nodes.kill_child(fault.targets[0], fault.child):
                return "there was none at the moment"
        case Kind.STOP:
            for name in fault.targets:
                nodes.stop(name)
            await asyncio.sleep(fault.seconds)
            for name in fault.targets:
                nodes.let_go_on(name)
        case Kind.LEAVE:
            note = await nodes.leave(fault.targets[0])
            await asyncio.sleep(fault.seconds)
            nodes[fault.targets[0]].start_again()
            return note
        case Kind.JOIN:
            nodes.add_volunteer(fault.targets[0])
        case Kind.PARTITION:
            network.part(fault.targets)
            await asyncio.sleep(fault.seconds)
            network.heal()
    return ""


async def _kill(nodes: Nodes, name: str, seconds: float) -> None:
    killed_at = time.monotonic()
    await nodes.kill(name)
    await asyncio.sleep(killed_at + seconds - time.monotonic())
    nodes[name].start_again()
