"""Certificates of the servers for pages: self-signed in memory, or read from a directory, again after changes.

A self-signed certificate does not authenticate the server; it only encrypts tokens and pages. For a certificate
that clients can verify use the directory.
"""

from __future__ import annotations

import datetime
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

log = logging.getLogger(__name__)

LIFE = datetime.timedelta(days=365)
_BACKDATED = datetime.timedelta(hours=1)  # for clients whose clocks are behind
_CHECK_PERIOD = 10.0  # seconds between two checks of the files


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


def self_signed(name: str, now: datetime.datetime) -> tuple[bytes, bytes]:
    """Generate a certificate for a name, and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(encoding), private


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
    """The certificate in a directory: tls.crt and tls.key, as in a mounted Secret."""

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
            files = ((self._directory / "tls.crt").read_bytes(), (self._directory / "tls.key").read_bytes())
            if files != self._read:
                self._context = context_of(*files)
                self._read = files
            self._error = ""
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            if str(error) != self._error:
                self._error = str(error)
                log.error("certificate in %s: cannot be used: %s", self._directory, error)
