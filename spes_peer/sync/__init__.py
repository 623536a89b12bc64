"""Arithmetic on blocks: encode, average, apply, merge, state root. Pure and deterministic, without I/O.

Blocks and groups are 1-D fp32 tensors on the CPU. Whatever changes the public state must give the same bits on every
machine, so it is made of separate elementwise operations in a fixed order: no `alpha=`, no `addcmul`, no `lerp`.

encoding.py    values to bytes and back, strictly (quantized.py, topk.py, scales.py)
feedback.py    what an encoding loses is offered again
reduce.py      the average of several offers
outer.py       how far a block moves on it
merge.py       the expert merge of the warm-up
state.py       the public state: all blocks, what a record does to them, their names and root
"""
