"""Simulated swarms, to compare ways of training: N peers in one process, through exactly the code that a volunteer
runs (`training`, `sync`, and the decisions of `rounds`), without a network.

A file names arms; every arm is run with every seed, at equal tokens; each such cell is a process of its own.
"""
