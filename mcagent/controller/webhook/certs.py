"""The webhook's own certificate authority and certificate: made, checked and renewed. Pure but for random keys.

The authority lives ten years, the certificate one; each is renewed when two thirds of its time are over. A new
authority is trusted for a while beside the old one before certificates are made with it, so that API servers that
have not heard of it yet, and replicas that still serve with the old one, go on working.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_AUTHORITY_LIFE = datetime.timedelta(days=3650)
_LIFE = datetime.timedelta(days=365)
_BACKDATED = datetime.timedelta(hours=1)  # for API servers whose clocks are behind
_KNOWN_AFTER = datetime.timedelta(minutes=10)  # by then everybody has heard of a new authority
_MOST_AUTHORITIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Everything that is kept, as PEM. `authorities` has the newest first; `authority_key` is its key."""

    authorities: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Return nothing of it."""
        return "Material(...)"


def current(material: Material | None, names: Sequence[str], now: datetime.datetime) -> Material:
    """Return what should be kept: the same object if nothing is due. `names` are the DNS names served.

    What cannot be read is made anew, all of it.
    """
    parsed = _parse(material)
    if material is None or parsed is None:
        authority, authority_key = _make_authority(now)
        certificate, key = _make_certificate(names, authority, authority_key, now)
        return Material(
            authorities=_pem(authority),
            authority_key=_key_pem(authority_key),
            certificate=_pem(certificate),
            key=_key_pem(key),
        )
    made = material
    if _due(parsed.authorities[0], now):
        authority, authority_key = _make_authority(now)
        still = [known for known in parsed.authorities if known.not_valid_after_utc > now]
        kept = [authority, *still][:_MOST_AUTHORITIES]
        made = replace(made, authorities=b"".join(map(_pem, kept)), authority_key=_key_pem(authority_key))
        parsed = replace(parsed, authorities=tuple(kept), authority_key=authority_key)
    if _wants_certificate(parsed, names, now):
        certificate, key = _make_certificate(names, parsed.authorities[0], parsed.authority_key, now)
        made = replace(made, certificate=_pem(certificate), key=_key_pem(key))
    return made


def expiry(material: Material) -> float:
    """Return when the certificate expires, in seconds since the epoch; 0.0 if it cannot be read."""
    parsed = _parse(material)
    return parsed.certificate.not_valid_after_utc.timestamp() if parsed is not None else 0.0


# --- inside -------------------------------------------------------------------------------------------------


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


def _due(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    """Tell whether two thirds of its time are over, or it is not valid yet: somebody's clock was wrong."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return not begins <= now < begins + (ends - begins) * 2 / 3


def _wants_certificate(parsed: _Parsed, names: Sequence[str], now: datetime.datetime) -> bool:
    certificate, newest = parsed.certificate, parsed.authorities[0]
    if _due(certificate, now) or _names(certificate) != set(names):
        return True
    return not _signed_by(certificate, newest) and now >= newest.not_valid_before_utc + _BACKDATED + _KNOWN_AFTER


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return set(found.value.get_values_for_type(x509.DNSName))


def _make_authority(now: datetime.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # A name of its own for each: clients look authorities up by name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"mcagent-webhook-ca@{int(now.timestamp())}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    made = (
        _builder(name, name, key, now, _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return made, key


def _make_certificate(
    names: Sequence[str],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    made = (
        _builder(subject, authority.subject, key, now, _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    return made, key


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
