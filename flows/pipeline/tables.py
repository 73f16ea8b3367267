"""The tables of the bridge in the order of the packet: purpose, match fields and next tables of each.

The flows of a table are built by the module of its step: `classify`, `mapping`, `source`, `identity`, `policy`,
`departure`, `untranslate`, `service`, `lookup`, `route`, `arrive`.
"""

from __future__ import annotations

from flows import fields as f
from flows.declare import PipelineTable
from flows.pipeline import registers as r

ADDRESSES_SRC = (f.IPV4_SRC, f.IPV6_SRC)
ADDRESSES_DST = (f.IPV4_DST, f.IPV6_DST)

CLASSIFY = PipelineTable(
    number=0,
    name="Classify",
    purpose="Determines the sender by the input port. Only IP packets pass; from the host only those to the "
    "virtual next hop, which are measured (not TCP). Agent probes to clients are routed like replies; resets to "
    "them are dropped. Reachability frames from gateways of this cluster go to the local agent. Probes of remote "
    "gateways are returned through their tunnel with this cluster's fingerprint as source address, and answers to "
    "this gateway's probes go to the agent. Connections that the agent restores are committed.",
    fields=(f.IN_PORT, f.ETH_TYPE, f.ETH_DST, f.IP_PROTO, f.IP_TOS, f.IP_FRAG, f.TCP_FLAGS),
    next=(3, 5, 9, 10, 26, 40),
)
SENT_FRAGMENTS = PipelineTable(
    number=3,
    name="SentFragments",
    purpose="Limits fragments of the host by a meter that the last bits of the source address choose, so that no "
    "Pod uses up what other clusters accept of this one.",
    fields=(f.ETH_TYPE, *ADDRESSES_SRC),
    next=(5,),
)
UNMAP = PipelineTable(
    number=5,
    name="Unmap",
    purpose="Packets of the host: the mapped address of a remote gateway becomes the gateway's own address. Only "
    "replies have such a destination. Packets that are too large for tunnels return to the kernel, whose route "
    "answers them with the MTU: a CNI that forwards by eBPF has not asked it. So do ICMP errors in which nft "
    "has not replaced the mapped address.",
    fields=(f.ETH_TYPE, r.TOO_LARGE, r.REPAIRED, f.IP_PROTO, f.ICMP_TYPE, *ADDRESSES_DST),
    next=(8, 10),
)
VIRTUAL = PipelineTable(
    number=8,
    name="Virtual",
    purpose="Packets of the host: the virtual prefix of a Pod's source address replaces the real one. The tables "
    "up to Map have virtual addresses only. No Pod sends from a virtual address itself.",
    fields=(f.ETH_TYPE, *ADDRESSES_SRC),
    next=(10,),
)
OWNER = PipelineTable(
    number=9,
    name="Owner",
    purpose="Packets from tunnels: the remote cluster that has the source address, by the longest prefix. Table "
    "Related has quoted addresses of ICMP errors looked up in the same way.",
    fields=(f.ETH_TYPE, r.INGRESS_PORT, *ADDRESSES_SRC),
    next=(10,),
)
SOURCE = PipelineTable(
    number=10,
    name="Source",
    purpose="Source-address check: remote clusters, Nodes and the host may send only from their own addresses. An "
    "ICMP error may come only from the cluster at the other end of the connection that it quotes.",
    fields=(
        f.ETH_TYPE, r.ORIGIN, r.OTHER_GATEWAY, r.QUOTED, r.CLUSTER, r.OWNER, r.INGRESS_PORT, *ADDRESSES_SRC
    ),
    next=(10, 11, 12, 20, 30, 76),
)  # fmt: skip
FRAGMENTS = PipelineTable(
    number=11,
    name="Fragments",
    purpose="Packets of remote clusters: limits the fragments of each cluster by its meter, before conntrack "
    "reassembles them. On a gateway, packets from its own tunnels continue with their kind, those that other "
    "gateways forward with their destination.",
    fields=(f.ETH_TYPE, f.IP_FRAG, r.ORIGIN, r.QUOTED, r.METERED, r.CLUSTER),
    next=(11, 12, 20, 60, 62, 71),
)
IDENTITY = PipelineTable(
    number=12,
    name="Identity",
    purpose="Label identities: packets of a Pod of this Node are marked with the Pod's identity; a gateway "
    "accepts from a remote cluster only identities of that cluster's Pods.",
    fields=(f.ETH_TYPE, r.ORIGIN, r.CLUSTER, f.TUN_ID, *ADDRESSES_SRC),
    next=(14, 20, 30),
)
UNTRANSLATE = PipelineTable(
    number=20,
    name="Untranslate",
    purpose="Gateway: dispatches by kind of packet. From remote clusters: replies to SNATed connections, requests "
    "to Services, packets to Pods. From Nodes: replies of translated Services, plain replies, and packets "
    "of connections that this cluster opened.",
    fields=(f.ETH_TYPE, f.ETH_DST, r.ORIGIN, *ADDRESSES_DST),
    next=(22, 23, 26, 40, 60),
)
UN_SNAT = PipelineTable(
    number=22,
    name="UnSnat",
    purpose="Gateway: sends replies to connections that this gateway SNATed to the Node in the connection's "
    "label.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.LABEL_PORT),
    next=(70, 90),
)
ADMIT_SERVICE = PipelineTable(
    number=23,
    name="AdmitService",
    purpose="Gateway: limits the conntrack entries that a remote cluster's connections to Services create.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.LABEL_SERVICE),
    next=(24, 73),
)
SERVICE = PipelineTable(
    number=24,
    name="Service",
    purpose="Gateway: translates requests to this cluster's Services. New connections to exported Services get an "
    "endpoint. For a mid-connection TCP packet of an unknown connection, a Node is queried for that connection. "
    "A packet of a connection whose export, or (not TCP) endpoint, is gone goes to the agent, which deletes the "
    "connection.",
    fields=(
        f.ETH_TYPE, f.CT_STATE, r.LABEL_SERVICE, r.CLUSTER, f.IP_PROTO, f.IP_FRAG, f.IP_TOS, f.TCP_FLAGS,
        *f.PORTS_DST.values(), *ADDRESSES_DST,
    ),
    next=(25, 76),
)  # fmt: skip
CLIENT = PipelineTable(
    number=25,
    name="Client",
    purpose="Gateway: restores the client's source port. Conntrack of the userspace datapath may have changed it, "
    "and neither the next gateway nor the server would recognise the connection by the changed port.",
    fields=(f.ETH_TYPE, f.CT_STATE, f.IP_PROTO, f.IP_FRAG, r.LABEL_CLIENT_PORT, *f.PORTS_SRC.values()),
    next=(60,),
)
UN_DNAT = PipelineTable(
    number=26,
    name="UnDnat",
    purpose="Gateway: un-translates replies of Services: by conntrack if this gateway translated the connection, "
    "else by the Service's ID if the sender is an endpoint of that Service. Other replies are dropped, "
    "never forwarded untranslated; those of a connection whose export is gone go to the agent, which deletes the "
    "connection.",
    fields=(
        f.ETH_TYPE,
        f.CT_STATE,
        r.LABEL_SERVICE,
        r.SERVICE_ID,
        f.IP_PROTO,
        f.IP_FRAG,
        *f.PORTS_SRC.values(),
        *ADDRESSES_SRC,
    ),
    next=(40,),
)
DEPARTURE = PipelineTable(
    number=30,
    name="Departure",
    purpose="Packets of the host, with the direction from conntrack. Connections of this Node are committed and "
    "routed. Replies return to the gateway of their connection's last request, or to another one if that "
    "is dead. Packets to a mapped address are replies even if conntrack has lost their connection. If the "
    "connection of an exported Service's endpoint is lost, its mid-connection TCP packets are dropped until "
    "the client sends again, because only then is it known whether to un-translate.",
    fields=(
        f.ETH_TYPE,
        f.CT_STATE,
        r.MARK_PORT,
        r.MARK_TRANSLATED,
        r.MARK_OPENED,
        r.REPLY,
        f.IP_PROTO,
        f.TCP_SRC,
        f.TCP_FLAGS,
        *ADDRESSES_SRC,
    ),
    next=(26, 40),
)
ROUTE = PipelineTable(
    number=40,
    name="Route",
    purpose="Selects the remote cluster by the longest prefix of the destination. Workers send the packet to a "
    "gateway. Only replies may go to addresses of remote gateways.",
    fields=(f.ETH_TYPE, r.ORIGIN, r.REPLY, *ADDRESSES_DST),
    next=(45,),
)
RELAY = PipelineTable(
    number=45,
    name="Relay",
    purpose="Gateway: sends directly if this gateway reaches the cluster, else through a sibling gateway: at most "
    "one hop, and before SNAT, so that the sending gateway translates.",
    fields=(r.ORIGIN, r.CLUSTER),
    next=(50,),
)
SNAT_TABLE = PipelineTable(
    number=50,
    name="Snat",
    purpose="Gateway: replies and published Pods keep their source address; all other packets are SNATed.",
    fields=(f.ETH_TYPE, r.SNAT, r.REPLY, *ADDRESSES_SRC),
    next=(52, 54),
)
SNAT_STATE = PipelineTable(
    number=52,
    name="SnatState",
    purpose="Gateway: SNATs new connections to the gateway's address and stores their ingress port. TCP "
    "connections that another gateway has SNATed before are marked (type of service): the server resets them.",
    fields=(f.ETH_TYPE, f.CT_STATE, f.IP_PROTO, f.TCP_FLAGS, r.LABEL_ENDED, r.CLUSTER, *ADDRESSES_SRC),
    next=(54,),
)
EXIT = PipelineTable(
    number=54,
    name="Exit",
    purpose="Gateway: sends to a gateway of the remote cluster, selected by a hash of the connection.",
    fields=(f.ETH_TYPE, r.CLUSTER),
)
DELIVER = PipelineTable(
    number=60,
    name="Deliver",
    purpose="Selects the destination's Node by the longest prefix.",
    fields=(f.ETH_TYPE, r.ORIGIN, *ADDRESSES_DST),
    next=(70, 90),
)
ARRIVE = PipelineTable(
    number=70,
    name="Arrive",
    purpose="Passes packets through conntrack of the destination's Node.",
    fields=(f.ETH_TYPE, f.ETH_DST, r.ORIGIN, r.LOOKUP),
    next=(56, 74),
)
RELATED = PipelineTable(
    number=56,
    name="Related",
    purpose="ICMP errors: the cluster at the other end of the quoted connection is looked up by its address in "
    "conntrack, if the connection began here, else it is in the label. An error about an unknown connection is "
    "dropped.",
    fields=(f.ETH_TYPE, f.CT_STATE, f.IP_PROTO, f.ICMP_TYPE),
    next=(9, 10, 62, 71),
)
ADMIT = PipelineTable(
    number=71,
    name="Admit",
    purpose="Limits the conntrack entries that a remote cluster's connections to this Node create, here and in "
    "the kernel.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.MARK_PORT),
    next=(72, 73),
)
NEW_CONNECTIONS = PipelineTable(
    number=73,
    name="NewConnections",
    purpose="The meters of new connections, one for each remote cluster. AdmitService, Admit and Reject look up "
    "packets here that would create a conntrack entry, and continue with those that the meter passes.",
    fields=(r.CLUSTER,),
)
ARRIVE_STATE = PipelineTable(
    number=72,
    name="ArriveState",
    purpose="Stores the gateway through which a connection arrives, and the Service that it translated; then "
    "outputs replies to the kernel.",
    fields=(
        f.ETH_TYPE, f.CT_STATE, f.IP_PROTO, r.MARK_PORT, r.MARK_TRANSLATED, r.MARK_OPENED, r.INGRESS_PORT,
        r.TRANSLATED,
    ),
    next=(80, 82),
)  # fmt: skip
MAP = PipelineTable(
    number=80,
    name="Map",
    purpose="Outputs requests to the kernel. If a remote gateway has translated the source, its mapped address "
    "replaces its own one: the reply is routed to the bridge by that address.",
    fields=(f.ETH_TYPE, *ADDRESSES_SRC),
    next=(82,),
)
REAL = PipelineTable(
    number=82,
    name="Real",
    purpose="Outputs to the kernel: the real prefix of a Pod's destination address replaces the virtual one.",
    fields=(f.ETH_TYPE, *ADDRESSES_DST),
)
LOOKUP = PipelineTable(
    number=74,
    name="Lookup",
    purpose="Answers queries of gateways for a translated connection of this Node: the packet returns to the "
    "gateway with the answer. If all Nodes are queried, Nodes without the connection drop the packet.",
    fields=(f.ETH_TYPE, r.ORIGIN, r.LOOKUP, r.MARK_TRANSLATED),
    next=(75, 76),
)
LOOKUP_RESTORED = PipelineTable(
    number=75,
    name="LookupRestored",
    purpose="The same for connections that the agent has restored from the kernel's conntrack.",
    fields=LOOKUP.fields,
    next=(76,),
)
LOOKUP_RESULT = PipelineTable(
    number=76,
    name="LookupResult",
    purpose="Gateway: processes answers to queries. The packet goes to the Node that has the connection, which is "
    "committed. If the Node queried first does not have it, the Nodes of all endpoints are queried, "
    "limited by the cluster's meter.",
    fields=(f.ETH_TYPE, f.ETH_DST, r.CLUSTER, r.SERVICE_ID, r.INGRESS_PORT, f.IP_PROTO, f.TCP_DST, *ADDRESSES_DST),
    next=(25, 76),
)
_JUDGED: tuple[f.MatchField | f.Bits, ...] = (
    f.ETH_TYPE, f.CT_STATE, f.CONJ_ID, f.IP_PROTO, f.IP_FRAG, f.ICMP_TYPE, f.ICMP_CODE, *f.PORTS_DST.values(),
    *ADDRESSES_SRC, *ADDRESSES_DST,
)  # fmt: skip
EGRESS_TIERS = PipelineTable(
    number=14,
    name="EgressTiers",
    purpose="Policies of this Node's Pods as clients: rules of tiers, in order, applied to each packet of a "
    "request. An ICMP error that this Node's kernel sends for a Pod gets the Pod's address.",
    fields=_JUDGED,
    next=(16, 19, 30),
)
EGRESS_NETWORK_POLICY = PipelineTable(
    number=16,
    name="EgressNetworkPolicy",
    purpose="NetworkPolicies: requests of an isolated Pod pass if one of them allows it.",
    fields=_JUDGED,
    next=(18, 30),
)
EGRESS_BASELINE = PipelineTable(
    number=18, name="EgressBaseline", purpose="Rules of the Baseline tier.", fields=_JUDGED, next=(19, 30)
)
EGRESS_REJECT = PipelineTable(
    number=19,
    name="EgressReject",
    purpose="Returns rejected requests to the kernel, where nft answers the Pod at its real address.",
    fields=(f.ETH_TYPE, *ADDRESSES_SRC),
)
_ARRIVING = (*_JUDGED, f.TUN_ID, r.CLUSTER, r.TRANSLATED)
INGRESS_TIERS = PipelineTable(
    number=62,
    name="IngressTiers",
    purpose="Policies of this Node's Pods as servers: rules of tiers, in order, applied to each packet of a "
    "request.",
    fields=_ARRIVING,
    next=(64, 68, 71),
)
INGRESS_NETWORK_POLICY = PipelineTable(
    number=64,
    name="IngressNetworkPolicy",
    purpose="NetworkPolicies: requests to an isolated Pod pass if one of them allows it.",
    fields=_ARRIVING,
    next=(66, 71),
)
INGRESS_BASELINE = PipelineTable(
    number=66,
    name="IngressBaseline",
    purpose="Rules of the Baseline tier; then requests of unknown label identity are dropped for Pods whose rules "
    "select clients by labels.",
    fields=_ARRIVING,
    next=(68, 71),
)
REJECT = PipelineTable(
    number=68,
    name="Reject",
    purpose="Limits the rejected connections of a remote cluster, as Admit does.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.MARK_PORT),
    next=(69, 73),
)
REJECT_STATE = PipelineTable(
    number=69,
    name="RejectState",
    purpose="Commits the connection, so that the answer is routed like a reply. Nft answers.",
    fields=(f.ETH_TYPE, f.CT_STATE, r.TRANSLATED),
    next=(80,),
)
OUTPUT = PipelineTable(
    number=90,
    name="Output",
    purpose="Outputs to another Node of this cluster. The destination MAC says whether a Service was translated, "
    "or whether the Node is queried for the connection.",
    fields=(r.TRANSLATED, r.LOOKUP),
)

# Present only if policies are enabled.
POLICY_TABLES = (
    IDENTITY, EGRESS_TIERS, EGRESS_NETWORK_POLICY, EGRESS_BASELINE, EGRESS_REJECT, INGRESS_TIERS,
    INGRESS_NETWORK_POLICY, INGRESS_BASELINE, REJECT, REJECT_STATE,
)  # fmt: skip
# Present only if a Pod CIDR of this cluster has a virtual prefix.
PREFIX_TABLES = (VIRTUAL, REAL)
TABLES = (
    CLASSIFY, SENT_FRAGMENTS, UNMAP, VIRTUAL, OWNER, SOURCE, FRAGMENTS, IDENTITY, EGRESS_TIERS,
    EGRESS_NETWORK_POLICY, EGRESS_BASELINE, EGRESS_REJECT, UNTRANSLATE, UN_SNAT, ADMIT_SERVICE, SERVICE, CLIENT,
    UN_DNAT, DEPARTURE, ROUTE, RELAY, SNAT_TABLE,
    SNAT_STATE, EXIT, DELIVER, ARRIVE, RELATED, INGRESS_TIERS, INGRESS_NETWORK_POLICY,
    INGRESS_BASELINE, REJECT, REJECT_STATE, ADMIT, NEW_CONNECTIONS, ARRIVE_STATE, LOOKUP, LOOKUP_RESTORED,
    LOOKUP_RESULT, MAP, REAL, OUTPUT,
)  # fmt: skip
