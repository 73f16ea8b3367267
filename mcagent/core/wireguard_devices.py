"""The WireGuard devices of a gateway: how many there are, and which of them the packets of a tunnel take.

A device handles the packets of one peer in order, in one worker and one NAPI context (wg_packet_tx_worker and
wg_packet_rx_poll in Linux' drivers/net/wireguard), so two gateways with one device each are limited to one
processor. Further devices have the same key, peers and allowed IPs, and the ports that follow on the first one's.

Tunnels are independent of the devices. Their UDP source port is a hash of the packet inside, so the packets of one
connection have one port, and keep their order. Policy rules divide the range of ports into as many parts as this
Node has devices. The table of a part leads to a peer by the device of that number, if the peer has as many devices
and has a session there; otherwise the packets take the route of the general table: by the first device, or by
another one if only that has a session. Only tunnels whose packets have a mark are routed packet by packet: the
kernel keeps the route of others with the flow (ip_tunnel_dst_cache_usable in include/net/ip_tunnels.h).

The general table has one route to a peer, so the reverse path check of the devices must be loose, and each needs
an address (fib_validate_source in net/ipv4/fib_frontend.c). WireGuard itself checks sources by its allowed IPs.

Pure. Must not know which gateways are encrypted to (`mcagent.core.wireguard`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mcagent.core.addresses.underlay import ENDPOINTS
from mcagent.model.config import Config
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import DEFAULT_PORTS, Route, Rule, TunnelType
from mcagent.model.dataplane.wireguard import MAX_DEVICES, WireGuardImplementation
from mcagent.model.net import host_network
from mcagent.model.node_state import RemoteEnd
from mcagent.model.objects import WireGuardInfo

# Of encapsulated packets. By default kube-proxy uses the bits 0x4000 and 0x8000, Cilium 0x0f00 and above, Calico
# 0xffff0000, the AWS VPC CNI 0x80.
EGRESS_MARK = 0x20
UDP = 17
LAST_PORT = 65534  # that a rule can have (fib_rule_port_range_valid in include/net/fib_rules.h)
# First and last source port of tunnel packets: udp_flow_src_port with the arguments of drivers/net/geneve.c, and
# for VXLAN net.ipv4.ip_local_port_range, of which this is the default.
_SOURCE_PORTS = {TunnelType.GENEVE: (1, LAST_PORT), TunnelType.VXLAN: (32768, 60999)}

ReadyDevices = tuple[tuple[int, ...], ...]  # for each end of a cluster the devices with a session


def device_count(facts: Facts, config: Config) -> int:
    """Return the number of WireGuard devices of this Node as a gateway, at least 1.

    wireguard-go uses all processors with one device. The ports of the devices end before the tunnels' port, and
    the rules need a priority before that of the general rule.
    """
    if facts.wireguard is not WireGuardImplementation.KERNEL or config.rule_priority == 1:
        return 1
    port, tunnels = config.wireguard_port, config.tunnel_port or DEFAULT_PORTS[config.tunnel_type]
    free_ports = (tunnels if tunnels > port else LAST_PORT + 2) - port
    return max(1, min(config.wireguard_devices or facts.processors, MAX_DEVICES, free_ports))


def devices_of_peer(published: WireGuardInfo, port: int) -> int:
    """Return the number of devices of a peer, whose first one has `port`; it may publish any number."""
    return max(1, min(published.devices, MAX_DEVICES, LAST_PORT + 2 - port))


def device_rules(count: int, config: Config) -> Iterator[Rule]:
    """Yield the rules that send parts of the tunnel packets to the tables of the further devices."""
    first, last = _SOURCE_PORTS[config.tunnel_type]
    size = (last + 1 - first) // count
    for number in range(1, count):
        begin = first + number * size
        yield Rule(
            priority=config.rule_priority - 1,
            table=config.route_table + number,
            destination=ENDPOINTS,
            protocol=UDP,
            source_ports=(begin, LAST_PORT if number == count - 1 else begin + size - 1),
        )


def device_routes(
    end: RemoteEnd, ready: tuple[int, ...], names: tuple[str, ...], config: Config
) -> Iterator[Route]:
    """Yield the routes to a tunnel endpoint in the tables of further devices. `names`: of this Node's devices.

    `ready`: those on which the peer has a session. Where the peer has fewer devices, the parts of the range are
    divided among these.
    """
    for part in range(1, len(names)):
        number = part % end.devices
        if number in ready and number != general_device(ready):
            destination = host_network(end.address)
            table, device = config.route_table + part, names[number]
            yield Route(table=table, destination=destination, device=device, source=end.source)


def general_device(ready: tuple[int, ...]) -> int:
    """Return the number of the device by which the general table leads to a peer."""
    return 0 if 0 in ready or not ready else ready[0]


def ready_devices(
    ends: tuple[RemoteEnd, ...], ready: frozenset[tuple[str, str]], names: tuple[str, ...]
) -> ReadyDevices:
    """Return the devices with a session for each end of a cluster. `ready`: see `Facts`."""
    return tuple(
        tuple(
            number
            for number, name in enumerate(names[: end.devices])
            if (name, end.public_key) in ready or (name, end.next_public_key) in ready
        )
        for end in ends
    )
