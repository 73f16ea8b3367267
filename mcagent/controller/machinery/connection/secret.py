"""Follows one Secret by a watch of its own. The Secret stays in memory, and is never shown.

List and watch select it by `metadata.name`, which RBAC takes for a request by name: a Role with `resourceNames`
suffices (Kubernetes, "Using RBAC Authorization", "Referring to resources"). The cache holds no data of Secrets.
The caller decides which one is read, and what its data means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mcagent.kube.client import Client
from mcagent.kube.source import EventType, WatchEvent
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import SecretData
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as


class SecretWatch:
    """Follows one Secret of a namespace: the one that was asked for last."""

    def __init__(self, client: Client, namespace: str, changed: Callable[[], None], timing: Timing) -> None:
        self._client, self._namespace, self._changed, self._timing = client, namespace, changed, timing
        self._sink: _Sink | None = None
        self._informer: Informer | None = None

    def knows(self, name: str) -> bool:
        """Tell whether the Secret was looked for already; begin to, if it is another than before."""
        if self._sink is None or self._sink.name != name:
            self.stop()
            self._sink = _Sink(name, self._changed)
            self._informer = Informer(
                Kind.SECRET,
                self._client,
                self._sink,
                namespace=self._namespace,
                field_selector=f"metadata.name={name}",
                timing=self._timing,
                transform=lambda _kind, raw: read_as(SecretData, raw),
            )
            self._informer.start()
        return self._sink.known

    @property
    def secret(self) -> SecretData | None:
        """Return the Secret, None if there is none."""
        return self._sink.secret if self._sink is not None else None

    @property
    def error(self) -> str:
        """Return why it could not be read yet; "" if it could, or it was not tried."""
        if self._informer is None or self._sink is None or self._sink.known:
            return ""
        return self._informer.state().error

    def stop(self) -> None:
        """Read no more, and forget what was read."""
        if self._informer is not None:
            self._informer.signal_stop()
        self._sink, self._informer = None, None


class _Sink:
    """Keeps the one Secret that is read."""

    def __init__(self, name: str, changed: Callable[[], None]) -> None:
        self.name, self._changed = name, changed
        self.secret: SecretData | None = None
        self.known = False

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:  # noqa: ARG002
        """Keep the Secret, if it is in the list."""
        self._keep(next((obj for obj in objects if obj.name == self.name), None))
        self.known = True
        self._changed()

    def apply(self, kind: Kind, event: WatchEvent) -> None:  # noqa: ARG002
        """Keep a change of the Secret."""
        if event.object.name == self.name:
            self._keep(None if event.type is EventType.DELETED else event.object)
            self._changed()

    def _keep(self, secret: ApiObject | None) -> None:
        assert secret is None or isinstance(secret, SecretData)
        self.secret = secret

    def forget(self, kind: Kind) -> None:
        """Keep the Secret: the informer reads its kind until it ends."""
