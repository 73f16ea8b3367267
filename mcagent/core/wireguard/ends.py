"""How each gateway of other clusters is reached while traffic between clusters is encrypted.

Owns the addresses of tunnel endpoints behind the WireGuard device, which keys are taken, and what becomes of a
gateway that cannot be encrypted to. Each refusal is a Problem. Knows nothing of ports, flows, routes or devices.

Endpoints. A gateway that publishes a key of its own has an endpoint that follows from its gatewayIP alone
(`mcagent.core.addresses.underlay`), so nobody has to tell it, and it stays when other gateways come or go. One
that publishes none (Antrea has one key for a cluster) has Antrea's: the first address of its cluster's Service
CIDR. Endpoints are IPv4, whatever the underlay is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.core.addresses.rules import Taken
from mcagent.core.addresses.underlay import ENDPOINTS, endpoint_of
from mcagent.core.local_cluster.nodes import seniority
from mcagent.core.remote_clusters.cidr_claims import rank_of
from mcagent.core.remote_clusters.settle import RemoteClusters
from mcagent.core.wireguard.keyholders import Ends, Holders, Wanted, first_endpoint, wanted_by
from mcagent.model.config import Config, EncryptionFallback
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address, Network, host_network
from mcagent.model.node_state import AcceptedCluster, LocalGateway, Publication, RemoteEnd
from mcagent.model.objects import ClusterInfoImport, Gateway, WireGuardInfo
from mcagent.model.problem import Problem, Severity
from mcagent.model.wireguard import WireGuardImplementation


@dataclass(frozen=True, slots=True, kw_only=True)
class WireGuardFacts:
    """What this Node can encrypt with."""

    implementation: WireGuardImplementation | None
    public_key: str
    next_public_key: str
    datapath: DatapathType
    uplink_mtu: int

    @classmethod
    def of(cls, facts: Facts) -> WireGuardFacts:
        """Return that part of the facts."""
        return cls(
            implementation=facts.wireguard,
            public_key=facts.wireguard_public_key,
            next_public_key=facts.wireguard_next_key,
            datapath=facts.datapath,
            uplink_mtu=facts.uplink_mtu,
        )

    @property
    def why_not(self) -> str:
        """Why this Node cannot send its tunnels through WireGuard; "" if it can."""
        if self.datapath is DatapathType.NETDEV:
            return (
                "the userspace datapath of Open vSwitch sends its tunnels past the kernel, so WireGuard cannot "
                "encrypt them: load the kernel module openvswitch"
            )
        if self.implementation is None:
            return "this kernel has no WireGuard, and there is no wireguard-go: load the module or install it"
        return "" if self.public_key else "this Node has no WireGuard key: the log says why"


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """The verdict on all gateways of other clusters, on a gateway of this one.

    `addresses` are those of this Node's own WireGuard device: none, when there is to be none.
    """

    ends: Mapping[str, tuple[RemoteEnd, ...]]  # by cluster ID; those that are used, in the API's order
    addresses: tuple[Address, ...]
    problems: tuple[Problem, ...]


def encrypt(
    clusters: RemoteClusters,
    own: LocalGateway,
    taken: tuple[tuple[Network, str], ...],
    facts: WireGuardFacts,
    config: Config,
) -> Encryption:
    """Return the verdict. `taken` are networks of this cluster, each with what it is."""
    judge = _Judge(clusters, own, taken, facts, config)
    ends = {cluster_id: judge.cluster(cluster_id) for cluster_id in clusters.accepted}
    return Encryption(ends=ends, addresses=judge.addresses(), problems=tuple(judge.problems))


def publication(gateways: Mapping[str, Gateway], facts: WireGuardFacts, config: Config) -> Publication | None:
    """Return what a gateway is to publish; None without a Gateway object of this Node."""
    found = [
        gateway
        for gateway in gateways.values()
        if gateway.meta.name == config.node_name and config.namespace in ("", gateway.meta.namespace)
    ]
    if not found:
        return None
    gateway = min(found, key=lambda one: seniority(one.meta))
    wanted = None
    if config.encrypts and not facts.why_not:
        wanted = WireGuardInfo(
            public_key=facts.public_key, next_public_key=facts.next_public_key, port=config.wireguard_port
        )
    return Publication(meta=gateway.meta, there=gateway.wireguard, wanted=wanted)


class _Judge:
    """Goes through all gateways twice: who has a key or an address, then which gateways have what they need."""

    def __init__(
        self,
        clusters: RemoteClusters,
        own: LocalGateway,
        taken: tuple[tuple[Network, str], ...],
        facts: WireGuardFacts,
        config: Config,
    ) -> None:
        self._config = config
        self._clusters, self._own = clusters, own
        self._clear = config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR
        self._able = not facts.why_not
        self.problems: list[Problem] = []
        self._ends = Ends(own=endpoint_of(own.gateway_ip), first=first_endpoint(own.service_cidr))
        self._with_first = False  # somebody sends to it
        self._holders = Holders()
        for mine_alone in (facts.public_key, facts.next_public_key, self._ends.own):
            self._holders.ask(mine_alone, "this Node")
        # What an IPv6 gateway is mapped to as a source must be nobody's endpoint (its own it never is).
        for cluster in clusters.accepted.values():
            for gateway, source in zip(cluster.gateways, cluster.sources, strict=True):
                if gateway.version == 6:
                    self._holders.ask(source, f"gateway {gateway}")
        self._taken = Taken(taken)
        for cluster in clusters.accepted.values():
            self._ask(cluster)
        if facts.why_not:
            result = "nothing goes to other clusters"
            if self._clear:
                result = "traffic to other clusters is NOT ENCRYPTED"
            self.problems.append(
                Problem(
                    subject="configuration",
                    path="trafficEncryptionMode",
                    reason="EncryptionUnavailable",
                    message=f"{facts.why_not}; {result} (encryptionFallback)",
                )
            )

    def addresses(self) -> tuple[Address, ...]:
        """Return the addresses of this Node's own device."""
        if not self._able:
            return ()
        first = (self._ends.first,) if self._with_first and self._ends.first is not None else ()
        return tuple(sorted((self._ends.own, *first), key=int))

    def cluster(self, cluster_id: str) -> tuple[RemoteEnd, ...]:
        """Return those of a cluster's gateways that are used."""
        cluster = self._clusters.accepted[cluster_id]
        reached = cluster.reached_from(self._own.gateway_ip)
        if not self._able:
            return tuple(RemoteEnd(gateway=address, address=address) for address in reached) if self._clear else ()
        info = self._clusters.checked[cluster_id].info
        found = (self._gateway(info, cluster, address) for address in reached)
        return tuple(end for end in found if end is not None)

    def _ask(self, cluster: AcceptedCluster) -> None:
        info = self._clusters.checked[cluster.cluster_id].info
        for gateway in cluster.reached_from(self._own.gateway_ip):
            wanted = wanted_by(info, cluster, gateway, self._ends)
            if isinstance(wanted, Wanted):
                self._holders.ask(wanted.address, wanted.who, rank_of(info, wanted.claim))
                for key in wanted.keys:
                    self._holders.ask(key, wanted.who, rank_of(info, key))

    def _gateway(self, info: ClusterInfoImport, cluster: AcceptedCluster, gateway: Address) -> RemoteEnd | None:
        wanted = wanted_by(info, cluster, gateway, self._ends)
        if wanted is None:
            encrypts = bool(info.gateway_wireguard) or info.wireguard is not None
            path = f"spec.gatewayInfos[{info.gateway_ips.index(gateway)}].wireGuard"
            return self._without_key(info, gateway, path, encrypts=encrypts)
        if isinstance(wanted, str):
            self._refuse(info, "spec.wireGuard", "NoEndpoint", f"{gateway} is not used: {wanted}")
            return None
        holder = next(filter(None, (self._holders.other(key, wanted.who) for key in wanted.keys)), "")
        if holder:
            message = f"{gateway} is not used: its WireGuard key is that of {holder}"
            self._refuse(info, wanted.path, "DuplicateKey", message)
            return None
        address = wanted.address
        holder = self._holders.other(address, wanted.who)
        taken = self._taken.overlapping(host_network(address)) if address in ENDPOINTS else None
        if not holder and taken is not None:
            holder = f"{taken[1]} ({taken[0]})"
        if holder:
            message = f"{gateway} is not used: its tunnel endpoint {address} is that of {holder}"
            self._refuse(info, wanted.path, "DuplicateAddress", message)
            return None
        self._with_first = self._with_first or wanted.source == self._ends.first
        return RemoteEnd(
            gateway=gateway,
            address=address,
            public_key=wanted.published.public_key,
            next_public_key=wanted.published.next_public_key,
            port=wanted.published.port or self._config.wireguard_port,
            source=wanted.source,
            own_key=address != first_endpoint(info.service_cidr),
        )

    def _without_key(
        self, info: ClusterInfoImport, gateway: Address, path: str, *, encrypts: bool
    ) -> RemoteEnd | None:
        if encrypts:
            message = (
                f"{gateway} is not used: it has published no WireGuard key of its own yet (an API server with an "
                "older CustomResourceDefinition drops it: then only a cluster's first gateway is used)"
            )
            self._refuse(info, path, "NoKey", message)
            return None
        if not self._clear:
            message = f"{gateway} is not used: it has published no WireGuard key, and encryption is on here"
            self._refuse(info, path, "NotEncrypted", message)
            return None
        message = f"traffic to {gateway} is NOT ENCRYPTED: it has published no WireGuard key (encryptionFallback)"
        self.problems.append(info.meta.problem(path, "NotEncrypted", message, Severity.WARNING))
        return RemoteEnd(gateway=gateway, address=gateway)

    def _refuse(self, info: ClusterInfoImport, path: str, reason: str, message: str) -> None:
        self.problems.append(info.meta.problem(path, reason, message))
