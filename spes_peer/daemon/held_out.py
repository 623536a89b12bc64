"""Which part of the held-out split a peer measures after a record: pure, so that all of a roster part it alike.

Together they measure the whole split, or of a large one as much as costs each of them little; the parts move on from
round to round, so that nobody has the same one twice in a row and all of a large split has its turn.
"""

MOST_TOKENS = 1 << 16
"""Of one peer in one round: a forward pass of what a GPU trains in a few seconds."""


def slice_of(place: int, num_peers: int, round: int, num_sequences: int, sequence_length: int) -> tuple[int, int]:
    """(slice, of so many) for the peer at `place` of a roster of `num_peers`, after record `round`; no two places have
    the same. Slice i of n is every n-th sequence from the i-th on."""
    most_sequences = max(1, MOST_TOKENS // sequence_length)
    num_slices = max(num_peers, -(-num_sequences // most_sequences))
    done = round * num_peers  # slices before this round; one further each time that all have had their turn
    return (done + done // num_slices + place) % num_slices, num_slices
