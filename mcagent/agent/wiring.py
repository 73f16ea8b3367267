"""Makes backends and what watches them from the configuration, and reads the facts of the Node through them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mcagent.agent.config import Settings, WireGuardChoice
from mcagent.agent.failover import Failover
from mcagent.agent.reachability import Reachability
from mcagent.agent.reports.counters import handed_packets
from mcagent.agent.tunnel_probes import TunnelProbes
from mcagent.core.failover.liveness import Damping
from mcagent.dataplane.base import DataplaneBackend
from mcagent.dataplane.conntrack import Prober, open_connections
from mcagent.dataplane.facts import observe_facts
from mcagent.dataplane.netlink.backend import NetlinkBackend
from mcagent.dataplane.netlink.watch import NetlinkMonitor
from mcagent.dataplane.nft.backend import NftBackend
from mcagent.dataplane.openflow.backend import OpenFlowBackend
from mcagent.dataplane.ovsdb.backend import OvsdbBackend
from mcagent.dataplane.wireguard.backend import WireGuardBackend
from mcagent.dataplane.wireguard.keys import KeyStore
from mcagent.model.errors import BackendError
from mcagent.model.facts import Facts
from mcagent.model.net import Address
from mcagent.model.plan import Desired
from mcagent.model.resources import Backend
from mcagent.model.wireguard import WireGuardImplementation

log = logging.getLogger(__name__)


class FactsReader:
    """Adds what WireGuard says to facts. A key file that cannot be used is reported once, and means: no key.

    Where the Node's addresses changed, wireguard-go is made to forget the one by which it sent.
    """

    def __init__(self, backend: WireGuardBackend) -> None:
        self._backend = backend
        self._reported = ""
        self._addresses: tuple[Address, ...] | None = None

    def add(self, facts: Facts) -> Facts:
        """Return the facts with implementation and public keys."""
        self._see_addresses(facts.addresses)
        try:
            keys = self._backend.keys()
            found = replace(
                facts,
                wireguard=self._backend.implementation(),
                wireguard_public_key=keys.current.public,
                wireguard_next_key=keys.next.public if keys.next is not None else "",
            )
        except BackendError as error:
            if str(error) != self._reported:
                log.error("%s", error)
            self._reported = str(error)
            return facts
        self._reported = ""
        return found

    def _see_addresses(self, addresses: tuple[Address, ...]) -> None:
        before, self._addresses = self._addresses, addresses
        if before not in {None, addresses}:
            try:
                self._backend.bind_again()
            except BackendError as error:
                log.warning("%s", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facilities:
    """The Node's backends."""

    ovsdb: OvsdbBackend
    openflow: OpenFlowBackend
    netlink: NetlinkBackend
    nft: NftBackend
    wireguard: WireGuardBackend

    @property
    def by_name(self) -> Mapping[Backend, DataplaneBackend]:
        """All of them, as the loop takes them."""
        every: tuple[DataplaneBackend, ...] = (self.ovsdb, self.openflow, self.netlink, self.nft, self.wireguard)
        return {backend.name: backend for backend in every}

    def close(self) -> None:
        """Let go of sockets and threads; what was programmed stays."""
        for backend in self.by_name.values():
            backend.close()


def make_facilities(settings: Settings) -> Facilities:
    """Return the backends; none connects before it is used."""
    core, choice = settings.core, settings.wireguard_implementation
    # ovs-vswitchd makes the bridge's socket beside that of the database (ovs-vswitchd(8), --unixctl and .mgmt).
    directory = settings.ovsdb.removeprefix("unix:").rpartition("/")[0]
    return Facilities(
        ovsdb=OvsdbBackend(settings.ovsdb, core.bridge),
        openflow=OpenFlowBackend(f"unix:{directory}/{core.bridge}.mgmt"),
        netlink=NetlinkBackend(
            route_tables=(core.route_table, core.reply_table),
            route_protocol=core.route_protocol,
            devices=(core.host_port,),
            route_devices=(core.wireguard_device,),
        ),
        nft=NftBackend(table=core.nft_table),
        wireguard=WireGuardBackend(
            device=core.wireguard_device,
            keys=key_store(settings),
            run_directory=Path(settings.run_dir),
            implementation=WireGuardImplementation(choice) if choice is not WireGuardChoice.AUTO else None,
        ),
    )


def key_store(settings: Settings) -> KeyStore:
    """Return where this Node's WireGuard keys are kept."""
    return KeyStore(Path(settings.wireguard_key_dir) / f"{settings.core.wireguard_device}.json")


def facts_reader(
    settings: Settings, facilities: Facilities, api_servers: Callable[[], tuple[Address, ...]]
) -> Callable[[Address | None], Facts]:
    """Return what reads the facts of this Node, given its address as the API knows it."""

    def read(address: Address | None) -> Facts:
        facts = observe_facts(settings.core, address, facilities.ovsdb.ofports(), settings.resolv_conf)
        facts = replace(facts, api_servers=api_servers())
        return wireguard.add(facts) if settings.core.encrypts else facts

    wireguard = FactsReader(facilities.wireguard)
    return read


def make_prober(settings: Settings, facilities: Facilities) -> Prober:
    """Return what asks connections when a gateway is lost, not started."""
    # The kernel's own zone, and ARRIVAL: whichever the CNI lets a Pod's packets pass.
    zones = (0, settings.core.ct_zone_base)
    return Prober(connections=lambda: open_connections(zones), send=facilities.openflow.send)


def make_live(
    settings: Settings,
    facilities: Facilities,
    gateway_lost: Callable[[int, Desired | None], None] = lambda *_: None,
    reachability: Reachability | None = None,
    probes: TunnelProbes | None = None,
) -> Failover:
    """Return what knows of BFD and drain on this Node; `gateway_lost`, `reachability`, `probes`: see there."""

    return Failover(
        state=facilities.ovsdb.liveness,
        packets=lambda: handed_packets(facilities.openflow),
        counters=facilities.ovsdb.statistics,
        damping=Damping(initial=settings.damping_initial, longest=settings.damping_max),
        drain_timeout=settings.drain_timeout,
        gateway_lost=gateway_lost,
        reachability=reachability,
        probes=probes,
    )


def make_monitor(settings: Settings, facilities: Facilities, wake: Callable[[], None]) -> NetlinkMonitor:
    """Return what notices changes in the kernel (netlink, nft), not started."""
    core = settings.core
    return NetlinkMonitor(
        wake,
        route_tables=(core.route_table, core.reply_table),
        route_protocol=core.route_protocol,
        devices=(core.host_port, core.wireguard_device),
        nft_table=core.nft_table,
        own_port=lambda: facilities.netlink.port,
    )
