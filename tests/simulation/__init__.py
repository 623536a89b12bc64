"""A deterministic simulator of a whole run: hundreds of the pure cores under one virtual clock.

What decides is the program's own, and so is what stands between the decisions and the world: every node runs
`following.Follower`, `coordinating.Coordinating` and the records, votes and claims of the program as they are. Made up
are the network that delays, loses and parts (`network`, `streams`), the disks that survive a crash (`disk`), training,
which invents the names of its blobs (`node`), and `asyncio`, `time` and `random` (`stage`, `coroutines`).

The same seed gives the same run, event by event:

    python -m tests.simulation 4711           what happened in the random run of this seed, one line an event
    python -m tests.simulation 0 2000         checks these seeds, on all cores
    python -m tests.simulation.scale          what a round costs with 16 to 1,000 peers
"""
