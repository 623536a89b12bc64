"""Local steps, and all arithmetic on blocks, in a process that has no network.

work.py        what a daemon asks of its trainer and what it answers
client.py      the daemon's end; needs no torch
__main__.py    the process: requests in, answers out
trainer.py     what the process does: a round of local steps, offers, reduce, apply
ahead.py       the steps of a round, and those that were made before its record came
ledger.py      what was offered, what the encoding lost, and what was not used
plan.py        where memory goes, and what fits; needs no torch
traffic.py     what a peer sends and receives; needs no torch
plan_command.py, traffic_command.py  `spes-peer plan`
machine.py     the device, and the plan for it
stepping.py    a local step in micro-batches that fit
feeding.py     the next batch, made while the present one is worked on
optimizer.py   AdamW and the moments of what is trained
eight_bit.py   … whose moments take one byte a value
schedule.py    the learning rate
checkpoint.py  what a restart takes up again
genesis.py     the organizer's first weights
"""
