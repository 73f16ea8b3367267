"""Client certificates, as an administrator makes them for API servers. They are in one PEM file with their key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """An authority that signs client certificates."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign("clients", self._key, x509.BasicConstraints(ca=True, path_length=0))

    @property
    def pem(self) -> str:
        """Return its certificate."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def client(self, file: Path, common_name: str) -> Path:
        """Write a new certificate for a client, and its key, to a file; return the file."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(common_name, key, x509.BasicConstraints(ca=False, path_length=None))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
        return file

    def _sign(
        self, common_name: str, key: ec.EllipticCurvePrivateKey, constraints: x509.BasicConstraints
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clients")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(constraints, critical=True)
            # As Go writes them: authorities of one name, as while one is replaced, are told apart by these.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if not constraints.ca:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(usage, critical=False)
        return builder.sign(self._key, hashes.SHA256())
