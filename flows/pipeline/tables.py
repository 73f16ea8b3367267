"""The tables of the bridge in the order of the packet: what each decides, may match, and leads to.

The flows of a table are in the module of its step: `classify`, `source`, `departure`, `untranslate`, `service`,
`lookup`, `route`, `arrive`.
"""

from __future__ import annotations

from flows import fields as f
from flows.declare import Table
from flows.pipeline import registers as r

ADDRESSES_SRC = (f.IPV4_SRC, f.IPV6_SRC)
ADDRESSES_DST = (f.IPV4_DST, f.IPV6_DST)

CLASSIFY = Table(
    number=0,
    name="Classify",
    purpose="By port: who sent it. Only IP passes; from the host only what is addressed to the virtual next hop. "
    "What the agent asks clients goes the way of replies; a client that refuses is not heard. What the agents of "
    "this cluster's gateways tell goes to the agent here. Probes of other clusters' gateways go back where they "
    "came from, and answers to this one's to the agent. Connections that the agent restores go into conntrack.",
    fields=(f.IN_PORT, f.ETH_TYPE, f.ETH_DST, f.IP_PROTO, f.IP_TOS, f.TCP_FLAGS),
    next=(10, 26, 40),
)
SOURCE = Table(
    number=10,
    name="Source",
    purpose="Source-address check: a cluster, a Node and the host may send only from addresses that are theirs.",
    fields=(f.ETH_TYPE, r.ORIGIN, r.CLUSTER, r.INGRESS_PORT, *ADDRESSES_SRC),
    next=(12, 20, 30, 60, 76),
)
IDENTITY = Table(
    number=12,
    name="Identity",
    purpose="Label identities: what a Pod of this Node sends gets its number; on a gateway, another cluster is "
    "believed only numbers of its own Pods.",
    fields=(f.ETH_TYPE, r.ORIGIN, r.CLUSTER, f.TUN_ID, *ADDRESSES_SRC),
    next=(14, 20, 30),
)
UNTRANSLATE = Table(
    number=20,
    name="Untranslate",
    purpose="Gateway: what is it? A reply to a SNATed connection, a request to a Service, a packet to a Pod; "
    "from a Node: a reply of a translated Service, a plain reply, or a packet of a connection opened here.",
    fields=(f.ETH_TYPE, f.ETH_DST, r.ORIGIN, *ADDRESSES_DST),
    next=(22, 23, 26, 40, 60),
)
UN_SNAT = Table(
    number=22,
    name="UnSnat",
    purpose="Gateway: replies to connections that this gateway SNATed go to the Node in the connection's label.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.LABEL_PORT),
    next=(70, 90),
)
ADMIT_SERVICE = Table(
    number=23,
    name="AdmitService",
    purpose="Gateway: of the connections that a remote cluster opens to Services, no more than its meter lets "
    "pass become entries of conntrack.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.LABEL_SERVICE, r.CLUSTER),
    next=(24,),
)
SERVICE = Table(
    number=24,
    name="Service",
    purpose="Gateway: requests to this cluster's Services. New connections to exported ones get an endpoint. For "
    "a TCP packet from the middle of an unknown connection, a Node is asked whether it has that connection.",
    fields=(f.ETH_TYPE, f.CT_STATE, f.IP_PROTO, f.TCP_FLAGS, *f.PORTS_DST.values(), *ADDRESSES_DST),
    next=(25, 76),
)
CLIENT = Table(
    number=25,
    name="Client",
    purpose="Gateway: the client keeps its source port. The userspace datapath's conntrack may have given it "
    "another one, by which the next gateway, or the server, would not know it.",
    fields=(f.ETH_TYPE, f.CT_STATE, f.IP_PROTO, r.LABEL_CLIENT_PORT, *f.PORTS_SRC.values()),
    next=(60,),
)
UN_DNAT = Table(
    number=26,
    name="UnDnat",
    purpose="Gateway: a reply that needs un-translation goes on only translated: by conntrack if that was done "
    "here, else by the ID of its Service, if it comes from an endpoint of that. Never raw.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.SERVICE_ID, f.IP_PROTO, *f.PORTS_SRC.values(), *ADDRESSES_SRC),
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
        f.ETH_TYPE,
        f.CT_STATE,
        r.MARK_PORT,
        r.MARK_TRANSLATED,
        r.MARK_OPENED,
        f.IP_PROTO,
        f.TCP_SRC,
        f.TCP_FLAGS,
        *ADDRESSES_SRC,
        *ADDRESSES_DST,
    ),
    next=(26, 40),
)
ROUTE = Table(
    number=40,
    name="Route",
    purpose="Longest prefix: the remote cluster of the destination. Workers hand the packet to a gateway. "
    "Addresses of remote gateways are for replies only.",
    fields=(f.ETH_TYPE, r.ORIGIN, r.REPLY, *ADDRESSES_DST),
    next=(45,),
)
RELAY = Table(
    number=45,
    name="Relay",
    purpose="Gateway: directly if the cluster can be reached from here, else by a sibling gateway; one hop at "
    "most, and before any SNAT, so that the gateway that sends it out translates.",
    fields=(r.ORIGIN, r.CLUSTER),
    next=(50,),
)
SNAT_TABLE = Table(
    number=50,
    name="Snat",
    purpose="Gateway: replies, and Pods that the other cluster may see, keep their address. All else is SNATed.",
    fields=(f.ETH_TYPE, r.SNAT, r.REPLY, *ADDRESSES_SRC),
    next=(52, 54),
)
SNAT_STATE = Table(
    number=52,
    name="SnatState",
    purpose="Gateway: new connections take the gateway's address and remember the port they came from.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.CLUSTER, *ADDRESSES_SRC),
    next=(54,),
)
EXIT = Table(
    number=54,
    name="Exit",
    purpose="Gateway: out to a gateway of the remote cluster, chosen by a hash of the connection.",
    fields=(f.ETH_TYPE, r.CLUSTER),
)
DELIVER = Table(
    number=60,
    name="Deliver",
    purpose="Longest prefix: the Node that has the destination.",
    fields=(f.ETH_TYPE, r.ORIGIN, *ADDRESSES_DST),
    next=(70, 90),
)
ARRIVE = Table(
    number=70,
    name="Arrive",
    purpose="Into connection tracking of the Node that has the destination.",
    fields=(f.ETH_TYPE, f.ETH_DST, r.ORIGIN, r.LOOKUP),
    next=(62, 71, 74),
)
ADMIT = Table(
    number=71,
    name="Admit",
    purpose="Of the connections that a remote cluster opens to this Node, no more than its meter lets pass become "
    "entries of conntrack, here and in the kernel.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.MARK_PORT, r.CLUSTER),
    next=(72,),
)
ARRIVE_STATE = Table(
    number=72,
    name="ArriveState",
    purpose="Keep the gateway that a connection comes in by, and what it translated; then to the kernel.",
    fields=(
        f.ETH_TYPE, f.CT_STATE, f.IP_PROTO, r.MARK_PORT, r.MARK_TRANSLATED, r.MARK_OPENED, r.INGRESS_PORT,
        r.TRANSLATED,
    ),
)  # fmt: skip
LOOKUP = Table(
    number=74,
    name="Lookup",
    purpose="Does this Node have the connection, translated by a gateway? The packet goes back to the gateway "
    "with the answer. If all Nodes are asked, those that do not have it drop the packet.",
    fields=(f.ETH_TYPE, r.ORIGIN, r.LOOKUP, r.MARK_TRANSLATED),
    next=(75, 76),
)
LOOKUP_RESTORED = Table(
    number=75,
    name="LookupRestored",
    purpose="The same with the connections that the agent has restored from the kernel's conntrack.",
    fields=LOOKUP.fields,
    next=(76,),
)
LOOKUP_RESULT = Table(
    number=76,
    name="LookupResult",
    purpose="Gateway: the Node that has the connection gets the packet, and the connection is known from now on. "
    "If the Node that was asked first does not have it, the Nodes of all endpoints are asked, of each cluster's "
    "packets no more than its meter lets pass.",
    fields=(f.ETH_TYPE, f.ETH_DST, r.CLUSTER, r.SERVICE_ID, r.INGRESS_PORT, f.IP_PROTO, f.TCP_DST, *ADDRESSES_DST),
    next=(25, 76),
)
_JUDGED: tuple[f.Field | f.Bits, ...] = (
    f.ETH_TYPE, f.CT_STATE, f.CONJ_ID, f.IP_PROTO, f.IP_FRAG, f.ICMP_TYPE, f.ICMP_CODE, *f.PORTS_DST.values(),
    *ADDRESSES_SRC, *ADDRESSES_DST,
)  # fmt: skip
EGRESS_TIERS = Table(
    number=14,
    name="EgressTiers",
    purpose="Policies of this Node's Pods as clients: rules of tiers, in order. Each packet of a request is "
    "judged. An ICMP error that this Node's kernel sends for a Pod gets the Pod's address.",
    fields=_JUDGED,
    next=(16, 19, 30),
)
EGRESS_NETWORK_POLICY = Table(
    number=16,
    name="EgressNetworkPolicy",
    purpose="NetworkPolicies: from an isolated Pod what one of them allows.",
    fields=_JUDGED,
    next=(18, 30),
)
EGRESS_BASELINE = Table(
    number=18, name="EgressBaseline", purpose="Rules of the Baseline tier.", fields=_JUDGED, next=(19, 30)
)
EGRESS_REJECT = Table(
    number=19,
    name="EgressReject",
    purpose="Back to the kernel, where nft answers the Pod.",
    fields=(f.ETH_TYPE,),
)
_ARRIVING = (*_JUDGED, f.TUN_ID, r.CLUSTER, r.TRANSLATED)
INGRESS_TIERS = Table(
    number=62,
    name="IngressTiers",
    purpose="Policies of this Node's Pods as servers: rules of tiers, in order. Each packet of a request is "
    "judged.",
    fields=_ARRIVING,
    next=(64, 68, 71),
)
INGRESS_NETWORK_POLICY = Table(
    number=64,
    name="IngressNetworkPolicy",
    purpose="NetworkPolicies: to an isolated Pod what one of them allows.",
    fields=_ARRIVING,
    next=(66, 71),
)
INGRESS_BASELINE = Table(
    number=66,
    name="IngressBaseline",
    purpose="Rules of the Baseline tier; then drop unknown clients of Pods with rules by labels.",
    fields=_ARRIVING,
    next=(68, 71),
)
REJECT = Table(
    number=68,
    name="Reject",
    purpose="Of the connections that a remote cluster opens, no more are rejected than its meter lets pass, as in "
    "Admit.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.MARK_PORT, r.CLUSTER),
    next=(69,),
)
REJECT_STATE = Table(
    number=69,
    name="RejectState",
    purpose="Into conntrack, so that the answer finds the way of replies; to the kernel, where nft answers.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.TRANSLATED),
)
OUTPUT = Table(
    number=90,
    name="Output",
    purpose="To another Node of this cluster; the destination MAC says whether a Service was translated, or "
    "whether the Node is asked for the connection.",
    fields=(r.TRANSLATED, r.LOOKUP),
)

# Only where policies are on.
POLICY_TABLES = (
    IDENTITY, EGRESS_TIERS, EGRESS_NETWORK_POLICY, EGRESS_BASELINE, EGRESS_REJECT, INGRESS_TIERS,
    INGRESS_NETWORK_POLICY, INGRESS_BASELINE, REJECT, REJECT_STATE,
)  # fmt: skip
TABLES = (
    CLASSIFY, SOURCE, IDENTITY, EGRESS_TIERS, EGRESS_NETWORK_POLICY, EGRESS_BASELINE, EGRESS_REJECT, UNTRANSLATE,
    UN_SNAT, ADMIT_SERVICE, SERVICE, CLIENT, UN_DNAT, DEPARTURE, ROUTE, RELAY, SNAT_TABLE, SNAT_STATE, EXIT,
    DELIVER, INGRESS_TIERS, INGRESS_NETWORK_POLICY, INGRESS_BASELINE, REJECT, REJECT_STATE, ARRIVE, ADMIT,
    ARRIVE_STATE, LOOKUP, LOOKUP_RESTORED, LOOKUP_RESULT, OUTPUT,
)  # fmt: skip
