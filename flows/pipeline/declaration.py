"""The declaration of mcagent's pipeline: tables, registers, zones, marks, groups, cookies, priorities, MACs.

Everything the builders use is named here once. `docs/pipeline.md` is generated from it.
"""

from __future__ import annotations

from flows.declare import Category, CookieLayout, GroupKind, Pipeline, Table, Zone
from flows.fields import (
    CT_LABEL,
    CT_MARK,
    CT_STATE,
    ETH_DST,
    ETH_SRC,
    ETH_TYPE,
    IN_PORT,
    IP_PROTO,
    IP_TCP,
    IP_TOS,
    IP_UDP,
    IPV4_DST,
    IPV4_ONLY,
    IPV4_SRC,
    IPV6_DST,
    IPV6_SRC,
    PKT_MARK,
    PORTS_DST,
    PORTS_SRC,
    REGISTERS,
    TCP_FLAGS,
    TCP_SRC,
    Bits,
)

# Families that are programmed. Nothing else here or in the builders assumes IPv4.
FAMILIES = (IPV4_ONLY,)

HOST_PORT = 1  # the OpenFlow port of mc-gw0
HOST_MAC = 0x0A6D63000001  # of mc-gw0

# The destination MAC on our tunnels says what a packet is; nothing is ever looked up by it.
MAC_PLAIN = 0xAABBCCDDEEF0  # nothing special; the only one that leaves to another cluster
MAC_TRANSLATED = 0xAABBCCDDEEF1  # gateway to Node: a Service was translated here; Node to gateway: undo it
MAC_REPLY = 0xAABBCCDDEEF2  # Node to gateway: a reply to a connection from another cluster, no translation

# The type of service of a question to a client (`mcagent.core.probes`), which its kernel repeats in the reset of a
# connection that it does not have (tcp_v4_send_reset in Linux' net/ipv4/tcp_ipv4.c). A code point for local use
# (RFC 2474, section 6).
TOS_ASKED = 0b101011 << 2

# With MAC_TRANSLATED, the source MAC holds the Service in its lower 32 bits. Unicast, locally administered, and
# never the MAC of a host port, since numbers of Services have 24 bits.
MAC_SERVICE = 0x0A6D00000000

# --- registers, marks, labels ---------------------------------------------------------------------------

ORIGIN = Bits("origin", REGISTERS[0], 0, 3, "where the packet came from: 1 host, 2 node, 3 gateway, 4 remote")
TRANSLATED = Bits("translated", REGISTERS[0], 4, 4, "this gateway, or one before it, translated a Service")
SNAT = Bits("snat", REGISTERS[0], 5, 5, "connections to the destination's cluster take the gateway's address")
REPLY = Bits("reply", REGISTERS[0], 6, 6, "a reply to a connection that another cluster opened")
CLUSTER = Bits("cluster", REGISTERS[1], 0, 31, "number of the remote cluster it comes from or goes to")
INGRESS_PORT = Bits(
    "ingress_port",
    REGISTERS[2],
    0,
    15,
    "port it came in by; of what a sibling relays, that to the Node that sent it",
)
EGRESS_PORT = Bits("egress_port", REGISTERS[3], 0, 15, "port it leaves by")
CLIENT_PORT = Bits(
    "client_port",
    REGISTERS[4],
    0,
    15,
    "source port of a request, met in mid-connection, to a Service that shares endpoints; else 0",
)
# Where it is taken from, and put back; and the part of it by which another port is told: conntrack takes the next
# one that is free (nat_get_unique_l4 in OVS' lib/conntrack.c).
SOURCE_PORTS = {
    protocol: Bits("source_port", PORTS_SRC[protocol], 0, 15, "of a request") for protocol in (IP_TCP, IP_UDP)
}
LOW_BITS = 4
LOW_OF_SOURCE_PORTS = {
    protocol: Bits("low_of_source_port", PORTS_SRC[protocol], 0, LOW_BITS - 1, "its lowest bits")
    for protocol in SOURCE_PORTS
}
MARK_PORT = Bits(
    "mark_port",
    CT_MARK,
    0,
    15,
    "zone ARRIVAL: tunnel that the connection last came in by; 1: this Node is the gateway",
)
MARK_TRANSLATED = Bits(
    "mark_translated", CT_MARK, 16, 16, "zone ARRIVAL: its Service was translated by that gateway"
)
LABEL_PORT = Bits(
    "label_port", CT_LABEL, 0, 15, "zone SNAT: port to the Node that opened the connection; 1: this Node"
)
LABEL_CLIENT_PORT = Bits(
    "label_client_port",
    CT_LABEL,
    16,
    31,
    "zone SERVICE: source port that the client has, where conntrack may have given it another one; else 0",
)
LOW_OF_LABEL = Bits(
    "low_of_client_port", CT_LABEL, LABEL_CLIENT_PORT.low, LABEL_CLIENT_PORT.low + LOW_BITS - 1, "its lowest bits"
)
LABEL_SERVICE = Bits(
    "label_service",
    CT_LABEL,
    32,
    63,
    "zone SERVICE: number of the Service that was translated; zone ARRIVAL: as the gateway told it",
)
SERVICE_ID = Bits(
    "service_id", ETH_SRC, 0, 31, "between gateway and Node, with MAC `…:f1`: number of the translated Service"
)

ORIGIN_HOST, ORIGIN_NODE, ORIGIN_GATEWAY, ORIGIN_REMOTE = 1, 2, 3, 4

ZONE_ARRIVAL = Zone(
    offset=0, name="ARRIVAL", purpose="every Node: which side opened a connection, and the gateway it came in by"
)
ZONE_SERVICE = Zone(offset=1, name="SERVICE", purpose="gateways: destination NAT of exported Services")
ZONE_SNAT = Zone(offset=2, name="SNAT", purpose="gateways: source NAT towards other clusters, and the way back")

# --- tables ---------------------------------------------------------------------------------------------

_SOURCE = (IPV4_SRC, IPV6_SRC)
_DESTINATION = (IPV4_DST, IPV6_DST)

CLASSIFY = Table(
    number=0,
    name="Classify",
    purpose="By port: who sent it. Only IP passes; from the host only what is addressed to the virtual next hop. "
    "What the agent asks clients goes the way of replies; a client that refuses is not heard.",
    fields=(IN_PORT, ETH_TYPE, ETH_DST, IP_PROTO, IP_TOS, TCP_FLAGS),
    next=(10, 26, 40),
)
SOURCE = Table(
    number=10,
    name="Source",
    purpose="Source-address check: a cluster, a Node and the host may send only from addresses that are theirs.",
    fields=(ETH_TYPE, ORIGIN, CLUSTER, INGRESS_PORT, *_SOURCE),
    next=(20, 30, 60),
)
UNTRANSLATE = Table(
    number=20,
    name="Untranslate",
    purpose="Gateway: what is it? A reply to a SNATed connection, a request to a Service, a packet to a Pod; "
    "from a Node: a reply of a translated Service, a plain reply, or a packet of a connection opened here.",
    fields=(ETH_TYPE, ETH_DST, ORIGIN, *_DESTINATION),
    next=(22, 23, 26, 40, 60),
)
UN_SNAT = Table(
    number=22,
    name="UnSnat",
    purpose="Gateway: replies to connections that this gateway SNATed go to the Node in the connection's label.",
    fields=(ETH_TYPE, CT_STATE, LABEL_PORT),
    next=(70, 90),
)
ADMIT_SERVICE = Table(
    number=23,
    name="AdmitService",
    purpose="Gateway: of the connections that a remote cluster opens to Services, no more than its meter lets "
    "pass become entries of conntrack.",
    fields=(ETH_TYPE, CT_STATE, LABEL_SERVICE, CLUSTER),
    next=(24,),
)
SERVICE = Table(
    number=24,
    name="Service",
    purpose="Gateway: requests to this cluster's Services. New connections to exported ones get an endpoint.",
    fields=(ETH_TYPE, CT_STATE, IP_PROTO, TCP_FLAGS, *PORTS_DST.values(), *_DESTINATION),
    next=(25,),
)
CLIENT = Table(
    number=25,
    name="Client",
    purpose="Gateway: the client keeps its source port. The userspace datapath's conntrack may have given it "
    "another one, by which the next gateway, or the server, would not know it.",
    fields=(ETH_TYPE, CT_STATE, IP_PROTO, LABEL_CLIENT_PORT, *PORTS_SRC.values()),
    next=(60,),
)
UN_DNAT = Table(
    number=26,
    name="UnDnat",
    purpose="Gateway: a reply that needs un-translation goes on only translated: by conntrack if that was done "
    "here, else by the number of its Service, if it comes from an endpoint of that. Never raw.",
    fields=(ETH_TYPE, CT_STATE, SERVICE_ID, IP_PROTO, *PORTS_SRC.values(), *_SOURCE),
    next=(40,),
)
DEPARTURE = Table(
    number=30,
    name="Departure",
    purpose="From the host, direction known: connections opened here are committed and routed; replies go back "
    "to the gateway that their connection last came in by, or another if it is dead. What goes to a gateway of "
    "another cluster is a reply, also when conntrack has lost its connection. What an endpoint of an exported "
    "Service sends in the middle of a lost TCP connection waits until the client has been heard: who knows "
    "whether it is to be un-translated.",
    fields=(
        ETH_TYPE,
        CT_STATE,
        MARK_PORT,
        MARK_TRANSLATED,
        IP_PROTO,
        TCP_SRC,
        TCP_FLAGS,
        *_SOURCE,
        *_DESTINATION,
    ),
    next=(26, 40),
)
ROUTE = Table(
    number=40,
    name="Route",
    purpose="Longest prefix: the remote cluster of the destination. Workers hand the packet to a gateway. "
    "Addresses of remote gateways are for replies only.",
    fields=(ETH_TYPE, ORIGIN, REPLY, *_DESTINATION),
    next=(45,),
)
RELAY = Table(
    number=45,
    name="Relay",
    purpose="Gateway: directly if the cluster can be reached from here, else by a sibling gateway; one hop at "
    "most, and before any SNAT, so that the gateway that sends it out translates.",
    fields=(ORIGIN, CLUSTER),
    next=(50,),
)
SNAT_TABLE = Table(
    number=50,
    name="Snat",
    purpose="Gateway: replies, and Pods that the other cluster may see, keep their address. All else is SNATed.",
    fields=(ETH_TYPE, SNAT, REPLY, *_SOURCE),
    next=(52, 54),
)
SNAT_STATE = Table(
    number=52,
    name="SnatState",
    purpose="Gateway: new connections take the gateway's address and remember the port they came from.",
    fields=(ETH_TYPE, CT_STATE, CLUSTER),
    next=(54,),
)
EXIT = Table(
    number=54,
    name="Exit",
    purpose="Gateway: out to a gateway of the remote cluster, chosen by a hash of the connection.",
    fields=(ETH_TYPE, CLUSTER),
)
DELIVER = Table(
    number=60,
    name="Deliver",
    purpose="Longest prefix: the Node that has the destination.",
    fields=(ETH_TYPE, ORIGIN, *_DESTINATION),
    next=(70, 90),
)
ARRIVE = Table(
    number=70,
    name="Arrive",
    purpose="Into connection tracking of the Node that has the destination.",
    fields=(ETH_TYPE, ETH_DST, ORIGIN),
    next=(71,),
)
ADMIT = Table(
    number=71,
    name="Admit",
    purpose="Of the connections that a remote cluster opens to this Node, no more than its meter lets pass become "
    "entries of conntrack, here and in the kernel.",
    fields=(ETH_TYPE, CT_STATE, MARK_PORT, CLUSTER),
    next=(72,),
)
ARRIVE_STATE = Table(
    number=72,
    name="ArriveState",
    purpose="Keep the gateway that a connection comes in by, and what it translated; then to the kernel.",
    fields=(ETH_TYPE, CT_STATE, MARK_PORT, MARK_TRANSLATED, INGRESS_PORT, TRANSLATED),
)
OUTPUT = Table(
    number=90,
    name="Output",
    purpose="To another Node of this cluster; the destination MAC says whether a Service was translated.",
    fields=(TRANSLATED,),
)

TABLES = (
    CLASSIFY, SOURCE, UNTRANSLATE, UN_SNAT, ADMIT_SERVICE, SERVICE, CLIENT, UN_DNAT, DEPARTURE, ROUTE, RELAY,
    SNAT_TABLE, SNAT_STATE, EXIT, DELIVER, ARRIVE, ADMIT, ARRIVE_STATE, OUTPUT,
)  # fmt: skip

# --- groups ---------------------------------------------------------------------------------------------

# A group is made after those that it leads to, so it has a higher number.
GROUP_FIRST = GroupKind(
    number=1, name="first", purpose="of a choice with a standby, those to be used (number: that of the choice)"
)
GROUP_STANDBY = GroupKind(
    number=2,
    name="standby",
    purpose="those used only if none of the first is live: not Ready, flapping (number: that of the choice)",
)
GROUP_ANY = GroupKind(
    number=3,
    name="any",
    purpose="of a choice without a live one, those not on standby: better than dropping (number: the choice's)",
)
GROUP_GATEWAYS = GroupKind(number=4, name="gateways", purpose="a gateway of this cluster but this Node (number 0)")
GROUP_PREFER = GroupKind(
    number=5,
    name="prefer",
    purpose="the gateway behind a port, else another; on a gateway: else this one (number: port)",
    next=(26,),
)
GROUP_CLUSTER = GroupKind(number=6, name="cluster", purpose="a gateway of a remote cluster (number: cluster)")
GROUP_RELAY = GroupKind(
    number=7,
    name="relay",
    purpose="directly if anything there is live, else by a live sibling gateway, else directly (number: cluster)",
    next=(50,),
)
GROUP_REPLY = GroupKind(
    number=8,
    name="reply",
    purpose="a gateway of a remote cluster if it is live, else a live sibling, else that gateway (number: port)",
)
GROUP_SERVICE = GroupKind(
    number=9, name="service", purpose="endpoints of an exported Service (number: Service)", next=(25,)
)

# --- cookies --------------------------------------------------------------------------------------------

COOKIES = CookieLayout(owner=0x6D63)  # "mc"
FOR_BASE = Category(number=1, name="base", purpose="what every Node has")
FOR_CLUSTER = Category(number=2, name="cluster", purpose="a remote cluster; number: cluster")
FOR_NODE = Category(number=3, name="node", purpose="a Node of this cluster; number: Node")
FOR_SERVICE = Category(number=4, name="service", purpose="an exported Service; number: Service")


def _drop(number: int, name: str, purpose: str) -> Category:
    return Category(number=number, name=name, purpose=purpose, drops=True)


DROP_MISS = _drop(0x80, "miss", "no flow of the table wanted it; number: table")
DROP_SPOOFED = _drop(0x81, "spoofed", "host or Node sent from an address that is not its own; number: origin")
DROP_SPOOFED_REMOTE = _drop(
    0x82, "spoofed-remote", "a cluster sent from an address that is not its own; number: cluster"
)
DROP_NOT_PUBLISHED = _drop(0x83, "not-published", "from another cluster, to what is not published")
DROP_NOT_EXPORTED = _drop(0x84, "not-exported", "to a Service, port or protocol that is not exported")
DROP_NO_ENDPOINT = _drop(0x85, "no-endpoint", "to an exported Service without a ready endpoint; number: Service")
DROP_NO_STATE = _drop(
    0x86, "no-state", "a reply that needs, or may need, un-translation, of an unknown connection; number: table"
)
DROP_INVALID = _drop(0x87, "invalid", "conntrack calls it invalid; number: table")
DROP_NO_ROUTE = _drop(0x88, "no-route", "to an address that no remote cluster has")
DROP_NO_GATEWAY = _drop(0x89, "no-gateway", "to a cluster that has no usable gateway; number: cluster")
DROP_NO_NODE = _drop(0x8A, "no-node", "to an address of this cluster that no Node here has")
DROP_REFUSED = _drop(
    0x8B, "refused", "the reset of a client that was asked for a connection that it does not have"
)

# What the lowest flow of a table counts, where it has a better name than "miss".
MISS = {
    UNTRANSLATE.number: DROP_NOT_PUBLISHED,
    UN_SNAT.number: DROP_NO_STATE,
    SERVICE.number: DROP_INVALID,
    UN_DNAT.number: DROP_NO_STATE,
    DEPARTURE.number: DROP_INVALID,
    ROUTE.number: DROP_NO_ROUTE,
    SNAT_STATE.number: DROP_INVALID,
    DELIVER.number: DROP_NO_NODE,
}

# --- priorities -----------------------------------------------------------------------------------------

LOWEST = 0  # the counted drop that every table ends in
ELSE = 10  # what is left, for a known reason
NORMAL = 100
EXACT = 150  # a narrower case of one at NORMAL
PREFIX = 200  # plus the prefix length: the longest prefix wins
SPECIAL = 400  # before any prefix

PIPELINE = Pipeline(
    name="mcagent",
    tables=TABLES,
    bits=(
        ORIGIN, TRANSLATED, SNAT, REPLY, CLUSTER, INGRESS_PORT, EGRESS_PORT, CLIENT_PORT, MARK_PORT,
        MARK_TRANSLATED,
        LABEL_PORT, LABEL_CLIENT_PORT, LABEL_SERVICE, SERVICE_ID,
    ),
    writes=(ETH_DST, ETH_SRC, PKT_MARK, *_SOURCE, *PORTS_SRC.values()),
    zones=(ZONE_ARRIVAL, ZONE_SERVICE, ZONE_SNAT),
    groups=(
        GROUP_FIRST, GROUP_STANDBY, GROUP_ANY, GROUP_GATEWAYS, GROUP_PREFER, GROUP_CLUSTER, GROUP_RELAY,
        GROUP_REPLY, GROUP_SERVICE,
    ),
    categories=(
        FOR_BASE, FOR_CLUSTER, FOR_NODE, FOR_SERVICE, DROP_MISS, DROP_SPOOFED, DROP_SPOOFED_REMOTE,
        DROP_NOT_PUBLISHED, DROP_NOT_EXPORTED, DROP_NO_ENDPOINT, DROP_NO_STATE, DROP_INVALID, DROP_NO_ROUTE,
        DROP_NO_GATEWAY, DROP_NO_NODE, DROP_REFUSED,
    ),
    cookies=COOKIES,
    priorities=(
        (LOWEST, "the counted drop that every table ends in"),
        (ELSE, "what is left of something, for a known reason"),
        (NORMAL, "all that needs no order"),
        (EXACT, "a narrower case of one at 100"),
        (PREFIX, "plus the prefix length (up to 328): the longest prefix wins"),
        (SPECIAL, "before any prefix"),
    ),
)  # fmt: skip
