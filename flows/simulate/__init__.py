"""A simulator: walks a packet through flows, groups and connection tracking, and tells every step. Pure."""

from flows.simulate.conntrack import Connection, ConnectionTable, Datapath, Masked, Request, Tracked, Tuple5
from flows.simulate.network import Journey, Network
from flows.simulate.packet import Fragment, Packet
from flows.simulate.switch import Step, Switch, Walk
from flows.simulate.table import contradictions, overlap

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
