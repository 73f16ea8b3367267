"""The agent's page /doctor: asked often, it looks seldom; asked by many, it keeps nobody else out."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from devtools.waiting import wait_until
from mcagent.agent.config import Settings, load
from mcagent.agent.doctor_page import DoctorPage
from mcagent.cli.main import main
from mcagent.doctor.diagnose import diagnose
from mcagent.http.server import Page


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Give a Node that has nothing: no Open vSwitch, objects from an empty directory."""
    flags = {"nodeName": "n1", "ovsdb": f"unix:{tmp_path}/db.sock", "source": f"dir:{tmp_path}"}
    return load(
        None, {}, {**flags, "runDirectory": str(tmp_path), "hostPort": "mct-none0", "nftTable": "mct_none"}
    )


def test_a_node_that_has_nothing_is_looked_at(settings: Settings) -> None:
    """No part that is missing stops another one."""
    findings = diagnose(settings, None, "no agent answers").findings
    reasons = {finding.reason for finding in findings}
    assert {"AgentSilent", "OvsdbAway"} <= reasons
    assert {"routes", "forwarding", "api"} <= {finding.check for finding in findings}


def test_many_requests_are_one_look(settings: Settings) -> None:
    """Within a few seconds the same answer is given again; beyond a short queue the answer is 503."""
    asked_event = threading.Event()
    go = threading.Event()
    statuses = 0

    def status() -> Page:
        nonlocal statuses
        statuses += 1
        asked_event.set()
        assert go.wait(30)
        return Page(body=json.dumps({"alive": True}))

    page = DoctorPage(diagnose, lambda: settings, status, lambda: None)
    answers: list[Page] = []
    threads = [threading.Thread(target=lambda: answers.append(page())) for _ in range(12)]
    threads[0].start()
    assert asked_event.wait(30)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(answers) == 8, "those that are too many to be told so")
    go.set()
    for thread in threads:
        thread.join(30)
    codes = sorted(thread.status for thread in answers)
    assert codes.count(200) == 4
    assert codes.count(503) == 8
    assert statuses == 1
    assert page().status == 200
    assert statuses == 1


def test_the_node_has_the_name_of_its_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no agent answers: what is computed in its place is for that very Node."""
    monkeypatch.delenv("MCAGENT_NODE_NAME", raising=False)
    file = tmp_path / "agent.yaml"
    text = (
        f"source: dir:{tmp_path}\novsdb: unix:{tmp_path}/db.sock\nrunDirectory: {tmp_path}\nlisten: 127.0.0.1:9\n"
    )
    for configuration, name in (("nodeName: n7\n", "n7"), ("", socket.gethostname().lower())):
        file.write_text(text + configuration)
        assert main(["doctor", "--config", str(file), "-o", "json"]) == 1
        (node,) = json.loads(capsys.readouterr().out)["nodes"]
        assert node["node"] == name
    file.write_text(text + "mtu: 1\n")
    assert main(["doctor", "--config", str(file)]) == 2
    assert "mtu: must be" in capsys.readouterr().err
