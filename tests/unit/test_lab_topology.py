"""The lab's plan on paper: generated, written and read back, and what is wrong in a file is told."""

from __future__ import annotations

import ipaddress
from contextlib import ExitStack
from pathlib import Path

import pytest

from devtools.errors import LabError
from devtools.lab import objects, state
from devtools.lab.topology import MAX_CLUSTERS, Cni, Underlay, generate
from devtools.lab.topology_file import from_dict, to_dict
from devtools.nodes import calico, cni, kubeproxy
from mcagent.model.errors import InputError
from mcagent.model.net import overlaps
from mcagent.model.parsing.parse import parse_object


@pytest.mark.parametrize("kind", list(Cni))
def test_a_topology_survives_writing_and_reading(kind: Cni) -> None:
    """What `to_dict` writes, `from_dict` reads back as the same value."""
    topology = generate(clusters=3, workers=2, gateways=2, pods=2, cni=kind)
    assert from_dict(to_dict(topology)) == topology


def test_an_underlay_of_ipv6_survives_writing_and_reading() -> None:
    """Every Node has an address of its cluster's IPv6 subnet, and that is the one that the API has."""
    topology = generate(workers=2, underlay=Underlay.IPV6)
    assert (
        from_dict(to_dict(topology)) == from_dict({"workers": 2, "name": "demo", "underlay": "ipv6"}) == topology
    )
    for cluster, node in topology.nodes():
        assert cluster.subnet6 is not None
        assert node.tunnel_address in cluster.subnet6
        assert str(node.tunnel_address) in str(objects.node_object(node)["status"])
    raw = to_dict(topology)
    raw["clusters"][0]["nodes"][0].pop("address6")  # type: ignore[index]
    with pytest.raises(InputError, match="address6"):
        from_dict(raw)


def test_the_short_form_is_generated() -> None:
    """A file with numbers gives what `generate` gives for them."""
    raw = {"name": "x", "clusters": 3, "workers": 2, "cni": "aws-vpc", "tunnel": "vxlan"}
    topology = from_dict(raw)
    assert [len(cluster.nodes) for cluster in topology.clusters] == [3, 3, 3]
    assert {cluster.cni for cluster in topology.clusters} == {Cni.AWS_VPC}
    assert topology.tunnel == "vxlan"


def test_no_two_clusters_collide_but_in_overlap() -> None:
    """Subnets, Service CIDRs and Pod CIDRs are disjoint up to the largest lab; `overlap` shares the Pod CIDR."""
    for kind in Cni:
        clusters = generate(clusters=MAX_CLUSTERS, cni=kind).clusters
        assert len({cluster.subnet for cluster in clusters}) == MAX_CLUSTERS
        assert len({cluster.pod_cidr for cluster in clusters}) == (1 if kind is Cni.OVERLAP else MAX_CLUSTERS)
        for a in clusters:
            for b in clusters:
                if a.name != b.name:
                    assert not overlaps(a.service_cidr, b.service_cidr)
                    assert not overlaps(a.service_cidr, b.pod_cidr)


def test_every_address_is_used_once_per_cluster() -> None:
    """Nodes, Pods, router and API server never share an address."""
    for kind in Cni:
        for cluster in generate(clusters=2, workers=20, gateways=3, pods=6, cni=kind).clusters:
            addresses = [cluster.router, cluster.api_address]
            for node in cluster.nodes:
                addresses += [node.address, *(pod.address for pod in node.pods)]
            assert len(set(addresses)) == len(addresses)


def test_every_object_is_readable_by_the_agent() -> None:
    """The agent's own reader takes each object of every profile without a problem."""
    for kind in Cni:
        topology = generate(clusters=3, workers=2, gateways=2, pods=2, cni=kind)
        for cluster in topology.clusters:
            for raw in objects.of_cluster(topology, cluster):
                assert parse_object(raw).problems == ()


def test_a_service_exported_by_two_clusters_is_imported_once() -> None:
    """Its one ClusterIP leads to both, as Antrea merges exports of the same name."""
    topology = generate(clusters=3)
    (imported,) = topology.imports(topology.clusters[0])
    assert imported.name == "antrea-mc-web"
    assert imported.backends == tuple(c.services[0].cluster_ip for c in topology.clusters[1:])
    assert imported.cluster_ip in topology.clusters[0].service_cidr
    cluster = topology.clusters[0]
    assert str(imported.backends[1]) in kubeproxy.ruleset(kubeproxy.of_topology(topology, cluster), cluster)


def test_profiles_differ_where_cnis_do() -> None:
    """flannel routes Pod CIDRs and masquerades; the AWS VPC CNI has neither routes nor Pod CIDRs, and SNATs."""
    flannel, aws = generate(cni=Cni.FLANNEL).clusters[0], generate(cni=Cni.AWS_VPC).clusters[0]
    assert cni.routes(flannel, flannel.nodes[0], "eth0") == ["route add 10.1.2.0/24 via 192.168.1.12 dev eth0"]
    assert cni.routes(aws, aws.nodes[0], "eth0") == []
    assert any("MASQUERADE" in rule for rule in cni.rules(flannel, flannel.nodes[0]))
    assert any("SNAT" in rule for rule in cni.rules(aws, aws.nodes[0]))
    assert all(node.pod_cidr is None for node in aws.nodes)
    assert all(pod.address in aws.subnet for node in aws.nodes for pod in node.pods)


def test_calico_takes_pods_from_blocks_of_its_pool() -> None:
    """Not from the Nodes' Pod CIDRs; each block leads to its Node, and each Pod has chains of its own."""
    cluster = generate(cni=Cni.CALICO, pods=70).clusters[0]
    first, second = cluster.nodes
    for node in cluster.nodes:
        assert node.pod_cidr is not None
        assert not any(pod.address in node.pod_cidr for pod in node.pods)
        assert all(pod.address in cluster.pod_cidr for pod in node.pods)
    assert not set(calico.blocks(first)) & set(calico.blocks(second))
    assert cni.routes(cluster, first, "eth0") == [
        "route add blackhole 10.1.128.0/26 proto 80",
        "route add blackhole 10.1.128.64/26 proto 80",
        "route add 10.1.129.0/26 via 192.168.1.12 dev eth0 proto 80 onlink",
        "route add 10.1.129.64/26 via 192.168.1.12 dev eth0 proto 80 onlink",
    ]
    rules = calico.rules(cluster, first)
    assert rules.count("--ctstate INVALID -j DROP") == 2 * len(first.pods)
    assert "-s 10.1.0.0/16 ! -d 10.1.0.0/16 -j MASQUERADE" in rules


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "must be a mapping"),
        ({"clusters": 0}, "clusters: must be 1 to"),
        ({"clusters": "two"}, "clusters: must be a number"),
        ({"clusters": 2, "cni": "weave"}, "cni: must be one of flannel, aws-vpc, calico, overlap"),
        ({"clusters": 2, "nodes": 3}, "nodes: unknown"),
        ({"clusters": [{"name": "a"}]}, "clusters[0].subnet: must be a string"),
        ({"clusters": [{"name": "a", "subnet": "10.0.0.1/8"}]}, "clusters[0].subnet: must be an IPv4 CIDR"),
        ({"clusters": [{"name": "a", "nod": []}]}, "clusters[0].nod: unknown"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(raw: object, message: str) -> None:
    """The error names the path and what would be right."""
    with pytest.raises(InputError) as caught:
        from_dict(raw, "lab.yaml")
    assert message in str(caught.value)


def test_names_must_be_unique_and_services_need_their_pods() -> None:
    """Two Nodes of one name, or a Service over a Pod that is not there, are refused."""
    raw = to_dict(generate())
    clusters = raw["clusters"]
    assert isinstance(clusters, list)
    clusters[1]["nodes"][0]["name"] = clusters[0]["nodes"][0]["name"]
    with pytest.raises(InputError, match="two are called east-gw1"):
        from_dict(raw)
    raw = to_dict(generate())
    clusters = raw["clusters"]
    assert isinstance(clusters, list)
    clusters[0]["services"][0]["pods"] = ["nobody"]
    with pytest.raises(InputError, match="no Pod nobody"):
        from_dict(raw)


def test_the_published_pod_cidr_holds_every_pod() -> None:
    """What is published covers each Pod, so that its source address is accepted."""
    for kind in Cni:
        for cluster in generate(workers=3, cni=kind).clusters:
            for node in cluster.nodes:
                for pod in node.pods:
                    assert pod.address in ipaddress.ip_network(cluster.pod_cidr)


def test_kube_proxy_passes_over_other_address_families() -> None:
    """A dual-stack Service has a slice for each family; the lab's kube-proxy serves IPv4, and does not end."""
    meta = {"namespace": "default", "name": "web"}
    service = {"metadata": meta, "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}}
    ipv6 = {
        "metadata": {"namespace": "default", "name": "six"},
        "spec": {"clusterIP": "fd00::7", "ports": [{"port": 80}]},
    }
    labelled: dict[str, object] = {**meta, "labels": {"kubernetes.io/service-name": "web"}}
    slices = [
        {
            "metadata": labelled,
            "addressType": family,
            "endpoints": [{"addresses": [address]}],
            "ports": [{"port": 8080}],
        }
        for family, address in (("IPv4", "10.1.0.5"), ("IPv6", "fd00::5"), ("FQDN", "web.example"))
    ]
    (proxied,) = kubeproxy.of_objects([service, ipv6], slices)
    assert [(str(address), port) for address, port in proxied.backends] == [("10.1.0.5", 8080)]


def test_a_name_is_had_by_one_demo(tmp_path: Path) -> None:
    """Two demos of one name would remove each other's lab; the second is refused, another name is not."""
    with ExitStack() as demos:
        demos.enter_context(state.exclusive("demo", tmp_path))
        demos.enter_context(state.exclusive("other", tmp_path))
        with pytest.raises(LabError, match="--name or MCLAB_NAME"):
            demos.enter_context(state.exclusive("demo", tmp_path))
    with state.exclusive("demo", tmp_path):
        pass
    lab = state.State("demo", tmp_path)
    lab.create(generate(name="demo"), [])
    lab.keep()  # as `mclab up` leaves it: a demo would take it away
    with pytest.raises(LabError, match="lab demo is up"), state.exclusive("demo", tmp_path):
        pass
