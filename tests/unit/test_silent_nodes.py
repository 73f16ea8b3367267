"""Endpoints on Nodes from which nothing ever came: no new connections, while there are others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mcagent.agent.silent_peers import SilentPeers
from mcagent.core.compile import Compiled
from mcagent.core.failover.silence import POLL_INTERVAL
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry, PeerKind, PortStatistics
from mcagent.model.problem import Severity
from tests.worlds.compiled_gateways import compiled, home, tunnels
from tests.worlds.core_inputs import endpoint, endpoint_slice, export, resources, service, tunnel_port

ON_W1, ON_G2, ON_G1 = (
    replace(endpoint(address), node_name=node)
    for address, node in (("10.10.3.9", "w1"), ("10.10.2.9", "g2"), ("10.10.1.9", "g1"))
)


def served(facts: Facts | None, *endpoints: object) -> Compiled:
    """Return what gateway g1 has, with a Service of these endpoints."""
    slices = endpoint_slice("s", "web", endpoints, ("", 8080))  # type: ignore[arg-type]
    return compiled(home(service("web", "10.96.0.7", 80), export("web"), slices), "g1", facts)


def choosable(compiled_node: Compiled) -> set[str]:
    """Return the addresses of the endpoints that new connections may get."""
    texts = [r.body for r in resources(compiled_node, "service/default/web:80/tcp") if isinstance(r, GroupEntry)]
    commits = [text for text in texts if "nat(dst=" in text]
    return {address for address in ("10.10.3.9", "10.10.2.9", "10.10.1.9") if any(address in c for c in commits)}


def test_an_endpoint_on_a_silent_or_new_node_gets_no_new_connection_while_there_are_others() -> None:
    """It stays known: replies and open connections pass. When nothing else is there, it is used."""
    name = tunnels(served(None, ON_W1))["192.0.2.3"].name
    both = {"10.10.3.9", "10.10.2.9"}
    assert choosable(served(Facts(), ON_W1, ON_G2)) == both
    for facts in (Facts(silent=frozenset({name})), Facts(unheard=frozenset({name}))):
        compiled_node = served(facts, ON_W1, ON_G2)
        assert choosable(compiled_node) == {"10.10.2.9"}
        flows = [
            r.match for r in resources(compiled_node, "service/default/web:80/tcp") if isinstance(r, FlowEntry)
        ]
        assert any("10.10.3.9" in match for match in flows)
        assert choosable(served(facts, ON_W1)) == {"10.10.3.9"}
        assert choosable(served(facts, ON_W1, ON_G1)) == {"10.10.1.9"}


def test_the_service_with_endpoints_on_a_silent_node_is_reported() -> None:
    """Beside the Node; not while the Node is only new."""
    name = tunnels(served(None, ON_W1))["192.0.2.3"].name

    def reported(facts: Facts, *endpoints: object) -> list[tuple[str, Severity, str]]:
        problems = served(facts, *endpoints).desired.problems
        return [(p.subject, p.severity, p.message) for p in problems if p.reason == "EndpointsSilent"]

    silent = Facts(silent=frozenset({name}))
    where = "1 endpoints of port 80 are on Nodes from which no packet ever came (w1; Nodes: 1): "
    subject = "ServiceExport default/web"
    warning = Severity.WARNING
    assert reported(silent, ON_W1, ON_G2) == [(subject, warning, f"{where}not used for new connections")]
    assert reported(silent, ON_W1) == [(subject, warning, f"{where}used, as there are no others")]
    assert reported(silent, ON_G2) == reported(Facts(unheard=frozenset({name})), ON_W1, ON_G2) == []


def test_a_tunnel_to_a_node_is_unheard_until_its_first_packet() -> None:
    """A new one at once. Tunnels to other clusters are not: their gateways may run Antrea."""
    received = {"mc-1": 0, "mc-2": 0}

    def counters() -> Mapping[str, PortStatistics]:
        return {
            name: PortStatistics(counters={"tx_packets": 20, "rx_packets": packets}, link_up=True)
            for name, packets in received.items()
        }

    peers = SilentPeers(counters, lambda _: {})
    ports = [tunnel_port(1, "w1", PeerKind.NODE), tunnel_port(2, "w2", PeerKind.NODE)]
    ports.append(tunnel_port(3, "east", PeerKind.REMOTE))
    peers.update(ports, frozenset(), {}, 0.0)
    assert peers.unheard == {"mc-1", "mc-2"}
    before = peers.unheard
    peers.update(ports, frozenset(), {}, 1.0)
    assert peers.unheard is before
    received["mc-2"] = 1
    peers.update(ports, frozenset(), {}, POLL_INTERVAL)
    assert peers.unheard == {"mc-1"}
    peers.update(ports, frozenset({"mc-1"}), {}, POLL_INTERVAL + 1)
    assert peers.unheard == frozenset()
