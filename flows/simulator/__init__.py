"""A simulator: processes a packet by flows, groups and connection tracking, and records every step. Pure."""

from flows.simulator.conntrack import (
    ConnectionTable,
    ConntrackEntry,
    CtRequest,
    CtResult,
    Datapath,
    MaskedValue,
    Tuple5,
)
from flows.simulator.network import Network, PacketWalk
from flows.simulator.packet import IpFragment, Packet
from flows.simulator.switch import SimulatedSwitch, SwitchWalk, TableStep
from flows.simulator.table import contradictions, overlap

__all__ = [
    "ConnectionTable",
    "ConntrackEntry",
    "CtRequest",
    "CtResult",
    "Datapath",
    "IpFragment",
    "MaskedValue",
    "Network",
    "Packet",
    "PacketWalk",
    "SimulatedSwitch",
    "SwitchWalk",
    "TableStep",
    "Tuple5",
    "contradictions",
    "overlap",
]
