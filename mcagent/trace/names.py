"""Names for the numbers of a trace on its Node: rules of policies, Services, the MTU. Pure.

Reads the desired state from which the flows were compiled. Must not know how a trace is made or shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address

from msgspec.structs import replace

from flows.pipeline import declaration as d
from flows.pipeline.prefixes import address_in_kernel
from mcagent.api.trace import EndpointShare, NodeTrace, TracedRule
from mcagent.core.fragments import own_endpoints
from mcagent.core.fragments.imported import parse_shares
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import NftChain
from mcagent.model.plan import Desired
from mcagent.model.policies import Direction
from mcagent.trace.probe import Probe


def with_names(trace: NodeTrace, probe: Probe, desired: Desired | None, config: Config) -> NodeTrace:
    """Add the Node's name to a trace and, if there is a desired state, all other names.

    `shares`: of the endpoints, if the destination is an imported Service.
    """
    if desired is None:
        return replace(trace, node=config.node_name)
    state = desired.state
    services = {number: name for name, number in state.service_ids.items()}
    imported = fragment.resources if (fragment := desired.fragments.get("imported")) is not None else ()
    rules = [state.policy_rules[number] for number in dict.fromkeys(trace.rules) if number in state.policy_rules]
    return replace(
        trace,
        node=config.node_name,
        policies=tuple(
            TracedRule(policy=rule.policy, rule=rule.rule, direction=rule.direction, verdict=rule.verdict)
            for rule in rules
        ),
        isolated_by=tuple(_isolating(trace, probe, desired)),
        exports=tuple(services[number] for number in dict.fromkeys(trace.services) if number in services),
        mtu=state.mtu,
        own_endpoint_closed=own_endpoints.is_closed(
            desired.fragments, probe.source, probe.destination, probe.protocol, probe.port
        ),
        shares=tuple(
            EndpointShare(address=str(address), port=port, share=share)
            for chain in imported
            if isinstance(chain, NftChain)
            for rule in chain.rules
            for (address, port), share in parse_shares(rule, probe.destination, probe.protocol, probe.port)
        ),
    )


def _isolating(trace: NodeTrace, probe: Probe, desired: Desired) -> Iterator[str]:
    if trace.reason == d.DROP_ISOLATED.name:
        direction = Direction.EGRESS if trace.number else Direction.INGRESS
        # The packet is dropped in the bridge; the map has the Pods' addresses in the kernel.
        destination = address_in_kernel(IPv4Address(trace.destination), desired.state.prefixes)
        pod = probe.source if direction is Direction.EGRESS else destination
        yield from desired.state.isolating.get((direction, pod), ())
