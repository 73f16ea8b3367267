"""The state of a packet in the bridge: registers, marks, labels, MACs on tunnels, conntrack zones, port 1."""

from __future__ import annotations

from ipaddress import IPv4Network

from flows.actions import Move
from flows.declare import Zone
from flows.fields import (
    CT_LABEL,
    CT_MARK,
    CT_NW_DST,
    ETH_SRC,
    ICMP_TYPE,
    IP_ICMP,
    IP_PROTO,
    IP_TCP,
    IP_UDP,
    IPV4_ONLY,
    IPV4_SRC,
    PORTS_SRC,
    REGISTERS,
    Bits,
    exact,
)

# Address families with flows. No other code of the pipeline assumes IPv4.
FAMILIES = (IPV4_ONLY,)

HOST_OFPORT = 1  # the OpenFlow port of mc-gw0
HOST_MAC = 0x0A6D63000001  # of mc-gw0

# The destination MAC on tunnels is the kind of a packet; no address is looked up by it.
MAC_PLAIN = 0xAABBCCDDEEF0  # a plain packet; the only MAC of packets to remote clusters
MAC_TRANSLATED = 0xAABBCCDDEEF1  # gateway to Node: the gateway translated a Service; Node to gateway: undo it
MAC_REPLY = 0xAABBCCDDEEF2  # Node to gateway: a reply to a connection of a remote cluster, without translation
# The source MAC, to the kernel, of an ICMP error about a connection that this Node, or a Pod of it, has opened by
# the bridge. Others have MAC_PLAIN.
MAC_OWN_REQUEST = 0xAABBCCDDEEFA

# The type of service of the agent's probes to clients. The client's kernel repeats it in the reset of a connection
# that it does not have (tcp_v4_send_reset in Linux' net/ipv4/tcp_ipv4.c). A code point for local use (RFC 2474,
# section 6).
TOS_PROBE = 0b101011 << 2
# The type of service of the probes of `mcagent trace --live`, another such code point. No flow matches it, but
# table Classify matches on the field, so that datapath flows distinguish these probes (`mcagent.trace.datapath`).
TOS_TRACE = 0b101111 << 2
# The type of service of ICMP errors in which nft has replaced the mapped addresses, one more such code point.
TOS_REPAIRED = 0b100111 << 2
# The type of service of TCP packets of a connection that another gateway SNATed. It cannot continue, since its
# source is now another address. The gateway of the Service sends such a packet to any endpoint, whose kernel
# resets the connection (RFC 9293, section 3.10.7.1).
TOS_ENDED = 0b100011 << 2
MAPPED_ADDRESSES = IPv4Network("254.0.0.0/8")  # of IPv4 gateways of other clusters

# Queries for a mid-connection TCP packet to a Service (`lookup`). Gateway to Node: does this Node have the
# connection (to one Node, to the Nodes of all endpoints)? Node to gateway: no, yes.
MAC_ASK, MAC_ASK_ALL, MAC_NOT_HERE, MAC_HERE = 0xAABBCCDDEEF5, 0xAABBCCDDEEF6, 0xAABBCCDDEEF7, 0xAABBCCDDEEF8
# From the agent to its own bridge: restore a connection that conntrack has lost and the Node's kernel still has.
MAC_RESTORE = 0xAABBCCDDEEF9

# Reports of a gateway's agent to the agents of its cluster (`mcagent.core.failover.reachability`): an Ethernet
# type for local use (IEEE Std 802-2014, 9.2.3), and the length of the packet-in.
ETHERTYPE_AGENTS = 0x88B5
AGENTS_FRAME = 1500  # bytes

# Probes through tunnels between clusters (`mcagent.core.tunnel_probes`): the other Ethernet type for local use.
# The bridge of the probed gateway replaces the first destination MAC by the second one and returns the frame. A
# frame with the second one is an answer, whose head is sent to the agent.
ETHERTYPE_PROBE = 0x88B6
MAC_PROBE, MAC_ANSWER = 0xAABBCCDDEEF3, 0xAABBCCDDEEF4
PROBE_HEAD = 64  # bytes
ENDED_HEAD = 64  # bytes of a packet whose connection has ended; the agent reads the connection beside it

# With MAC_TRANSLATED, the lower 32 bits of the source MAC are the Service's ID. Unicast, locally administered, and
# never the MAC of a host port, since IDs of Services have 24 bits.
MAC_SERVICE = 0x0A6D00000000
# Source MACs of packets that nft rejects: to a Pod, from a Pod.
MAC_REJECT_IN, MAC_REJECT_OUT = 0x0A6D01000000, 0x0A6D02000000

# A tunnel's VNI is the label identity of the Pod that sent the packet, as Antrea's is (OVS' lib/meta-flow.xml,
# tun_id). 0 is never sent: a receiver with Antrea's policies treats it as a Pod that no policy isolates from.
IDENTITY_UNKNOWN = 0xFFFFFF

ORIGIN = Bits(
    "origin",
    REGISTERS[0],
    0,
    3,
    "sender of the packet: 1 host, 2 node, 3 gateway, 4 remote, 5 answer of a Node to a query",
)
TRANSLATED = Bits("translated", REGISTERS[0], 4, 4, "this or an earlier gateway translated a Service")
SNAT = Bits(
    "snat", REGISTERS[0], 5, 5, "connections to the destination's cluster are SNATed to the gateway's address"
)
REPLY = Bits("reply", REGISTERS[0], 6, 6, "a reply to a connection that a remote cluster opened")
LOOKUP = Bits(
    "lookup",
    REGISTERS[0],
    7,
    8,
    "Nodes that are queried for the packet's connection: 0 none, 1 one, 2 those of all endpoints",
)
TOO_LARGE = Bits(
    "too_large", REGISTERS[0], 9, 9, "a packet of the host that is larger than tunnels to other clusters take"
)
REPAIRED = Bits("repaired", REGISTERS[0], 10, 10, "an ICMP error of the host that quotes no mapped address")
CLUSTER = Bits("cluster", REGISTERS[1], 0, 31, "ID of the remote cluster that the packet comes from or goes to")
INGRESS_PORT = Bits(
    "ingress_port", REGISTERS[2], 0, 15, "input port; for a packet that a sibling relays, the port to its Node"
)
EGRESS_PORT = Bits("egress_port", REGISTERS[3], 0, 15, "output port")
OTHER_GATEWAY = Bits(
    "other_gateway",
    REGISTERS[0],
    11,
    11,
    "the looked up address is that of a remote gateway, and the packet did not come through that gateway's tunnel",
)
QUOTED = Bits(
    "quoted", REGISTERS[0], 12, 12, "the looked up address is that of the connection which an ICMP error quotes"
)
METERED = Bits("metered", REGISTERS[0], 13, 13, "a fragment that has passed the meter of its cluster")
OWNER = Bits("owner", REGISTERS[4], 0, 31, "ID of the remote cluster that has the looked up address; 0: none")
SENDER_ADDRESS = Bits(
    "sender_address", REGISTERS[5], 0, 31, "source of an ICMP error, while the quoted address is in its place"
)
CT_DESTINATION = Bits("ct_destination", CT_NW_DST, 0, 31, "destination of the connection's first packet")
SOURCE_ADDRESS = Bits("source_address", IPV4_SRC, 0, 31, "of a packet")
# The remote address of a connection from here that an ICMP error quotes.
QUOTED_ADDRESS = {IPV4_ONLY: CT_DESTINATION}
# The types of ICMP errors that quote a packet (RFC 792; nf_conntrack_proto_icmp.c, lib/conntrack.c).
ICMP_ERRORS = {IPV4_ONLY: tuple((exact(IP_PROTO, IP_ICMP), exact(ICMP_TYPE, n)) for n in (3, 4, 5, 11, 12))}
# The fields from which a client's port is read, and to which it is restored.
SOURCE_PORTS = {
    protocol: Bits("source_port", PORTS_SRC[protocol], 0, 15, "of a request") for protocol in (IP_TCP, IP_UDP)
}
MARK_PORT = Bits(
    "mark_port",
    CT_MARK,
    0,
    15,
    "zone ARRIVAL: tunnel port of the connection's last request; 1: this Node is the gateway",
)
MARK_TRANSLATED = Bits(
    "mark_translated",
    CT_MARK,
    16,
    16,
    "zone ARRIVAL: that gateway translated a Service; zone RESTORED: 1",
)
MARK_OPENED = Bits(
    "mark_opened", CT_MARK, 17, 17, "zone ARRIVAL, userspace datapath: this Node opened the connection"
)
LABEL_PORT = Bits(
    "label_port", CT_LABEL, 0, 15, "zone SNAT: port to the Node that opened the connection; 1: this Node"
)
LABEL_ENDED = Bits(
    "label_ended", CT_LABEL, 64, 64, "zone SNAT: another gateway has SNATed the connection before, so it must end"
)
LABEL_CLIENT_PORT = Bits(
    "label_client_port",
    CT_LABEL,
    16,
    31,
    "zone SERVICE: the client's own source port if conntrack may change it; else 0",
)
KEEP_CLIENT_PORT = {protocol: Move(port, LABEL_CLIENT_PORT) for protocol, port in SOURCE_PORTS.items()}
LABEL_SERVICE = Bits(
    "label_service", CT_LABEL, 32, 63, "zone SERVICE: ID of the Service; zone ARRIVAL: as the gateway reported it"
)
LABEL_CLUSTER = Bits(
    "label_cluster", CT_LABEL, 96, 127, "zone ARRIVAL: ID of the cluster that opened the connection"
)
SERVICE_ID = Bits(
    "service_id", ETH_SRC, 0, 31, "between gateway and Node, with MAC `…:f1`: ID of the translated Service"
)

ORIGIN_HOST, ORIGIN_NODE, ORIGIN_GATEWAY, ORIGIN_REMOTE, ORIGIN_ANSWER = 1, 2, 3, 4, 5

ZONE_ARRIVAL = Zone(
    offset=0,
    name="ARRIVAL",
    purpose="all Nodes: which side opened a connection, and the gateway of its last request",
)
ZONE_SERVICE = Zone(offset=1, name="SERVICE", purpose="gateways: destination NAT of exported Services")
ZONE_SNAT = Zone(
    offset=2, name="SNAT", purpose="gateways: source NAT towards remote clusters, and the Node that replies go to"
)
ZONE_RESTORED = Zone(
    offset=3,
    name="RESTORED",
    purpose="userspace datapath, for 30 s: connections that its conntrack has lost and the kernel still has",
)

BITS = (
    ORIGIN, TRANSLATED, SNAT, REPLY, LOOKUP, TOO_LARGE, REPAIRED, OTHER_GATEWAY, QUOTED, METERED, CLUSTER,
    INGRESS_PORT, EGRESS_PORT, OWNER, SENDER_ADDRESS, MARK_PORT, MARK_TRANSLATED, MARK_OPENED, LABEL_PORT,
    LABEL_ENDED, LABEL_CLIENT_PORT, LABEL_SERVICE, LABEL_CLUSTER, SERVICE_ID,
)  # fmt: skip
ZONES = (ZONE_ARRIVAL, ZONE_SERVICE, ZONE_SNAT, ZONE_RESTORED)
