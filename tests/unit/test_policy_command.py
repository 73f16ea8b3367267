"""`mcagent policy`: what it says of manifests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcagent.cli.main import main
from mcagent.model.parsing.labels import label_hash, normalised
from tests.policy_manifests import Manifest, manifest

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
        (("--from", "10.2.0.9", "--to", "shop/nothing"), "there is no Pod"),
        (("--from", "10.2.0.9", "--to", "data/mysql-0", "--port", "many"), "must be as 80, 53/UDP or ICMP"),
    ],
)
def test_explain_says_what_is_wrong_of_a_question(
    world: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    """It names the flag, and what would be right."""
    assert main(["policy", "explain", "--local", "-f", str(world), *arguments]) == 2
    assert said in capsys.readouterr().err


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
