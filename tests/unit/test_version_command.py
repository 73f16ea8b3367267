"""`mcagent version`: of this program, and of the Pods of a cluster."""

from __future__ import annotations

import json

import pytest

from mcagent.api.codec import from_json
from mcagent.api.versions import ComponentVersion, VersionReport
from mcagent.cli.common.components import Components, versions
from mcagent.cli.main import main
from mcagent.cli.version import shown
from tests.worlds.exec_server import OBJECTS, channel, ended, serving


def pod(name: str, component: str, container: str, phase: str = "Running") -> dict[str, object]:
    """Return a Pod of mcagent."""
    return {
        "metadata": {
            "namespace": "kube-system",
            "name": name,
            "labels": {"app.kubernetes.io/name": "mcagent", "app.kubernetes.io/component": component},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": container, "image": "mcagent:0.1.0"}]},
        "status": {"phase": phase},
    }


PODS = [
    pod("agent-1", "agent", "agent"),
    pod("agent-2", "agent", "agent", phase="Pending"),
    pod("member-1", "member", "controller"),
    pod("openvswitch-1", "openvswitch", "openvswitch"),
    pod("dns-1", "dns", "dns"),
]


def test_each_running_pod_reports_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is what the program in the container prints; a Pod without it has the reason."""
    monkeypatch.setitem(OBJECTS, "/api/v1/pods", PODS)
    answers = iter([channel(1, "mcagent 0.2.0\n") + ended(), channel(2, "no such file") + ended(127)])

    def answer(command: list[str]) -> bytes:
        assert command == ["mcagent", "version"]
        return next(answers, channel(1, "mcagent 0.1.0\n") + ended())

    with serving(answer) as (server, client):
        all_versions = versions(Components(client), 5.0)
    assert sorted(request["container"][0] for request in server.asked) == ["agent", "controller", "openvswitch"]
    assert {item.pod for item in all_versions} == {"agent-1", "member-1", "openvswitch-1"}
    assert sorted(item.version for item in all_versions) == ["", "0.1.0", "0.2.0"]
    (error,) = [item.error for item in all_versions if not item.version]
    assert "no such file" in error


def test_the_text_groups_pods_and_names_other_versions() -> None:
    """A cluster of thousands of Nodes has few lines; what differs is named."""
    agents = [
        ComponentVersion(
            component="agent", namespace="kube-system", pod=f"a{n}", image="mcagent:1", version="0.1.0"
        )
        for n in range(3)
    ]
    other = ComponentVersion(
        component="member", namespace="kube-system", pod="m", image="mcagent:1", version="0.2.0"
    )
    lines = shown(VersionReport(version="0.1.0", components=(*agents, other)))
    assert lines[0] == "mcagent 0.1.0"
    assert [line.split() for line in lines[3:5]] == [
        ["kube-system", "agent", "0.1.0", "3", "mcagent:1"],
        ["kube-system", "member", "0.2.0", "1", "mcagent:1"],
    ]
    assert lines[-1] == "Other versions than this program's: 0.2.0."


def test_json_has_the_version_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --all no cluster is asked, and there are no components."""
    assert main(["version", "-o", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    report = from_json(VersionReport, printed, "the command")
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"mcagent {report.version}\n"
    assert report.components == ()
