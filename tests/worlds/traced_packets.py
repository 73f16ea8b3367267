"""Outputs of Open vSwitch for packets that are traced."""

from __future__ import annotations

from ipaddress import IPv4Address

from mcagent.model.config import Config
from mcagent.trace.pages import VswitchdControl
from mcagent.trace.probe import Probe

PROBE = Probe(
    in_port=1,
    source=IPv4Address("10.1.3.2"),
    destination=IPv4Address("10.102.0.80"),
    protocol="tcp",
    source_port=40000,
    port=80,
)

NOWHERE = VswitchdControl("unix:/nowhere/db.sock", Config(node_name="n", cluster_id="east"))
GOOD = "in_port=1&source=10.1.3.2&destination=10.102.0.80&protocol=tcp&source_port=40000&port=80&mac=plain"
