"""Keys and certificates for API servers and webhooks of labs and tests, made with openssl(1).

Owns the files of one directory; what is there already is used again, so that a server that restarts keeps its
identity. Keys are readable by their owner only and never leave the directory.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from devtools.errors import LabError

_DAYS = "3650"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_TIMEOUT = 30.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The files of a server: the authority that clients trust, its own certificate and key (PEM)."""

    ca: Path
    certificate: Path
    key: Path

    @property
    def ca_text(self) -> str:
        """Return the authority's certificate (PEM)."""
        return self.ca.read_text()


def server_identity(directory: Path, names: Sequence[str]) -> Identity:
    """Return the identity of a server under these DNS names and addresses, made if it is not there.

    Raises LabError when openssl is missing or fails.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    identity = Identity(
        ca=directory / "ca.crt", certificate=directory / "server.crt", key=directory / "server.key"
    )
    if not (identity.ca.exists() and identity.certificate.exists() and identity.key.exists()):
        ca_key = directory / "ca.key"
        _openssl(
            *("req", "-x509", *_CURVE, "-days", _DAYS, "-subj", "/CN=mcagent-lab-ca"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", str(ca_key), "-out", str(identity.ca)),
        )
        _openssl(
            *("req", "-x509", *_CURVE, "-days", _DAYS, "-subj", "/CN=mcagent-lab"),
            *("-CA", str(identity.ca), "-CAkey", str(ca_key)),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-addext", "keyUsage=critical,digitalSignature"),
            *("-addext", "extendedKeyUsage=serverAuth"),
            *("-addext", "subjectAltName=" + ",".join(map(_alternative, names))),
            *("-keyout", str(identity.key), "-out", str(identity.certificate)),
        )
        for key in (ca_key, identity.key):
            key.chmod(0o600)
    return identity


def signing_key(private: Path, public: Path) -> None:
    """Make a private key (EC, PEM), and a file with its public key, if they are not there. Raises LabError."""
    if not (private.exists() and public.exists()):
        _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(private))
        private.chmod(0o600)
        _openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))


def _alternative(name: str) -> str:
    try:
        return f"IP:{ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _openssl(*arguments: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *arguments],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise LabError("missing: openssl (`make setup` installs what the lab needs)") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"openssl {arguments[0]} takes longer than {_TIMEOUT:g} s") from None
    if done.returncode:
        raise LabError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-300:]}")
