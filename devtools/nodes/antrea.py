"""A Node of a cluster that runs Antrea: its bridge, and the flows that Antrea's agent puts into it.

Those tables of Antrea's pipeline, in Antrea's order, that a packet between clusters passes, for mode encap with
AntreaProxy; beside each flow stands where `antrea-contract.md` of the references has it. Left out, because nothing
between clusters depends on it: ARP (neighbours are permanent), other policies, session affinity. No BFD:
`antrea-tun0` takes tunnel packets from any address. Compared with the flows of an antrea-agent v2.4.1. `flows`
and `groups` are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto
from ipaddress import IPv4Address, IPv4Network

from devtools.lab.topology import Cluster, Import, Node, Pod, Topology
from devtools.nodes import netns, underlay
from devtools.nodes.ovs import OvsInstance
from mcagent.model.config import TrafficEncryption
from mcagent.model.net import Address

BRIDGE, HOST, TUNNEL = "br-int", "antrea-gw0", "antrea-tun0"
TUNNEL_PORT, HOST_PORT, FIRST_POD = 1, 2, 3
MAC_CLUSTERS, MAC_NODES = "aa:bb:cc:dd:ee:f0", "aa:bb:cc:dd:ee:ff"  # 2.2
DNAT_ZONE, SNAT_ZONE = 65520, 65521  # 2.2
UNKNOWN = 0xFFFFFF  # 2.2
HAIRPIN = "169.254.0.253"  # the source of a Pod that reaches itself
OVERHEAD, WIREGUARD_OVERHEAD = 50, 60  # 2.8: bytes of Geneve or VXLAN, of WireGuard
PROTOCOLS = {"TCP": "tcp", "UDP": "udp"}


class Table(IntEnum):
    """Antrea's tables, in its order (2.2); their numbers have no meaning."""

    CLASSIFIER = 0
    SPOOF_GUARD = auto()
    UN_SNAT = auto()
    CONNTRACK_ZONE = auto()
    CONNTRACK_STATE = auto()
    SERVICE_LB = auto()
    ENDPOINT_DNAT = auto()
    L3_FORWARDING = auto()
    L3_DEC_TTL = auto()
    SNAT_MARK = auto()
    SNAT = auto()
    L2_FORWARDING_CALC = auto()
    INGRESS = auto()
    CONNTRACK_COMMIT = auto()
    OUTPUT = auto()


# Registers and marks (2.2): where a packet is from, where it goes, that its MACs are to be written, its port.
FROM_TUNNEL, FROM_HOST, FROM_POD = (f"load:{n}->NXM_NX_REG0[0..3]" for n in (1, 2, 3))
TO_TUNNEL, TO_HOST = (f"load:{n}->NXM_NX_REG0[4..7]" for n in (1, 2))
REWRITE_MAC = "load:1->NXM_NX_REG0[9]"
IS_REWRITE_MAC = "reg0=0x200/0x200"
IS_REJECT = "reg0=0x2000/0x2000"  # made by the agent for a policy's Reject
KEEP_SOURCE = "move:NXM_NX_REG0[0..3]->NXM_NX_CT_MARK[0..3]"
SERVICE, SNATED = "0x10/0x10", "0x20/0x20"  # bits of ct_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a cluster's agents are configured, and what they know of the others.

    `first` is `gatewayInfos[0]` of other clusters, by name, where that is not their first gateway; `labels` are
    the label identities of Pods by name (None: stretched policies are off), `guarded` the Pods whose clients a
    stretched policy tells by labels. `pod_to_pod`: enablePodToPodConnectivity, which says nothing of what the
    cluster publishes. `active`: names of the Nodes that are the gateways of Antrea's clusters, by cluster, where
    these moved from the first gateway: Antrea has one at a time.
    """

    pod_to_pod: bool = True
    first: Mapping[str, Address] = field(default_factory=dict)
    labels: Mapping[str, int] | None = None
    guarded: frozenset[str] = frozenset()
    active: Mapping[str, str] = field(default_factory=dict)

    def gateway(self, cluster: Cluster) -> Node:
        """Return the present gateway of one of Antrea's clusters."""
        name = self.active.get(cluster.name, cluster.gateways[0].name)
        return next(node for node in cluster.nodes if node.name == name)

    def gateway_ip(self, cluster: Cluster) -> Address:
        """Return the gatewayIP of a cluster's first gateway."""
        return self.first.get(cluster.name, self.gateway(cluster).tunnel_address)


def end(topology: Topology, cluster: Cluster, settings: Settings) -> Address:
    """Return where tunnels to a cluster end, and what it is known by: with WireGuard its Service CIDR (3)."""
    if topology.encryption is TrafficEncryption.WIREGUARD:
        return cluster.service_cidr.network_address
    return settings.gateway_ip(cluster)


def host_mac(node: Node) -> str:
    """Return the MAC address of a Node's `antrea-gw0`."""
    return _mac(3, node.address)


def pod_mac(pod: Pod) -> str:
    """Return the MAC address of a Pod."""
    return _mac(2, pod.address)


def _mac(kind: int, address: IPv4Address) -> str:
    return f"0e:{kind:02x}:" + ":".join(f"{octet:02x}" for octet in address.packed)


def pod_mtu(uplink: int, encryption: TrafficEncryption) -> int:
    """Return the MTU of Pods (2.8)."""
    return uplink - OVERHEAD - (WIREGUARD_OVERHEAD if encryption is TrafficEncryption.WIREGUARD else 0)


def install(namespace: str, ovs: OvsInstance, node: Node, *, userspace: bool, tunnel: str) -> None:
    """Make the bridge with its host port and its one tunnel port, which is flow-based (2.1)."""
    assert node.pod_cidr is not None
    ovs.vsctl(
        *("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "fail-mode=secure"),
        *(f"datapath_type={'netdev' if userspace else 'system'}", "protocols=OpenFlow10,OpenFlow15"),
        *("--", "add-port", BRIDGE, TUNNEL, "--", "set", "interface", TUNNEL, f"type={tunnel}"),
        *(f"ofport_request={TUNNEL_PORT}", "options:remote_ip=flow", "options:key=flow"),
        *("--", "add-port", BRIDGE, HOST, "--", "set", "interface", HOST, "type=internal"),
        *(f"ofport_request={HOST_PORT}", f'mac="{host_mac(node)}"'),
    )
    netns.ip_batch(namespace, [f"link set {HOST} up", f"address add {node.pod_cidr[1]}/24 dev {HOST}"])


def add_pod(namespace: str, pod_namespace: str, ovs: OvsInstance, node: Node, pod: Pod, *, mtu: int) -> None:
    """Make a Pod behind a port of the bridge. Its next hop, `antrea-gw0`, is a permanent neighbour."""
    assert node.pod_cidr is not None
    device, next_hop = f"pod{node.pods.index(pod) + 1}", node.pod_cidr[1]
    netns.create(pod_namespace)
    underlay.set_sysctl(pod_namespace, {"net/ipv6/conf/all/disable_ipv6": "1"})
    netns.add_veth(device, namespace, "eth0", pod_namespace)
    underlay.checksum_offload_off(pod_namespace, "eth0")
    netns.ip_batch(
        pod_namespace,
        [
            f"link set eth0 address {pod_mac(pod)} mtu {mtu}",
            f"address add {pod.address}/32 dev eth0",
            f"route add {next_hop} dev eth0 scope link",
            f"route add default via {next_hop} dev eth0",
            f"neighbour add {next_hop} lladdr {host_mac(node)} dev eth0 nud permanent",
        ],
    )
    port = ("set", "interface", device, f"ofport_request={_port(node, pod)}")
    ovs.vsctl("add-port", BRIDGE, device, "--", *port)


def program(ovs: OvsInstance, topology: Topology, cluster: Cluster, node: Node, settings: Settings) -> None:
    """Make the bridge's flows and groups what they should be."""
    bridge = ovs.mgmt(BRIDGE)
    ovs.ofctl("--may-create", "mod-group", bridge, "-", stdin="\n".join(groups(topology, cluster)) + "\n")
    flow_text = "\n".join(flows(topology, cluster, node, settings)) + "\n"
    ovs.ofctl("replace-flows", bridge, "-", stdin=flow_text)


def _port(node: Node, pod: Pod) -> int:
    return FIRST_POD + node.pods.index(pod)


def _flow(table: Table, priority: int, match: str, *actions: str) -> str:
    terms = ",".join(filter(None, (f"table={int(table)}", f"priority={priority}", match)))
    return f"{terms} actions={','.join(actions)}"


def _goto(table: Table) -> str:
    return f"goto_table:{int(table)}"


def _ct(zone: int, table: Table, *what: str) -> str:
    return f"ct({','.join((*what, f'table={int(table)}', f'zone={zone}'))})"


# --- Services (2.4: AntreaProxy translates on the Node of the client, and on the gateway that a request comes to)


Served = tuple[IPv4Address, int, str, list[tuple[IPv4Address, int]]]


def _services(topology: Topology, cluster: Cluster) -> Iterator[Served]:
    """Yield address, port, protocol and endpoints of the cluster's own Services, and of those that it imports."""
    pods = {pod.name: pod.address for _, _, pod in topology.pods()}
    for own in cluster.services:
        for protocol in own.protocols:
            yield own.cluster_ip, own.port, protocol, [(pods[name], own.target_port) for name in own.pods]
    for imported in topology.imports(cluster):
        for protocol in imported.service.protocols:
            behind = [(address, imported.service.port) for address in _behind(cluster, imported)]
            yield imported.cluster_ip, imported.service.port, protocol, behind


def _behind(cluster: Cluster, imported: Import) -> list[IPv4Address]:
    """Return the ClusterIPs behind an imported Service, its own one too where the cluster exports it."""
    name = imported.service.namespace, imported.service.name
    own = (s.cluster_ip for s in cluster.services if s.exported and (s.namespace, s.name) == name)
    return [*imported.backends, *own]


def groups(topology: Topology, cluster: Cluster) -> Iterator[str]:
    """Yield a group for each port of a Service, as ovs-ofctl(8) takes it."""
    for number, (_, _, _, endpoints) in enumerate(_services(topology, cluster), start=1):
        buckets = (
            f"bucket=load:{int(address):#x}->NXM_NX_REG3[],load:{port:#x}->NXM_NX_REG4[0..15],"
            f"resubmit(,{int(Table.ENDPOINT_DNAT)})"
            for address, port in endpoints
        )
        # Hashes that differ: by one hash, who gets the own ClusterIP would always get the same Pod behind it.
        method = f"selection_method=hash,selection_method_param={number},fields(ip_src,tcp_src,udp_src)"
        yield f"group_id={number},type=select,{method},{','.join(buckets)}"


def _service_flows(topology: Topology, cluster: Cluster) -> Iterator[str]:
    endpoints = set()
    group_of: dict[tuple[str, IPv4Address, int], int] = {}
    for number, (address, port, protocol, behind) in enumerate(_services(topology, cluster), start=1):
        match = f"{PROTOCOLS[protocol]},nw_dst={address},tp_dst={port}"
        yield _flow(Table.SERVICE_LB, 200, match, REWRITE_MAC, f"group:{number}")
        group_of[protocol, address, port] = number
        endpoints |= {(protocol, *endpoint) for endpoint in behind}
    for protocol, address, port in sorted(endpoints):
        match = f"{PROTOCOLS[protocol]},reg3={int(address):#x},reg4={port:#x}/0xffff"
        remember = f"exec({KEEP_SOURCE},load:1->NXM_NX_CT_MARK[4])"
        commit = _ct(DNAT_ZONE, Table.L3_FORWARDING, "commit", f"nat(dst={address}:{port})", remember)
        yield _flow(Table.ENDPOINT_DNAT, 200, match, commit)
        group = group_of.get((protocol, address, port))
        if group is not None:  # 2.3, nested Services: this cluster's own ClusterIP
            yield _flow(Table.ENDPOINT_DNAT, 210, match, f"group:{group}")


# --- the pipeline of a Node


def flows(topology: Topology, cluster: Cluster, node: Node, settings: Settings) -> Iterator[str]:
    """Yield the flows of a Node's bridge, as ovs-ofctl(8) takes them."""
    yield from _base()
    yield from _pods(node, settings)
    yield from _service_flows(topology, cluster)
    mac = host_mac(node)
    for other in cluster.nodes:
        if other.name != node.name and other.pod_cidr is not None:  # 2.3, encap: Pods of the cluster's other Nodes
            yield _to_tunnel(200, f"ip,nw_dst={other.pod_cidr}", mac, MAC_NODES, other.address)
    gateway = settings.gateway(cluster)
    yield _flow(Table.L2_FORWARDING_CALC, 200, f"dl_dst={MAC_CLUSTERS}", *_out(TUNNEL_PORT))  # 2.3, flow 1
    if node.name == gateway.name:
        into = (FROM_TUNNEL, REWRITE_MAC, _goto(Table.UN_SNAT))
        yield _flow(Table.CLASSIFIER, 210, f"in_port={TUNNEL_PORT},dl_dst={MAC_CLUSTERS}", *into)  # flow 2
        yield _flow(Table.OUTPUT, 210, f"reg1={TUNNEL_PORT},in_port={TUNNEL_PORT}", "in_port")  # flow 3
    for remote in topology.clusters:
        if remote.name != cluster.name:
            gateway_ends = end(topology, remote, settings), end(topology, cluster, settings)
            yield from _remote(gateway, node, remote, *gateway_ends, pods=settings.pod_to_pod)


def _remote(
    gateway: Node, node: Node, remote: Cluster, known: Address, own: Address, *, pods: bool
) -> Iterator[str]:
    """Yield the flows of another cluster, by their numbers in 2.3. `known`, `own`: what the two are known by."""
    mac = host_mac(node)
    is_gateway = node.name == gateway.name
    to = known if is_gateway else gateway.address
    cidrs: list[IPv4Network] = [remote.service_cidr, *((remote.pod_cidr,) if pods else ())]
    for cidr in cidrs:
        yield _to_tunnel(200, f"ip,nw_dst={cidr}", mac, MAC_CLUSTERS, to)  # 4
    yield _to_tunnel(200, f"ct_state=+rpl+trk,ip,nw_dst={known}", mac, MAC_CLUSTERS, to)  # 5
    yield _to_tunnel(199, f"{IS_REJECT},ip,nw_dst={known}", mac, MAC_CLUSTERS, to)  # 6
    if not is_gateway:
        return
    for cidr in cidrs:
        new = f"ct_state=+new+trk,ip,nw_dst={cidr}"
        remember = f"exec(load:1->NXM_NX_CT_MARK[5],{KEEP_SOURCE})"
        yield _flow(Table.SNAT_MARK, 210, new, _ct(DNAT_ZONE, Table.SNAT, "commit", remember))  # 7
        snat = ("commit", f"nat(src={own})", "exec(load:1->NXM_NX_CT_MARK[5])")
        yield _flow(Table.SNAT, 200, new, _ct(SNAT_ZONE, Table.L2_FORWARDING_CALC, *snat))  # 8
    undo = _ct(SNAT_ZONE, Table.CONNTRACK_ZONE, "nat")
    yield _flow(Table.UN_SNAT, 200, f"ip,nw_dst={own}", undo)  # 9


def _to_tunnel(priority: int, match: str, source: str, destination: str, peer: Address) -> str:
    macs = (f"mod_dl_src:{source}", f"mod_dl_dst:{destination}")
    to = (f"load:{int(peer):#x}->NXM_NX_TUN_IPV4_DST[]", TO_TUNNEL, _goto(Table.L3_DEC_TTL))
    return _flow(Table.L3_FORWARDING, priority, match, *macs, *to)


def _out(port: int) -> tuple[str, ...]:
    return (f"load:{port}->NXM_NX_REG1[]", "load:1->NXM_NX_REG0[8]", _goto(Table.INGRESS))


def _pods(node: Node, settings: Settings) -> Iterator[str]:
    """Yield what belongs to the Node's Pods and to its own kernel."""
    assert node.pod_cidr is not None
    mac, first = host_mac(node), node.pod_cidr[1]
    to_host = (f"mod_dl_dst:{mac}", TO_HOST, _goto(Table.L3_DEC_TTL))
    yield _flow(Table.L3_FORWARDING, 210, f"ip,nw_dst={first}", *to_host)
    yield _flow(Table.L3_FORWARDING, 210, "ct_state=+rpl+trk,ct_mark=2/0xf,ip", *to_host)
    # 2.9: new connections that came by the tunnel and have no way on are dropped by EgressMark, unless they are
    # to the Node. All else leaves by the Node's kernel, without a tunnel: also replies that have no way on.
    yield _flow(Table.L3_FORWARDING, 192, f"ip,nw_dst={node.address}", *to_host)
    yield _flow(Table.L3_FORWARDING, 191, "ct_state=+new-rpl+trk,ip,reg0=1/0xf", "drop")
    yield _flow(Table.L3_FORWARDING, 190, "ip", *to_host)
    yield _flow(Table.L2_FORWARDING_CALC, 200, f"dl_dst={mac}", *_out(HOST_PORT))
    for pod in node.pods:
        port, address = _port(node, pod), pod_mac(pod)
        label = "" if settings.labels is None else f"{settings.labels.get(pod.name, UNKNOWN):#x}"
        mark = (FROM_POD, *((f"set_field:{label}->tun_id",) if label else ()))  # 2.7
        yield _flow(Table.CLASSIFIER, 190, f"in_port={port}", *mark, _goto(Table.SPOOF_GUARD))
        own = f"ip,in_port={port},dl_src={address},nw_src={pod.address}"
        yield _flow(Table.SPOOF_GUARD, 200, own, _goto(Table.UN_SNAT))
        macs = (f"mod_dl_src:{mac}", f"mod_dl_dst:{address}")
        yield _flow(
            Table.L3_FORWARDING, 200, f"ip,{IS_REWRITE_MAC},nw_dst={pod.address}", *macs, _goto(Table.L3_DEC_TTL)
        )
        yield _flow(Table.L2_FORWARDING_CALC, 200, f"dl_dst={address}", *_out(port))
        # A Pod that reaches itself by a Service (hairpin in Antrea): its replies have to come to the bridge.
        itself = f"ct_state=+new+trk,ip,nw_src={pod.address},nw_dst={pod.address}"
        marked = ("commit", "exec(load:1->NXM_NX_CT_MARK[5])")
        yield _flow(Table.SNAT_MARK, 200, itself, _ct(DNAT_ZONE, Table.SNAT, *marked))
        snat = (*marked, f"nat(src={HAIRPIN})")
        yield _flow(Table.SNAT, 200, itself, _ct(SNAT_ZONE, Table.L2_FORWARDING_CALC, *snat))
        yield _flow(Table.OUTPUT, 210, f"reg1={port},in_port={port}", "in_port")
        if pod.name in settings.guarded:  # 2.7: unknown identity fails closed; what is established goes on
            yield _flow(Table.INGRESS, 200, f"ct_state=+new+trk,ip,reg1={port},tun_id={UNKNOWN:#x}", "drop")


def _base() -> Iterator[str]:
    """Yield what every Node has."""
    t = Table
    yield _flow(t.CLASSIFIER, 200, f"in_port={TUNNEL_PORT}", FROM_TUNNEL, REWRITE_MAC, _goto(t.UN_SNAT))
    yield _flow(t.CLASSIFIER, 200, f"in_port={HOST_PORT}", FROM_HOST, _goto(t.UN_SNAT))
    yield _flow(t.UN_SNAT, 200, f"ip,nw_dst={HAIRPIN}", _ct(SNAT_ZONE, t.CONNTRACK_ZONE, "nat"))
    yield _flow(t.CONNTRACK_ZONE, 200, "ip", _ct(DNAT_ZONE, t.CONNTRACK_STATE, "nat"))
    yield _flow(t.CONNTRACK_STATE, 200, "ct_state=+inv+trk,ip", "drop")
    tracked = "ct_state=-new+trk"
    yield _flow(t.CONNTRACK_STATE, 190, f"{tracked},ct_mark={SERVICE},ip", REWRITE_MAC, _goto(t.L3_FORWARDING))
    yield _flow(t.CONNTRACK_STATE, 190, f"{tracked},ct_mark=0/0x10,ip", _goto(t.L3_FORWARDING))
    yield _flow(t.L2_FORWARDING_CALC, 200, f"dl_dst={MAC_NODES}", *_out(TUNNEL_PORT))
    yield _flow(t.L3_DEC_TTL, 210, "ip,reg0=2/0xf", _goto(t.SNAT_MARK))
    yield _flow(t.L3_DEC_TTL, 200, "ip", "dec_ttl", _goto(t.SNAT_MARK))
    again = _ct(SNAT_ZONE, t.L2_FORWARDING_CALC, "nat")
    yield _flow(t.SNAT, 200, f"ct_state=-new-rpl+trk,ct_mark={SNATED},ip", again)  # 2.3, below flow 9
    commit = _ct(DNAT_ZONE, t.OUTPUT, "commit", f"exec({KEEP_SOURCE})")
    yield _flow(t.CONNTRACK_COMMIT, 200, "ct_state=+new+trk-snat,ct_mark=0/0x10,ip", commit)
    yield _flow(t.OUTPUT, 200, "reg0=0x100/0x100", "output:NXM_NX_REG1[]")
    for table, then in (
        (t.UN_SNAT, t.CONNTRACK_ZONE),
        (t.CONNTRACK_STATE, t.SERVICE_LB),
        (t.SERVICE_LB, t.L3_FORWARDING),
        (t.L3_DEC_TTL, t.SNAT_MARK),
        (t.SNAT_MARK, t.SNAT),
        (t.SNAT, t.L2_FORWARDING_CALC),
        (t.L2_FORWARDING_CALC, t.INGRESS),
        (t.INGRESS, t.CONNTRACK_COMMIT),
        (t.CONNTRACK_COMMIT, t.OUTPUT),
    ):
        yield _flow(table, 0, "", _goto(then))
