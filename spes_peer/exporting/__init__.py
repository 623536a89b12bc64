"""A run's model for anybody, from a folder or from nothing but an address of the run.

source.py     what was named: a folder, addresses, a model
visit.py      asks the network for records, the newest state and what has changed since
others.py     who else can be asked, and what volunteers call themselves
cache.py      where that lies meanwhile
bar.py        how far it is
command.py    `spes-peer export`

A visitor has a key for one visit, serves nothing, stands in no dictionary and claims nothing. The weights are written
by a process of its own (`training.export`), which loads torch.
"""
