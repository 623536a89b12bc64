"""`topk`: of each chunk of 4096 values the largest, as a sign and one of two levels. The layout is in `run.encodings`.

The same bits on every machine: which values are kept is a matter of comparisons alone, ties by index,
and sums run in one order.
"""

from collections.abc import Iterator
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from spes_peer.errors import BadEncoding
from spes_peer.run.encodings import SCALE_BYTES, TOPK_CHUNK, Format, index_bytes
from spes_peer.sync.scales import Bits, Floats, check_sendable, scale_bits, scales_of

_PIECE_CHUNKS = 64  # in work at one time: they stay in a core's cache
_GROUPS_PER_KEPT = 4  # more make the first sight of a chunk dearer, fewer the second

Bytes = NDArray[numpy.uint8]
Mask = NDArray[numpy.bool_]
Indices = NDArray[numpy.int64]


def encode_chunks(format: Format, values: Floats, content: Bytes) -> None:
    """Fill `content` with the encoded values; `SpesError` for values that no peer would take."""
    scratch = numpy.empty(min(len(values), _PIECE_CHUNKS * TOPK_CHUNK), numpy.float32)
    for chunks, records in _pieces(format, values, content):
        check_sendable(torch.from_numpy(chunks))
        kept = format.kept_of(chunks.shape[1])
        found = largest(numpy.abs(chunks, out=scratch[: chunks.size].reshape(chunks.shape)), kept)
        picked = chunks.reshape(-1)[found].reshape(-1, kept)
        indices = found.reshape(-1, kept) - numpy.arange(0, chunks.size, chunks.shape[1])[:, None]
        levels, is_high = _levels(numpy.abs(picked))
        codes_end = 2 * SCALE_BYTES + index_bytes(kept)
        records[:, : 2 * SCALE_BYTES] = levels.astype("<u2").view(numpy.uint8)
        records[:, 2 * SCALE_BYTES : codes_end] = _packed_indices(indices)
        records[:, codes_end:] = _packed_codes(is_high | numpy.where(picked < 0, numpy.uint8(2), numpy.uint8(0)))


def decode_chunks(format: Format, content: Bytes, out: Floats) -> None:
    """Fill `out`, which is all 0, with the values in `content`, whose length is right, or `BadEncoding`."""
    for chunks, records in _pieces(format, out, content):
        kept = format.kept_of(chunks.shape[1])
        codes_start = 2 * SCALE_BYTES + index_bytes(kept)
        bits = numpy.ascontiguousarray(records[:, : 2 * SCALE_BYTES]).view("<u2").astype(numpy.uint16)
        levels = scales_of(bits, 1)
        if (levels[:, 0] > levels[:, 1]).any():
            raise BadEncoding("a low level above the high one")
        indices = _unpacked_indices(records[:, 2 * SCALE_BYTES : codes_start], kept)
        if (indices[:, 1:] <= indices[:, :-1]).any():
            raise BadEncoding("indices that do not rise: twice the same, or out of order")
        if (indices[:, -1] >= chunks.shape[1]).any():
            raise BadEncoding(f"an index beyond a chunk of {chunks.shape[1]} values")
        codes = _unpacked_codes(records[:, codes_start:], kept)
        signed = numpy.concatenate([levels, -levels], axis=1)
        numpy.put_along_axis(chunks, indices, numpy.take_along_axis(signed, codes, axis=1), axis=1)


def largest(magnitudes: Floats, kept: int) -> Indices:
    """Where the `kept` largest of each row are, of equal ones the first: rising indices into the flattened rows."""
    num_rows = len(magnitudes)
    bound = _lower_bound(magnitudes, kept)
    is_candidate = magnitudes > bound
    found, counts = _found(is_candidate)
    short = numpy.flatnonzero(counts < kept)
    if len(short):  # what is missing there equals the bound
        is_equal = magnitudes[short] == bound[short]
        is_candidate[short] |= _first_of(is_equal, kept - counts[short])
        found, counts = _found(is_candidate)
    width = int(counts.max())
    starts = counts.cumsum() - counts
    places = numpy.arange(len(found)) + (numpy.arange(num_rows) * width - starts).repeat(counts)
    candidates = numpy.full(num_rows * width, numpy.float32(-1))
    candidates[places] = magnitudes.reshape(-1)[found]
    is_kept = _are_largest(candidates.reshape(num_rows, width), kept)
    return found[is_kept.reshape(-1)[places]]


def _lower_bound(magnitudes: Floats, kept: int) -> Floats:
    """Of each row a number that at least `kept` values reach, and that few exceed: the one that `kept` groups reach."""
    num_rows, length = magnitudes.shape
    num_groups = length
    while num_groups % 2 == 0 and num_groups >= 2 * _GROUPS_PER_KEPT * kept:
        num_groups //= 2
    most = torch.from_numpy(magnitudes).view(num_rows, -1, num_groups).amax(1).numpy()
    place = num_groups - kept
    return numpy.partition(most, place, axis=1)[:, place : place + 1]


def _found(mask: Mask) -> tuple[Indices, Indices]:
    """Where it is true, in the flattened rows, and how often in each row."""
    found = numpy.flatnonzero(mask)
    ends = numpy.searchsorted(found, numpy.arange(1, len(mask) + 1) * mask.shape[1])
    return found, numpy.diff(ends, prepend=0)


def _are_largest(candidates: Floats, kept: int) -> Mask:
    """Which of each row are its `kept` largest; of equal ones the first."""
    place = candidates.shape[1] - kept
    least = numpy.partition(candidates, place, axis=1)[:, place : place + 1]
    are_largest = candidates >= least
    if numpy.count_nonzero(are_largest) > len(candidates) * kept:  # ties
        are_largest = candidates > least
        num_missing = kept - numpy.count_nonzero(are_largest, axis=1)
        are_largest |= _first_of(candidates == least, num_missing)
    return are_largest


def _first_of(mask: Mask, numbers: Indices) -> Mask:
    """The first so many of each row's."""
    return mask & (mask.cumsum(axis=1, dtype=numpy.int16) <= numbers[:, None])


def _levels(magnitudes: Floats) -> tuple[Bits, NDArray[numpy.uint8]]:
    """The levels' bits (rows, 2), and 1 where the high one is nearer: the split with the least squared error.

    For a split of sorted values in two, that error is Σ x² − low²·num_low − high²·num_high, with the means as levels.
    """
    kept = magnitudes.shape[1]
    ordered = numpy.sort(magnitudes, axis=1).astype(numpy.float64)
    low_sums = ordered.cumsum(axis=1)  # one by one, not pairwise
    high_sums = low_sums[:, -1:] - low_sums
    num_low = numpy.arange(1, kept + 1)
    num_high = numpy.maximum(kept - num_low, 1)
    means = numpy.stack([low_sums / num_low, high_sums / num_high])
    split = (means[0] * low_sums + means[1] * high_sums).argmax(axis=1)
    rows = numpy.arange(len(split))
    low, high = means[0, rows, split], means[1, rows, split]
    levels = scale_bits(numpy.stack([low, numpy.maximum(low, high)], axis=1))
    is_high = (magnitudes > ordered[rows, split][:, None]) & (levels[:, :1] < levels[:, 1:])
    return levels, is_high.astype(numpy.uint8)


def _packed_indices(indices: Indices) -> Bytes:
    num_rows, kept = indices.shape
    even = _with_columns(indices, kept % 2)
    pairs = (even[:, 0::2] | even[:, 1::2] << 12).astype("<u4")
    packed: Bytes = pairs.view(numpy.uint8).reshape(num_rows, -1, 4)[:, :, :3].reshape(num_rows, -1)
    return packed[:, : index_bytes(kept)]


def _unpacked_indices(packed: Bytes, kept: int) -> Indices:
    num_rows, num_pairs = len(packed), -(-kept // 2)
    quads = numpy.zeros((num_rows, num_pairs, 4), numpy.uint8)
    quads[:, :, :3] = _with_columns(packed, 3 * num_pairs - packed.shape[1]).reshape(num_rows, num_pairs, 3)
    pairs = quads.view("<u4")[:, :, 0].astype(numpy.int64)
    indices = numpy.stack([pairs & 0xFFF, pairs >> 12], axis=2).reshape(num_rows, -1)
    if indices[:, kept:].any():
        raise BadEncoding("a half byte after the last index that is not 0")
    return indices[:, :kept]


def _packed_codes(codes: NDArray[numpy.uint8]) -> Bytes:
    num_rows, kept = codes.shape
    fours = _with_columns(codes, -kept % 4).reshape(num_rows, -1, 4)
    packed: Bytes = fours[:, :, 0] | fours[:, :, 1] << 2 | fours[:, :, 2] << 4 | fours[:, :, 3] << 6
    return packed


def _unpacked_codes(packed: Bytes, kept: int) -> Indices:
    codes = (packed[:, :, None] >> numpy.array([0, 2, 4, 6], numpy.uint8) & 3).reshape(len(packed), -1)
    if codes[:, kept:].any():
        raise BadEncoding("bits after the last code that are not 0")
    return codes[:, :kept].astype(numpy.int64)


def _with_columns(rows: NDArray[Any], num_zeros: int) -> NDArray[Any]:
    return numpy.pad(rows, ((0, 0), (0, num_zeros))) if num_zeros else rows


def _pieces(format: Format, values: Floats, content: Bytes) -> Iterator[tuple[Floats, Bytes]]:
    """Some chunks (rows, length) and their records (rows, bytes) at a time, as views; a shorter last chunk alone."""
    num_whole = len(values) // TOPK_CHUNK
    chunks = values[: num_whole * TOPK_CHUNK].reshape(-1, TOPK_CHUNK)
    size_bytes = format.chunk_bytes(TOPK_CHUNK)
    records = content[: num_whole * size_bytes].reshape(-1, size_bytes)
    for start in range(0, num_whole, _PIECE_CHUNKS):
        yield chunks[start : start + _PIECE_CHUNKS], records[start : start + _PIECE_CHUNKS]
    if len(values) > chunks.size:
        yield values[chunks.size :].reshape(1, -1), content[records.size :].reshape(1, -1)
