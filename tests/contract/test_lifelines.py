"""What a Node cannot do without, as the kernel and its files tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from devtools.nodes import netns
from mcagent.dataplane import facts
from mcagent.dataplane.facts import observe_facts
from mcagent.model.config import Config, DatapathChoice
from tests.worlds.core_inputs import addresses

pytestmark = pytest.mark.contract

CONFIG = Config(node_name="a1", datapath=DatapathChoice.NETDEV)


@pytest.fixture(autouse=True)
def resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the path of systemd-resolved's file, which need not be there."""
    path = tmp_path / "resolved.conf"
    monkeypatch.setattr(facts, "RESOLVED", path)
    return path


def test_every_next_hop_of_every_default_route_is_known(fresh_namespace: str) -> None:
    """One or several next hops, IPv4, IPv6, or IPv4 by an IPv6 router; other routes and tables do not count."""
    for device, address in (("one", "192.0.2.10/24"), ("two", "10.8.0.5/22")):
        netns.add_veth(device, fresh_namespace, f"{device}-p", fresh_namespace)
        netns.add_address(fresh_namespace, device, address)
    netns.ip(fresh_namespace, "address", "add", "2001:db8::10/64", "dev", "one", "nodad")
    netns.ip_batch(
        fresh_namespace,
        [
            "route add default metric 10 nexthop via 192.0.2.1 dev one nexthop via 10.8.0.1 dev two weight 3",
            "route add default via 192.0.2.2 dev one metric 20",
            "route add default via inet6 2001:db8::2 dev one metric 30",
            "route add 10.77.0.0/16 via 192.0.2.7",
            "route add default via 192.0.2.8 dev one table 99",
            "route add default via 2001:db8::1 dev one metric 10",
            "route add default via fe80::1 dev one metric 20",
        ],
    )
    first, second = (netns.call(fresh_namespace, lambda: observe_facts(CONFIG, None, {})) for _ in range(2))
    assert first.default_gateways == addresses("10.8.0.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2")
    assert first.resolvers == ()
    assert first == second


def test_resolvers_are_those_of_resolv_conf_and_behind_systemd_resolved(tmp_path: Path, resolved: Path) -> None:
    """Loopback and link-local ones are nobody's to take; nonsense is passed over; no file means none."""
    file = tmp_path / "resolv.conf"
    file.write_text(
        "# nameserver 10.0.0.1\nsearch lan\nnameserver 127.0.0.53\nnameserver  10.0.0.2 # x\n"
        "nameserver fe80::1%eth0\n"
        "nameserver 2001:db8::53\nnameserver\nnameserver dns.example\n nameserver 9.9.9.9\n"
    )
    assert facts.read_resolvers(str(file)) == addresses("9.9.9.9", "10.0.0.2", "2001:db8::53")
    resolved.write_text("nameserver 10.0.0.9\n")
    assert facts.read_resolvers(str(file)) == addresses("9.9.9.9", "10.0.0.2", "10.0.0.9", "2001:db8::53")
    assert facts.read_resolvers("") == ()
    assert facts.read_resolvers(str(tmp_path / "none")) == addresses("10.0.0.9")


def test_a_resolv_conf_of_any_size_is_read_in_bounds(tmp_path: Path) -> None:
    """A file that is long, or no text, gives what its beginning says."""
    file = tmp_path / "resolv.conf"
    file.write_bytes(b"nameserver 10.0.0.2\n\xff\xfe\x00\n" + b"nameserver 10.0.0.3\n" * 1_000_000)
    assert facts.read_resolvers(str(file)) == addresses("10.0.0.2", "10.0.0.3")
