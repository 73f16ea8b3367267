"""What a packet carries through the bridge: registers, marks, labels, MACs on tunnels, conntrack zones, port 1."""

from __future__ import annotations

from flows.actions import Move
from flows.declare import Zone
from flows.fields import (
    CT_LABEL,
    CT_MARK,
    CT_NW_DST,
    ETH_SRC,
    IP_TCP,
    IP_UDP,
    IPV4_ONLY,
    IPV4_SRC,
    PORTS_SRC,
    REGISTERS,
    Bits,
)

# Families that are programmed. Nothing else here or in the builders assumes IPv4.
FAMILIES = (IPV4_ONLY,)

HOST_OFPORT = 1  # the OpenFlow port of mc-gw0
HOST_MAC = 0x0A6D63000001  # of mc-gw0

# The destination MAC on our tunnels says what a packet is; nothing is ever looked up by it.
MAC_PLAIN = 0xAABBCCDDEEF0  # nothing special; the only one that leaves to another cluster
MAC_TRANSLATED = 0xAABBCCDDEEF1  # gateway to Node: a Service was translated here; Node to gateway: undo it
MAC_REPLY = 0xAABBCCDDEEF2  # Node to gateway: a reply to a connection from another cluster, no translation

# The type of service of a question to a client (the agent's probes), which its kernel repeats in the reset of a
# connection that it does not have (tcp_v4_send_reset in Linux' net/ipv4/tcp_ipv4.c). A code point for local use
# (RFC 2474, section 6).
TOS_PROBE = 0b101011 << 2
# That of the probes of `mcagent trace --live`, another such code point. No flow matches it, but table Classify
# asks for the field, so that the datapath's flows tell probes from all else (`mcagent.core.live_trace`).
TOS_TRACE = 0b101111 << 2

# A TCP packet from the middle of a connection to a Service that a gateway does not know (`lookup`). Gateway to
# Node: does this Node have the connection? One Node is asked first, then those of all endpoints. Back: no, yes.
MAC_ASK, MAC_ASK_ALL, MAC_NOT_HERE, MAC_HERE = 0xAABBCCDDEEF5, 0xAABBCCDDEEF6, 0xAABBCCDDEEF7, 0xAABBCCDDEEF8
# From the agent to its own bridge: a packet of a connection that conntrack has lost and the Node's kernel has not.
MAC_RESTORE = 0xAABBCCDDEEF9

# What a gateway's agent tells the agents of its cluster (`mcagent.core.failover.reachability`): an Ethernet type
# for local use (IEEE Std 802-2014, 9.2.3), and how much of a frame they are handed.
ETHERTYPE_AGENTS = 0x88B5
AGENTS_FRAME = 1500  # bytes

# Probes through tunnels between clusters (`mcagent.core.tunnel_probes`): the other Ethernet type for local use.
# The bridge of the gateway that is asked turns the first destination into the second and sends the frame back;
# what has the second is an answer, of which the agent that asked is handed the head.
ETHERTYPE_PROBE = 0x88B6
MAC_PROBE, MAC_ANSWER = 0xAABBCCDDEEF3, 0xAABBCCDDEEF4
PROBE_HEAD = 64  # bytes

# With MAC_TRANSLATED, the source MAC holds the Service in its lower 32 bits. Unicast, locally administered, and
# never the MAC of a host port, since numbers of Services have 24 bits.
MAC_SERVICE = 0x0A6D00000000
# The source of what nft is to reject: to a Pod, and of a Pod.
MAC_REJECT_IN, MAC_REJECT_OUT = 0x0A6D01000000, 0x0A6D02000000

# A tunnel's VNI is the label identity of the Pod that sent the packet, as Antrea's is (OVS' lib/meta-flow.xml,
# tun_id). A receiver with Antrea's policies takes 0 for a Pod that no policy isolates from, so nobody sends that.
IDENTITY_UNKNOWN = 0xFFFFFF

ORIGIN = Bits(
    "origin",
    REGISTERS[0],
    0,
    3,
    "where the packet came from: 1 host, 2 node, 3 gateway, 4 remote, 5 answer of a Node",
)
TRANSLATED = Bits("translated", REGISTERS[0], 4, 4, "this gateway, or one before it, translated a Service")
SNAT = Bits("snat", REGISTERS[0], 5, 5, "connections to the destination's cluster take the gateway's address")
REPLY = Bits("reply", REGISTERS[0], 6, 6, "a reply to a connection that another cluster opened")
LOOKUP = Bits(
    "lookup",
    REGISTERS[0],
    7,
    8,
    "which Nodes are asked whether they have the packet's connection: 0 none, 1 one, 2 those of all endpoints",
)
CLUSTER = Bits("cluster", REGISTERS[1], 0, 31, "ID of the remote cluster it comes from or goes to")
INGRESS_PORT = Bits(
    "ingress_port", REGISTERS[2], 0, 15, "port it came in by; if a sibling relays it, that to its Node"
)
EGRESS_PORT = Bits("egress_port", REGISTERS[3], 0, 15, "port it leaves by")
CT_DESTINATION = Bits("ct_destination", CT_NW_DST, 0, 31, "where the connection's first packet went to")
SOURCE_ADDRESS = Bits("source_address", IPV4_SRC, 0, 31, "of a packet")
# Where a client's port is taken from, and put back.
SOURCE_PORTS = {
    protocol: Bits("source_port", PORTS_SRC[protocol], 0, 15, "of a request") for protocol in (IP_TCP, IP_UDP)
}
MARK_PORT = Bits(
    "mark_port",
    CT_MARK,
    0,
    15,
    "zone ARRIVAL: tunnel the connection last came in by; 1: this Node is the gateway",
)
MARK_TRANSLATED = Bits(
    "mark_translated",
    CT_MARK,
    16,
    16,
    "zone ARRIVAL: its Service was translated by that gateway; zone RESTORED: 1",
)
MARK_OPENED = Bits("mark_opened", CT_MARK, 17, 17, "zone ARRIVAL, userspace datapath: it was opened here")
LABEL_PORT = Bits(
    "label_port", CT_LABEL, 0, 15, "zone SNAT: port to the Node that opened the connection; 1: this Node"
)
LABEL_CLIENT_PORT = Bits(
    "label_client_port", CT_LABEL, 16, 31, "zone SERVICE: the client's own source port, if it may move; else 0"
)
KEEP_CLIENT_PORT = {protocol: Move(port, LABEL_CLIENT_PORT) for protocol, port in SOURCE_PORTS.items()}
LABEL_SERVICE = Bits(
    "label_service", CT_LABEL, 32, 63, "zone SERVICE: ID of the Service; zone ARRIVAL: as the gateway reported it"
)
SERVICE_ID = Bits(
    "service_id", ETH_SRC, 0, 31, "between gateway and Node, with MAC `…:f1`: ID of the translated Service"
)

ORIGIN_HOST, ORIGIN_NODE, ORIGIN_GATEWAY, ORIGIN_REMOTE, ORIGIN_ANSWER = 1, 2, 3, 4, 5

ZONE_ARRIVAL = Zone(
    offset=0, name="ARRIVAL", purpose="every Node: which side opened a connection, and the gateway it came in by"
)
ZONE_SERVICE = Zone(offset=1, name="SERVICE", purpose="gateways: destination NAT of exported Services")
ZONE_SNAT = Zone(offset=2, name="SNAT", purpose="gateways: source NAT towards other clusters, and the way back")
ZONE_RESTORED = Zone(
    offset=3,
    name="RESTORED",
    purpose="userspace datapath: connections that its conntrack has lost and the Node's kernel has not, for 30 s",
)

BITS = (
    ORIGIN, TRANSLATED, SNAT, REPLY, LOOKUP, CLUSTER, INGRESS_PORT, EGRESS_PORT, MARK_PORT, MARK_TRANSLATED,
    MARK_OPENED, LABEL_PORT, LABEL_CLIENT_PORT, LABEL_SERVICE, SERVICE_ID,
)  # fmt: skip
ZONES = (ZONE_ARRIVAL, ZONE_SERVICE, ZONE_SNAT, ZONE_RESTORED)
