"""The certificate authorities and shared keys of a cluster, derived from its token.

Real k3s makes random ones and hands them to joining servers through the datastore. Deriving them gives every
server with the same token the same authorities without that exchange, down to the byte: the authorities'
keys are Ed25519, whose signatures are deterministic, so /cacerts is the same everywhere as in k3s. The
service account key must be ECDSA for kube-apiserver. Certificates of single servers are in certificates.py.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

NOT_BEFORE = datetime.datetime(2020, 1, 1)
NOT_AFTER = datetime.datetime(2049, 12, 31)
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551

Key = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def _derive(secret: str, purpose: str, length: int) -> bytes:
    return HKDF(
        algorithm=hashes.SHA256(), length=length, salt=b"k3s bed authorities", info=purpose.encode()
    ).derive(secret.encode())


def shared_key(secret: str, purpose: str) -> ec.EllipticCurvePrivateKey:
    """The P-256 key of that purpose; 48 bytes make the bias of the reduction negligible."""
    scalar = int.from_bytes(_derive(secret, purpose, 48), "big") % (_P256_ORDER - 1) + 1
    return ec.derive_private_key(scalar, ec.SECP256R1())


def key_pem(key: Key) -> bytes:
    """The key as PEM; kube-apiserver reads elliptic-curve keys in their traditional form only."""
    pkcs8, traditional = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL
    form = pkcs8 if isinstance(key, ed25519.Ed25519PrivateKey) else traditional
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


@dataclass(frozen=True)
class Authority:
    """A certificate authority: its certificate and its key."""

    certificate: x509.Certificate
    key: ed25519.Ed25519PrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def authority(secret: str, name: str) -> Authority:
    """The authority of that name in the cluster of that token."""
    key = ed25519.Ed25519PrivateKey.from_private_bytes(_derive(secret, name, 32))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"k3s-{name}@bed")])
    usage = x509.KeyUsage(True, False, True, False, False, True, False, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(int.from_bytes(_derive(secret, f"{name} serial", 8), "big") | 1)
        .not_valid_before(NOT_BEFORE)
        .not_valid_after(NOT_AFTER)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, None)
    )
    return Authority(certificate, key)
