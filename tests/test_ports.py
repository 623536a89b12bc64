"""Which of this machine's addresses lead to others, and whether others can dial them."""

import pytest

from spes_peer.ports import address_towards, is_on_the_internet


@pytest.mark.parametrize(
    "address",
    ["192.168.1.2", "10.0.0.7", "172.17.0.2", "100.64.3.4", "fd00::7", "127.0.0.1", "::1", "0.0.0.0", "", "a.name"],
)
def test_an_address_that_the_internet_does_not_have_is_told_from_one_that_it_has(address: str) -> None:
    assert not is_on_the_internet(address)
    assert is_on_the_internet("11.77.0.3")
    assert is_on_the_internet("2a11:77::3")


def test_the_near_end_of_a_way_is_told_without_a_packet() -> None:
    assert address_towards("127.0.0.1", 9) == "127.0.0.1"
    assert address_towards("no such name.", 9) == "127.0.0.1"
