"""Measurements on the machine at hand: each ours against another's, interleaved in one process, so that ratios hold
although machines and their load differ."""
