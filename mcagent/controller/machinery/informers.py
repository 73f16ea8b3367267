"""The informers of this cluster: one for each kind, into the cache. The leader's belong to the connection.

Owns which kinds are read in one namespace only, and which a cluster may lack. Knows no reconciler.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from mcagent.controller.contract.policies import CARRIED
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Side
from mcagent.kube.client import Client
from mcagent.kube.sources.informer import Informer, Timing
from mcagent.model.informer_state import InformerState
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object

log = logging.getLogger(__name__)

# Kinds that a cluster need not know.
OPTIONAL = frozenset(
    {
        Kind.CLUSTER_CLAIM,
        Kind.SERVICE_CIDR,
        Kind.LABEL_IDENTITY,
        Kind.CLUSTER_NETWORK_POLICY,
        Kind.TIER,
        *CARRIED,
    }
)
# Kinds that are read in the controller's namespace where it has one; the others are read in all.
IN_NAMESPACE = frozenset(
    {
        Kind.GATEWAY,
        Kind.CLUSTER_INFO_IMPORT,
        Kind.CLUSTER_SET,
        Kind.CLUSTER_CLAIM,
        Kind.MEMBER_CLUSTER_ANNOUNCE,
        Kind.RESOURCE_EXPORT,
        Kind.RESOURCE_IMPORT,
        Kind.SECRET,
        Kind.SERVICE_ACCOUNT,
        Kind.ROLE_BINDING,
        Kind.CONFIG_MAP,
        Kind.LEASE,
    }
)


class LocalInformers:
    """The informers of this cluster. `namespace` is that of the ClusterSet; "": all namespaces."""

    def __init__(
        self, kinds: Iterable[Kind], client: Client, cache: Cache, *, namespace: str, timing: Timing
    ) -> None:
        """Put them together; nothing is read yet."""
        self._cache = cache
        self._informers = [
            Informer(
                kind,
                client,
                cache.sink(Side.LOCAL),
                namespace=namespace if kind in IN_NAMESPACE else "",
                timing=timing,
                transform=read_object,
            )
            for kind in sorted(kinds)
        ]

    def start(self) -> None:
        """Begin to read. Returns at once."""
        for informer in self._informers:
            informer.start()

    def stop(self) -> None:
        """End, without waiting for what is under way."""
        for informer in self._informers:
            informer.signal_stop()

    def state(self) -> Sequence[InformerState]:
        """Return how reading goes, by kind."""
        return [informer.state() for informer in self._informers]

    def do_without_missing(self) -> None:
        """Treat kinds that this API server does not serve, or not to us, as empty, if it may lack them."""
        for kind in self._cache.unsynced(Side.LOCAL) & OPTIONAL:
            restarts_of_kind = [state.restarts for state in self.state() if state.kind is kind]
            if any(restarts.get("missing") for restarts in restarts_of_kind):
                log.info("the API server does not have %s: assuming none", KINDS[kind].plural)
                self._cache.absent(Side.LOCAL, kind)
            elif any(restarts.get("forbidden") for restarts in restarts_of_kind):
                log.warning("not allowed to read %s: assuming none", KINDS[kind].plural)
                self._cache.absent(Side.LOCAL, kind)
