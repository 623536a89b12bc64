"""Averages of offers."""

import hashlib
import random

import numpy
import pytest
import torch
from memory_meter import peak_bytes
from torch import Tensor

from spes_peer.blobs import BlobName
from spes_peer.errors import BlobMissing
from spes_peer.identity import PeerId
from spes_peer.run.encodings import Format
from spes_peer.run.offers import ReduceInput
from spes_peer.sync.encoding import decode, encode
from spes_peer.sync.reduce import norm, reduce_offers, weighted_mean

NUM_ELEMENTS = 1000


class Offers:
    """Blobs in memory, and inputs that name them."""

    def __init__(self) -> None:
        self.blobs: dict[BlobName, bytes] = {}

    def read(self, name: BlobName) -> bytes:
        if name not in self.blobs:
            raise BlobMissing(f"blob {name} is not here")
        return self.blobs[name]

    def put(self, peer: str, content: bytes, norm: float, tokens: int = 100, clip: float = 1.0) -> ReduceInput:
        name = BlobName(hashlib.sha256(content).hexdigest())
        self.blobs[name] = content
        return ReduceInput(PeerId(peer), name, len(content), norm, tokens, clip)

    def offer(self, peer: str, values: Tensor, tokens: int = 100, clip: float = 1.0) -> ReduceInput:
        return self.put(peer, encode(Format("fp32"), values), norm(values), tokens, clip)


@pytest.fixture
def offers() -> Offers:
    return Offers()


def drawn(seed: int) -> Tensor:
    return torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed))


def test_weights_are_normalised_in_float64_and_sums_run_in_fp32_in_the_order_given() -> None:
    inputs = [(float(weight), drawn(weight)) for weight in (3, 1, 7, 12345)]
    wanted = numpy.zeros(NUM_ELEMENTS, numpy.float32)
    for index, (weight, values) in enumerate(inputs):
        product = values.numpy() * numpy.float32(weight / 12356.0)
        wanted = product if index == 0 else wanted + product
    assert weighted_mean(inputs).numpy().tobytes() == wanted.tobytes()


def test_offers_count_by_tokens_and_clip(offers: Offers) -> None:
    inputs = [offers.offer("a", drawn(1), tokens=300), offers.offer("b", drawn(2), tokens=100, clip=0.5)]
    reduced = reduce_offers(Format("fp32"), NUM_ELEMENTS, inputs, offers.read)
    assert reduced is not None
    torch.testing.assert_close(reduced.mean, 0.75 * drawn(1) + 0.125 * drawn(2))
    assert reduced.share == {"a": 0.75, "b": 0.25}
    assert reduced.rejected == ()


def test_every_reducer_gets_the_same_bits_whatever_the_order_it_was_told(offers: Offers) -> None:
    inputs = [offers.offer(peer, drawn(ord(peer)), tokens=ord(peer), clip=0.9) for peer in "dbacfe"]
    shuffled = random.Random(0).sample(inputs, len(inputs))
    found = [reduce_offers(Format("fp32"), NUM_ELEMENTS, some, offers.read) for some in (inputs, shuffled)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].mean.numpy().tobytes() == found[1].mean.numpy().tobytes()
    backwards = weighted_mean([(given.tokens, drawn(ord(given.peer_id)) * 0.9) for given in reversed(inputs)])
    assert not torch.equal(found[0].mean, backwards)  # so the order does matter


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * (4 * NUM_ELEMENTS - 1), encode(Format("fp32"), torch.zeros(NUM_ELEMENTS - 1)) + b"\0\0\xc0\x7f"],
    ids=["empty", "short", "nan"],
)
def test_an_offer_that_is_none_costs_only_itself(offers: Offers, content: bytes) -> None:
    inputs = [offers.offer("a", drawn(1)), offers.put("b", content, norm=0.0), offers.offer("c", drawn(3))]
    reduced = reduce_offers(Format("fp32"), NUM_ELEMENTS, inputs, offers.read)
    assert reduced is not None
    assert reduced.rejected == ("b",)
    assert reduced.share == {"a": 0.5, "c": 0.5}
    torch.testing.assert_close(reduced.mean, (drawn(1) + drawn(3)) / 2)


@pytest.mark.parametrize(("factor", "is_taken"), [(1.0, True), (1.0009, True), (1.0011, False), (0.5, False)])
def test_an_offer_must_have_the_norm_it_claims(offers: Offers, factor: float, is_taken: bool) -> None:
    given = offers.put("a", encode(Format("fp32"), drawn(1)), norm=norm(drawn(1)) * factor)
    assert (reduce_offers(Format("fp32"), NUM_ELEMENTS, [given], offers.read) is not None) == is_taken


def test_memory_is_that_of_a_few_blocks_whatever_the_number_of_offers() -> None:
    num_elements, format = 1 << 18, Format("int4")
    values = torch.randn(num_elements, generator=torch.Generator().manual_seed(1))
    content = encode(format, values)
    size = norm(decode(format, content, num_elements))
    name = BlobName(hashlib.sha256(content).hexdigest())
    peaks = []
    for num_offers in (3, 20):
        inputs = [ReduceInput(PeerId(f"{i:02d}"), name, len(content), size, 1, 1.0) for i in range(num_offers)]
        peaks.append(peak_bytes(lambda given=inputs: reduce_offers(format, num_elements, given, lambda _name: content)))
    assert max(peaks) < 3.1 * values.nbytes
    assert peaks[1] == pytest.approx(peaks[0], rel=0.01)


def test_an_offer_of_nothing_is_sound(offers: Offers) -> None:
    reduced = reduce_offers(Format("fp32"), NUM_ELEMENTS, [offers.offer("a", torch.zeros(NUM_ELEMENTS))], offers.read)
    assert reduced is not None
    assert not reduced.mean.any()


def test_without_a_sound_offer_there_is_no_mean(offers: Offers) -> None:
    assert reduce_offers(Format("fp32"), NUM_ELEMENTS, [offers.put("a", b"x", norm=0.0)], offers.read) is None
    assert reduce_offers(Format("fp32"), NUM_ELEMENTS, [], offers.read) is None


def test_a_blob_that_is_not_here_is_said_and_no_fault_of_the_peer(offers: Offers) -> None:
    given = offers.offer("a", drawn(1))
    offers.blobs.clear()
    with pytest.raises(BlobMissing):
        reduce_offers(Format("fp32"), NUM_ELEMENTS, [given], offers.read)


def test_the_norm_is_accumulated_in_float64() -> None:
    values = torch.full((1 << 22,), 1e-3)
    assert norm(values) == pytest.approx(float(torch.tensor(1e-3)) * 2048, rel=1e-9)
    assert norm(torch.full((4,), 1e30)) == pytest.approx(2e30)
