"""How good a model is: the paper's tasks by lm-evaluation-harness, from files on this machine.

suite.py       the tasks, their shots, and where their data lie
local_data.py  a folder of datasets in the place of downloads
table.py       the scores as a person reads them
model.py       the model as the harness asks it
__main__.py    the process that loads the harness, and torch with it
command.py     `spes-peer eval`
"""
