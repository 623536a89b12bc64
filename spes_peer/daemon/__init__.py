"""One volunteer's daemon: serves and calls peers, drives rounds, owns the blob store, serves the control API.

program.py       composes all parts and goes through the phases of a volunteer's life
joining.py       from an address to a claimed subset
replica.py       the trainer and the public state it holds: load, replay, apply, snapshots
attendance.py    the stream to the coordinator
round_work.py    what a member does in one round besides training: reduce, hold, sign
status.py        what dashboards see
"""
