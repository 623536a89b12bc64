"""Labels that teach nothing: those of sequences in which one short pattern repeats over and over (SPES §2, "Data").

Whole sequences are masked, as the paper's code does: text around such a passage is seldom worth having either.
"""

import numpy as np
from numpy.typing import NDArray

IGNORED_TARGET = -100  # what the losses leave out
MAX_PERIOD = 13
MIN_REPEATS = 32

Integers = NDArray[np.integer]


def mask_repeats(tokens_BT: Integers, targets_BT: Integers) -> Integers:
    """`targets_BT` with every label of a repetitive sequence `IGNORED_TARGET`; the same array where there is none.

    A sequence is repetitive when for some period p of 1…`MAX_PERIOD` it holds `MIN_REPEATS`·p tokens in a row of which
    each, from the p-th on, equals the one p before it: any p tokens, written `MIN_REPEATS` times one after the other,
    beginning anywhere. Signed integers of any width; the arguments are left as they are.
    """
    repetitive_B = repeats(tokens_BT)
    if not repetitive_B.any():
        return targets_BT
    masked_BT = targets_BT.copy()
    masked_BT[repetitive_B] = IGNORED_TARGET
    return masked_BT


def repeats(tokens_BT: Integers) -> NDArray[np.bool_]:
    """Which sequences are repetitive."""
    found_B = np.zeros(len(tokens_BT), dtype=np.bool_)
    for period in range(1, MAX_PERIOD + 1):
        equal_BN = tokens_BT[:, period:] == tokens_BT[:, :-period]
        found_B[_has_run(equal_BN, (MIN_REPEATS - 1) * period)] = True
    return found_B


def _has_run(true_BN: NDArray[np.bool_], length: int) -> NDArray[np.bool_]:
    """Which rows have `length` trues in a row.

    Windows double, and ordinary text has no true window left after two or three doublings."""
    width = 1  # true_BN[:, i] says that so many from i on are true
    while width < length:
        step = min(width, length - width)
        true_BN = true_BN[:, :-step] & true_BN[:, step:]
        width += step
        if not true_BN.any():
            break
    return np.asarray(true_BN.any(axis=1))
