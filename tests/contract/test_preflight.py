"""`mcagent check --pre` on a Node that is a namespace: what it reads is what the kernel has."""

from __future__ import annotations

import json
import socket

import pytest

from devtools.nodes import netns
from devtools.nodes.underlay import set_sysctl
from mcagent.cli.main import main

pytestmark = pytest.mark.contract


def _reasons(namespace: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, set[str], dict[str, str]]:
    capsys.readouterr()
    code = netns.call(namespace, lambda: main(["check", "--pre", "-o", "json"]))
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    reasons = {finding["reason"] for finding in node["findings"] if finding["reason"]}
    return (
        code,
        reasons - {"NoDatapathModule"},
        {finding["check"]: finding["seen"] for finding in node["findings"]},
    )


def test_a_node_is_examined_as_it_is(fresh_namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Forwarding, ports of tunnels and the MTU of the uplink, before and after they are right."""
    node = fresh_namespace
    netns.add_veth("eth0", node, "peer", node)
    netns.add_address(node, "eth0", "192.0.2.10/24")
    netns.ip(node, "link", "set", "eth0", "mtu", "1300")
    netns.ip(node, "route", "add", "default", "via", "192.0.2.1")
    set_sysctl(node, {"net/ipv4/ip_forward": "0"})

    def bound() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("0.0.0.0", 6081))
        return sock

    with netns.call(node, bound):
        assert _reasons(node, capsys)[:2] == (1, {"NotForwarding", "PortInUse", "MtuSmall"})
    netns.ip(node, "link", "set", "eth0", "mtu", "1500")
    set_sysctl(node, {"net/ipv4/ip_forward": "1"})
    code, reasons, seen = _reasons(node, capsys)
    assert (code, reasons) == (0, set())
    assert seen["pre-mtu"] == "eth0 has 1500 bytes, packets to other clusters 1450"
