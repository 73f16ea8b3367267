"""Creates the dataplane backends and their watchers from the configuration, and reads the Node's facts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcagent.agent.config import Settings, WireGuardChoice
from mcagent.agent.failover import Failover
from mcagent.agent.reachability import Reachability
from mcagent.agent.reports.counters import forwarded_packets, packets_to_clusters
from mcagent.agent.tunnel_probes import TunnelProbes
from mcagent.core.failover.liveness import Damping
from mcagent.dataplane.base import DataplaneBackend
from mcagent.dataplane.conntrack import Prober, open_connections
from mcagent.dataplane.facts import observe_facts
from mcagent.dataplane.main_routes import MainTable
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.netlink.watch import NetlinkMonitor
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from mcagent.dataplane.ovsdb.backend import OvsdbBackend
from mcagent.dataplane.wireguard.backend import WireGuardBackend
from mcagent.dataplane.wireguard.keys import KeyStore
from mcagent.model.config import Config
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.wireguard import MAX_DEVICES, WireGuardImplementation, device_names
from mcagent.model.errors import BackendError
from mcagent.model.net import Address
from mcagent.model.plan import Desired

log = logging.getLogger(__name__)

_FORMER_REPLY_TABLE = 28004  # of earlier agents, which routed replies by a mark; its route is removed


class WireGuardFacts:
    """Adds WireGuard's implementation, public keys and sessions to facts.

    A key file that cannot be used is logged once, and the facts then have neither. After an error that may pass,
    as for lack of file descriptors, the last ones stay: the device still has them. When the Node's addresses
    change, wireguard-go is made to bind its socket again, because it keeps sending from its last source address.
    """

    def __init__(self, backend: WireGuardBackend) -> None:
        self._backend = backend
        self._reported = ""
        self._last: dict[str, Any] = {}
        self._addresses: tuple[Address, ...] | None = None

    def add(self, facts: Facts) -> Facts:
        """Return the facts with implementation, keys and sessions; unchanged where the keys cannot be read."""
        self._rebind_after_change(facts.addresses)
        try:
            keys = self._backend.keys()
            self._last = {
                "wireguard": self._backend.implementation(),
                "wireguard_public_key": keys.current.public,
                "wireguard_next_key": keys.next.public if keys.next is not None else "",
                "processors": os.cpu_count() or 1,
                "wireguard_ready": self._backend.ready(),
            }
        except BackendError as error:
            if str(error) != self._reported:
                log.error("%s", error)
            self._reported = str(error)
            return replace(facts, **self._last) if error.retryable else facts
        self._reported = ""
        return replace(facts, **self._last)

    def _rebind_after_change(self, addresses: tuple[Address, ...]) -> None:
        if self._addresses not in {None, addresses}:
            try:
                self._backend.rebind()
            except BackendError as error:  # the next reading tries again
                log.warning("%s", error)
                return
        self._addresses = addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBackends:
    """The Node's backends."""

    ovsdb: OvsdbBackend
    openflow: OpenFlowBackend
    netlink: NetlinkBackend
    nft: NftBackend
    wireguard: WireGuardBackend

    @property
    def by_name(self) -> Mapping[Backend, DataplaneBackend]:
        """All backends by name, as the control loop takes them."""
        backends: tuple[DataplaneBackend, ...] = (
            self.ovsdb,
            self.openflow,
            self.netlink,
            self.nft,
            self.wireguard,
        )
        return {backend.name: backend for backend in backends}

    def close(self) -> None:
        """Close sockets and end threads; the dataplane stays as it is."""
        for backend in self.by_name.values():
            backend.close()


def make_backends(settings: Settings) -> NodeBackends:
    """Create the backends; each connects when it is first used."""
    core, choice = settings.core, settings.wireguard_implementation
    # ovs-vswitchd makes the bridge's socket beside that of the database (ovs-vswitchd(8), --unixctl and .mgmt).
    directory = settings.ovsdb.removeprefix("unix:").rpartition("/")[0]
    wireguard_devices = device_names(core.wireguard_device, MAX_DEVICES)
    return NodeBackends(
        ovsdb=OvsdbBackend(settings.ovsdb, core.bridge),
        openflow=OpenFlowBackend(f"unix:{directory}/{core.bridge}.mgmt"),
        netlink=NetlinkBackend(
            route_tables=route_tables(core),
            route_protocol=core.route_protocol,
            devices=(core.host_port,),
            route_devices=wireguard_devices,
        ),
        nft=NftBackend(table=core.nft_table),
        wireguard=WireGuardBackend(
            devices=wireguard_devices,
            keys=key_store(settings),
            run_directory=Path(settings.run_dir),
            implementation=WireGuardImplementation(choice) if choice is not WireGuardChoice.AUTO else None,
        ),
    )


def route_tables(config: Config) -> tuple[int, ...]:
    """Return the routing tables in which the agent has routes, or earlier agents had."""
    return tuple(dict.fromkeys((*config.route_tables, _FORMER_REPLY_TABLE)))


def key_store(settings: Settings) -> KeyStore:
    """Return the file of this Node's WireGuard keys."""
    return KeyStore(Path(settings.wireguard_key_dir) / f"{settings.core.wireguard_device}.json")


def facts_reader(
    settings: Settings, backends: NodeBackends, api_servers: Callable[[], tuple[Address, ...]]
) -> Callable[[Address | None], Facts]:
    """Return a function that reads the facts of this Node, given its InternalIP in the API (None: unknown)."""

    def read(address: Address | None) -> Facts:
        facts = observe_facts(settings.core, address, backends.ovsdb.ofports(), settings.resolv_conf, table)
        facts = replace(facts, api_servers=api_servers())
        return wireguard.add(facts) if settings.core.encrypts else facts

    wireguard, table = WireGuardFacts(backends.wireguard), MainTable()
    return read


def make_prober(settings: Settings, backends: NodeBackends) -> Prober:
    """Create the prober of connections, which works after a gateway is lost; not started."""
    # Pods' connections are in the kernel's own zone or in ARRIVAL, depending on the CNI.
    zones = (0, settings.core.ct_zone_base)
    return Prober(connections=lambda concerns: open_connections(zones, concerns), send=backends.openflow.send)


def make_failover(
    settings: Settings,
    backends: NodeBackends,
    gateway_lost: Callable[[int, Desired | None], None] = lambda *_: None,
    reachability: Reachability | None = None,
    probes: TunnelProbes | None = None,
) -> Failover:
    """Create the state of BFD and drain of this Node; other arguments as in `Failover`."""
    return Failover(
        state=backends.ovsdb.liveness,
        packets=lambda: forwarded_packets(backends.openflow),
        counters=backends.ovsdb.statistics,
        sent=lambda clusters: packets_to_clusters(backends.openflow, clusters),
        damping=Damping(initial=settings.damping_initial, longest=settings.damping_max),
        drain_timeout=settings.drain_timeout,
        gateway_lost=gateway_lost,
        reachability=reachability,
        probes=probes,
    )


def make_monitor(settings: Settings, backends: NodeBackends, wake: Callable[[], None]) -> NetlinkMonitor:
    """Create the monitor of changes in the kernel (netlink, nft); `wake` is called for each. Not started."""
    core = settings.core
    return NetlinkMonitor(
        wake,
        route_tables=route_tables(core),
        route_protocol=core.route_protocol,
        devices=(core.host_port, *device_names(core.wireguard_device, MAX_DEVICES)),
        nft_table=core.nft_table,
        own_port=lambda: backends.netlink.port,
    )
