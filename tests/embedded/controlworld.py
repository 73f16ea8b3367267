"""Embedded API servers, a toy reconciler, and an engine that is quick: for tests of the control plane's shell."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from devtools.apiserver import ApiServer
from mcagent.controller.machinery.connection.connection import ConnectionTiming
from mcagent.controller.machinery.engine import EngineTiming
from mcagent.controller.machinery.reconciler import (
    Access,
    DesiredObjects,
    Index,
    ObjectChange,
    Ref,
    Side,
    View,
    Wanted,
)
from mcagent.kube.client import Client
from mcagent.kube.sources.informer import Timing
from mcagent.model.api.base import ApiObject
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.api.multicluster import ApiServiceExport, ResourceExport, ResourceExportSpec
from mcagent.model.api.patches import metadata_patch, patch
from mcagent.model.backoff import Backoff
from mcagent.model.event import Event
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import TYPES

NAMESPACE = "kube-system"
COMMON_AREA = "default"  # of the leader: a namespace that every server has
# Any certificate will do where the leader is reached by plain HTTP on the loopback.
CA = b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
INFORMERS = Timing(
    list_timeout=2.0, watch_timeout=60.0, inactivity=5.0, backoff=Backoff(first=0.02, most=0.2), steady=0.2
)
QUICK = EngineTiming(
    workers=2,
    resync=60.0,
    look=0.02,
    stop=3.0,
    backoff=Backoff(first=0.01, most=0.3),
    informers=INFORMERS,
    connection=ConnectionTiming(
        probe_after=0.3, probe_timeout=0.5, retry=Backoff(first=0.05, most=0.2), look=0.05, informers=INFORMERS
    ),
)


def client_of(api: ApiServer, path: Path) -> Client:
    """Return a client of a server; its kubeconfig is written into a directory."""
    file = path / f"kubeconfig-{api.address.rpartition(':')[2]}"
    api.write_kubeconfig(file)
    return Client(str(file))


class Objects:
    """The objects of a server, read and written behind everybody's back."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api

    def _rt(self, kind: Kind) -> Any:
        info = KINDS[kind]
        rt = self.api.registry.find(info.group, info.version, info.plural)
        assert rt is not None
        return rt

    def put(self, kind: Kind, name: str, namespace: str = NAMESPACE, **fields: Any) -> None:
        """Create or replace an object."""
        info = KINDS[kind]
        where = namespace if info.namespaced else ""
        meta = {"name": name, **fields.pop("metadata", {})}
        body = {"apiVersion": info.api_version, "kind": str(kind), "metadata": meta, **fields}
        if self.get(kind, name, namespace) is None:
            self.api.store.create(self._rt(kind), where, body)
        else:
            self.api.store.update(self._rt(kind), where, name, lambda _old: body)

    def change(self, kind: Kind, name: str, change: Callable[[Any], Any], namespace: str = NAMESPACE) -> None:
        """Patch an object."""
        where = namespace if KINDS[kind].namespaced else ""
        self.api.store.update(self._rt(kind), where, name, change)

    def put_status(self, kind: Kind, name: str, status: Any, namespace: str = NAMESPACE) -> None:
        """Replace the status of an object, as a kubelet does of a Pod."""
        where = namespace if KINDS[kind].namespaced else ""
        self.api.store.update(
            self._rt(kind), where, name, lambda old: {**old, "status": status}, subresource="status"
        )

    def get(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> Any:
        """Return an object or None."""
        where = namespace if KINDS[kind].namespaced else ""
        for stored in self.api.store.select(self._rt(kind), where)[0]:
            if stored.key == (where, name):
                return stored.obj
        return None

    def names(self, kind: Kind) -> list[str]:
        """Return the names of all objects of a kind."""
        return [stored.key[1] for stored in self.api.store.select(self._rt(kind), "")[0]]

    def listed(self, kind: Kind, namespace: str) -> list[Any]:
        """Return the objects of a kind, in all namespaces when `namespace` is ""; [] when it is not served."""
        info = KINDS[kind]
        rt = self.api.registry.find(info.group, info.version, info.plural)
        return (
            [stored.obj for stored in self.api.store.select(rt, namespace if info.namespaced else "")[0]]
            if rt
            else []
        )

    def remove(self, kind: Kind, name: str, namespace: str = NAMESPACE) -> None:
        """Delete an object."""
        self.api.store.delete(self._rt(kind), namespace if KINDS[kind].namespaced else "", name)

    def writes(self, path: str = "") -> list[str]:
        """Return the writes that the server was asked for, as "verb path"."""
        verbs = ("create", "update", "patch", "delete")
        return [f"{verb} {where}" for _, verb, where in list(self.api.requests) if verb in verbs and path in where]


def join(
    local: Objects, leader_url: str, *, token: str = "secret", name: str = "set", cluster_id: str = "east"
) -> None:
    """Make the Secret and the ClusterSet of a member."""
    encoded = {k: base64.b64encode(v).decode() for k, v in (("ca.crt", CA), ("token", token.encode()))}
    local.put(Kind.SECRET, "leader-token", data=encoded)
    spec = {
        "clusterID": cluster_id,
        "namespace": COMMON_AREA,
        "leaders": [{"clusterID": "north", "server": leader_url, "secret": "leader-token"}],
    }
    local.put(Kind.CLUSTER_SET, name, spec=spec)


class Copier:
    """Copies every ServiceExport: into a ConfigMap `copy-NAME` here, or a ResourceExport on the leader."""

    def __init__(self, side: Side = Side.LOCAL) -> None:
        self.side = side
        self.name = f"copier-{side}"
        self.needs_leader = side is Side.LEADER
        self.target = Kind.RESOURCE_EXPORT if self.needs_leader else Kind.CONFIG_MAP
        exports = frozenset({Kind.SERVICE_EXPORT})
        here = not self.needs_leader
        self.reads = (
            Access(local=exports | {self.target})
            if here
            else Access(local=exports, leader={self.target, Kind.RESOURCE_IMPORT})
        )
        self.writes = Access(local={self.target}) if here else Access(leader={self.target})
        self.indexes: Sequence[Index[Any]] = ()
        self.looks: list[str] = []
        self.bad: set[str] = set()  # keys that it trips over

    def keys(self, change: ObjectChange, view: View) -> Iterable[str]:
        """Return the name that a change is about."""
        yield change.object.name.removeprefix("copy-")

    def all_keys(self, view: View) -> Iterable[str]:
        """Return the names of exports, and of copies that may have to go."""
        for export in view.list(ApiServiceExport, namespace=NAMESPACE):
            yield export.name
        for copied in view.list(TYPES[self.target], self.side):
            yield copied.name.removeprefix("copy-")

    def desired(self, key: str, view: View, now: float) -> DesiredObjects:
        """Return the copy."""
        self.looks.append(key)
        if key in self.bad:
            raise RuntimeError(key)
        namespace = NAMESPACE if self.side is Side.LOCAL else COMMON_AREA
        copy = Ref(side=self.side, kind=self.target, namespace=namespace, name=f"copy-{key}")
        export = view.get(Ref(kind=Kind.SERVICE_EXPORT, namespace=NAMESPACE, name=key), ApiServiceExport)
        if export is None:
            return DesiredObjects(steps=(copy,))
        events = (
            (Event(subject=str(copy), reason="Refused", message=view.failure(copy)),) if view.failure(copy) else ()
        )
        label = export.labels.get("said", "")
        metadata = metadata_patch(labels={"sourceClusterID": "east"})  # members read only what has it
        spec = patch(ResourceExportSpec, name=label, kind="Service", cluster_id="east")
        body: ApiObject = patch(ResourceExport, metadata=metadata, spec=spec)
        if self.side is Side.LOCAL:
            body = patch(ConfigMap, metadata=metadata, data={"said": label})
        return DesiredObjects(steps=(Wanted(ref=copy, body=body),), events=events)


def export(objects: Objects, name: str, text: str) -> None:
    """Make or change an export."""
    objects.put(Kind.SERVICE_EXPORT, name, metadata={"labels": {"said": text}})


def copies(remote: Objects) -> dict[str, str]:
    """Return what the copies on the leader say."""
    exports = {
        name: remote.get(Kind.RESOURCE_EXPORT, name, COMMON_AREA) for name in remote.names(Kind.RESOURCE_EXPORT)
    }
    return {name.removeprefix("copy-"): obj["spec"]["name"] for name, obj in exports.items() if obj}
