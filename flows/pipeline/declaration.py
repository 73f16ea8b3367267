"""The declaration of the pipeline: kinds of groups, cookies with the reasons of drops, priorities.

Undeclared properties are refused when a flow or group is built. docs/pipeline.md is generated from the
declaration.
"""

from __future__ import annotations

from flows.declare import Category, CookieLayout, GroupKind, Pipeline
from flows.fields import ETH_DST, ETH_SRC, IN_PORT, IP_TOS, PKT_MARK, PORTS_SRC, TCP_DST, TUN_ID
from flows.pipeline import registers as r
from flows.pipeline import tables as t

# A group is created after the groups that it refers to, so it has a higher number.
GROUP_ENDPOINTS = GroupKind(
    0, "endpoints", "endpoints of an exported Service on live Nodes (ID: Service)", next=(25,)
)
GROUP_FIRST = GroupKind(1, "first", "next hops that are not on standby, if others are (ID: of the group)")
GROUP_STANDBY = GroupKind(
    2, "standby", "next hops on standby (not Ready, damped), while none of `first` is live (ID: as for `first`)"
)
GROUP_ANY = GroupKind(
    3, "any", "next hops that are not on standby, while none is live: the last resort (ID: as for `first`)"
)
GROUP_GATEWAYS = GroupKind(
    4,
    "gateways",
    "another gateway of this cluster (ID 0); userspace datapath: the gateway behind a port (ID: port)",
)
GROUP_PREFER = GroupKind(
    5,
    "prefer",
    "the gateway behind a port while it is live, else another; on a gateway: else this one (ID: port)",
    next=(26,),
)
GROUP_CLUSTER = GroupKind(6, "cluster", "a gateway of a remote cluster (ID: cluster)")
GROUP_RELAY = GroupKind(
    7,
    "relay",
    "directly while a gateway of the cluster is live, else through a live sibling, else directly (ID: cluster)",
    next=(50,),
)
GROUP_REPLY = GroupKind(
    8, "reply", "a gateway of a remote cluster while it is live, else a live sibling, else that gateway (ID: port)"
)
GROUP_SERVICE = GroupKind(
    9,
    "service",
    "an endpoint of an exported Service, on a live Node if there is one (ID: Service)",
    next=(25,),
)
GROUP_ASK_ALL = GroupKind(
    10,
    "ask-all",
    "query for a connection: the Nodes of all endpoints of an exported Service (ID: Service)",
    next=(60,),
)
GROUP_ASK_LIVE = GroupKind(
    11,
    "ask-live",
    "query for a connection: the Node of an endpoint, chosen as in `endpoints` (ID: Service)",
    next=(60,),
)
GROUP_ASK = GroupKind(
    12, "ask", "query for a connection: the Node of an endpoint, chosen as in `service` (ID: Service)", next=(60,)
)

# --- cookies --------------------------------------------------------------------------------------------

COOKIES = CookieLayout(owner=0x6D63)  # "mc"
FOR_BASE = Category(1, "base", "flows of every Node")
FOR_CLUSTER = Category(2, "cluster", "a remote cluster; number: cluster")
FOR_NODE = Category(3, "node", "a Node of this cluster; number: Node")
FOR_SERVICE = Category(4, "service", "an exported Service; number: Service")
FOR_IDENTITY = Category(5, "identity", "packets of a Pod of this Node; number: its label identity")
FOR_POLICY = Category(6, "policy", "a rule that allows, rejects or passes; number: rule, 0 for clauses of rules")
FOR_RETURNED = Category(7, "returned", "packets of the host that return to it, to be answered or translated")
FOR_CONNECTION = Category(
    8,
    "connection",
    "of a connection to a Service; number: Service, 0 if its export or endpoint is gone: the agent deletes it",
)

DROP_MISS = Category(0x80, "miss", "no flow of the table matched; number: table")
DROP_SPOOFED = Category(
    0x81, "spoofed", "the host or a Node sent from an address that is not its own; number: origin"
)
DROP_SPOOFED_REMOTE = Category(
    0x82, "spoofed-remote", "a remote cluster sent from an address that is not its own; number: cluster"
)
DROP_NOT_PUBLISHED = Category(0x83, "not-published", "from a remote cluster to an address that is not published")
DROP_NOT_EXPORTED = Category(0x84, "not-exported", "to a Service, port or protocol that is not exported")
DROP_NO_ENDPOINT = Category(
    0x85, "no-endpoint", "to an exported Service without a ready endpoint; number: Service"
)
DROP_NO_STATE = Category(
    0x86, "no-state", "a reply of an unknown connection that may need un-translation; number: table"
)
DROP_INVALID = Category(0x87, "invalid", "invalid in conntrack; number: table")
DROP_NO_ROUTE = Category(0x88, "no-route", "to an address in no CIDR of a remote cluster")
DROP_NO_GATEWAY = Category(0x89, "no-gateway", "to a cluster without a usable gateway; number: cluster")
DROP_NO_NODE = Category(0x8A, "no-node", "to an address of this cluster that is on no known Node")
DROP_REFUSED = Category(0x8B, "refused", "the reset of a client without the connection that the agent probed")
DROP_POLICY = Category(0x8C, "policy", "a rule drops the packet; number: rule")
DROP_ISOLATED = Category(0x8D, "isolated", "no NetworkPolicy allows the packet; number: 0 ingress, 1 egress")
DROP_UNKNOWN = Category(
    0x8E, "unknown-identity", "of unknown label identity, to a Pod whose rules select clients by labels"
)
DROP_NO_CONNECTION = Category(
    0x8F,
    "no-connection",
    "a mid-connection TCP packet to a Service, of a connection that this Node does not have; number: table",
)
DROP_NOT_RELATED = Category(
    0x90,
    "not-related",
    "an ICMP error about a connection that this Node does not have with the cluster that sent it; number: table",
)

# The category of the lowest flow of a table, if it is not "miss".
MISS = {
    t.UNTRANSLATE.number: DROP_NOT_PUBLISHED,
    t.UN_SNAT.number: DROP_NO_STATE,
    t.SERVICE.number: DROP_INVALID,
    t.UN_DNAT.number: DROP_NO_STATE,
    t.DEPARTURE.number: DROP_INVALID,
    t.ROUTE.number: DROP_NO_ROUTE,
    t.SNAT_STATE.number: DROP_INVALID,
    t.DELIVER.number: DROP_NO_NODE,
    t.LOOKUP.number: DROP_NO_CONNECTION,
    t.LOOKUP_RESTORED.number: DROP_NO_CONNECTION,
    t.LOOKUP_RESULT.number: DROP_NO_CONNECTION,
}

# --- priorities -----------------------------------------------------------------------------------------

LOWEST, ELSE, NORMAL, EXACT, PREFIX, SPECIAL = 0, 10, 100, 150, 200, 400
RULES, UNJUDGED = 60000, 60001  # described in PIPELINE.priorities

PIPELINE = Pipeline(
    tables=t.TABLES,
    bits=r.BITS,
    writes=(
        IN_PORT, ETH_DST, ETH_SRC, PKT_MARK, TUN_ID, *t.ADDRESSES_SRC, *t.ADDRESSES_DST, *PORTS_SRC.values(),
        TCP_DST, IP_TOS,
    ),
    zones=r.ZONES,
    groups=(
        GROUP_ENDPOINTS, GROUP_FIRST, GROUP_STANDBY, GROUP_ANY, GROUP_GATEWAYS, GROUP_PREFER, GROUP_CLUSTER,
        GROUP_RELAY, GROUP_REPLY, GROUP_SERVICE, GROUP_ASK_ALL, GROUP_ASK_LIVE, GROUP_ASK,
    ),
    categories=(
        FOR_BASE, FOR_CLUSTER, FOR_NODE, FOR_SERVICE, FOR_IDENTITY, FOR_POLICY, FOR_RETURNED, FOR_CONNECTION,
        DROP_MISS, DROP_SPOOFED, DROP_SPOOFED_REMOTE, DROP_NOT_PUBLISHED, DROP_NOT_EXPORTED, DROP_NO_ENDPOINT,
        DROP_NO_STATE, DROP_INVALID, DROP_NO_ROUTE, DROP_NO_GATEWAY, DROP_NO_NODE, DROP_REFUSED, DROP_POLICY,
        DROP_ISOLATED, DROP_UNKNOWN, DROP_NO_CONNECTION, DROP_NOT_RELATED,
    ),
    cookies=COOKIES,
    priorities=(
        (LOWEST, "the counted drop at the end of each table"),
        (ELSE, "the general case, after those at 100 and above"),
        (NORMAL, "flows whose order does not matter"),
        (EXACT, "a special case of a flow at 100"),
        (PREFIX, "plus the prefix length (up to 328): the longest prefix wins"),
        (SPECIAL, "before all prefixes"),
        (RULES, "minus the level (down to 1000): rules of policies"),
        (
            UNJUDGED,
            "packets that rules do not apply to: replies, ICMP errors about requests, all fragments but the first",
        ),
    ),
)  # fmt: skip
