"""What Open vSwitch says of the liveness of our tunnels, and what is kept in our bridge for the agent, as values.

Unlike counters it is part of the replica: ovs-vswitchd writes column bfd_status only when something happened, at
most every 100 ms (vswitchd/bridge.c, run_status_update).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.model.resources import TunnelPort

DRAIN = "mcagent-drain"  # external_ids of our bridge: "true" asks this Node to hand over, without any API
BFD_STATUS = "bfd_status"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelState:
    """One tunnel of ours with its column bfd_status (ovs-vswitchd.conf.db(5)), empty where BFD is off."""

    port: TunnelPort
    status: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeState:
    """All tunnels by name, and what is in the bridge's external_ids. The same object until something changes."""

    tunnels: tuple[TunnelState, ...] = ()
    active_order: tuple[str, ...] = ()
    drain: bool = False
