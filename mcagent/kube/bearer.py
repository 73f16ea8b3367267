"""Access to an API server by a bearer token alone: the service account of a Pod, and kubeconfigs with a token.

Agents and controllers have such an access. It is read here, since the official client takes 16 MiB of memory. Owns
no rule of its own: whatever is not exactly such an access is left to the official client, errors included
(`bearer_access` returns None).
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from mcagent.kube.source import RawObject

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CA_FILE, _CA_DATA = "certificate-authority", "certificate-authority-data"
_TOKENS: tuple[set[str], ...] = (set(), {"token"}, {"tokenFile"})
# what a kubeconfig raises that is another one, or none
_OTHER = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class BearerAccess:
    """Where an API server is, what signs its certificate, and our token; `token_file` is read for each header."""

    server: str
    ca_file: str | None = None
    ca_data: str | None = None
    token: str = ""
    token_file: str = ""

    def authorization(self) -> str:
        """Return the header's value, "" without a token. Raises OSError."""
        token = Path(self.token_file).read_text() if self.token_file else self.token
        return f"Bearer {token}" if token or self.token_file else ""

    def pool(self, **options: Any) -> Any:
        """Return the pool of connections, an `urllib3.PoolManager`. `options`: of urllib3."""
        from urllib3 import PoolManager

        return PoolManager(
            cert_reqs="CERT_REQUIRED", ca_certs=self.ca_file, ca_cert_data=self.ca_data, retries=False, **options
        )


def bearer_access(kubeconfig: str | RawObject, context: str) -> BearerAccess | None:
    """Return the access, or None if it is of another kind, incomplete, or leads through a proxy."""
    try:
        access = _of_kubeconfig(kubeconfig, context) if kubeconfig else _of_service_account()
        url = urlsplit(access.server)
        trusts = access.ca_file or access.ca_data
        plain = url.hostname and "@" not in url.netloc and not (url.path or url.query) and url.port != 0
        by_proxy = any(kind != "no" for kind in getproxies())
    except _OTHER:
        return None
    if by_proxy or not plain or not (trusts if url.scheme == "https" else url.scheme == "http"):
        return None
    return access


def _of_service_account() -> BearerAccess:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token, ca = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"
    if not (host and port and token.read_text() and ca.read_text()):
        raise ValueError(SERVICE_ACCOUNT)
    name = f"[{host}]" if ":" in host else host
    return BearerAccess(server=f"https://{name}:{port}", ca_file=str(ca), token_file=str(token))


def _of_kubeconfig(kubeconfig: str | RawObject, context: str) -> BearerAccess:
    document: Any = kubeconfig
    if isinstance(kubeconfig, str):
        import yaml

        try:
            document = yaml.safe_load(Path(kubeconfig).read_text())
        except yaml.YAMLError:
            raise ValueError(kubeconfig) from None
    chosen = _named(document["contexts"], context or document["current-context"])["context"]
    cluster = dict(_named(document["clusters"], chosen["cluster"])["cluster"])
    user = _named(document["users"], chosen["user"])["user"] or {}
    server, file, data = cluster.pop("server"), cluster.pop(_CA_FILE, None), cluster.pop(_CA_DATA, None)
    token, token_file = user.get("token", ""), user.get("tokenFile", "")
    paths = [path for path in (file, token_file) if path]
    if cluster or set(user) not in _TOKENS or (file and data) or not all(map(os.path.isabs, paths)):
        raise ValueError(context)
    if not all(isinstance(text, str) for text in (server, token, token_file)):
        raise TypeError(context)
    return BearerAccess(
        server=server.rstrip("/"),
        ca_file=file,
        ca_data=base64.b64decode(data, validate=True).decode() if data else None,
        token=token,
        token_file=token_file,
    )


def _named(items: Any, name: str) -> Any:
    (item,) = (item for item in items if item["name"] == name)
    return item
