"""Credentials of an API server by the official client's rules: kubeconfig, service account, TLS, proxies, tokens.

The only importer of `kubernetes`. What is used of it: reading a configuration, its authorization header, the
connection pool that `kubernetes.client.rest` sets up for it, and its WebSockets. An access by a bearer token alone
needs none of it (`bearer`).
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcagent.kube.bearer import BearerAccess, bearer_access
from mcagent.kube.errors import CredentialsError
from mcagent.kube.source import RawObject
from mcagent.model.errors import SourceError
from mcagent.model.keys.values import did_you_mean

_CONNECTIONS = 64  # kept open for further requests; each watch has one
# what reading raises for files and texts that are wrong, and for what needs a Python module that is not installed
_UNUSABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError)
_TOKEN = re.compile("[!-~]+")  # more than RFC 6750, section 2.1, allows, and nothing that ends a header
_FILES = "tokenFile, client-certificate, client-key and certificate-authority, or the service account's token"
# how the client's errors of plug-ins begin; what follows may be their output
_PLUG_IN_REASON = re.compile(
    r"exec: (process returned -?\d+|failed to decode|malformed|missing)|\[Errno .*", re.DOTALL
)
_REREAD = 1.0  # seconds for which the authorization is not read again: that costs a fifth of a request


class Credentials:
    """Where an API server is, connections to it, and who we are there, as they were read once.

    `kubeconfig` is a path, or paths as in $KUBECONFIG, merged as by kubectl, or its content; "" means the Pod's
    service account (in-cluster). `context` "" means the current one. Raises SourceError when they cannot be read,
    whose text never holds one of them.
    """

    def __init__(self, kubeconfig: str | RawObject, context: str) -> None:
        self._source = (kubeconfig, context)
        self._files = _signature(kubeconfig)
        self._configuration: Any = None  # the official client's; not read for a bearer token
        self._access = bearer_access(kubeconfig, context)
        if self._access is not None:
            self.pool = self._access.pool(maxsize=_CONNECTIONS, socket_options=_socket_options())
            server = urlsplit(self._access.server)
        else:
            self._configuration, self.pool = _configuration(kubeconfig, context)
            server = urlsplit(str(self._configuration.host))
        self.server = server._replace(netloc=server.netloc.rpartition("@")[2]).geturl()  # is in errors and logs
        self._header: Mapping[str, str] = {}
        self._read_at = float("-inf")

    @property
    def outdated(self) -> bool:
        """Whether reading them again helps: the kubeconfig was replaced, or a file that holds a part was deleted.

        The official client writes certificates and keys of a kubeconfig into /tmp, which other programs clean up.
        """
        files = _signature(self._source[0])
        paths = (getattr(self._configuration, name, None) for name in ("ssl_ca_cert", "cert_file", "key_file"))
        is_lost = any(path and not Path(path).is_file() for path in paths)
        return is_lost or (files != self._files and None not in files)

    def header(self) -> Mapping[str, str]:
        """Return the header that names us; the token is read, or a plug-in run, anew. Raises CredentialsError."""
        now = time.monotonic()
        if now - self._read_at >= _REREAD:
            read = _header(self._configuration) if self._access is None else _bearer_header(self._access)
            self._header, self._read_at = read, now
        return self._header

    def token(self) -> str:
        """Return our bearer token, "" where we have none. Raises CredentialsError."""
        scheme, _, token = self.header().get("authorization", "").partition(" ")
        return token if scheme.lower() == "bearer" else ""

    def stream(self, path: str, query: Sequence[tuple[str, str]]) -> Any:
        """Return an open `kubernetes.stream.ws_client.WSClient`. Raises OSError, ValueError, WebSocketException.

        It has no deadline for opening: an API server that does not reach a kubelet says so after half a minute.
        """
        from kubernetes.stream import ws_client

        url = ws_client.get_websocket_url(self.server + path, query)
        configuration = self._configuration or _configuration(*self._source)[0]
        return ws_client.WSClient(configuration, url, dict(self.header()), capture_all=False)


def _signature(kubeconfig: str | RawObject) -> tuple[tuple[int, int, int] | None, ...]:
    """Return inode, size and time of change in ns of each file of a kubeconfig; None of one that is not there."""
    paths = kubeconfig.split(os.pathsep) if isinstance(kubeconfig, str) and kubeconfig else ()
    signatures: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = Path(path).stat()
        except OSError:
            signatures.append(None)
        else:
            signatures.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(signatures)


def token_kubeconfig(server: str, ca: bytes, token: str) -> RawObject:
    """Return the kubeconfig for a bearer token. `ca` is PEM; b"" trusts what the system trusts."""
    cluster = {"server": server}
    if ca:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def _configuration(kubeconfig: str | RawObject, context: str) -> tuple[Any, Any]:
    """Return the official client's configuration, and its connection pool. Raises SourceError."""
    import yaml
    from kubernetes import client, config
    from kubernetes.client.rest import RESTClientObject

    logging.getLogger().addFilter(_without_output)
    configuration = client.Configuration()
    options = {"context": context or None, "client_configuration": configuration, "persist_config": False}
    source = "credentials"
    try:
        if isinstance(kubeconfig, dict):
            config.load_kube_config_from_dict(kubeconfig, **options)
        elif kubeconfig:
            source = f"kubeconfig {kubeconfig}"
            if not any(map(os.path.isfile, kubeconfig.split(os.pathsep))):
                raise SourceError(f"{source}: no such file")
            options["context"] = _context_of(kubeconfig, context) or None
            config.load_kube_config(config_file=kubeconfig, **options)
        elif "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise SourceError(
                "no kubeconfig: give a kubeconfig (--kubeconfig, KUBECONFIG or ~/.kube/config). This is no Pod, "
                "which would have a service account"
            )
        else:
            source = "service account of this Pod"
            config.load_incluster_config(configuration)
        configuration.retries = False
        configuration.connection_pool_maxsize = _CONNECTIONS
        configuration.socket_options = _socket_options()
        return configuration, RESTClientObject(configuration).pool_manager
    except (*_UNUSABLE, config.ConfigException, yaml.YAMLError) as err:
        raise SourceError(f"{source}: cannot be used: {_reason(err)}") from None


def _context_of(kubeconfig: str, context: str) -> str:
    """Return the context that kubectl would use; of several files it is that of the first which names one.

    Raises SourceError with the contexts of the kubeconfig, if it has no such one.
    """
    import yaml

    files = [Path(name) for name in kubeconfig.split(os.pathsep) if Path(name).is_file()]
    documents = [yaml.safe_load(file.read_text()) for file in files]
    if not context:
        current = (document.get("current-context") for document in documents)
        return str(next(filter(None, current), ""))
    names = [str(item["name"]) for document in documents for item in document.get("contexts") or ()]
    if context not in names:
        hint = did_you_mean(context, names) or f"; it has {', '.join(names) or 'none'}"
        raise SourceError(f'kubeconfig {kubeconfig}: has no context "{context}"{hint}')
    return context


def _socket_options() -> list[tuple[int, int, int]]:
    """Return socket options by which a connection fails when its peer, or the path to it, is gone (tcp(7)).

    An idle one fails after 10 + 3 * 5 s, one with unacknowledged data after 25 s.
    """
    from urllib3.connection import HTTPConnection

    tcp = socket.IPPROTO_TCP
    return [
        *HTTPConnection.default_socket_options,
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (tcp, socket.TCP_KEEPIDLE, 10),
        (tcp, socket.TCP_KEEPINTVL, 5),
        (tcp, socket.TCP_KEEPCNT, 3),
        (tcp, socket.TCP_USER_TIMEOUT, 25_000),  # milliseconds
    ]


def _header(configuration: Any) -> Mapping[str, str]:
    from kubernetes import config

    try:
        settings = configuration.auth_settings().values()
        values = {item["key"]: item["value"] for item in settings if item["in"] == "header" and item["value"]}
    except (*_UNUSABLE, config.ConfigException) as err:
        raise CredentialsError(f"the credentials cannot be read: {_reason(err)}") from None
    return {key: _authorization(value) for key, value in values.items()}


def _bearer_header(access: BearerAccess) -> Mapping[str, str]:
    try:
        value = access.authorization()
    except _UNUSABLE as err:
        raise CredentialsError(f"the credentials cannot be read: {_reason(err)}") from None
    return {"authorization": _authorization(value)} if value else {}


def _authorization(value: str) -> str:
    """Return "Bearer TOKEN" without the line end that editors and `echo` leave. Raises CredentialsError."""
    scheme, _, token = value.partition(" ")
    if not _TOKEN.fullmatch(token.strip()):
        raise CredentialsError(
            "the token cannot be used: a space, line end or other character in it cannot be sent"
        )
    return f"{scheme} {token.strip()}"


def _without_output(record: logging.LogRecord) -> bool:
    """Remove what a plug-in printed, which may be a credential, from the client's record of its failure."""
    if record.module == "kube_config":
        reason = _PLUG_IN_REASON.match(record.getMessage())
        text = "the credential plug-in (user.exec in the kubeconfig) failed: %s: run its command to see its output"
        record.msg, record.args = text, (reason[0] if reason else "its answer cannot be used",)
    return True


def _reason(err: Exception) -> str:
    """Return what is wrong with credentials, without what was read: it may be a token."""
    import yaml

    if isinstance(err, yaml.YAMLError):
        mark = getattr(err, "problem_mark", None)
        return "it is not YAML" + (f" (line {mark.line + 1})" if mark is not None else "")
    if isinstance(err, ImportError):
        return f"it needs the Python module {err.name}, which is not installed"
    if isinstance(err, TypeError | AttributeError | KeyError):
        return "it is no kubeconfig: it lacks a list of clusters, contexts or users, or an entry of them"
    if isinstance(err, ValueError) and not isinstance(err, binascii.Error | json.JSONDecodeError):
        return type(err).__name__
    # The names of files are not repeated: a credential in the place of one is "a file that does not exist".
    if isinstance(err, FileNotFoundError) or str(err).startswith("File does not exist"):
        return f"a file does not exist: one of {_FILES}"
    if isinstance(err, OSError):
        return err.strerror or type(err).__name__
    return str(err)
