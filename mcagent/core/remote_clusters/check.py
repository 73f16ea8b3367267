"""One ClusterInfoImport looked at alone: what it may have if no older cluster wants the same.

Judges against this cluster, this Node and the configuration; each refusal is a Problem. What the clusters want
of each other is `mcagent.core.remote_clusters.settle`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mcagent.core.addresses.rules import (
    PRIVATE,
    PrefixRange,
    Refusal,
    ReservedRanges,
    prefix_range,
    refuse_network,
)
from mcagent.core.addresses.underlay import ENDPOINTS, family, refuse_underlay, source_of
from mcagent.core.local_cluster.topology import LocalCluster
from mcagent.core.remote_clusters.settle import CheckedCluster, CidrClaim, accepted, asked, footprint_of
from mcagent.model.config import Config, SourceNat
from mcagent.model.facts import Facts
from mcagent.model.field import printable
from mcagent.model.net import Address, Network, host_network, network_key
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, REFUSED
from mcagent.model.problem import Problem, Severity

_ENDPOINTS_BEGIN = int(ENDPOINTS.network_address)
SHOWN = 4  # refused CIDRs that a message names
ANNOTATION_PATH = f"metadata.annotations[{CLAIMS_ANNOTATION}]"


def check_cluster(info: ClusterInfoImport, judge: Judge) -> CheckedCluster:
    """Return what the object may have if nobody older wants it."""
    return judge.check(info)


def judge_of(local: LocalCluster, facts: Facts, config: Config, api_servers: Iterable[Address] = ()) -> Judge:
    """Return who judges on this Node. `api_servers`: those that are known beside `facts`."""
    protected = (
        *((network, "listed in protectedCIDRs") for network in config.protected_cidrs),
        *((host_network(a), "an API server of this cluster") for a in (*facts.api_servers, *api_servers)),
        *((host_network(a), "a resolver of this Node") for a in facts.resolvers),
        *((host_network(a), "a default gateway of this Node") for a in facts.default_gateways),
    )
    return Judge(
        config=config,
        # the first names one that is there twice: what belongs to the cluster says more than what a device has
        taken=(
            *local.reserved,
            *((host_network(address), "an address of this Node") for address in facts.addresses),
            *((network, "a network that this Node is connected to") for network in facts.connected),
        ),
        inside=(
            *((network, "this cluster's Service CIDR") for network in local.service_cidrs),
            *((network, "a Pod CIDR of this cluster") for network in local.node_cidrs),
        ),
        protected=protected,
        node_addresses=local.node_addresses,
        addresses=facts.addresses,
        publishes=bool(local.published_pods),
        gateway_ip=local.own_gateway_ip,
    )


Held = tuple[tuple[Network, str], ...]  # networks, each with what it is


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Looks at one object alone. Its fields are all that this rests on beside the other clusters."""

    config: Config
    taken: Held  # no CIDR of another cluster may overlap these
    inside: Held  # nor may a gateway lie in these
    protected: Held  # what nobody else may ever have
    node_addresses: tuple[tuple[Address, str], ...]
    addresses: tuple[Address, ...]  # of this Node
    publishes: bool  # Pod-to-Pod is on, and this cluster has Pod CIDRs to publish
    gateway_ip: Address | None  # of this Node, as a gateway

    @cached_property
    def _taken(self) -> ReservedRanges:
        return ReservedRanges(self.taken)

    @cached_property
    def _inside(self) -> ReservedRanges:
        return ReservedRanges(self.inside)

    @cached_property
    def _protected(self) -> ReservedRanges:
        return ReservedRanges(self.protected)

    @cached_property
    def _whose(self) -> Mapping[Address, str]:
        return dict(self.node_addresses)

    @cached_property
    def _allowed(self) -> Sequence[PrefixRange]:
        return [prefix_range(n) for n in self.config.allowed_remote_cidrs or PRIVATE if n.version == 4]

    def check(self, info: ClusterInfoImport) -> CheckedCluster:
        """Return what the object may have if nobody older wants it."""
        config = self.config
        problems: list[Problem] = []
        wanted: list[tuple[Network, str, bool]] = []
        if info.service_cidr is not None:
            wanted.append((info.service_cidr, "spec.serviceCIDR", False))
        if config.enable_pod_to_pod:
            wanted.extend((n, f"spec.podCIDRs[{i}]", True) for i, n in enumerate(info.pod_cidrs))
        cidrs: list[CidrClaim] = []
        pods_whole = config.enable_pod_to_pod and bool(info.pod_cidrs)
        gateways = self._gateways(info, problems)
        if not config.encrypts and (info.wireguard is not None or info.gateway_wireguard):
            message = "this cluster encrypts and we do not (trafficEncryptionMode): it takes nothing in the clear"
            problems.append(info.meta.problem("spec.wireGuard", "PeerEncrypts", message, Severity.WARNING))
        refused = sorted(claim for claim, since in info.granted.items() if since == REFUSED and "/" in claim)
        if refused:
            # it is in no list of the spec, so nobody can tell whether it was one of Pods
            pods_whole = False
            some = ", ".join(map(printable, refused[:SHOWN])) + (", …" if len(refused) > SHOWN else "")
            message = f"the leader has refused {some} to this cluster: sources are translated"
            problems.append(info.meta.problem(ANNOTATION_PATH, "RefusedByLeader", message, Severity.WARNING))
        ends = {claim.network for claim in gateways}
        for network, path, pod in wanted:
            refusal = self._refuse(network)
            if refusal is None and network in ends:
                refusal = _refused("IsGateway", network, "it is the cluster's own gateway")
            if refusal is None:
                cidrs.append(CidrClaim(asked=asked(info, network), network=network, path=path, pod=pod))
            else:
                problems.append(info.meta.problem(path, refusal.reason, refusal.message))
                pods_whole = pods_whole and not pod
        cidrs.sort(key=lambda c: (network_key(c.network), c.path))
        _report_redundant(info, cidrs, problems)
        claims = (*cidrs, *gateways)
        footprint = footprint_of(claims)
        return CheckedCluster(
            info=info,
            order=(info.meta.created, info.cluster_id, info.meta.name, info.meta.namespace),
            claims=claims,
            firsts=tuple(first for first, _ in footprint),
            lasts=tuple(last for _, last in footprint),
            problems=tuple(problems),
            alone=accepted(info.cluster_id, claims, snat=self._snat(pods_whole)),
        )

    def _snat(self, pods_whole: bool) -> bool:
        config = self.config
        return config.source_nat is SourceNat.ALWAYS or not (self.publishes and pods_whole)

    def _refuse(self, network: Network) -> Refusal | None:
        """Return why no other cluster can have a CIDR, None when one can."""
        refusal = refuse_network(network)
        if refusal is not None:
            return refusal
        for reason, holders in (("Protected", self._protected), ("OverlapsLocal", self._taken)):
            holder = holders.overlapping(network)
            if holder is not None:
                return _refused(reason, network, f"it overlaps {holder[0]}, {holder[1]}")
        _, first, last = prefix_range(network)
        if last >= _ENDPOINTS_BEGIN:  # IPv4, and they go to its end
            return _refused("NotUnicast", network, f"it overlaps {ENDPOINTS}, where encrypted tunnels end")
        if not any(outer[1] <= first and last <= outer[2] for outer in self._allowed):
            what = "it is not in allowedRemoteCIDRs"
            if not self.config.allowed_remote_cidrs:
                what = "it is neither private (RFC 1918, 100.64.0.0/10) nor in allowedRemoteCIDRs"
            return _refused("NotAllowed", network, what)
        return None

    def _refuse_gateway(self, address: Address, source: Address) -> Refusal | None:
        """Return why no gateway of another cluster can have an address, with that source; None when one can."""
        refusal = refuse_underlay(address)
        if refusal is not None:
            return refusal
        own = self._whose.get(address) or self._whose.get(source)
        if own is not None or address in self.addresses:
            return _refused(
                "DuplicateAddress", address, f"it is the address of {own or 'this Node'} of this cluster"
            )
        if address.version == 4 and int(address) >= _ENDPOINTS_BEGIN:
            return _refused("NotUnicast", address, f"it lies in {ENDPOINTS}, where encrypted tunnels end")
        looked_at = ((self._protected, address), (self._protected, source), (self._inside, source))
        for holders, one in looked_at:
            holder = holders.overlapping(host_network(one))
            if holder is not None:
                reason = "Protected" if holders is self._protected else "OverlapsLocal"
                return _refused(reason, address, f"it lies in {holder[0]}, {holder[1]}")
        return None

    def _gateways(self, info: ClusterInfoImport, problems: list[Problem]) -> list[CidrClaim]:
        found: list[CidrClaim] = []
        sources: dict[Address, Address] = {}
        for address in dict.fromkeys(info.gateway_ips):
            path = f"spec.gatewayInfos[{info.gateway_ips.index(address)}].gatewayIP"
            source = source_of(address)
            refusal = self._refuse_gateway(address, source)
            if refusal is None and source in sources:
                refusal = _refused("DuplicateAddress", address, f"{source} stands for {sources[source]} already")
            if refusal is not None:
                problems.append(info.meta.problem(path, refusal.reason, refusal.message))
                continue
            sources[source] = address
            claim = asked(info, host_network(source), gateway=str(address))
            found.append(CidrClaim(asked=claim, network=host_network(source), path=path, gateway=address))
        if not self._report_mixed(info, found, problems):
            message = "has no usable gateway: nothing reaches this cluster"
            problems.append(info.meta.problem("spec.gatewayInfos", "NoGateway", message))
        return found

    def _report_mixed(self, info: ClusterInfoImport, found: list[CidrClaim], problems: list[Problem]) -> bool:
        """Report gateways of another family than this one; return whether any is reached from here."""
        own = self.gateway_ip
        others = [
            (one.gateway, one.path)
            for one in found
            if own is not None and one.gateway is not None and one.gateway.version != own.version
        ]
        severity = Severity.WARNING if len(found) > len(others) else Severity.ERROR
        for address, path in others:
            assert own is not None
            message = (
                f"no tunnel between {address} ({family(address)}) and this cluster's gateway "
                f'"{self.config.node_name}", whose gatewayIP {own} is {family(own)}: both need one of the '
                "same family (annotation multicluster.antrea.io/gateway-ip)"
            )
            problems.append(info.meta.problem(path, "MixedFamilies", message, severity))
        return len(found) > len(others)


def _report_redundant(info: ClusterInfoImport, cidrs: list[CidrClaim], problems: list[Problem]) -> None:
    """Warn of CIDRs (sorted) that lie inside another of the same cluster: it stands for them, if it is granted."""
    outer: CidrClaim | None = None
    for claim in cidrs:
        last = claim.asked.range[2]
        if outer is not None and last <= outer.asked.range[2]:
            message = f"{claim.network} lies in {outer.network} of the same cluster: not needed"
            problems.append(info.meta.problem(claim.path, "RedundantCIDR", message, Severity.WARNING))
        else:
            outer = claim


def _refused(reason: str, what: Network | Address, why: str) -> Refusal:
    return Refusal(reason=reason, message=f"{what} is not used: {why}")
