"""`mcagent check --pre`: one fault, one reason; readings are values."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from mcagent.agent.config import Settings
from mcagent.api.doctor import FindingLevel
from mcagent.api.status import Status
from mcagent.doctor.catalogue import Scope, examine, names
from mcagent.doctor.checks.before_cluster import cidrs, nodes, permissions
from mcagent.doctor.checks.before_cluster.cidrs import ClusterCidrs, PlannedCluster
from mcagent.doctor.checks.before_node import encryption, kernel, mtu, openvswitch, ports, sysctls
from mcagent.doctor.checks.before_node.kernel import Kernel
from mcagent.doctor.checks.before_node.mtu import Uplink
from mcagent.doctor.checks.before_node.sysctls import Sysctls
from mcagent.doctor.checks.cluster.kubernetes import version
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.switch import Switch, switch
from mcagent.model.config import Config, TrafficEncryption
from mcagent.model.dataplane.facts import DatapathType
from mcagent.model.errors import BackendError, SourceError

CONFIG = Config(node_name="n1")
NODE: Mapping[Any, Any] = {
    kernel.kernel: Kernel(release="6.1.0-37-amd64"),
    switch: Switch(error="no such file"),
    openvswitch.has_datapath: True,
    ports.taken: (),
    sysctls.sysctls: Sysctls(connections=262144),
    mtu.uplink: Uplink(name="eth0", mtu=1500),
}
TWO_NODES = [
    {
        "metadata": {"name": name},
        "spec": {"podCIDR": "10.1.0.0/24"},
        "status": {"nodeInfo": {"kernelVersion": "6.8.0", "operatingSystem": "linux"}},
    }
    for name in ("n1", "n2")
]
CLUSTER: Mapping[Any, Any] = {
    version: "v1.30.2",
    nodes.nodes: TWO_NODES,
    permissions.forbidden: (),
    cidrs.own_cidrs: ClusterCidrs(services=(ip_network("10.96.0.0/16"),), pods=(ip_network("10.1.0.0/16"),)),  # type: ignore[arg-type]
    cidrs.connected: {},
}


def of_node(reader: Any = None, reading: object = None) -> set[str]:
    """Return the reasons on a Node where one reading differs; of a skipped check its name."""
    node = ExaminedNode(Settings(core=CONFIG), Status(), readings={**NODE, reader: reading})
    return _reasons(Scope.BEFORE_NODE, node)


def of_cluster(reader: Any = None, reading: object = None) -> set[str]:
    """Return the reasons in a cluster where one reading differs."""
    client: Any = None
    cluster = PlannedCluster(client, CONFIG, {}, readings={**CLUSTER, reader: reading})
    return _reasons(Scope.BEFORE_CLUSTER, cluster)


def _reasons(scope: Scope, subject: ExaminedNode | PlannedCluster) -> set[str]:
    findings = examine(scope, subject)
    assert {finding.check for finding in findings} == set(names(scope))
    assert all(finding.why and finding.do for finding in findings if finding.wrong)
    assert not [finding for finding in findings if "{" in finding.why + finding.do]
    skipped = {finding.check for finding in findings if finding.level == FindingLevel.SKIPPED}
    return {finding.reason for finding in findings if finding.reason} | skipped


def test_a_machine_that_is_ready_is_fine() -> None:
    """Each check has a line, and none a fault."""
    assert of_node() == of_cluster() == set()


@pytest.mark.parametrize(
    ("reader", "reading", "reasons"),
    [
        (kernel.kernel, Kernel(release="5.4.0-150-generic"), {"KernelOld"}),
        (kernel.kernel, Kernel(release="5.10.0"), set()),
        (kernel.kernel, Kernel(release="6.1.0", nft_error="Operation not permitted"), {"NfTablesMissing"}),
        (openvswitch.has_datapath, False, {"NoDatapathModule"}),
        (ports.taken, (("udp", 6081, "tunnelPort"), ("tcp", 10360, "listen")), {"PortInUse"}),
        (switch, Switch(datapath=DatapathType.SYSTEM), set()),
        (sysctls.sysctls, Sysctls(forwards=False), {"NotForwarding"}),
        (sysctls.sysctls, Sysctls(connections=4096), {"ConntrackSmall"}),
        (mtu.uplink, Uplink(name="eth0", mtu=1300), {"MtuSmall"}),
        (mtu.uplink, Uplink(), {"pre-mtu"}),
        (mtu.uplink, BackendError("netlink", "list", "routes", "not allowed"), {"pre-mtu", "NotRead"}),
    ],
)
def test_what_a_node_lacks_is_named(reader: Any, reading: object, reasons: set[str]) -> None:
    """One fault gives one reason; what cannot be looked at is skipped."""
    assert of_node(reader, reading) == reasons


@pytest.mark.parametrize(
    ("readings", "reasons"),
    [
        ({}, set()),
        ({switch: Switch(datapath=DatapathType.NETDEV)}, {"DatapathCannotEncrypt"}),
        ({openvswitch.has_datapath: False}, {"DatapathCannotEncrypt", "NoDatapathModule"}),
        ({encryption.has_wireguard: False}, {"WireGuardMissing"}),
    ],
)
def test_encryption_that_is_not_possible_is_named_before_it_is_configured(
    readings: Mapping[Any, Any], reasons: set[str]
) -> None:
    """The remedy is that of the cause; without encryption in the configuration nothing is missing."""
    everything = {**NODE, encryption.has_wireguard: True, **readings}
    planned = Settings(core=replace(CONFIG, encryption=TrafficEncryption.WIREGUARD))
    assert _reasons(Scope.BEFORE_NODE, ExaminedNode(planned, Status(), readings=everything)) == reasons
    plain = _reasons(Scope.BEFORE_NODE, ExaminedNode(Settings(core=CONFIG), Status(), readings=everything))
    assert plain == reasons - {"DatapathCannotEncrypt", "WireGuardMissing"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"listen": 10360, "healthListen": 10361}),
        ({"listen": ":20360", "health_listen": "127.0.0.1:20361"}, {"listen": 20360, "healthListen": 20361}),
        ({"health_listen": "0"}, {"listen": 10360}),
    ],
)
def test_ports_are_those_of_the_planned_configuration(values: dict[str, str], expected: dict[str, int]) -> None:
    """Another port than the one that is in use, as the check recommends, is the one that is tried."""
    settings = Settings(core=CONFIG, **values)  # type: ignore[arg-type]
    assert {key: port for _, port, key in ports.agent_ports(settings)} == expected


@pytest.mark.parametrize(("key", "field"), [("listen", "listen"), ("healthListen", "health_listen")])
def test_a_configured_port_of_another_program_is_reported(key: str, field: str) -> None:
    """Whatever the ports of the DaemonSet are."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        values: dict[str, Any] = {field: f"127.0.0.1:{port}"}
        node = ExaminedNode(Settings(core=CONFIG, **values), Status())
        assert ("tcp", port, key) in ports.taken(node)


def test_ports_of_an_installed_agent_are_its_own() -> None:
    """On a Node with mcagent's bridge, its ports are in use by mcagent itself."""
    readings = {**NODE, switch: Switch(datapath=DatapathType.SYSTEM), ports.taken: (("udp", 6081, "tunnelPort"),)}
    node = ExaminedNode(Settings(core=CONFIG), Status(), readings=readings)
    assert _reasons(Scope.BEFORE_NODE, node) == set()


def of_west(services: str, pods: str) -> dict[str, ClusterCidrs]:
    """Return the CIDRs of a connected cluster."""
    return {"cluster west": ClusterCidrs(services=cidrs.networks([services]), pods=cidrs.networks([pods]))}


def own(service: str, *pods: str) -> ClusterCidrs:
    """Return the CIDRs of this cluster."""
    return ClusterCidrs(services=cidrs.networks([service]), pods=cidrs.networks(pods))


@pytest.mark.parametrize(
    ("reader", "reading", "reasons"),
    [
        (version, "v1.29.0", {"KubernetesOld"}),
        (nodes.nodes, [{"metadata": {"name": "n3"}, "spec": {"podCIDR": ""}}], {"NodeWithoutPodCIDR"}),
        (
            nodes.nodes,
            [{**TWO_NODES[0], "status": {"nodeInfo": {"kernelVersion": "4.19.0"}}}],
            {"NodeKernelOld"},
        ),
        (permissions.forbidden, (("apps", "daemonsets", "kube-system"),), {"InstallForbidden"}),
        (cidrs.connected, of_west("10.97.0.0/16", "10.2.0.0/16"), set()),
        (cidrs.connected, of_west("10.96.0.0/12", "10.2.0.0/16"), {"ServiceCIDROverlaps"}),
        (cidrs.connected, of_west("10.97.0.0/16", "10.96.1.0/24"), {"ServiceCIDROverlaps"}),
        (cidrs.connected, of_west("10.97.0.0/16", "10.1.2.0/24"), {"PodCIDROverlaps"}),
        (cidrs.own_cidrs, own("198.51.100.0/24", "10.1.0.0/16"), {"CIDRNotPrivate"}),
        (cidrs.own_cidrs, own("", "10.1.0.0/16"), {"pre-cidrs"}),
        (cidrs.own_cidrs, SourceError("refused"), {"pre-cidrs", "NotRead"}),
    ],
)  # fmt: skip
def test_what_a_cluster_lacks_is_named(reader: Any, reading: object, reasons: set[str]) -> None:
    """One fault gives one reason; what cannot be looked at is skipped."""
    assert of_cluster(reader, reading) == reasons


def test_identical_cidrs_need_no_other_cluster() -> None:
    """The leader assigns ranges in their place (docs/identical-cidrs.md): that is no reason not to install."""
    client: Any = None
    readings = {**CLUSTER, cidrs.connected: of_west("10.96.0.0/12", "10.1.0.0/16")}
    findings = examine(Scope.BEFORE_CLUSTER, PlannedCluster(client, CONFIG, {}, readings=readings))
    overlaps = {finding.reason: finding for finding in findings if finding.check == cidrs.CHECK.name}
    assert overlaps.keys() == {"ServiceCIDROverlaps", "PodCIDROverlaps"}
    for finding in overlaps.values():
        assert finding.level == FindingLevel.WARNING
        assert "docs/identical-cidrs.md" in finding.do


def test_permissions_are_those_of_the_manifests() -> None:
    """Kinds in the plural, with their groups and namespaces."""
    assert {
        ("apiextensions.k8s.io", "customresourcedefinitions", ""),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies", ""),
        ("apps", "daemonsets", "kube-system"),
        ("", "serviceaccounts", "kube-system"),
    } <= set(permissions.rights())
