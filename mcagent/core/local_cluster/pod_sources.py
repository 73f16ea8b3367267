"""Whether the kernel of this Node can tell that a packet is from the Pod whose address it has. Pure.

The bridge knows the Pods of its Node, and their label identities, by address alone: their packets come from the
kernel. Where each Pod has a device of its own, the kernel's route to the address names it, and the nft chain
`mcagent.core.fragments.kernel.POD_SOURCES` drops packets by any other device. Behind a device that several Pods
share (a bridge, a port of Open vSwitch) a Pod with a raw socket can send with the IP and MAC address of another;
only the CNI knows by which port.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType

from mcagent.model.config import Config, UnverifiedLabels
from mcagent.model.net import Network, overlaps
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem, Severity

CHECKED_BY_CNI = MappingProxyType(
    {
        "antrea-gw0": "Antrea",  # pkg/agent/openflow: table SpoofGuard
        "cilium_host": "Cilium",  # bpf/bpf_lxc.c: DROP_INVALID_SIP
        "ovn-k8s-mp0": "OVN-Kubernetes",  # port_security of logical switch ports
    }
)
"""CNIs that drop packets with the address of another Pod themselves, by the device that leads to all Pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSources:
    """Who verifies the sources of a Node's Pods."""

    checked: bool  # by this Node's kernel
    unverified: str = ""  # why neither the kernel nor the CNI does; "": one of them does

    def withholds_labels(self, config: Config) -> bool:
        """Tell whether this Node sends no label identities."""
        return self.unverified != "" and config.unverified_labels is UnverifiedLabels.WITHHOLD


def pod_sources(
    own_pods: Iterable[Network],
    shared_devices: Iterable[tuple[Network, str]],
    config: Config,
    *,
    checks_forwarded: bool,
    ipvs: bool,
) -> PodSources:
    """Decide whether this Node checks the sources of its Pods. For all arguments but `own_pods` see Facts.

    IPVS sends packets to a Service's endpoint by the hook output (ip_vs_nat_xmit in net/netfilter/ipvs), so the
    chain does not see those to imported Services.
    """
    pods = tuple(own_pods)
    devices = sorted({device for network, device in shared_devices if any(overlaps(network, p) for p in pods)})
    for device in devices:
        if device not in CHECKED_BY_CNI:
            why = f"several Pods are behind {device}, and one of them can send with the address of another"
            return PodSources(checked=False, unverified=why)
    if devices:
        return PodSources(checked=False)
    if not config.pod_source_check:
        return PodSources(checked=False, unverified="podSourceCheck is false")
    if not checks_forwarded:
        why = "kernels before Linux 5.19 do not look up the reverse path of forwarded packets"
        return PodSources(checked=False, unverified=why)
    return PodSources(
        checked=True, unverified="packets to Services pass by IPVS, which no chain sees" if ipvs else ""
    )


def unverified_labels(sources: PodSources, config: Config) -> tuple[Problem, ...]:
    """Report that a Pod of this Node can have the label identity of another one."""
    if not sources.unverified or not config.stretched_network_policy:
        return ()
    message = f"the labels of this Node's Pods are not verified: {sources.unverified}"
    if sources.withholds_labels(config):
        message += "; other clusters do not learn them (unverifiedLabels: withhold)"
    return (Problem(f"{Kind.NODE} {config.node_name}", "", "LabelsUnverified", message, Severity.WARNING),)
