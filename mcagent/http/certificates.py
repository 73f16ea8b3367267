"""X.509 certificates of HTTPS servers: self-signed, issued by an own authority, or read from a directory.

- Pages of agent and controllers have a self-signed certificate in memory (`SelfSigned`). It only encrypts; it does
  not authenticate the server.
- The webhook has a certificate of an authority that is kept with it (`Material`). The authority is valid for ten
  years, the certificate for one; each is renewed after two thirds of that. A new authority is trusted beside the
  old one for a while before it issues certificates, for API servers that have not read it yet, and for replicas
  that still serve with the old one.
- A directory has the certificate that a user provides (`read_directory`), and is read again after changes.

The only module that makes or parses certificates. Knows no Secret and no server.
"""

from __future__ import annotations

import datetime
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

log = logging.getLogger(__name__)

LIFE = datetime.timedelta(days=365)
_AUTHORITY_LIFE = datetime.timedelta(days=3650)
_BACKDATED = datetime.timedelta(hours=1)  # for clients whose clocks are behind
_KNOWN_AFTER = datetime.timedelta(minutes=10)  # from the making of an authority until it issues certificates
_MOST_AUTHORITIES = 3
_CHECK_PERIOD = 10.0  # seconds between two checks of the files

_Issued = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def context_of(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Make a server's TLS context; the key is never on disk. Raises ssl.SSLError for unusable PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


def expiry(certificate: bytes) -> float:
    """Return when a certificate expires, in seconds since the epoch. Raises ssl.SSLError for unusable PEM."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
    except ValueError as error:
        raise ssl.SSLError(f"tls.crt: {error}") from error


def read_directory(directory: Path) -> tuple[bytes, bytes]:
    """Return certificate and key from tls.crt and tls.key, as in a mounted Secret. Raises OSError."""
    return (directory / "tls.crt").read_bytes(), (directory / "tls.key").read_bytes()


def self_signed(name: str, now: datetime.datetime) -> tuple[bytes, bytes]:
    """Generate a certificate for a name, and its key, as PEM."""
    certificate, key = _make_certificate((name,), None, now)
    return _pem(certificate), _key_pem(key)


class SelfSigned:
    """A self-signed certificate in memory, replaced after two thirds of its life."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._until = 0.0  # monotonic

    def __call__(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        with self._lock:
            if self._context is None or time.monotonic() >= self._until:
                self._context = context_of(*self_signed(self._name, datetime.datetime.now(datetime.UTC)))
                self._until = time.monotonic() + LIFE.total_seconds() * 2 / 3
            return self._context


class FromDirectory:
    """The certificate in a directory."""

    def __init__(
        self, directory: Path, *, period: float = _CHECK_PERIOD, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory, self._period, self._clock = directory, period, clock
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._read: tuple[bytes, bytes] | None = None
        self._next = float("-inf")
        self._error = ""

    def __call__(self) -> ssl.SSLContext | None:
        """Return the context for a new connection: of the last usable certificate; None: there was none."""
        with self._lock:
            if self._clock() >= self._next:
                self._next = self._clock() + self._period
                self._read_files()
            return self._context

    def _read_files(self) -> None:
        try:
            files = read_directory(self._directory)
            if files != self._read:
                self._context = context_of(*files)
                self._read = files
            self._error = ""
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            if str(error) != self._error:
                self._error = str(error)
                log.error("certificate in %s: cannot be used: %s", self._directory, error)


# --- an authority and its certificate ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Authorities, a certificate and keys, as PEM. `authorities` has the newest first, whose key is kept."""

    authorities: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Return no key."""
        return "Material(...)"


def current(material: Material | None, names: Sequence[str], now: datetime.datetime) -> Material:
    """Return the material to use from now on: the same object if nothing is due. `names` are the DNS names served.

    Material that cannot be read is replaced as a whole.
    """
    parsed = _parse(material)
    if material is None or parsed is None:
        authority, authority_key = _make_authority(now)
        certificate, key = _make_certificate(names, (authority, authority_key), now)
        return Material(
            authorities=_pem(authority),
            authority_key=_key_pem(authority_key),
            certificate=_pem(certificate),
            key=_key_pem(key),
        )
    if _is_due(parsed.authorities[0], now):
        authority, authority_key = _make_authority(now)
        valid = [previous for previous in parsed.authorities if previous.not_valid_after_utc > now]
        authorities = (authority, *valid)[:_MOST_AUTHORITIES]
        pem = b"".join(map(_pem, authorities))
        material = replace(material, authorities=pem, authority_key=_key_pem(authority_key))
        parsed = replace(parsed, authorities=authorities, authority_key=authority_key)
    if _needs_certificate(parsed, names, now):
        certificate, key = _make_certificate(names, (parsed.authorities[0], parsed.authority_key), now)
        material = replace(material, certificate=_pem(certificate), key=_key_pem(key))
    return material


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    authorities: tuple[x509.Certificate, ...]
    authority_key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def _parse(material: Material | None) -> _Parsed | None:
    if material is None:
        return None
    try:
        authorities = tuple(x509.load_pem_x509_certificates(material.authorities))
        certificate = x509.load_pem_x509_certificate(material.certificate)
        authority_key = serialization.load_pem_private_key(material.authority_key, None)
        key = serialization.load_pem_private_key(material.key, None)
    except (ValueError, TypeError):
        return None
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey) or not authorities:
        return None
    if authority_key.public_key() != authorities[0].public_key() or key.public_key() != certificate.public_key():
        return None
    if not any(_signed_by(certificate, authority) for authority in authorities):
        return None
    return _Parsed(authorities=authorities, authority_key=authority_key, certificate=certificate)


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _is_due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Tell whether two thirds of its time are over, or it is not valid yet: a clock was wrong."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return not begins <= now < begins + (ends - begins) * 2 / 3


def _needs_certificate(parsed: _Parsed, names: Sequence[str], now: datetime.datetime) -> bool:
    certificate, newest = parsed.certificate, parsed.authorities[0]
    if _is_due(certificate, now) or _names(certificate) != set(names):
        return True
    return not _signed_by(certificate, newest) and now >= newest.not_valid_before_utc + _BACKDATED + _KNOWN_AFTER


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return set(extension.value.get_values_for_type(x509.DNSName))


def _make_authority(now: datetime.datetime) -> _Issued:
    key = ec.generate_private_key(ec.SECP256R1())
    # Each authority has another name: clients look authorities up by name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"mcagent-webhook-ca@{int(now.timestamp())}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(name, name, key, now, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _make_certificate(names: Sequence[str], authority: _Issued | None, now: datetime.datetime) -> _Issued:
    """Make a certificate for DNS names; without an authority it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    issuer, issuer_key = (authority[0].subject, authority[1]) if authority is not None else (subject, key)
    certificate = (
        _builder(subject, issuer, key, now, LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return certificate, key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + life)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
