"""The look-ups of admission rules: in the engine's cache, and at the API server for what the cache may lack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from mcagent.controller.contract.cidr_claims import GRANTED
from mcagent.controller.leader.exports.header import BY_KIND, by_kind
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Object, Ref, Side
from mcagent.controller.settings import MemberLimits
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError
from mcagent.kube.source import is_object
from mcagent.kube.sources.lister import Lister
from mcagent.model.api.kubernetes import ServiceAccount
from mcagent.model.api.multicluster import ClusterSet, MemberClusterAnnounce, ResourceImport
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

NEEDED = frozenset({Kind.SERVICE_ACCOUNT, Kind.CLUSTER_SET, Kind.MEMBER_CLUSTER_ANNOUNCE})
_TIMEOUT = 5.0  # seconds


class ClusterLookup:
    """Implements `mcagent.controller.admission.Lookup`. Its methods raise SourceError if the API server fails.

    `namespace`: that of the cached objects, "": all. Objects of other namespaces are read from the API server.
    """

    def __init__(self, cache: Cache, client: Client, namespace: str, limits: MemberLimits | None = None) -> None:
        self._cache, self._client, self._namespace = cache, client, namespace
        self.limits = limits or MemberLimits()

    def count_exports(self, namespace: str, cluster_id: str, kind: str) -> int:
        """Return the number of a member's cached ResourceExports of a kind; 0 if this controller is a member's."""
        if not self._cache.has_index(BY_KIND):
            return 0
        return self._cache.count_indexed(BY_KIND, by_kind(namespace, cluster_id, kind))

    def granted(self, namespace: str, values: Iterable[str]) -> Sequence[ResourceImport]:
        """Return the cached ResourceImports with one of these values in the index `cidr_claims.GRANTED`.

        None are cached if this controller is a member's, or does not reconcile the namespace.
        """
        if not self._cache.has_index(GRANTED):
            return ()
        rows = (info for value in values for info in self._cache.indexed(GRANTED, value))
        return list({info.name: info for info in rows if info.namespace == namespace}.values())

    def service_account(self, namespace: str, name: str) -> ServiceAccount | None:
        """Return a ServiceAccount, None if there is none."""
        if self._knows(Kind.SERVICE_ACCOUNT, namespace):
            ref = Ref(kind=Kind.SERVICE_ACCOUNT, namespace=namespace, name=name)
            cached = self._cache.get(ref, ServiceAccount)
            if cached is not None:
                return cached
        # The cache may not have a ServiceAccount that was created a moment ago.
        answer = self._client.find(object_path(Kind.SERVICE_ACCOUNT, namespace, name), timeout=_TIMEOUT)
        if answer is None:
            return None
        if not is_object(answer):
            raise ApiGarbageError(f"{self._client.server}: the answer is not an object")
        return read_as(ServiceAccount, answer)

    def service_accounts(self, namespace: str) -> Sequence[ServiceAccount]:
        """Return all ServiceAccounts of a namespace."""
        return self._list(ServiceAccount, namespace)

    def cluster_sets(self, namespace: str) -> Sequence[ClusterSet]:
        """Return all ClusterSets of a namespace."""
        return self._list(ClusterSet, namespace)

    def announces(self, namespace: str) -> Sequence[MemberClusterAnnounce]:
        """Return all MemberClusterAnnounces of a namespace; none if the kind is not served (on a member)."""
        try:
            return self._list(MemberClusterAnnounce, namespace)
        except ApiRefusalError as err:
            if err.code in (403, 404) and Kind.MEMBER_CLUSTER_ANNOUNCE not in self._cache.kinds(Side.LOCAL):
                return ()
            raise

    def _knows(self, kind: Kind, namespace: str) -> bool:
        return (
            kind in self._cache.kinds(Side.LOCAL)
            and kind not in self._cache.unsynced(Side.LOCAL)
            and self._namespace in ("", namespace)
        )

    def _list(self, cls: type[Object], namespace: str) -> Sequence[Object]:
        if self._knows(cls.KIND, namespace):
            return self._cache.list(cls, Side.LOCAL, namespace)
        path, keep = object_path(cls.KIND, namespace), partial(read_as, cls)
        listed, _ = Lister(self._client, cls.KIND, path, timeout=_TIMEOUT, keep=keep).read()
        return listed
