"""A simulator: walks a packet through flows, groups and connection tracking, and tells every step. Pure."""

from devtools.simulator.conntrack import Connection, ConnectionTable, Datapath, Masked, Request, Tracked, Tuple5
from devtools.simulator.network import Journey, Network
from devtools.simulator.packet import Fragment, Packet
from devtools.simulator.switch import Step, Switch, Walk
from devtools.simulator.table import contradictions, overlap

__all__ = [
    "Connection",
    "ConnectionTable",
    "Datapath",
    "Fragment",
    "Journey",
    "Masked",
    "Network",
    "Packet",
    "Request",
    "Step",
    "Switch",
    "Tracked",
    "Tuple5",
    "Walk",
    "contradictions",
    "overlap",
]
