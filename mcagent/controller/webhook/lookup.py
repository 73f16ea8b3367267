"""What admission rules may look up: the engine's cache, and the API server for what the cache may not have yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcagent.controller.contract.cidr_claims import GRANTED
from mcagent.controller.contract.raw import name_of, namespace_of
from mcagent.controller.leader.exports import BY_KIND, by_kind
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Ref, Side
from mcagent.controller.settings import MemberLimits
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError
from mcagent.kube.source import RawObject, is_object
from mcagent.kube.sources.lister import Lister
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

NEEDED = frozenset({Kind.SERVICE_ACCOUNT, Kind.CLUSTER_SET, Kind.MEMBER_CLUSTER_ANNOUNCE})
_TIMEOUT = 5.0  # seconds


class ClusterLookup:
    """Implements `mcagent.controller.admission.Lookup`. Its methods raise SourceError when nothing can be known.

    `namespace` is what the cache holds; "" : all. A question about another namespace is asked of the API server.
    """

    def __init__(self, cache: Cache, client: Client, namespace: str, limits: MemberLimits | None = None) -> None:
        self._cache, self._client, self._namespace, self._limits = (
            cache,
            client,
            namespace,
            limits or MemberLimits(),
        )

    @property
    def limits(self) -> MemberLimits:
        """Return what members may claim where their ServiceAccounts say nothing."""
        return self._limits

    def count_exports(self, namespace: str, cluster_id: str, kind: str) -> int:
        """Return how many ResourceExports of a kind a member has, as far as they were read; 0 on a member."""
        if not self._cache.has_index(BY_KIND):
            return 0
        return self._cache.count_indexed(BY_KIND, by_kind(namespace, cluster_id, kind))

    def granted(self, namespace: str, values: Iterable[str]) -> Sequence[RawObject]:
        """Return the ResourceImports that `cluster_claims.GRANTED` files under any of these.

        Only what was read already: none on a member, and none in a namespace that the leader does not look after.
        """
        if not self._cache.has_index(GRANTED):
            return ()
        rows = (raw for value in values for raw in self._cache.indexed(GRANTED, value))
        return list({name_of(raw): raw for raw in rows if namespace_of(raw) == namespace}.values())

    def service_account(self, namespace: str, name: str) -> RawObject | None:
        """Return a ServiceAccount, None if there is none."""
        if self._knows(Kind.SERVICE_ACCOUNT, namespace):
            found = self._cache.get(Ref(kind=Kind.SERVICE_ACCOUNT, namespace=namespace, name=name))
            if found is not None:
                return found
        # Not in the cache: it may have been made this very moment.
        try:
            answer = self._client.request(
                "GET", object_path(Kind.SERVICE_ACCOUNT, namespace, name), timeout=_TIMEOUT
            )
        except ApiRefusalError as err:
            if err.code == 404:
                return None
            raise
        return self._object(answer)

    def service_accounts(self, namespace: str) -> Sequence[RawObject]:
        """Return all ServiceAccounts of a namespace."""
        return self._list(Kind.SERVICE_ACCOUNT, namespace)

    def cluster_sets(self, namespace: str) -> Sequence[RawObject]:
        """Return all ClusterSets of a namespace."""
        return self._list(Kind.CLUSTER_SET, namespace)

    def announces(self, namespace: str) -> Sequence[RawObject]:
        """Return all MemberClusterAnnounces of a namespace; none where the kind is not served (on a member)."""
        try:
            return self._list(Kind.MEMBER_CLUSTER_ANNOUNCE, namespace)
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

    def _list(self, kind: Kind, namespace: str) -> Sequence[RawObject]:
        if self._knows(kind, namespace):
            return self._cache.list(kind, Side.LOCAL, namespace)
        found, _ = Lister(self._client, kind, object_path(kind, namespace), timeout=_TIMEOUT).read()
        return found

    def _object(self, answer: object) -> RawObject:
        if not is_object(answer):
            raise ApiGarbageError(f"{self._client.server}: the answer is not an object")
        assert isinstance(answer, dict)
        return answer
