"""The page /trace as values: a walk, and what its numbers mean on that Node: rules of policies, Services. Pure.

Reads the desired state, which the flows were made from. Knows nothing of how a trace is made or shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from flows.pipeline import declaration as d
from mcagent.core.fragments.imported import parse_shares
from mcagent.core.trace import Probe, Walk
from mcagent.model.config import Config
from mcagent.model.plan import Desired
from mcagent.model.policies import Direction
from mcagent.model.resources import Link, NftChain


def page_of(walk: Walk, probe: Probe, desired: Desired | None, config: Config) -> dict[str, Any]:
    """Return the page of a Node; `desired` is None before anything was computed there."""
    named = names(walk, probe, desired, config.host_port) if desired is not None else {}
    return {"node": config.node_name, **asdict(walk), **named}


def names(walk: Walk, probe: Probe, desired: Desired, host_port: str) -> dict[str, Any]:
    """Return as plain values: `policies` and `exports` that the packet met, who isolates the Pod, MTU in bytes.

    `shares`: of the endpoints of an imported Service, if that is where the packet goes, in parts of 1.
    """
    state = desired.state
    services = {number: name for name, number in state.service_ids.items()}
    base, imported = (
        fragment.resources if (fragment := desired.fragments.get(owner)) is not None else ()
        for owner in ("base", "imported")
    )
    rules = [state.policy_rules[number] for number in dict.fromkeys(walk.rules) if number in state.policy_rules]
    return {
        "policies": [
            {"policy": one.policy, "rule": one.rule, "direction": one.direction, "verdict": one.verdict}
            for one in rules
        ],
        "isolatedBy": list(_isolating(walk, probe, desired)),
        "exports": [services[number] for number in dict.fromkeys(walk.services) if number in services],
        "mtu": next((one.mtu for one in base if isinstance(one, Link) and one.name == host_port), 0),
        "shares": [
            {"address": str(address), "port": port, "share": share}
            for chain in imported
            if isinstance(chain, NftChain)
            for rule in chain.rules
            for (address, port), share in parse_shares(rule, probe.destination, probe.protocol, probe.port)
        ],
    }


def _isolating(walk: Walk, probe: Probe, desired: Desired) -> Iterator[str]:
    if walk.reason == d.DROP_ISOLATED.name:
        direction = Direction.EGRESS if walk.number else Direction.INGRESS
        pod = probe.source if direction is Direction.EGRESS else probe.destination
        yield from desired.state.isolating.get((direction, pod), ())
