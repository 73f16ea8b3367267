"""A simulator: walks a packet through flows, groups and connection tracking, and tells every step. Pure."""

from flows.simulator.conntrack import Connection, ConnectionTable, Datapath, Masked, Request, Tracked, Tuple5
from flows.simulator.network import Network, PacketWalk
from flows.simulator.packet import Fragment, Packet
from flows.simulator.switch import Step, Switch, Walk
from flows.simulator.table import contradictions, overlap

__all__ = [
    "Connection",
    "ConnectionTable",
    "Datapath",
    "Fragment",
    "Masked",
    "Network",
    "Packet",
    "PacketWalk",
    "Request",
    "Step",
    "Switch",
    "Tracked",
    "Tuple5",
    "Walk",
    "contradictions",
    "overlap",
]
