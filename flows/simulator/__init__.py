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
from flows.simulator.packet import IpFragment, Packet
from flows.simulator.switch import SimulatedSwitch, SwitchWalk, TableStep

__all__ = [
    "ConnectionTable",
    "ConntrackEntry",
    "CtRequest",
    "CtResult",
    "Datapath",
    "IpFragment",
    "MaskedValue",
    "Packet",
    "SimulatedSwitch",
    "SwitchWalk",
    "TableStep",
    "Tuple5",
]
