"""Endpoints that users of a member write."""

from __future__ import annotations

from collections.abc import Sequence

from mcagent.core.compile import compile_desired
from mcagent.model.dataplane.facts import Facts
from mcagent.model.objects import Endpoint, Kind, Pod
from tests.worlds.core_inputs import (
    HOME,
    addresses,
    config,
    endpoint,
    endpoint_slice,
    export,
    meta,
    service,
    snapshot,
)

POD = "10.10.3.9"


def host_pod(name: str, address: str, namespace: str = "default") -> Pod:
    """Return a Pod in the host network of a Node with an address."""
    return Pod(meta=meta(Kind.POD, name, namespace=namespace), node_name="w1", host_ips=addresses(address))


def served(port: int, *endpoints_beside: Endpoint, pods: Sequence[Pod] = ()) -> tuple[set[str], set[str]]:
    """Return the endpoints that a gateway serves an exported Service from, and what it tells.

    The Service's EndpointSlice has an ordinary Pod, and these endpoints beside it.
    """
    slices = endpoint_slice("s", "web", [endpoint(POD), *endpoints_beside], ("", port))
    compiled = compile_desired(
        snapshot(*HOME, service("web", "10.96.0.7", 80), export("web"), slices, *pods), Facts(), config("g1")
    )
    places = compiled.state.services["default/web:80/tcp"].endpoints
    return {f"{address}:{number}" for address, number in places}, {p.reason for p in compiled.desired.problems}
