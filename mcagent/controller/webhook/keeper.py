"""Keeps the webhook's certificate: in a Secret that the replicas share, in the server, and as caBundle.

The manifests bring an empty Secret, which the replica that holds the Lease fills. Without that Secret any replica
creates it, if it may. All replicas check every half minute. Private keys are in the Secret and in memory only.
"""

from __future__ import annotations

import base64
import binascii
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from mcagent.controller.webhook.server import WebhookServer
from mcagent.http.certificates import Material, context_of, current, expiry, read_directory
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject, checked_object
from mcagent.model.errors import SourceError
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

LOOK = 30.0  # seconds between two looks while all is well
RETRY = 2.0
_FIELDS = ("ca.crt", "ca.key", "tls.crt", "tls.key")


class Keeper(BackgroundLoop, ABC):
    """Takes care of the server's certificate: a thread that looks again and again, sooner after a failure."""

    def __init__(self, look: float, retry: float) -> None:
        super().__init__(self._check, name="certificate", patience=1.0)
        self._look, self._retry = look, retry
        self.error = ""
        self.expires = 0.0  # of the certificate in use, in seconds since the epoch; 0.0: there is none

    def _check(self) -> float:
        try:
            self.look()
            error = ""
        except (SourceError, OSError) as err:
            error = str(err)
            if error != self.error:
                log.warning("certificate of the webhook: %s", error)
        self.error = error
        return self._retry if error else self._look

    @abstractmethod
    def look(self) -> None:
        """Do what is to be done now. Raises SourceError, OSError."""


class SecretKeeper(Keeper):
    """Makes, renews and shares a certificate for the Service `service` of a namespace.

    `configurations` are the kinds of webhook configurations, named like the Service, that get the caBundle.
    With `everywhere` there are more of them, for other namespaces, whose names end in `-all-namespaces`.
    """

    def __init__(
        self,
        client: Client,
        server: WebhookServer,
        *,
        namespace: str,
        service: str,
        leading: Callable[[], bool],
        configurations: Sequence[Kind],
        everywhere: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        look: float = LOOK,
        retry: float = RETRY,
    ) -> None:
        super().__init__(look, retry)
        self._client, self._server, self._leading, self._now = client, server, leading, now
        self._namespace, self._service = namespace, service
        names = (service, f"{service}-all-namespaces") if everywhere else (service,)
        self._configurations = [(kind, name) for name in names for kind in configurations]
        self._used: Material | None = None

    @property
    def secret(self) -> str:
        """Return the name of the Secret."""
        return f"{self._service}-webhook"

    @property
    def names(self) -> Sequence[str]:
        """Return the DNS names by which API servers ask for the Service."""
        full = f"{self._service}.{self._namespace}.svc"
        return (full, f"{full}.cluster.local")

    def look(self) -> None:
        """Bring Secret, server and caBundle up to date. Raises SourceError, ssl.SSLError."""
        stored = self._read()
        material = _material(stored)
        renewed = current(material, self.names, self._now())
        if stored is None:
            material = self._create(renewed)
        elif renewed != material and self._leading():
            material = self._replace(stored, renewed)
            log.info("certificate of the webhook: renewed")
        if material is None:
            raise SourceError(f"Secret {self._namespace}/{self.secret} holds no usable certificate")
        if material != self._used:
            self._server.use(context_of(material.certificate, material.key))
            self._used, self.expires = material, expiry(material.certificate)
        if self._leading():
            self._trust_all(material)

    def _path(self, name: str = "") -> str:
        return object_path(Kind.SECRET, self._namespace, name)

    def _read(self) -> RawObject | None:
        answer = self._client.find(self._path(self.secret), timeout=10.0)
        return None if answer is None else checked_object(answer, Kind.SECRET, self._client.server)

    def _create(self, material: Material) -> Material | None:
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.secret, "namespace": self._namespace},
            "type": "kubernetes.io/tls",
            "data": _data(material),
        }
        try:
            self._client.request("POST", self._path(), body=body, timeout=10.0)
        except ApiRefusalError as err:
            if err.code == 409:  # another replica was quicker: its certificate is the one
                return _material(self._read())
            if err.code == 403:
                raise SourceError(
                    f"there is no Secret {self._namespace}/{self.secret}: the manifests create it ({err})"
                ) from err
            raise
        log.info("certificate of the webhook: made, in Secret %s/%s", self._namespace, self.secret)
        return material

    def _replace(self, stored: RawObject, material: Material) -> Material:
        body = {**stored, "data": {**(stored.get("data") or {}), **_data(material)}}
        self._client.request("PUT", self._path(self.secret), body=body, timeout=10.0)
        return material

    def _trust_all(self, material: Material) -> None:
        """Put the authorities into all configurations that are there. Raises SourceError if one is missing."""
        errors: list[SourceError] = []
        for kind, name in self._configurations:
            try:
                self._trust(kind, name, material)
            except SourceError as err:
                errors.append(err)
        if errors:
            raise errors[0]

    def _trust(self, kind: Kind, name: str, material: Material) -> None:
        """Put the authorities into a configuration of this webhook."""
        path = object_path(kind, "", name)
        configuration = checked_object(self._client.request("GET", path, timeout=10.0), kind, self._client.server)
        bundle = base64.b64encode(material.authorities).decode()
        webhooks = configuration.get("webhooks")
        hooks = [hook for hook in webhooks if isinstance(hook, dict)] if isinstance(webhooks, list) else []
        right = [
            {**hook, "clientConfig": {**(hook.get("clientConfig") or {}), "caBundle": bundle}} for hook in hooks
        ]
        if right == hooks:
            return
        version = configuration["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version}, "webhooks": right}
        self._client.request("PATCH", path, body=body, content_type="application/merge-patch+json", timeout=10.0)
        log.info("%s %s: caBundle written", kind, name)


class DirectoryKeeper(Keeper):
    """Uses a certificate that another program keeps in a directory: tls.crt and tls.key."""

    def __init__(
        self, directory: Path, server: WebhookServer, *, look: float = LOOK, retry: float = RETRY
    ) -> None:
        super().__init__(look, retry)
        self._directory, self._server = directory, server
        self._used: tuple[bytes, bytes] | None = None

    def look(self) -> None:
        """Take up what changed. Raises OSError (ssl.SSLError for unusable PEM)."""
        files = read_directory(self._directory)
        if files == self._used:
            return
        self._server.use(context_of(*files))
        self._used = files
        self.expires = expiry(files[0])


def _data(material: Material) -> dict[str, str]:
    values = (material.authorities, material.authority_key, material.certificate, material.key)
    return {name: base64.b64encode(value).decode() for name, value in zip(_FIELDS, values, strict=True)}


def _material(secret: RawObject | None) -> Material | None:
    """Return what a Secret holds; None if it is not all there."""
    data = secret.get("data") if secret is not None else None
    if not isinstance(data, dict):
        return None
    values: list[bytes] = []
    for name in _FIELDS:
        value = data.get(name)
        if not isinstance(value, str):
            return None
        try:
            values.append(base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            return None
    authorities, authority_key, certificate, key = values
    return Material(authorities=authorities, authority_key=authority_key, certificate=certificate, key=key)
