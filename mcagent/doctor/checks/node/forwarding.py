"""Check `forwarding`: the kernel forwards between Pods and our device, and foreign chains let it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from ipaddress import IPv4Network

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.links import read_links
from mcagent.dataplane.netlink.routes import RT_TABLE_MAIN, read_routes
from mcagent.dataplane.nft.observe import ForeignChain
from mcagent.doctor.check import DoctorCheck, failed, warning
from mcagent.doctor.checks.node.masquerade import published_pods
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.chains import chains, legacy_chains
from mcagent.doctor.readings.underlay import SYSCTL, read_file
from mcagent.model.net import Network

CHECK = DoctorCheck(
    name="forwarding",
    order=110,
    summary="the kernel forwards, and no foreign chain drops forwarded packets",
    causes={
        "ForwardingOff": failed(
            "the kernel does not forward packets between Pods and other clusters",
            "sysctl -w {setting}=1 (and in /etc/sysctl.d)",
        ),
        "ForwardPolicyDrop": warning(
            "the chain drops packets that no rule accepts, and none names our device or this Node's Pods",
            "iptables -A FORWARD -i {device} -j ACCEPT; iptables -A FORWARD -o {device} -j ACCEPT "
            "(docs/doctor.md)",
        ),
    },
)
_ACCEPTS = re.compile(r"\b(accept|jump|goto)\b|-j (?!DROP|REJECT)", re.IGNORECASE)
_NAMED = 3  # devices
_NETWORK = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}/\d{1,2}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardingSwitches:
    """net.ipv4.ip_forward, and the devices whose own switch is off: our host port, and those of Pods.

    The kernel decides by the switch of the device that a packet arrives on (IN_DEV_FORWARD in net/ipv4/route.c);
    net.ipv4.ip_forward is the default, and sets all devices when it is written.
    """

    globally: bool = True
    off: tuple[str, ...] = ()


def forwarding(node: ExaminedNode) -> ForwardingSwitches:
    """Read the switches. Raises BackendError."""
    devices = sorted(_devices(node.config.host_port, node.read(published_pods)))
    off = tuple(device for device in devices if read_file(SYSCTL / "conf" / device / "forwarding") == "0")
    return ForwardingSwitches(globally=read_file(SYSCTL / "ip_forward") != "0", off=off)


def _devices(host_port: str, pods: Iterable[Network]) -> set[str]:
    """Return the host port, if it exists, and the devices of routes to this Node's Pods. Raises BackendError."""
    networks = [network for network in pods if isinstance(network, IPv4Network)]
    with closing(NetlinkSocket()) as netlink:
        names = {link.index: link.state.name for link in read_links(netlink)}
        indexes = {index for index, name in names.items() if name == host_port}
        for route in read_routes(netlink, RT_TABLE_MAIN):
            to = route.destination
            if isinstance(to, IPv4Network) and route.gateway is None and any(map(to.subnet_of, networks)):
                indexes.add(route.oif)
    return {names[index] for index in indexes if index in names}


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Judge whether the kernel passes packets on between Pods and our device."""
    reading = node.read(forwarding)
    forwards = not reading.off
    if not forwards and not reading.globally:
        setting = "net.ipv4.ip_forward"
        text = f"{setting} is 0, and so is the switch of {', '.join(reading.off[:_NAMED])}"
        yield CHECK.finding("ForwardingOff", text, setting=setting)
    elif not forwards:
        for device in reading.off[:_NAMED]:
            setting = f"net.ipv4.conf.{device}.forwarding"
            yield CHECK.finding("ForwardingOff", f"{setting} is 0", subject=device, setting=setting)
    dropping = [chain for chain in node.read(chains) if (chain.hook, chain.policy) == ("forward", "drop")]
    dropping = [chain for chain in dropping if chain.family in {"ip", "inet"} and not _lets_through(chain, node)]
    for chain in dropping:
        text = f"chain {chain} has the policy drop"
        yield CHECK.finding("ForwardPolicyDrop", text, subject=str(chain), device=node.config.host_port)
    node.read(legacy_chains)
    if forwards and not dropping:
        yield CHECK.passed("the kernel forwards")


def _lets_through(chain: ForeignChain, node: ExaminedNode) -> bool:
    """Tell whether rules of the chain, or of its table's other chains, name our device or the Node's Pods."""
    if any(rule.strip() in {"accept", "counter accept"} for rule in chain.rules):
        return True
    names = (node.config.host_port, *map(str, node.read(published_pods)))
    accepting = [
        rule
        for other in node.read(chains)
        if (other.family, other.table) == (chain.family, chain.table) and other.hook in {"", "forward"}
        for rule in other.rules
        if _ACCEPTS.search(rule)
    ]
    return any(_covers(rule, node) or any(name in rule for name in names) for rule in accepting)


def _covers(rule: str, node: ExaminedNode) -> bool:
    """Tell whether a rule names a network that holds this Node's Pods."""
    pods = [network for network in node.read(published_pods) if isinstance(network, IPv4Network)]
    for text in _NETWORK.findall(rule):
        try:
            network = IPv4Network(text, strict=False)
        except ValueError:
            continue
        if any(pod_network.subnet_of(network) for pod_network in pods):
            return True
    return False
