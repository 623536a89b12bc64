"""Which of this machine's addresses lead to others, and whether others can dial them."""

import pytest

from spes_peer.ports import ends_towards, is_hidden


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("192.168.1.2", "11.77.0.2"),
        ("10.0.0.7", "11.77.0.2"),
        ("172.17.0.2", "11.77.0.2"),
        ("100.64.3.4", "11.77.0.2"),  # behind a provider's router
        ("fd00::7", "2a11:77::2"),
        ("127.0.0.1", "11.77.0.2"),
    ],
)
def test_an_address_that_the_internet_does_not_have_is_hidden_from_a_run_on_the_internet(own: str, theirs: str) -> None:
    assert is_hidden(own, theirs)


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        ("11.77.0.3", "11.77.0.2"),
        ("2a11:77::3", "2a11:77::2"),
        ("192.168.1.2", "192.168.1.3"),  # a run at home
        ("10.0.0.7", "192.168.1.3"),
        ("127.0.0.1", "127.0.0.1"),
        ("fd00::7", "fd00::8"),
        ("192.168.1.2", ""),  # nobody is known
        ("192.168.1.2", "no address"),
    ],
)
def test_other_addresses_are_not_known_to_be_hidden(own: str, theirs: str) -> None:
    assert not is_hidden(own, theirs)


def test_both_ends_of_a_way_are_told_without_a_packet() -> None:
    assert ends_towards("127.0.0.1", 9) == ("127.0.0.1", "127.0.0.1")
    assert ends_towards("no such name.", 9) == ("127.0.0.1", "")
