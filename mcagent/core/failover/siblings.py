"""The other gateways of this cluster that this gateway reports as dead. Pure.

Antrea's gateways send to the first gateway only and have no BFD. The member's controller demotes it as soon as
other gateways report it (`mcagent.controller.member.networks.demotion`). A demotion ends connections, so a report
needs more than a lost session:

- The agent observed the loss, and the session stays down for `CONFIRMED_AFTER`, or longer if the gateway flaps: as
  many times longer as its hold-down time has grown (`liveness`).
- Another peer has answered BFD since before the loss: else this gateway itself may be cut off. A gateway without
  any other peer that answers BFD cannot tell, and reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mcagent.core.failover.liveness import Damping, LivenessCause, PeerLiveness, Peers
from mcagent.model.dataplane.resources import PeerKind, TunnelPort

CONFIRMED_AFTER = 0.3  # seconds


def dead_gateways(
    ports: Iterable[TunnelPort], peers: Peers, now: float, damping: Damping
) -> tuple[frozenset[str], float]:
    """Return the Node names of the gateways to report, and the time at which another one is due (inf: none)."""
    siblings = {port.peer: peers[port.name] for port in ports if port.peer_kind is PeerKind.GATEWAY}
    down = {node: peer for node, peer in siblings.items() if _observed_loss(peer)}
    if not down:
        return frozenset(), math.inf
    down_ports = {peer.port for peer in down.values()}
    witnesses = [peer for name, peer in peers.items() if peer.seen and not peer.gone and name not in down_ports]
    due = {
        node: peer.since + CONFIRMED_AFTER * _flaps(peer, damping)
        for node, peer in down.items()
        if not witnesses or any(_answers(witness) and witness.since < peer.since for witness in witnesses)
    }
    wake = min((at for at in due.values() if at > now), default=math.inf)
    return frozenset(node for node, at in due.items() if at <= now), wake


def _observed_loss(peer: PeerLiveness) -> bool:
    """Tell whether BFD is down, and was not down already when the agent started."""
    return not peer.live and peer.cause is LivenessCause.BFD and bool(peer.transitions)


def _flaps(peer: PeerLiveness, damping: Damping) -> float:
    """Return the ratio of the hold-down time to that of a single loss."""
    return max(1.0, peer.hold_down.seconds / damping.initial) if damping.initial > 0 else 1.0


def _answers(peer: PeerLiveness) -> bool:
    return peer.live and peer.cause is LivenessCause.BFD
