"""`mcagent mc`: the command lines of Antrea's guides, read by the parsers of the commands that they become."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from mcagent.cli.main import command_of, main, parser_of
from mcagent.cli.mc import translate
from mcagent.model.errors import InputError

AREA = {"namespace": "antrea-multicluster"}
OF_INIT = AREA | {"action": "init", "clusterset": "test-clusterset", "clusterid": "test-cluster-leader"}
OF_JOIN = {"action": "join", "namespace": "kube-system"}
BY_FLAGS = OF_JOIN | {
    "clusterset": "clusterset1",
    "clusterid": "cluster-east",
    "leader_clusterid": "cluster-north",
    "leader_namespace": "antrea-multicluster",
    "leader_apiserver": "https://172.18.0.3:6443",
}
FLAGS = (
    "join --clusterset=clusterset1 --clusterid=cluster-east --namespace=kube-system "
    "--leader-clusterid=cluster-north --leader-namespace=antrea-multicluster --leader-apiserver=https://172.18.0.3:6443"
)
MEMBER = {"role": "member", "apply": True, "namespace": "kube-system"}
LEADER = {"role": "leader", "apply": True, "leader_namespace": "antrea-multicluster", "namespace": "kube-system"}

BY_TOKEN_FILE = "--config-file join-config.yml --token-secret-file test-cluster-leader-token.yml"
INIT = "init --clusterset test-clusterset --clusterid test-cluster-leader"

# (what follows `antctl mc`, the command of mcagent, what its parser reads)
GUIDES: list[tuple[str, str, dict[str, Any]]] = [
    ("deploy leadercluster -n antrea-multicluster --antrea-version v2.4.0", "deploy", LEADER),
    ("deploy membercluster -n kube-system --antrea-version=v2.4.0", "deploy", MEMBER),
    (
        f"{INIT} -n antrea-multicluster --create-token -j join-config.yml",
        "clusterset",
        OF_INIT | {"join_config_file": Path("join-config.yml")},
    ),
    (
        f"{INIT} --namespace antrea-multicluster -o join-config.yml",
        "clusterset",
        OF_INIT | {"join_config_file": Path("join-config.yml")},
    ),
    (
        "join --clusterid test-cluster-member -n kube-system --config-file join-config.yml",
        "clusterset",
        OF_JOIN | {"clusterid": "test-cluster-member", "config_file": Path("join-config.yml")},
    ),
    (
        f"join --clusterid test-cluster-leader -n kube-system {BY_TOKEN_FILE}",
        "clusterset",
        OF_JOIN | {"clusterid": "test-cluster-leader", "token_secret_file": "test-cluster-leader-token.yml"},
    ),
    (f"{FLAGS} --token-secret-name=cluster-east-token", "clusterset", BY_FLAGS),
    (f"{FLAGS} --token-secret-file=cluster-east-token.yml", "clusterset", BY_FLAGS),
    (
        "create membertoken cluster-east-token -n antrea-multicluster --cluster-id cluster-east -o token.yml",
        "membertoken",
        AREA | {"action": "create", "name": "cluster-east-token", "output_file": Path("token.yml")},
    ),
    (
        "delete membertoken cluster-east-token -n antrea-multicluster",
        "membertoken",
        AREA | {"action": "delete", "name": "cluster-east-token"},
    ),
    ("get clusterset -A", "get", {"what": "clusterset", "all_namespaces": True}),
    ("get clustersets clusterset1 -n ns -o json", "get", {"names": ["clusterset1"], "output": "json"}),
    ("get ri -n ns -o yaml", "get", {"what": "ri", "namespace": "ns"}),
    ("get resourceexport -n ns -clusterid east", "get", {"what": "resourceexport", "clusterid": "east"}),
    ("get resourceexport -n ns --cluster-id east", "get", {"what": "resourceexport", "clusterid": "east"}),
    ("get re --cluster-id=east", "get", {"clusterid": "east"}),
    ("get re --clusterid=east -k east.kubeconfig", "get", {"clusterid": "east", "kubeconfig": "east.kubeconfig"}),
    ("get membertoken -n antrea-multicluster", "get", AREA | {"what": "membertoken"}),
    (
        "get joinconfig --member-token default-member-token -n antrea-multicluster",
        "get",
        AREA | {"what": "joinconfig", "names": []},
    ),
    ("leave --clusterset clusterset1 --namespace kube-system", "clusterset", {"action": "leave"}),
    ("destroy --clusterset=clusterset1 --namespace ns", "clusterset", {"action": "destroy", "namespace": "ns"}),
]


@pytest.mark.parametrize(("line", "command", "values"), GUIDES, ids=[line for line, _, _ in GUIDES])
def test_the_guides_command_lines_are_understood(line: str, command: str, values: dict[str, Any]) -> None:
    """Each becomes a command of mcagent with the same values."""
    (name, *words), _ = translate(shlex.split(line))
    assert name == command
    read = vars(parser_of(command_of(name), f"mcagent {name}").parse_args(words))
    assert {key: read[key] for key in values} == values


def test_ignored_flags_are_reported_with_what_to_do() -> None:
    """A default token for all members, a version of Antrea, a token on stdout."""
    for line, hint in (
        ("init -n ns --clusterset a --clusterid b --create-token", "--cluster-id ID"),
        ("deploy membercluster -n ns --antrea-version v2.4.0", "--image"),
        ("get joinconfig --member-token east", "--secret-file"),
    ):
        _, (remark,) = translate(line.split())
        assert "is ignored: " in remark
        assert hint in remark


@pytest.mark.parametrize(
    "line",
    ["", "add membercluster", "create", "deploy", "deploy membercluster -n ns -f x.yml", "--kubeconfig x get"],
)
def test_what_is_not_understood_is_refused(line: str) -> None:
    """The message has the commands, or the flag."""
    with pytest.raises(InputError, match=r"known are init, join|kubectl apply"):
        translate(line.split())


def test_a_line_runs_as_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command answers, with its exit code and under its name; the remark comes before."""
    missing = str(tmp_path / "none")
    line = ["mc", "get", "joinconfig", "--member-token", "east", "-k", missing]
    assert main(line) == 1
    remark, error = capsys.readouterr().err.splitlines()[:2]
    assert remark.startswith("mcagent mc: --member-token is ignored")
    assert error.startswith("mcagent get: ")
    assert missing in error
    assert main(["mc", "frobnicate"]) == main(["get", "frobnicate", "--kubeconfig", missing])
