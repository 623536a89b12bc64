"""One volunteer's daemon: serves and calls peers, drives rounds, owns the blob store, serves the control API.

program.py       composes all parts and goes through the phases of a volunteer's life
joining.py       from an address to a claimed subset
member.py        follows the records: trains, contributes, says what others must know
replica.py       the trainer and the public state it holds: load, replay, apply, snapshots
trainer_host.py  keeps a trainer process running
attendance.py    the stream to the coordinator
round_work.py    what a member does in one round besides training: reduce and hold
voting.py        what a member signs, and that it never signs twice
status.py        what dashboards see
foreground.py    the same in a terminal: the daemon beside a dashboard
"""
