"""The doctor on a Node: collects observations of all components and makes findings.

Needs neither agent nor Open vSwitch nor API server: a part that fails is a finding, and stops no other. Used by
the agent's page /doctor and by `mcagent doctor` on the Node.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from mcagent.agent.config import Settings
from mcagent.agent.dry_run import dry_run
from mcagent.core.doctor.finding import Finding
from mcagent.core.doctor.node import examine
from mcagent.core.doctor.observed import AgentSeen, ApiSeen, KernelSeen, NodeSeen, SwitchSeen
from mcagent.core.doctor.status import agent_seen, outer_addresses
from mcagent.core.fragments.kernel import OVERHEAD, WIREGUARD_OVERHEAD, largest_mtu
from mcagent.core.fragments.tunnel_guard import tunnel_port
from mcagent.dataplane.doctor.filters import see_filters
from mcagent.dataplane.doctor.kernel import own_address, reverse_path_drops, see_kernel
from mcagent.dataplane.doctor.probe import probe_paths
from mcagent.dataplane.doctor.switch import see_switch
from mcagent.http.server import Page
from mcagent.model.config import DatapathChoice
from mcagent.model.errors import McagentError
from mcagent.model.net import Address
from mcagent.model.resources import PeerKind

FRESH = 5.0  # seconds for which a result of the page is reused
_QUEUE = 4  # requests handled at the same time
_DRY_RUN = 5.0  # seconds: time-out for listing objects when the agent does not answer
Progress = Callable[[str], None]
_ENDS_OF_TUNNELS = 240  # least first byte of addresses outside of the underlay (mcagent.core.addresses.underlay)


def observe_node(
    settings: Settings,
    status: Mapping[str, Any] | None,
    error: str = "",
    progress: Progress = lambda _: None,
) -> NodeSeen:
    """Observe this Node. `status`: the agent's /status, or None if it does not answer; `error` is the reason then.

    Raises no error. Takes a few seconds, and longer only if the kernel or Open vSwitch is slow.
    """
    core = settings.core
    drops = reverse_path_drops()
    with ThreadPoolExecutor(1, "doctor") as pool:  # an unreachable API server answers late
        api_result = pool.submit(_see_api, settings)
        progress("Open vSwitch")
        switch = see_switch(settings.ovsdb, core.bridge)
        agent = agent_seen(status) if status is not None else _without_agent(settings, error, progress)
        progress("the API server")
        api = api_result.result()
    progress("the kernel")
    outer = outer_addresses(status)
    peers = _underlay(switch, outer)
    versions = [address.version for address in peers]
    within = max(
        (tunnel.remote.version for tunnel in switch.tunnels if tunnel.peer_kind != PeerKind.REMOTE), default=4
    )

    def expected_mtu(uplink_mtu: int) -> int:
        between = max(versions, default=4)
        return largest_mtu(uplink_mtu, replace(core, mtu=0), within=within, between=between)

    kernel = see_kernel(core, peers, own_address(peers), expected_mtu)
    progress("netfilter and connections")
    filters = see_filters(core.nft_table, [route.destination for route in kernel.routes])
    progress("paths to other gateways and Nodes")
    paths = probe_paths(_sizes(peers, kernel)) if kernel.host_mtu else ()
    return NodeSeen(
        node=core.node_name,
        agent=agent,
        switch=switch,
        kernel=replace(kernel, reverse_path_drops=max(reverse_path_drops() - drops, 0)),
        filters=filters,
        api=api,
        paths=paths,
        outer=outer,
        host_port=core.host_port,
        tunnel_port=tunnel_port(core),
        route_table=core.route_table,
        rule_priority=core.rule_priority,
        mark_bit=core.ct_mark_bit,
        encrypts=core.encrypts,
        userspace_chosen=core.datapath is DatapathChoice.NETDEV,
    )


def _see_api(settings: Settings) -> ApiSeen:
    if settings.source != "kube":
        return ApiSeen(used=False)
    from mcagent.kube.doctor import see_api

    return see_api(settings.kubeconfig, policies=settings.core.stretched_network_policy)


def _without_agent(settings: Settings, error: str, progress: Progress) -> AgentSeen:
    """Return the problems that the agent would report for the present input."""
    progress("the agent does not answer: reading objects instead")
    try:
        desired, _ = dry_run(settings, offline=False, timeout=_DRY_RUN)
    except (McagentError, OSError):
        return AgentSeen(error=error)  # other checks report why this fails
    return AgentSeen(error=error, role=str(desired.state.role), problems=desired.problems)


def _underlay(switch: SwitchSeen, outer: Mapping[Address, Address]) -> dict[Address, bool]:
    """Return peers' underlay addresses, other clusters' first, and whether WireGuard encrypts to them."""
    addresses: dict[Address, bool] = {}
    for tunnel in sorted(switch.tunnels, key=lambda tunnel: tunnel.peer_kind != PeerKind.REMOTE):
        address = outer.get(tunnel.remote, tunnel.remote)
        if address.version == 6 or address.packed[0] < _ENDS_OF_TUNNELS:
            addresses.setdefault(address, address != tunnel.remote)
    return addresses


def _sizes(peers: Mapping[Address, bool], kernel: KernelSeen) -> list[tuple[Address, int]]:
    """Return the largest IP packet in bytes that tunnels send to each peer."""
    sizes = []
    for address, encrypted in peers.items():
        size = kernel.host_mtu + OVERHEAD[4 if encrypted else address.version]
        if encrypted:
            size += WIREGUARD_OVERHEAD[address.version]
        sizes.append((address, min(size, kernel.uplink_mtu or size)))
    return sizes


def report(seen: NodeSeen, findings: list[Finding], seconds: float) -> dict[str, Any]:
    """Make the JSON value of the page and of `-o json` for a Node."""
    return {
        "node": seen.node,
        "agentVersion": seen.agent.version,
        "seconds": round(seconds, 1),
        "findings": [finding.plain() for finding in findings],
    }


def diagnose(
    settings: Settings,
    status: Mapping[str, Any] | None,
    error: str = "",
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Observe this Node and make findings; arguments as in `observe_node`."""
    began = time.monotonic()
    observed = observe_node(settings, status, error, progress)
    return report(observed, examine(observed), time.monotonic() - began)


class DoctorPage:
    """The page /doctor: one run at a time, at most one every FRESH seconds, and a short queue of requests."""

    def __init__(self, settings: Callable[[], Settings], status: Callable[[], Page]) -> None:
        self._settings, self._status = settings, status
        self._lock, self._queue = threading.Lock(), threading.BoundedSemaphore(_QUEUE)
        self._last: tuple[float, str] = (-FRESH, "")

    def __call__(self) -> Page:
        """Return the page; status 503 if too many requests wait, as each holds one of few connections."""
        if not self._queue.acquire(blocking=False):
            return Page(body="the doctor is busy: ask again in some seconds\n", status=503)
        try:
            return self._page()
        finally:
            self._queue.release()

    def _page(self) -> Page:
        with self._lock:
            if time.monotonic() - self._last[0] >= FRESH:
                result = diagnose(self._settings(), json.loads(self._status().body))
                self._last = (time.monotonic(), json.dumps(result) + "\n")
            return Page(body=self._last[1], content_type="application/json")
