"""Arithmetic on blocks: encode, average, apply, merge, state root. Pure and deterministic, without I/O.

Blocks and groups are 1-D fp32 tensors on the CPU. Whatever changes the public state must give the same bits on every
machine, so it is made of separate elementwise operations in a fixed order: no `alpha=`, no `addcmul`, no `lerp`.
"""
