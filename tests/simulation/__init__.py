"""A deterministic simulator of a whole run: hundreds of the pure cores under one virtual clock.

What decides is the program's own: the coordinator's core, elections, ballots, claims, the rules for records and chains.
What is made up is the world around it: a network that delays, loses and parts (`network`), disks that survive a crash
(`disk`), training that invents the names of its blobs (`volunteer`). The rim between the two, which in the program is
asynchronous, is told again in `following` and `coordinating`, call by call.

The same seed gives the same run, event by event:

    python -m tests.simulation 4711           what happened in the random run of this seed, one line an event
    python -m tests.simulation 0 2000         checks these seeds, on all cores
    python -m tests.simulation.scale          what a round costs with 16 to 1,000 peers
"""
