"""A peer id is libp2p's, a key file is guarded, and the TLS certificate is what gRPC can use."""

import datetime
import os
import stat
import subprocess
import sys
from pathlib import Path

import base58
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from spes_peer.errors import BadConfiguration, BadSignature
from spes_peer.identity import TLS_SERVER_NAME, Identity, TlsIdentity, peer_id_of, public_key_of, verify

# In a process of its own: libp2p cannot be imported beside hivemind, which other tests may load.
LIBP2P_PEER_IDS = """
import sys
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
for seed in sys.argv[1:]:
    print(ID.from_pubkey(create_new_key_pair(bytes.fromhex(seed)).public_key).to_base58())
"""


def test_a_peer_id_is_the_one_libp2p_gives_the_same_key() -> None:
    seeds = [bytes(range(32)), b"\0" * 32, b"\xff" * 32]
    command = [sys.executable, "-c", LIBP2P_PEER_IDS, *(seed.hex() for seed in seeds)]
    theirs = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    assert theirs == [Identity.from_seed(seed).peer_id for seed in seeds]


def test_a_peer_id_contains_the_public_key() -> None:
    identity = Identity.generate()
    public_key = identity.key.public_key().public_bytes_raw()
    assert public_key_of(identity.peer_id) == public_key
    assert peer_id_of(public_key) == identity.peer_id


PEER_ID = Identity.from_seed(b"\1" * 32).peer_id


@pytest.mark.parametrize(
    "hostile",
    [
        "",
        "1",
        "not/base58",
        "12D3Koo\u00e9",
        PEER_ID[:-1],
        PEER_ID * 2,
        "1" * 10_000,
        base58.b58encode(b"\x00\x24\x08\x01\x12\x20" + b"k" * 31).decode(),
        base58.b58encode(b"\x00\x24\x08\x00\x12\x20" + b"k" * 32).decode(),  # an RSA key, says the prefix
    ],
)
def test_what_is_no_ed25519_peer_id_is_refused(hostile: str) -> None:
    with pytest.raises(BadSignature):
        public_key_of(hostile)


@pytest.mark.parametrize("disguise", [PEER_ID + " ", PEER_ID + "\n", " " + PEER_ID, "1" + PEER_ID])
def test_one_key_has_one_peer_id_so_that_it_counts_once(disguise: str) -> None:
    with pytest.raises(BadSignature):
        public_key_of(disguise)


def test_a_signature_verifies_only_for_its_message_and_signer() -> None:
    signer, other = Identity.from_seed(b"\1" * 32), Identity.from_seed(b"\2" * 32)
    signature = signer.sign(b"message")
    verify(signer.peer_id, b"message", signature)
    for peer_id, message, tampered in [
        (other.peer_id, b"message", signature),
        (signer.peer_id, b"massage", signature),
        (signer.peer_id, b"message", bytes([signature[0] ^ 1]) + signature[1:]),
        (signer.peer_id, b"message", b""),
        (signer.peer_id, b"message", signature + b"\0"),
    ]:
        with pytest.raises(BadSignature):
            verify(peer_id, message, tampered)


def test_a_key_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    previous_mask = os.umask(0)
    try:
        first = Identity.load_or_create(path)
    finally:
        os.umask(previous_mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Identity.load_or_create(path).peer_id == first.peer_id
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("damaged", [b"", b"\n", b"xyz", b"ab" * 31, b"ab" * 33, b"\xff\xfe" * 32, b"\0" * 64])
def test_a_damaged_key_is_refused_and_never_overwritten(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(damaged)
    with pytest.raises(BadConfiguration, match=r"damaged.*restore"):
        Identity.load_or_create(path)
    assert path.read_bytes() == damaged


def test_a_tls_certificate_is_self_signed_for_our_server_name_and_valid_now() -> None:
    tls = TlsIdentity.generate()
    certificate = x509.load_der_x509_certificate(tls.certificate_der)
    assert x509.load_pem_x509_certificate(tls.certificate_pem) == certificate
    certificate.verify_directly_issued_by(certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [TLS_SERVER_NAME]
    now = datetime.datetime.now(datetime.UTC)
    slow_clock = now - datetime.timedelta(days=1)
    assert certificate.not_valid_before_utc < slow_clock
    assert certificate.not_valid_after_utc > now + datetime.timedelta(days=365)
    key = serialization.load_pem_private_key(tls.key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)  # BoringSSL takes no Ed25519 certificate
    assert key.public_key() == certificate.public_key()


def test_two_nodes_have_two_certificates() -> None:
    assert TlsIdentity.generate().certificate_der != TlsIdentity.generate().certificate_der
