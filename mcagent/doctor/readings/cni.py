"""The CNI of this Node and its modes, recognised by what it leaves on the Node: devices, chains, rules, files.

No API object is read: the agent needs no right to the CNI's objects. /etc/cni/net.d is read if it exists, as on a
Node; the agent's Pod does not mount it, because some CNIs keep tokens in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from mcagent.controller.admin.fields import items_at
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import RawLink, read_links
from mcagent.dataplane.netlink.programs import DevicePrograms, read_programs
from mcagent.dataplane.netlink.routes import read_all_rules
from mcagent.dataplane.nft.observe import ForeignChain
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.chains import chains
from mcagent.model.dataplane.resources import Rule
from mcagent.model.errors import BackendError

CONFIGURATION = Path("/etc/cni/net.d")
_MAX_FILE = 1 << 16  # bytes read of a file of CONFIGURATION
_MASQUERADE = re.compile(r"\bmasquerade\b", re.IGNORECASE)
_PROXY_CHAIN, _PROXY_TABLE = "KUBE-SERVICES", "kube-proxy"  # of kube-proxy: modes iptables and IPVS; nftables
# Marks of Cilium's rules for IPsec (pkg/datapath/linux/linux_defaults: RouteMarkDecrypt, RouteMarkEncrypt)
_IPSEC_MARKS, _IPSEC_MASK = (0xD00, 0xE00), 0xF00
_DSR_TABLE = 78  # of kube-router (pkg/controllers/proxy: customDSRRouteTableID)

Links = Mapping[str, RawLink]
Chains = Collection[ForeignChain]


class CniName(StrEnum):
    """The CNIs that are recognised, with a section each in docs/cni.md."""

    ANTREA = "Antrea"
    AWS_VPC = "AWS VPC CNI"
    CALICO = "Calico"
    CILIUM = "Cilium"
    FLANNEL = "flannel"
    KINDNET = "kindnet"
    KUBE_ROUTER = "kube-router"
    OVN_KUBERNETES = "OVN-Kubernetes"


class CniMode(StrEnum):
    """A way of working that matters to mcagent, or to people."""

    VXLAN = "VXLAN"
    GENEVE = "Geneve"
    IP_IN_IP = "IP in IP"
    WIREGUARD = "WireGuard"
    IPSEC = "IPsec"
    EBPF = "eBPF dataplane"
    NETFILTER_MASQUERADE = "masquerade by netfilter"
    NO_NETFILTER_MASQUERADE = "no masquerade by netfilter"  # by eBPF, or none
    NO_KUBE_PROXY = "no kube-proxy"
    IPVS = "Services by IPVS"
    DSR = "direct server return"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognisedCni:
    """A CNI, and the modes that this Node shows."""

    name: CniName
    modes: tuple[CniMode, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.modes)})" if self.modes else str(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signs:
    """What identifies a CNI: prefixes of devices and chains, an nftables table; devices of its modes, if up."""

    devices: tuple[str, ...] = ()
    chains: tuple[str, ...] = ()
    table: str = ""
    modes: Mapping[str, CniMode] = field(default_factory=dict)


_SIGNS: Mapping[CniName, _Signs] = {
    CniName.ANTREA: _Signs(devices=("antrea-gw0",)),
    CniName.AWS_VPC: _Signs(chains=("AWS-SNAT-CHAIN", "AWS-CONNMARK-CHAIN")),
    CniName.CALICO: _Signs(
        devices=("cali", "vxlan.calico", "wireguard.cali", "bpfin.cali"),
        chains=("cali-",),
        table="calico",
        modes={
            "vxlan.calico": CniMode.VXLAN,
            "tunl0": CniMode.IP_IN_IP,
            "wireguard.cali": CniMode.WIREGUARD,
            "bpfin.cali": CniMode.EBPF,
        },
    ),
    CniName.CILIUM: _Signs(
        devices=("cilium_host",),
        modes={
            "cilium_vxlan": CniMode.VXLAN,
            "cilium_geneve": CniMode.GENEVE,
            "cilium_wg0": CniMode.WIREGUARD,
        },
    ),
    CniName.FLANNEL: _Signs(
        devices=("flannel",),
        chains=("FLANNEL-",),
        table="flannel-ipv4",
        modes={"flannel.1": CniMode.VXLAN, "flannel-wg": CniMode.WIREGUARD},
    ),
    CniName.KINDNET: _Signs(chains=("KIND-MASQ-AGENT",)),
    CniName.KUBE_ROUTER: _Signs(
        devices=("kube-bridge",), chains=("KUBE-ROUTER-",), modes={"kube-dummy-if": CniMode.IPVS}
    ),
    CniName.OVN_KUBERNETES: _Signs(devices=("ovn-k8s-mp0",)),
}


def devices(node: ExaminedNode) -> Mapping[str, RawLink]:
    """Return all devices of the calling thread's namespace by name. Raises BackendError."""
    node.progress("devices")
    with closing(NetlinkSocket()) as netlink:
        return {link.state.name: link for link in read_links(netlink)}


def programs(node: ExaminedNode) -> DevicePrograms:
    """Return the eBPF programs of other programs on the host port. Raises BackendError."""
    link = node.read(devices).get(node.config.host_port)
    if link is None:
        return DevicePrograms()
    with closing(NetlinkSocket()) as netlink:
        return read_programs(netlink, link.index)


def plugins(_: ExaminedNode) -> tuple[str, ...]:
    """Return the plugins of the CNI configuration that the container runtime uses. Raises BackendError.

    None in the agent's Pod, which does not see the Node's file.
    """
    return tuple(configured_plugins(CONFIGURATION))


def configured_plugins(directory: Path) -> Iterator[str]:
    """Yield name and types of the first CNI configuration of a directory, as container runtimes choose it.

    Raises BackendError if there is one that cannot be read.
    """
    if not directory.is_dir():
        return
    try:
        files = sorted(file for file in directory.iterdir() if file.suffix in {".conf", ".conflist", ".json"})
        if not files:
            return
        with files[0].open("rb") as opened:
            configuration: Any = json.loads(opened.read(_MAX_FILE))
    except (OSError, ValueError) as error:
        raise BackendError("cni", "read", str(directory), str(error)) from None
    if isinstance(configuration, dict):
        types = [plugin.get("type") for plugin in (configuration, *items_at(configuration, "plugins"))]
        yield from (str(word) for word in (configuration.get("name"), *types) if word)


def foreign_rules(node: ExaminedNode) -> tuple[Rule, ...]:
    """Return the policy routing rules of other programs that match a mark. Raises BackendError."""
    with closing(NetlinkSocket()) as netlink:
        rules = [rule for protocol, rule, _ in read_all_rules(netlink) if protocol != node.config.route_protocol]
    return tuple(rule for rule in rules if rule.family == 4 and rule.fwmask)


def cnis(node: ExaminedNode) -> tuple[RecognisedCni, ...]:
    """Return the CNIs of this Node. Raises BackendError."""
    return recognise(node.read(devices), node.read(chains), node.read(foreign_rules), node.read(plugins))


def recognise(
    links: Links, chains: Chains, rules: Collection[Rule], words: Collection[str]
) -> tuple[RecognisedCni, ...]:
    """Return the CNIs of a Node: usually one; with chaining or Canal, two.

    `rules`: policy routing rules of other programs that match a mark; `words`: see `plugins`.
    """
    return tuple(
        RecognisedCni(name=name, modes=(*_device_modes(signs, links), *_modes(name, chains, rules)))
        for name, signs in _SIGNS.items()
        if any(link.startswith(signs.devices) for link in links)
        or any(chain.name.startswith(signs.chains) or chain.table == signs.table for chain in chains)
        or name.lower() in words
    )


def _device_modes(signs: _Signs, links: Links) -> Iterator[CniMode]:
    for device, mode in signs.modes.items():
        link = links.get(device)
        if link is not None and link.state.up:  # tunl0 exists, but is down, once the kernel's module is loaded
            yield mode


def _modes(name: CniName, chains: Chains, rules: Collection[Rule]) -> Iterator[CniMode]:
    """Yield the modes that rules and chains show."""
    if name is CniName.KUBE_ROUTER and any(rule.table == _DSR_TABLE for rule in rules):
        yield CniMode.DSR
    if name is not CniName.CILIUM:
        return
    if any(rule.fwmark in _IPSEC_MARKS and rule.fwmask == _IPSEC_MASK for rule in rules):
        yield CniMode.IPSEC
    translating = [chain for chain in chains if chain.name == "CILIUM_POST_nat"]
    if any(_MASQUERADE.search(rule) for chain in translating for rule in chain.rules):
        yield CniMode.NETFILTER_MASQUERADE
    elif translating:
        yield CniMode.NO_NETFILTER_MASQUERADE
    if translating and not any(chain.name == _PROXY_CHAIN or chain.table == _PROXY_TABLE for chain in chains):
        yield CniMode.NO_KUBE_PROXY
