"""Who a peer is: one Ed25519 key, from which its peer id follows, and a TLS certificate bound to it by signature.

The peer id is libp2p's: base58 of the identity multihash of the protobuf-encoded public key. It therefore contains
the public key, and whoever knows a peer id can verify what that peer signed.
"""

import datetime
import functools
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import NewType

import base58
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from spes_peer.errors import BadConfiguration, BadSignature
from spes_peer.files import write_whole

PeerId = NewType("PeerId", str)

# identity multihash (0x00), 36 bytes long (0x24), of PublicKey{type: Ed25519 (08 01), data: 32 bytes (12 20 …)}
_PEER_ID_PREFIX = bytes.fromhex("0024 0801 1220".replace(" ", ""))
# BoringSSL, inside gRPC, does not take Ed25519 certificates, so the certificate has a P-256 key of its own.
TLS_SERVER_NAME = "spes-peer"
_CERTIFICATE_DAYS = 3650


def peer_id_of(public_key: bytes) -> PeerId:
    """The libp2p peer id of a raw 32-byte Ed25519 public key."""
    return PeerId(base58.b58encode(_PEER_ID_PREFIX + public_key).decode())


@functools.lru_cache(maxsize=4096)
def public_key_of(peer_id: str) -> bytes:
    """The raw public key inside an Ed25519 peer id; `BadSignature` if it is not one."""
    try:
        decoded = base58.b58decode(peer_id) if len(peer_id) <= 64 else b""
    except ValueError:
        decoded = b""
    public_key = decoded[len(_PEER_ID_PREFIX) :]
    # base58 ignores trailing white space: compare, or one key would count as several peers
    if len(public_key) != 32 or peer_id != peer_id_of(public_key):
        raise BadSignature(f"{peer_id[:64]!r} is not an Ed25519 peer id")
    return public_key


def verify(peer_id: str, message: bytes, signature: bytes) -> None:
    """Raise `BadSignature` unless `peer_id` signed `message`."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key_of(peer_id)).verify(signature, message)
    except InvalidSignature:
        raise BadSignature(f"a signature that is not {peer_id}'s") from None


@dataclass(frozen=True)
class Identity:
    """A private key and what follows from it."""

    key: Ed25519PrivateKey
    peer_id: PeerId

    @classmethod
    def generate(cls) -> "Identity":
        return cls.from_seed(secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: bytes) -> "Identity":
        key = Ed25519PrivateKey.from_private_bytes(seed)
        return cls(key, peer_id_of(key.public_key().public_bytes_raw()))

    @classmethod
    def load_or_create(cls, path: Path) -> "Identity":
        """Read the key at `path`; create it (0600) only where there is none. A damaged key is never overwritten."""
        if (identity := cls.load(path)) is None:
            identity = cls.generate()
            identity.save(path)
        return identity

    @classmethod
    def load(cls, path: Path) -> "Identity | None":
        """The key at `path`, None where there is none; `BadConfiguration` if it is damaged or cannot be read."""
        try:
            seed = bytes.fromhex(path.read_bytes().decode())
            if len(seed) != 32:
                raise ValueError
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadConfiguration(f"cannot read the key in {path}: {error.strerror}") from None
        except ValueError:
            raise BadConfiguration(
                f"the key in {path} is damaged; move it away and restore a copy (spes-peer identity import FILE),"
                " or choose a new folder with --data-dir"
            ) from None
        return cls.from_seed(seed)

    def save(self, path: Path) -> None:
        """Readable by its owner alone."""
        write_whole(path, self.seed.hex().encode() + b"\n", mode=0o600)

    @property
    def seed(self) -> bytes:
        return self.key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message)


@dataclass(frozen=True)
class TlsIdentity:
    """The key and self-signed certificate that a node's gRPC server shows."""

    key_pem: bytes
    certificate_der: bytes

    @property
    def certificate_pem(self) -> bytes:
        certificate = x509.load_der_x509_certificate(self.certificate_der)
        return certificate.public_bytes(serialization.Encoding.PEM)

    @classmethod
    def generate(cls) -> "TlsIdentity":
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, TLS_SERVER_NAME)])
        # A volunteer's clock may be a little wrong; the pin by the signed peer entry is what counts.
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(int.from_bytes(os.urandom(16), "big") >> 1)
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=_CERTIFICATE_DAYS))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_SERVER_NAME)]), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            certificate.public_bytes(serialization.Encoding.DER),
        )
