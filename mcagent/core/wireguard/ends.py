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
from mcagent.core.addresses.underlay import ENDPOINTS, endpoint_of, source_of
from mcagent.core.local_cluster.nodes import seniority
from mcagent.core.local_cluster.topology import Local
from mcagent.core.remote_clusters.check import problem_of
from mcagent.core.remote_clusters.cidr_claims import rank_of
from mcagent.core.remote_clusters.settle import Remotes
from mcagent.core.wireguard.keyholders import Ends, Holders, Wanted, first_endpoint, wanted_by
from mcagent.model.config import Config, EncryptionFallback
from mcagent.model.facts import DatapathType, Facts
from mcagent.model.net import Address, host_network
from mcagent.model.node_state import AcceptedCluster, Publication, RemoteEnd
from mcagent.model.objects import ClusterInfoImport, Snapshot, WireGuardInfo
from mcagent.model.problem import Problem, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """The verdict on all gateways of other clusters, on a gateway of this one.

    `addresses` are those of this Node's own WireGuard device: none, when there is to be none.
    """

    ends: Mapping[str, tuple[RemoteEnd, ...]]  # by cluster ID; those that are used, in the API's order
    addresses: tuple[Address, ...]
    problems: tuple[Problem, ...]
    inputs: tuple[object, ...]


def build_encryption(
    remotes: Remotes, local: Local, facts: Facts, config: Config, previous: Encryption | None = None
) -> Encryption | None:
    """Return the verdict; None where nothing is to be encrypted. Equal inputs give back the very `previous`."""
    if not config.encrypts or local.role != "gateway" or local.own_gateway_ip is None:
        return None
    keys = (facts.wireguard, facts.wireguard_public_key, facts.wireguard_next_key, facts.datapath)
    inputs = (remotes, local.own_gateway_ip, local.gateways, keys, config)
    if previous is not None and previous.inputs[0] is remotes and previous.inputs[1:] == inputs[1:]:
        return previous
    judge = _Judge(remotes, local, facts, config)
    ends: dict[str, tuple[RemoteEnd, ...]] = {}
    for cluster_id, remote in remotes.clusters.items():
        found = judge.cluster(remote)
        known = previous.ends.get(cluster_id) if previous is not None else None
        ends[cluster_id] = known if known == found and known is not None else found
    return Encryption(
        ends=ends, addresses=judge.addresses(), problems=tuple(sorted(set(judge.problems))), inputs=inputs
    )


def publication(snapshot: Snapshot, local: Local, facts: Facts, config: Config) -> Publication | None:
    """Return what to publish; None without a Gateway object of this Node."""
    found = [
        gateway
        for gateway in snapshot.gateways.values()
        if gateway.meta.name == config.node_name and config.namespace in ("", gateway.meta.namespace)
    ]
    if not found or local.role != "gateway":
        return None
    gateway = min(found, key=lambda one: seniority(one.meta))
    wanted = None
    if config.encrypts and can_encrypt(facts):
        wanted = WireGuardInfo(
            public_key=facts.wireguard_public_key,
            next_public_key=facts.wireguard_next_key,
            port=config.wireguard_port,
        )
    return Publication(meta=gateway.meta, there=gateway.wireguard, wanted=wanted)


def can_encrypt(facts: Facts) -> bool:
    """Tell whether this Node is able to send its tunnels through WireGuard."""
    return (
        facts.wireguard is not None and facts.wireguard_public_key != "" and facts.datapath is DatapathType.SYSTEM
    )


class _Judge:
    """Goes through all gateways twice: who has a key or an address, then which gateways have what they need."""

    def __init__(self, remotes: Remotes, local: Local, facts: Facts, config: Config) -> None:
        self._config = config
        self._candidates = remotes.table.winners
        self.problems: list[Problem] = []
        assert local.own_gateway_ip is not None
        self._gateway_ip = local.own_gateway_ip
        mine = next((g for g in local.gateways if g.gateway_ip == local.own_gateway_ip), None)
        first = first_endpoint(mine.service_cidr if mine is not None else None)
        self._ends = Ends(own=endpoint_of(self._gateway_ip), first=first)
        self._with_first = False  # somebody sends to it
        self._holders = Holders()
        for mine_alone in (facts.wireguard_public_key, facts.wireguard_next_key, self._ends.own):
            self._holders.ask(mine_alone, "this Node")
        # What stands for an IPv6 gateway as a source must be nobody's endpoint (its own it never is).
        for remote in remotes.clusters.values():
            for one in remote.gateways:
                if one.version == 6:
                    self._holders.ask(source_of(one), f"gateway {one}")
        self._taken = Taken(local.taken)
        for remote in remotes.clusters.values():
            self._ask(remote)
        self._able = self._check(facts)

    def addresses(self) -> tuple[Address, ...]:
        """Return the addresses of this Node's own device."""
        if not self._able:
            return ()
        first = (self._ends.first,) if self._with_first and self._ends.first is not None else ()
        return tuple(sorted((self._ends.own, *first), key=int))

    @property
    def _clear(self) -> bool:
        return self._config.encryption_fallback is EncryptionFallback.ALLOW_CLEAR

    def _check(self, facts: Facts) -> bool:
        """Tell whether this Node can encrypt; a problem says why not."""
        why = ""
        if facts.datapath is DatapathType.NETDEV:
            why = (
                "the userspace datapath of Open vSwitch sends its tunnels past the kernel, so WireGuard cannot "
                "encrypt them: load the kernel module openvswitch"
            )
        elif facts.wireguard is None:
            why = "this kernel has no WireGuard, and there is no wireguard-go: load the module or install it"
        elif not facts.wireguard_public_key:
            why = "this Node has no WireGuard key: the log says why"
        if why:
            result = (
                "traffic to other clusters is NOT ENCRYPTED" if self._clear else "nothing goes to other clusters"
            )
            self._configuration_problem("EncryptionUnavailable", f"{why}; {result} (encryptionFallback)")
        return not why

    def _configuration_problem(self, reason: str, message: str) -> None:
        self.problems.append(
            Problem(subject="configuration", path="trafficEncryptionMode", reason=reason, message=message)
        )

    def cluster(self, remote: AcceptedCluster) -> tuple[RemoteEnd, ...]:
        """Return those of a cluster's gateways that are used."""
        reached = remote.reached_from(self._gateway_ip)
        if not self._able:
            return tuple(RemoteEnd(gateway=address, address=address) for address in reached) if self._clear else ()
        info = self._candidates[remote.cluster_id].info
        found = (self._gateway(info, remote, address) for address in reached)
        return tuple(end for end in found if end is not None)

    def _ask(self, remote: AcceptedCluster) -> None:
        info = self._candidates[remote.cluster_id].info
        for gateway in remote.reached_from(self._gateway_ip):
            wanted = wanted_by(info, remote, gateway, self._ends)
            if isinstance(wanted, Wanted):
                self._holders.ask(wanted.address, wanted.who, rank_of(info, wanted.claim))
                for key in wanted.keys:
                    self._holders.ask(key, wanted.who, rank_of(info, key))

    def _gateway(self, info: ClusterInfoImport, remote: AcceptedCluster, gateway: Address) -> RemoteEnd | None:
        wanted = wanted_by(info, remote, gateway, self._ends)
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
        self.problems.append(problem_of(info, path, "NotEncrypted", message, Severity.WARNING))
        return RemoteEnd(gateway=gateway, address=gateway)

    def _refuse(self, info: ClusterInfoImport, path: str, reason: str, message: str) -> None:
        self.problems.append(problem_of(info, path, reason, message))
