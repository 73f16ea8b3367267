"""Antrea's MultiClusterConfig is taken as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcagent.config.reader import ConfigError
from mcagent.controller.config import ControllerRole, load

# As the user guide has it, host bits included.
GUIDE = """apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: MultiClusterConfig
health:
  healthProbeBindAddress: :8080
metrics:
  bindAddress: "0"
webhook:
  port: 9443
leaderElection:
  leaderElect: false
serviceCIDR: ""
podCIDRs:
  - "10.10.1.1/16"
  - 10.20.0.0/16
gatewayIPPrecedence: "private"
endpointIPType: "ClusterIP"
enableStretchedNetworkPolicy: false
featureGates:
  AllAlpha: false
"""


def test_the_configuration_of_the_guide_is_taken(tmp_path: Path) -> None:
    """Host bits are masked and feature gates ignored, and both are said."""
    file = tmp_path / "controller.yaml"
    file.write_text(GUIDE)
    settings = load(ControllerRole.MEMBER, file, {}, {})
    assert settings.member.pod_cidrs == ("10.10.0.0/16", "10.20.0.0/16")
    masked, gates = sorted(settings.remarks, key=lambda text: "featureGates" in text)
    assert masked.endswith("podCIDRs: 10.10.1.1/16 has host bits set: used as 10.10.0.0/16")
    assert gates.endswith("featureGates: are Antrea's: ignored, there are none here")


def test_what_is_right_needs_no_remark() -> None:
    """Flags are read likewise; a network that nobody may have is refused as before."""
    assert load(ControllerRole.MEMBER, None, {}, {"podCIDRs": "10.10.0.0/16,10.20.0.0/16"}).remarks == ()
    assert "used as 10.10.0.0/16" in load(ControllerRole.MEMBER, None, {}, {"podCIDRs": "10.10.1.1/16"}).remarks[0]
    with pytest.raises(ConfigError, match="loopback"):
        load(ControllerRole.MEMBER, None, {}, {"podCIDRs": "127.0.0.1/16"})


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        ({"metrics.bindAddress": ":8080"}, "metrics.bindAddress"),
        ({"metrics.bindAddress": "127.0.0.1:9443"}, "webhook.port"),
        ({"webhook.port": "8080", "webhook.host": "10.0.0.1"}, "webhook.port"),
        ({"metrics.bindAddress": "[::1]:8080"}, ""),
        ({"webhook.port": "8080", "webhook.host": "::1"}, ""),
        ({"webhook.port": "0", "health.healthProbeBindAddress": ":0"}, ""),
    ],
)
def test_two_servers_cannot_have_one_port(flags: dict[str, str], key: str) -> None:
    """Said by the configuration, and not by a replica that ends again and again; other addresses are free."""
    if not key:
        load(ControllerRole.LEADER, None, {}, flags)
        return
    with pytest.raises(ConfigError, match="must differ from") as refused:
        load(ControllerRole.LEADER, None, {}, flags)
    assert [error.path for error in refused.value.errors] == [key]
