"""Addresses: what people type becomes an endpoint, or one line that says what to write instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spes_peer.errors import BadConfiguration
from spes_peer.exchange.addresses import NodeAddress, parse_address, parse_endpoint
from spes_peer.identity import Identity

PEER_ID = Identity.from_seed(b"\7" * 32).peer_id


@pytest.mark.parametrize(
    "text",
    [
        f"/ip4/127.0.0.1/tcp/4510/p2p/{PEER_ID}",
        f"/ip6/2001:db8::7/tcp/1/p2p/{PEER_ID}",
        f"/dns/run.example.org/tcp/65535/p2p/{PEER_ID}",
        f"/dns4/a/tcp/4510/p2p/{PEER_ID}",
        f"/dns6/x-1.example/tcp/4510/p2p/{PEER_ID}",
    ],
)
def test_a_multiaddr_is_read_and_written_back(text: str) -> None:
    address = parse_address(text)
    assert address.peer_id == PEER_ID
    assert address.text() == text


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("127.0.0.1:4510", "write /ip4/127.0.0.1/tcp/4510/p2p/<peer id>"),
        ("[::1]:4510", "write /ip6/::1/tcp/4510/p2p/<peer id>"),
        ("run.example:4510", "write /dns/run.example/tcp/4510/p2p/<peer id>"),
        ("run.example", "write it like /ip4/"),
        ("", "write it like /ip4/"),
        ("/ip4/127.0.0.1/tcp/4510", "lacks the node's peer id"),
        (f"/ip4/127.0.0.1/tcp/4510/p2p/{PEER_ID}/ip4/127.0.0.1/tcp/4511/p2p/{PEER_ID}", "several addresses in one"),
        (f"/ip4/127.0.0.1/tcp/4510/p2p/{PEER_ID},/ip4/127.0.0.1/tcp/4511", "several addresses in one"),
        (f"/ip4/127.0.0.1/tcp/0/p2p/{PEER_ID}", "'0' is not a port"),
        (f"/ip4/127.0.0.1/tcp/70000/p2p/{PEER_ID}", "'70000' is not a port"),
        (f"/ip4/127.0.0.1/udp/4510/p2p/{PEER_ID}", "write it like /ip4/"),
        (f"/ip4/127.0.0.256/tcp/4510/p2p/{PEER_ID}", "is not an IPv4 address"),
        (f"/ip6/127.0.0.1/tcp/4510/p2p/{PEER_ID}", "is not an IPv6 address"),
        (f"/dns/127.0.0.1/tcp/4510/p2p/{PEER_ID}", "an IP address goes behind /ip4"),
        (f"/unix/x/tcp/4510/p2p/{PEER_ID}", "/unix is not supported"),
        (f"/ip4/127.0.0.1/tcp/4510/p2p/{PEER_ID[:-1]}", "is not a peer id"),
        ("/ip4/127.0.0.1/tcp/4510/p2p/", "is not a peer id"),
    ],
)
def test_what_cannot_be_used_is_answered_with_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(BadConfiguration) as refused:
        parse_address(text)
    assert advice in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=80) | st.text(alphabet="/ip4dnstcp2:.,0123456789abc[]%", max_size=60))
def test_any_text_is_an_address_or_refused_in_one_line(text: str) -> None:
    try:
        address = parse_address(text)
    except BadConfiguration as error:
        said = str(error)
    else:
        said = "one line"
        assert parse_address(address.text()) == address
    assert len(said.splitlines()) == 1


@given(st.ip_addresses(), st.integers(1, 65535))
def test_every_ip_address_and_port_survives_the_round_trip(host: object, port: int) -> None:
    address = NodeAddress(str(host), port, PEER_ID)
    assert parse_address(address.text()) == address
    assert parse_endpoint(str(address.endpoint)) == address.endpoint


@pytest.mark.parametrize(
    "text",
    [
        "unix:/run/x.sock:1",
        "unix:x",
        "vsock:1:2",
        "dns:///a:1",
        "ipv4:1.2.3.4:5",
        "a:0",
        "a:",
        ":1",
        "1.2:3",
        "::1:5",
        "a b:1",
    ],
)
def test_an_entry_cannot_make_us_dial_anything_but_a_host_and_a_port(text: str) -> None:
    with pytest.raises(BadConfiguration):
        parse_endpoint(text)
