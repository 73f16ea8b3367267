"""Authenticates the webhook's clients by certificates (`webhook.clientCA`, `webhook.clientNames`).

Knows no request. Who signs and distributes the certificates is the cluster administrator's business.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificates:
    """The certificates that clients need: signed by one of `authorities` (PEM), with a common name of `names`.

    Without authorities clients need none; without names any common name is accepted.
    """

    authorities: str = ""
    names: tuple[str, ...] = ()

    def require(self, context: ssl.SSLContext) -> None:
        """Have a server's context ask for a certificate and verify it. Raises ssl.SSLError for unusable PEM."""
        if self.authorities:
            context.load_verify_locations(cadata=self.authorities)
            context.verify_mode = ssl.CERT_REQUIRED

    def accepts(self, connection: object) -> bool:
        """Tell whether the certificate of a connection, which TLS has verified, has one of the names."""
        if not self.authorities or not self.names:
            return True
        certificate = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
        subject = (certificate or {}).get("subject", ())
        return any(part == ("commonName", name) for name in self.names for parts in subject for part in parts)


def unusable(authorities: str) -> str:
    """Return why PEM certificates cannot be used as authorities, or ""."""
    try:
        ClientCertificates(authorities=authorities).require(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except ssl.SSLError as error:
        return str(error)
    return ""
