"""The checks of a single ClusterInfoImport: which of its CIDRs and gateways this Node can accept.

Compares it with this cluster, this Node and the configuration; each refusal is a Problem. Must not know other
remote clusters: `mcagent.core.remote_clusters.resolve` resolves conflicts between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mcagent.core.addresses.rules import (
    PRIVATE,
    AddressRefusal,
    PrefixRange,
    ReservedRanges,
    is_aggregate,
    outermost_networks,
    parts_outside,
    prefix_range,
    refuse_network,
)
from mcagent.core.addresses.underlay import ENDPOINTS, family, refuse_underlay, source_of
from mcagent.core.local_cluster.topology import LocalCluster
from mcagent.core.remote_clusters.claims import (
    CheckedCluster,
    RemoteClaim,
    accepted_cluster,
    cidr_claim,
    claimed_ranges,
    gateway_claim,
)
from mcagent.core.remote_clusters.enclosed import MAX_PARTS, Enclosed
from mcagent.model.config import Config, SourceNat
from mcagent.model.dataplane.facts import Facts
from mcagent.model.net import Address, Network, contains, host_network, network_key
from mcagent.model.objects import ClusterInfoImport
from mcagent.model.parsing.field import printable
from mcagent.model.parsing.granted import CLAIMS_ANNOTATION, PROTECTED_ANNOTATION, REFUSED, REFUSED_PODS_ANNOTATION
from mcagent.model.problem import Problem, Severity

_ENDPOINTS_BEGIN = int(ENDPOINTS.network_address)
SHOWN = 4  # CIDRs or addresses that a message names
ANNOTATION_PATH = f"metadata.annotations[{CLAIMS_ANNOTATION}]"
REFUSED_PODS_PATH = f"metadata.annotations[{REFUSED_PODS_ANNOTATION}]"


def check_cluster(info: ClusterInfoImport, validator: ClusterValidator) -> CheckedCluster:
    """Check one object, without regard to other remote clusters."""
    return validator.check(info)


def cluster_validator(
    local: LocalCluster,
    facts: Facts,
    config: Config,
    api_servers: Iterable[Address] = (),
    later: Enclosed = (),
) -> ClusterValidator:
    """Build the validator of this Node. `api_servers`: addresses in addition to those in `facts`.

    `later`: what appeared inside CIDRs in use (`later_networks`).
    """
    protected = (
        *((network, "listed in protectedCIDRs") for network in config.protected_cidrs),
        *((host_network(a), "an API server of this cluster") for a in (*facts.api_servers, *api_servers)),
        *((host_network(a), "a resolver of this Node") for a in facts.resolvers),
        *((host_network(a), "a default gateway of this Node") for a in facts.default_gateways),
    )
    return ClusterValidator(
        config=config,
        # Of equal networks the first is reported, so the networks of the cluster precede those of devices.
        reserved=(
            *local.reserved,
            *((host_network(address), "an address of this Node") for address in facts.addresses),
            *((network, "a network that this Node is connected to") for network in facts.connected),
        ),
        cluster_cidrs=(
            *((network, "this cluster's Service CIDR") for network in local.all_service_cidrs),
            *((network, "a Pod CIDR of this cluster") for network in local.node_cidrs),
            *((prefix.virtual, "a virtual Pod CIDR of this cluster") for prefix in local.prefixes),
        ),
        protected=protected,
        routed=tuple(network for network in facts.routed if not is_aggregate(network)),
        enclosed=later,
        node_addresses=local.node_addresses,
        addresses=facts.addresses,
        publishes=bool(local.published_pods),
        gateway_ip=local.own_gateway_ip,
    )


DescribedNetworks = tuple[tuple[Network, str], ...]  # (network, description)


@dataclass(frozen=True, kw_only=True)
class ClusterValidator:
    """Checks single objects. Its fields are the whole context of a check, and are compared to detect changes."""

    config: Config
    reserved: DescribedNetworks  # CIDRs of remote clusters must not overlap these
    cluster_cidrs: DescribedNetworks  # gateways of remote clusters must not lie in these
    protected: DescribedNetworks  # not used of a remote cluster, whatever the configuration allows
    routed: tuple[Network, ...]  # this Node has routes to these; CIDRs that overlap them need consent
    enclosed: Enclosed  # of the reserved and routed networks, and of Pods
    node_addresses: tuple[tuple[Address, str], ...]
    addresses: tuple[Address, ...]  # of this Node
    publishes: bool  # Pod-to-Pod is on, and this cluster has Pod CIDRs to publish
    gateway_ip: Address | None  # of this Node, if it is a gateway

    @cached_property
    def _reserved(self) -> ReservedRanges:
        return ReservedRanges(self.reserved)

    @cached_property
    def _cluster_cidrs(self) -> ReservedRanges:
        return ReservedRanges(self.cluster_cidrs)

    @cached_property
    def _protected(self) -> ReservedRanges:
        return ReservedRanges(self.protected)

    @cached_property
    def _routed(self) -> ReservedRanges:
        return ReservedRanges((network, "") for network in self.routed)

    @cached_property
    def _owners(self) -> Mapping[Address, str]:
        return dict(self.node_addresses)

    @cached_property
    def _allowed(self) -> Sequence[PrefixRange]:
        return [prefix_range(n) for n in self.config.allowed_remote_cidrs or PRIVATE if n.version == 4]

    def check(self, info: ClusterInfoImport) -> CheckedCluster:
        """Check one object, without regard to other remote clusters."""
        config = self.config
        problems: list[Problem] = []
        published: list[tuple[Network, str, bool]] = []
        if info.service_cidr is not None:
            published.append((info.service_cidr, "spec.serviceCIDR", False))
        if config.enable_pod_to_pod:
            published.extend((n, f"spec.podCIDRs[{i}]", True) for i, n in enumerate(info.pod_cidrs))
        cidrs: list[RemoteClaim] = []
        all_pod_cidrs_accepted = config.enable_pod_to_pod and bool(info.pod_cidrs)
        gateways = self._gateways(info, problems)
        if not config.encrypts and (info.wireguard is not None or info.gateway_wireguard):
            message = "this cluster encrypts and we do not (trafficEncryptionMode): it takes nothing in the clear"
            problems.append(info.meta.problem("spec.wireGuard", "PeerEncrypts", message, Severity.WARNING))
        left_out = sorted(claim for claim, since in info.granted.items() if since == REFUSED and "/" in claim)
        for path, reason, message in _left_out(info, left_out):
            # A CIDR that is left out is not in the spec, so it may have been a Pod CIDR.
            all_pod_cidrs_accepted = False
            problems.append(info.meta.problem(path, reason, message, Severity.WARNING))
        if info.refused_pod_cidrs:
            shown = _shown(list(map(str, info.refused_pod_cidrs)))
            message = (
                f"{shown} of this cluster is refused: sources are translated towards cluster {info.cluster_id}"
            )
            problems.append(info.meta.problem(REFUSED_PODS_PATH, "PodCIDRRefused", message, Severity.WARNING))
        refused_pods = [*info.protected_cidrs, *(() if config.enable_pod_to_pod else info.pod_cidrs)]
        gateway_networks = {claim.network for claim in gateways}
        for network, path, pod in published:
            excluded = self._protected.inside(network) if pod else ()
            later = self._later(network)
            parts = parts_outside(network, (*(inner for inner, _ in excluded), *later))
            divisible = len(parts) <= MAX_PARTS
            if not divisible:
                parts, later = (network,), ()  # refused: here, or for a Pod inside by `resolve`
            refusal = self._refuse(network, divisible=pod and divisible, later=later)
            if refusal is None and network in gateway_networks:
                refusal = _refused("IsGateway", network, "it is the cluster's own gateway")
            if refusal is None:
                cidrs.extend(cidr_claim(info, part, network, path, pod=pod) for part in parts)
                if excluded:
                    without = _shown([f"{inner} ({description})" for inner, description in excluded])
                    message = f"{network} is used without {without}"
                    problems.append(info.meta.problem(path, "PartlyProtected", message, Severity.WARNING))
                if later:
                    without = _shown([f"{inner} ({self._owner(inner)})" for inner in later])
                    message = f"{network} is used without {without}"
                    problems.append(info.meta.problem(path, "PartlyLocal", message, Severity.WARNING))
                continue
            problems.append(info.meta.problem(path, refusal.reason, refusal.message))
            if pod:
                all_pod_cidrs_accepted = False
                refused_pods.append(network)
        cidrs.sort(key=lambda c: (network_key(c.network), c.path))
        _report_redundant(info, cidrs, problems)
        claims = (*cidrs, *gateways)
        ranges = claimed_ranges(claims)
        return CheckedCluster(
            info=info,
            order=(info.meta.created, info.cluster_id, info.meta.name, info.meta.namespace),
            claims=claims,
            firsts=tuple(first for first, _ in ranges),
            lasts=tuple(last for _, last in ranges),
            problems=tuple(problems),
            uncontested=accepted_cluster(
                info.cluster_id,
                claims,
                snat=self._snat(all_pod_cidrs_accepted and not info.refused_pod_cidrs),
                refused_pods=sorted(refused_pods, key=network_key),
                mtu=info.mtu,
            ),
        )

    def _snat(self, pods_reach_each_other: bool) -> bool:
        config = self.config
        return config.source_nat is SourceNat.ALWAYS or not (self.publishes and pods_reach_each_other)

    def _later(self, network: Network) -> tuple[Network, ...]:
        """Return what appeared inside a CIDR in use, if it is not too much to use the rest."""
        later = outermost_networks(inner for inner, outer in self.enclosed if contains(network, outer))
        return later if len(later) <= MAX_PARTS else ()

    def _owner(self, network: Network) -> str:
        """Describe a network of `enclosed`."""
        owner = self._owners.get(network.network_address) if network.prefixlen == network.max_prefixlen else None
        return f"the address of {owner}" if owner is not None else "in use here"

    def _refuse(
        self, network: Network, *, divisible: bool, later: tuple[Network, ...] = ()
    ) -> AddressRefusal | None:
        """Check a CIDR of a remote cluster; None if it is accepted.

        Protected networks inside a `divisible` CIDR, and those of `later`, are no reason to refuse it: it is used
        without them.
        """
        reserved, routed = self._reserved, self._routed
        if later:
            reserved = ReservedRanges(row for row in self.reserved if not _is_inside(row[0], later))
            routed = ReservedRanges((other, "") for other in self.routed if not _is_inside(other, later))
        refusal = refuse_network(network)
        if refusal is not None:
            return refusal
        for reason, ranges in (("Protected", self._protected), ("OverlapsLocal", reserved)):
            holder = ranges.overlapping(network)
            inside = holder is not None and holder[0].prefixlen > network.prefixlen
            if holder is not None and not (reason == "Protected" and divisible and inside):
                return _refused(reason, network, f"it overlaps {holder[0]}, {holder[1]}")
        _, first, last = prefix_range(network)
        if last >= _ENDPOINTS_BEGIN:  # the network is IPv4, and the endpoints reach to the end of IPv4
            return _refused("NotUnicast", network, f"it overlaps {ENDPOINTS}, where encrypted tunnels end")
        if not any(outer[1] <= first and last <= outer[2] for outer in self._allowed):
            why = "it is not in allowedRemoteCIDRs"
            if not self.config.allowed_remote_cidrs:
                why = "it is neither private (RFC 1918, 100.64.0.0/10) nor in allowedRemoteCIDRs"
            return _refused("NotAllowed", network, why)
        route = routed.overlapping(network)
        if route is not None and not self._has_consent(network):
            why = f"this Node has a route to {route[0]}, and no entry of allowedRemoteCIDRs is for this network"
            return _refused("RoutedElsewhere", network, why)
        return None

    def _has_consent(self, network: Network) -> bool:
        """Tell whether an administrator has listed the network, not only the private range that it lies in."""
        return any(contains(a, network) and not is_aggregate(a) for a in self.config.allowed_remote_cidrs)

    def _refuse_gateway(self, address: Address, source: Address) -> AddressRefusal | None:
        """Check the address of a remote gateway and its SNAT address `source`; None if both are accepted."""
        refusal = refuse_underlay(address)
        if refusal is not None:
            return refusal
        owner = self._owners.get(address) or self._owners.get(source)
        if owner is not None or address in self.addresses:
            return _refused(
                "DuplicateAddress", address, f"it is the address of {owner or 'this Node'} of this cluster"
            )
        if address.version == 4 and int(address) >= _ENDPOINTS_BEGIN:
            return _refused("NotUnicast", address, f"it lies in {ENDPOINTS}, where encrypted tunnels end")
        checks = ((self._protected, address), (self._protected, source), (self._cluster_cidrs, source))
        for ranges, checked_address in checks:
            holder = ranges.overlapping(host_network(checked_address))
            if holder is not None:
                reason = "Protected" if ranges is self._protected else "OverlapsLocal"
                return _refused(reason, address, f"it lies in {holder[0]}, {holder[1]}")
        return None

    def _gateways(self, info: ClusterInfoImport, problems: list[Problem]) -> list[RemoteClaim]:
        claims: list[RemoteClaim] = []
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
            claims.append(gateway_claim(info, address, source, path))
        if not self._report_mixed(info, claims, problems):
            message = "has no usable gateway: nothing reaches this cluster"
            problems.append(info.meta.problem("spec.gatewayInfos", "NoGateway", message))
        return claims

    def _report_mixed(self, info: ClusterInfoImport, claims: list[RemoteClaim], problems: list[Problem]) -> bool:
        """Report gateways of another family than this Node's gatewayIP; return whether another one is left."""
        own = self.gateway_ip
        unreachable = [
            (remote.gateway, remote.path)
            for remote in claims
            if own is not None and remote.gateway is not None and remote.gateway.version != own.version
        ]
        severity = Severity.WARNING if len(claims) > len(unreachable) else Severity.ERROR
        for address, path in unreachable:
            assert own is not None
            message = (
                f"no tunnel between {address} ({family(address)}) and this cluster's gateway "
                f'"{self.config.node_name}", whose gatewayIP {own} is {family(own)}: both need one of the '
                "same family (annotation multicluster.antrea.io/gateway-ip)"
            )
            problems.append(info.meta.problem(path, "MixedFamilies", message, severity))
        return len(claims) > len(unreachable)


def _left_out(info: ClusterInfoImport, left_out: Sequence[str]) -> Iterable[tuple[str, str, str]]:
    """Yield path, reason and message for CIDRs that are not in the spec: of the leader, of this controller."""
    protected = list(map(str, info.protected_cidrs))
    by_leader = [claim for claim in left_out if claim not in protected]
    if by_leader:
        message = f"the leader has refused {_shown(by_leader)} to this cluster: sources are translated"
        yield ANNOTATION_PATH, "RefusedByLeader", message
    if protected:
        message = (
            f"this cluster's controller leaves out {_shown(protected)}, as condition Ready of this object says: "
            "sources are translated"
        )
        yield f"metadata.annotations[{PROTECTED_ANNOTATION}]", "LeftOut", message


def _shown(texts: Sequence[str]) -> str:
    return ", ".join(map(printable, texts[:SHOWN])) + (", …" if len(texts) > SHOWN else "")


def _report_redundant(info: ClusterInfoImport, cidrs: list[RemoteClaim], problems: list[Problem]) -> None:
    """Warn of CIDRs (sorted) that lie inside another CIDR of the same cluster."""
    outer: RemoteClaim | None = None
    for remote in cidrs:
        last = remote.claim.range[2]
        if outer is not None and last <= outer.claim.range[2]:
            message = f"{remote.network} lies in {outer.network} of the same cluster: not needed"
            problems.append(info.meta.problem(remote.path, "RedundantCIDR", message, Severity.WARNING))
        else:
            outer = remote


def _is_inside(network: Network, outer: Iterable[Network]) -> bool:
    return any(contains(other, network) for other in outer)


def _refused(reason: str, subject: Network | Address, why: str) -> AddressRefusal:
    return AddressRefusal(reason=reason, message=f"{subject} is not used: {why}")
