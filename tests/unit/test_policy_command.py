"""`mcagent policy`: what it says of manifests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.cli.common.manifest_files import read_files
from mcagent.cli.common.policy_ends import ClusterPolicies, Port, steps
from mcagent.cli.main import main
from mcagent.core.engine import IncrementalEngine
from mcagent.core.policies.selection import select_rules
from mcagent.core.snapshot import apply_changes
from mcagent.model.config import Config, PolicyFailureMode
from mcagent.model.errors import InputError
from mcagent.model.objects import Snapshot
from mcagent.model.parsing.labels import label_hash, normalised
from mcagent.model.policies import Verdict
from tests.worlds.policy_manifests import Manifest, cluster_info, manifest

WEB = normalised("shop", {}, {"app": "web"})


def pod(space: str, name: str, ip: str, **labels: str) -> Manifest:
    """Return a Pod of node-1."""
    status = {"phase": "Running", "podIPs": [{"ip": ip}]}
    spec = {"nodeName": "node-1", "containers": [{"ports": [{"name": "sql", "containerPort": 3306}]}]}
    return manifest("v1", "Pod", name, space, labels=labels, spec=spec, status=status)


def antrea(name: str, way: str, *rules: Manifest, tier: str = "application") -> Manifest:
    """Return a ClusterNetworkPolicy for Pods with app=db."""
    applied = [{"podSelector": {"matchLabels": {"app": "db"}}}]
    spec = {"priority": 5, "tier": tier, "appliedTo": applied, way: list(rules)}
    return manifest("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", name, spec=spec)


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A directory with a Pod of each side, a sender's labels, an imported Service, and policies."""
    ends = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.97.0.5"], "conditions": {"ready": True}}]}
    of = {"kubernetes.io/service-name": "antrea-mc-cart"}
    slice_ = manifest("discovery.k8s.io/v1", "EndpointSlice", "cart-1", "shop", labels=of) | ends
    label = manifest("multicluster.crd.antrea.io/v1alpha1", "LabelIdentity", label_hash(WEB))
    label["metadata"]["annotations"] = {"mcagent.io/exporters": "west"}
    isolation = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": []}
    objects = [
        manifest("v1", "Namespace", "shop"),
        manifest("v1", "Namespace", "data"),
        pod("data", "mysql-0", "10.1.0.2", app="db"),
        pod("shop", "cart-0", "10.1.0.3", app="cart"),
        slice_ | {"ports": [{"name": "http", "protocol": "TCP", "port": 80}]},
        label | {"spec": {"label": WEB, "id": 9}},
        antrea(
            "to-db",
            "ingress",
            {
                "action": "Allow",
                "name": "web",
                "from": [{"podSelector": {"matchLabels": {"app": "web"}}, "scope": "ClusterSet"}],
                "ports": [{"protocol": "TCP", "port": "sql"}],
            },
        ),
        antrea(
            "no-cart",
            "egress",
            {"action": "Reject", "toServices": [{"name": "cart", "namespace": "shop", "scope": "ClusterSet"}]},
        ),
        manifest("networking.k8s.io/v1", "NetworkPolicy", "quiet", "data", spec=isolation),
    ]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return tmp_path


def explain(world: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the decisions."""
    code = main(["policy", "explain", "--local", "-f", str(world), "-o", "json", *arguments])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["decisions"]
    return code, found


@pytest.mark.parametrize("source", ["shop:app=web", WEB])
def test_explain_names_the_rule_that_lets_labels_in(
    world: Path, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    """The object, the rule, the Node and the number of the sender's labels; the rule's port by its name."""
    code, (found,) = explain(world, capsys, "--from", source, "--to", "data/mysql-0", "--port", "3306")
    named = (found["policy"], found["rule"], found["verdict"], found["node"], found["peerIdentity"])
    assert (code, named) == (0, ("ClusterNetworkPolicy to-db", "ingress[0] web", "Allow", "node-1", 9))
    assert found["peerCluster"] == "west"


@pytest.mark.parametrize(
    "asked",
    [
        ("--from", "shop:app=web", "--port", "80"),
        ("--from", "shop:app=web", "--from-cluster", "east", "--port", "3306"),
        ("--from", "10.2.0.9", "--port", "3306"),
        ("--from", "shop:app=other", "--port", "3306"),
    ],
)
def test_explain_tells_that_a_pod_is_isolated(
    world: Path, capsys: pytest.CaptureFixture[str], asked: tuple[str, ...]
) -> None:
    """Another port, a cluster without such Pods, a bare address, labels that nobody has: isolation drops them."""
    code, (found,) = explain(world, capsys, *asked, "--to", "data/mysql-0")
    assert (code, found["verdict"], found["policy"]) == (1, "Drop", "")
    assert "NetworkPolicy data/quiet" in found["why"]


def test_explain_leaves_out_addresses_that_clusters_do_not_connect(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Pod of two families is judged by its IPv4 address; a question about IPv6 alone is an error."""
    two = pod("data", "two", "10.1.0.4", app="db")
    two["status"]["podIPs"].append({"ip": "fd00::4"})
    (world / "two.yaml").write_text(yaml.safe_dump(two), encoding="utf-8")
    _, steps = explain(world, capsys, "--from", "shop:app=web", "--to", "data/two", "--port", "3306")
    assert [(step["podAddress"], step["verdict"]) for step in steps] == [("10.1.0.4", "Allow")]
    command = ["policy", "explain", "--local", "-f", str(world), "--from", "fd00::9", "--to", "data/two"]
    assert main(command) == 2
    assert "clusters are connected by IPv4" in capsys.readouterr().err


def test_explain_knows_the_service_of_a_rule(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rule about a Service of other clusters decides on its endpoints, and on no other address."""
    asked = ("--from", "data/mysql-0", "--to")
    code, (found,) = explain(world, capsys, *asked, "shop/cart", "--port", "80")
    assert (code, found["verdict"], found["rule"], found["peerAddress"]) == (1, "Reject", "egress[0]", "10.97.0.5")
    code, (found,) = explain(world, capsys, *asked, "10.97.0.6", "--port", "80")
    assert (code, found["verdict"]) == (0, "Allow")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--from", "shop/cart-0", "--to", "data/mysql-0"), "is a Pod of the same cluster"),
        (("--from", "shop/cart-0", "--to", "shop/nothing"), "or Service with endpoints"),
        (("--from", "shop/cart-0", "--to", "shop/cart", "--port", "81"), "only 80/TCP"),
        (("--from", "nobody", "--to", "data/mysql-0"), "or labels as shop:app=web"),
        (("--from", "east:shop/web-1", "--to", "data/mysql-0"), "a Pod of another cluster is given by its labels"),
        (("--from", "shop:app", "--to", "data/mysql-0"), "or labels as shop:app=web"),
        (("--from", "10.2.0.9", "--to", "shop/nothing"), "is a Pod of this cluster: give NAMESPACE/POD for one"),
        (("--from", "10.2.0.9", "--to", "data/mysql-0", "--port", "many"), "must be as 80, 53/UDP or ICMP"),
    ],
)
def test_explain_says_what_is_wrong_of_a_question(
    world: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    """It names the flag, and what would be right."""
    assert main(["policy", "explain", "--local", "-f", str(world), *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ends", "direction", "named"),
    [
        (("10.2.0.9", "10.1.0.2"), "ingress", ("data/mysql-0", "10.2.0.9")),
        (("10.1.0.2", "10.97.0.5"), "egress", ("data/mysql-0", "10.97.0.5")),
    ],
)
def test_explain_knows_pods_by_their_addresses(
    world: Path, capsys: pytest.CaptureFixture[str], ends: tuple[str, str], direction: str, named: tuple[str, str]
) -> None:
    """`mcagent trace` recommends the command with the addresses of the packet that a policy has dropped."""
    code, (step,) = explain(world, capsys, "--from", ends[0], "--to", ends[1], "--port", "80/TCP")
    assert (code, step["direction"], (step["pod"], step["peerAddress"])) == (1, direction, named)


def test_explain_of_two_addresses_of_the_cluster_asks_for_another_one(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between its own Pods the CNI decides; and an address that no Pod has is no name."""
    command = ["policy", "explain", "--local", "-f", str(world), "--from"]
    assert main([*command, "10.1.0.2", "--to", "10.1.0.3"]) == 2
    assert "shop/cart-0 is a Pod of the same cluster" in capsys.readouterr().err
    assert main([*command, "10.2.0.2", "--to", "10.2.0.3"]) == 2
    assert "is a Pod of this cluster: give NAMESPACE/POD for one" in capsys.readouterr().err


@pytest.mark.parametrize(("node", "hint"), [("node1", '(did you mean "node-1"?)'), ("x", "with Pods are node-1")])
def test_a_node_without_pods_is_not_one_without_rules(
    world: Path, capsys: pytest.CaptureFixture[str], node: str, hint: str
) -> None:
    """A mistyped name does not look like a Node that forbids nothing."""
    command = ["policy", "list", "--local", "-f", str(world), "--node"]
    assert main([*command, node]) == 2
    text = capsys.readouterr().err
    assert f'no Pod is on Node "{node}"' in text
    assert hint in text
    assert main([*command, "node-1"]) == 0


@pytest.mark.parametrize("flag", ["--from", "--to"])
def test_explain_says_that_a_pod_is_in_the_host_network(
    world: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    """It is no Pod that policies select, and no unknown name either."""
    host = pod("shop", "exporter", "192.0.2.7", app="db")
    host["spec"]["hostNetwork"] = True
    (world / "host.yaml").write_text(yaml.safe_dump(host), encoding="utf-8")
    ends = {"--from": "10.2.0.9", "--to": "data/mysql-0", flag: "shop/exporter"}
    arguments = [text for pair in ends.items() for text in pair]
    assert main(["policy", "explain", "--local", "-f", str(world), *arguments]) == 2
    text = capsys.readouterr().err
    assert flag in text
    assert "shop/exporter is in the host network of Node node-1 (192.0.2.7)" in text


def test_explain_of_labels_leaves_out_the_own_cluster(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pods with such labels in west itself are not judged in west, as no rule between clusters applies to them."""
    changes = [*read_files([world])]
    both = ClusterPolicies("", apply_changes(Snapshot(), changes), PolicyFailureMode.CLOSED)
    (identity,) = both.snapshot.label_identities.values()
    assert identity.clusters == frozenset({"west"})
    identities = {"1": replace(identity, clusters=frozenset({"west", "east"}))}
    shared = replace(both.snapshot, label_identities=identities)

    def senders(cluster_id: str, of: str = "") -> list[str]:
        side = ClusterPolicies("", shared, PolicyFailureMode.CLOSED, cluster_id)
        asked = steps("shop:app=web", "data/mysql-0", Port(), side, cluster=of)
        return [step.request.cluster for step in asked]

    assert senders("") == ["east", "west"]
    assert senders("west") == ["east"]
    with pytest.raises(InputError, match="its CNI decides"):
        senders("west", of="west")
    capsys.readouterr()


def test_explain_judges_labels_of_each_cluster_where_the_leader_does_not_say_which_have_them(world: Path) -> None:
    """As Antrea's: a rule may name one of them."""
    infos = [cluster_info(name, number) for number, name in enumerate(("north", "west"), 1)]
    (world / "clusters.yaml").write_text(yaml.safe_dump_all(infos), encoding="utf-8")
    side = ClusterPolicies("", apply_changes(Snapshot(), [*read_files([world])]), PolicyFailureMode.CLOSED)
    (key,) = side.snapshot.label_identities
    identities = {key: replace(side.snapshot.label_identities[key], clusters=None)}
    side.snapshot = replace(side.snapshot, label_identities=identities)
    requests = [step.request for step in steps("shop:app=web", "data/mysql-0", Port(), side)]
    assert [(request.cluster, request.identity) for request in requests] == [("north", 9), ("west", 9)]


def test_explain_tells_which_endpoints_of_a_service_are_in_the_own_cluster(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rule on an imported Service applies to Pods of the own cluster unless the CNI hides them."""
    ends = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.3"], "conditions": {"ready": True}}]}
    of = {
        "kubernetes.io/service-name": "antrea-mc-cart",
        "multicluster.kubernetes.io/service-name": "cart",
        "multicluster.kubernetes.io/source-cluster": "east",
    }
    own = manifest("discovery.k8s.io/v1", "EndpointSlice", "cart-own", "shop", labels=of) | ends
    own |= {"ports": [{"name": "http", "protocol": "TCP", "port": 8080}]}
    (world / "own.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")
    code, found = explain(world, capsys, "--from", "data/mysql-0", "--to", "shop/cart", "--port", "80")
    verdicts = {step["peerAddress"]: (step["verdict"], step["port"]) for step in found}
    assert (code, verdicts) == (1, {"10.97.0.5": ("Reject", "80/TCP"), "10.1.0.3": ("Drop", "8080/TCP")})
    assert any(
        "the Node's netfilter enforces it, unless the CNI forwards past it" in step["why"] for step in found
    )
    to_pod = explain(world, capsys, "--from", "data/mysql-0", "--to", "10.1.0.3", "--port", "3306")[1]
    assert [step["verdict"] for step in to_pod] == ["Allow"]
    assert "no rule names its Service: only the CNI decides" in to_pod[0]["why"]
    snapshot = apply_changes(Snapshot(), [*read_files([world])])
    assert ClusterPolicies("", snapshot, PolicyFailureMode.CLOSED, "east").on("node-1").selected.problems == ()
    engine = IncrementalEngine()
    with engine.one_pass():
        (problem,) = select_rules(
            engine, snapshot, Config(node_name="node-1", cluster_id="east"), cni="Cilium"
        ).problems
        assert (problem.reason, problem.path) == ("PartlyEnforced", "spec.egress[0].toServices")
        assert "1 endpoints of Service shop/antrea-mc-cart are in this cluster: Cilium forwards" in problem.message
        assert (
            select_rules(engine, snapshot, Config(node_name="node-1", cluster_id="north"), cni="Cilium").problems
            == ()
        )


def test_explain_leaves_a_service_of_the_same_cluster_to_the_cni(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Agents enforce rules within the cluster only for imported Services: the Service itself is not closed."""
    slice_ = manifest("discovery.k8s.io/v1", "EndpointSlice", "base-1", "shop")
    slice_["metadata"]["labels"] = {"kubernetes.io/service-name": "base"}
    slice_ |= {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.3"]}], "ports": [{"port": 8080}]}
    rule = antrea("no-base", "egress", {"action": "Drop", "toServices": [{"name": "base", "namespace": "shop"}]})
    (world / "base.yaml").write_text(yaml.safe_dump_all([slice_, rule]), encoding="utf-8")
    code, (step,) = explain(world, capsys, "--from", "data/mysql-0", "--to", "shop/base", "--port", "8080")
    assert (code, step["verdict"], step["policy"]) == (0, "Allow", "")
    expected = "ClusterNetworkPolicy no-base egress[0] is about a Service of the same cluster"
    assert step["why"] == f"{expected}, where only the CNI decides"


def translated(folder: Path, virtual: str, pod_address: str, *blocks: Manifest) -> ClusterPolicies:
    """Return a cluster with the Pod CIDR 10.244.0.0/16, and `virtual` in its place elsewhere ("": none)."""
    gateway = manifest("multicluster.crd.antrea.io/v1alpha1", "Gateway", "node-1", "mc")
    gateway |= {"gatewayIP": "192.168.1.1", "internalIP": "192.168.1.1", "serviceCIDR": "10.96.0.0/16"}
    if virtual:
        gateway["metadata"]["annotations"] = {"mcagent.io/pod-prefixes": f"10.244.0.0/16={virtual}"}
    objects = [manifest("v1", "Namespace", "data"), gateway, pod("data", "db", pod_address, app="db"), *blocks]
    folder.mkdir()
    (folder / "all.yaml").write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    return ClusterPolicies(folder.name, apply_changes(Snapshot(), read_files([folder])), PolicyFailureMode.CLOSED)


@pytest.mark.parametrize("named", ["real", "virtual"])
@pytest.mark.parametrize("east_cidr", ["", "100.72.0.0/16"], ids=["east real", "east virtual"])
@pytest.mark.parametrize("west_cidr", ["", "100.73.0.0/16"], ids=["west real", "west virtual"])
def test_explain_judges_pods_of_other_clusters_by_their_virtual_addresses(
    tmp_path: Path, named: str, east_cidr: str, west_cidr: str
) -> None:
    """A rule about a real address applies only if the Pod's cluster does not translate it, as to packets."""
    real = ("10.244.7.9", "10.244.8.9")
    virtual = (f"{east_cidr[:6] or '10.244'}.7.9", f"{west_cidr[:6] or '10.244'}.8.9")
    blocks = [{"ipBlock": {"cidr": f"{address}/32"}} for address in (real if named == "real" else virtual)]
    outwards = antrea("to-west", "egress", {"action": "Drop", "to": [blocks[1]]})
    inwards = antrea("from-east", "ingress", {"action": "Drop", "from": [blocks[0]]})
    east = translated(tmp_path / "east", east_cidr, real[0], outwards)
    west = translated(tmp_path / "west", west_cidr, real[1], inwards)
    egress, ingress = steps("data/db", "data/db", Port(6, 80), east, west)
    assert (str(egress.request.peer), str(egress.real_peer)) == (virtual[1], real[1])
    assert (str(ingress.request.peer), str(ingress.real_peer)) == (virtual[0], real[0])
    assert (str(egress.virtual), str(ingress.virtual)) == virtual
    assert egress.decision.verdict is (Verdict.DROP if named == "virtual" or not west_cidr else Verdict.ALLOW)
    assert ingress.decision.verdict is (Verdict.DROP if named == "virtual" or not east_cidr else Verdict.ALLOW)


@pytest.mark.parametrize("given", ["real", "virtual"])
@pytest.mark.parametrize("named", ["real", "virtual"])
@pytest.mark.parametrize("translates", [False, True], ids=["not translated", "translated"])
def test_explain_judges_an_address_of_the_other_context_as_its_packets_have_it(
    tmp_path: Path, given: str, named: str, translates: bool
) -> None:
    """As sender and as target. `kubectl get pods -o wide` shows the real address."""
    real = ("10.244.7.9", "10.244.8.9")
    virtual = ("100.72.7.9", "100.73.8.9") if translates else real
    blocks = [{"ipBlock": {"cidr": f"{address}/32"}} for address in (real if named == "real" else virtual)]
    outwards = antrea("to-west", "egress", {"action": "Drop", "to": [blocks[1]]})
    inwards = antrea("from-east", "ingress", {"action": "Drop", "from": [blocks[0]]})
    east = translated(tmp_path / "east", "100.72.0.0/16" if translates else "", "10.244.7.9", outwards)
    west = translated(tmp_path / "west", "100.73.0.0/16" if translates else "", "10.244.8.9", inwards)
    sender, target = real if given == "real" else virtual
    (egress,) = steps("data/db", target, Port(6, 80), east, west)
    (ingress,) = steps(sender, "data/db", Port(6, 80), east, west)
    assert (str(ingress.request.peer), str(egress.request.peer)) == virtual
    assert (str(ingress.real_peer), str(egress.real_peer)) == real
    applies = named == "virtual" or not translates
    assert {step.decision.verdict for step in (egress, ingress)} == {Verdict.DROP if applies else Verdict.ALLOW}


def test_explain_takes_an_address_without_its_cluster_as_it_arrives(tmp_path: Path) -> None:
    """Without --to-context the address is another cluster's, whatever Pods of this cluster have it."""
    block: Manifest = {"ipBlock": {"cidr": "10.244.0.0/16"}}
    west = translated(
        tmp_path / "west",
        "100.73.0.0/16",
        "10.244.8.9",
        antrea("from-east", "ingress", {"action": "Drop", "from": [block]}),
    )
    (step,) = steps("10.244.7.9", "data/db", Port(6, 80), west)
    assert (str(step.request.peer), step.real_peer) == ("10.244.7.9", None)
    assert step.decision.verdict is Verdict.DROP


def test_explain_knows_own_endpoints_with_two_contexts(tmp_path: Path) -> None:
    """The endpoint of a Service in the sender's own cluster: the bridge sees no packet, and no ipBlock applies."""
    block: Manifest = {"ipBlock": {"cidr": "10.244.0.0/16"}}
    slice_ = manifest("discovery.k8s.io/v1", "EndpointSlice", "base-1", "data")
    slice_["metadata"]["labels"] = {"kubernetes.io/service-name": "base"}
    slice_ |= {"addressType": "IPv4", "endpoints": [{"addresses": ["10.244.7.9"]}], "ports": [{"port": 80}]}
    rule = antrea("no-pods", "egress", {"action": "Drop", "to": [block]})
    east = translated(tmp_path / "east", "100.72.0.0/16", "10.244.7.9", rule, slice_)
    west = translated(tmp_path / "west", "100.73.0.0/16", "10.244.8.9")
    for other_side in (None, west):
        (step,) = steps("data/db", "data/base", Port(6, 80), east, other_side)
        assert step.decision.verdict is Verdict.ALLOW


def test_explain_shows_both_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In text and as JSON."""
    translated(tmp_path / "east", "100.72.0.0/16", "10.244.7.9")
    command = [
        "policy",
        "explain",
        "--local",
        "-f",
        str(tmp_path / "east"),
        "--from",
        "data/db",
        "--to",
        "100.73.8.9",
    ]
    assert main(command) == 0
    assert "  10.244.7.9 is 100.72.7.9 in other clusters" in capsys.readouterr().out.splitlines()
    _, (step,) = explain(tmp_path / "east", capsys, *command[5:])
    assert (step["podAddress"], step["podVirtualAddress"]) == ("10.244.7.9", "100.72.7.9")
    assert (step["peerAddress"], step["peerRealAddress"]) == ("100.73.8.9", None)


@pytest.mark.parametrize(
    ("change", "path"),
    [({"action": "Refuse"}, "spec.egress[0].action"), ({}, "spec.priority")],
)
@pytest.mark.parametrize("mode", ["closed", "open"])
def test_a_rule_with_an_unknown_action_or_priority_fails_as_the_mode_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Manifest, path: str, mode: str
) -> None:
    """A CRD without Antrea's schema lets such an object in: closed drops everything, open nothing."""
    policy = antrea("odd", "egress", {"action": "Allow", "to": [{"ipBlock": {"cidr": "10.2.0.0/16"}}], **change})
    if not change:
        del policy["spec"]["priority"]
    objects = [manifest("v1", "Namespace", "data"), pod("data", "mysql-0", "10.1.0.2", app="db"), policy]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(objects), encoding="utf-8")
    command = ["policy", "list", "--local", "-f", str(tmp_path), "-o", "json", "--failure-mode", mode]
    assert main(command) == 1
    shown = json.loads(capsys.readouterr().out)
    assert [rule["verdict"] for rule in shown["rules"]] == (["Drop"] if mode == "closed" else [])
    assert [rule["peers"] for rule in shown["rules"]] == ([["any peer"]] if mode == "closed" else [])
    (problem,) = shown["problems"]
    assert problem["path"] == path
    assert "all packets between clusters are dropped in its place (policyFailureMode closed" in problem["message"]


def test_list_shows_rules_isolated_pods_and_what_is_not_enforced(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A manifest that is not applied yet counts; its rule that cannot be enforced drops, and is told."""
    extra = world / "extra"
    extra.mkdir()
    policy = antrea("names", "egress", {"action": "Allow", "to": [{"fqdn": "example.com"}]}, tier="emergency")
    (extra / "one.yaml").write_text(yaml.safe_dump(policy), encoding="utf-8")
    assert main(["policy", "list", "--local", "-f", str(world)]) == 0
    before = capsys.readouterr().out
    assert main(["policy", "list", "--local", "-f", str(world), "-f", str(extra)]) == 1
    lines = capsys.readouterr().out.splitlines()
    rule = next(line for line in lines if "to-db" in line)
    assert "Pods app=web of Namespaces (all)" in rule
    assert "3306/TCP" in rule
    assert any("data/mysql-0" in line and "NetworkPolicy data/quiet" in line for line in lines)
    assert "names" not in before
    assert "Drop" in next(line for line in lines if "names" in line)
    assert "ClusterNetworkPolicy names: spec.egress[0].to[0].fqdn" in lines[-1]


def test_list_says_that_there_are_no_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is no error."""
    assert main(["policy", "list", "--local", "-f", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no rules are in force\n"


def test_explain_for_people_names_everything(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says who and what, the next why."""
    main(["policy", "explain", "--local", "-f", str(world), "--from", "shop:app=web", "--to", "data/mysql-0"])
    assert capsys.readouterr().out.splitlines() == [
        "Node node-1: from a Pod of west (label identity 9) to data/mysql-0 10.1.0.2 TCP: Drop",
        f"  sender: {WEB}",
        "  because isolated by NetworkPolicy data/quiet, which allow no such connection",
        "  rules with ipBlock are ignored: the sender's address is not given",
    ]
