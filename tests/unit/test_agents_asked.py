"""Agents of many Nodes are asked: over sockets, by a command in a Pod. One that does not answer stops nobody."""

from __future__ import annotations

import json
import socket
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest

from mcagent.agent.config import Settings
from mcagent.cli.common.agents import ClusterAgents, LocalAgent, StaticAgents, ask_node, ask_nodes, read_list
from mcagent.cli.common.cluster_flags import complete_nodes
from mcagent.cli.common.completing import completed_parser
from mcagent.cli.common.place import nodes_of
from mcagent.cli.main import main
from mcagent.http.server import HttpServer, Page, Query
from mcagent.kube.client import Client
from mcagent.kube.credentials import token_kubeconfig
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError, ApiTooLargeError, ApiUnreachableError
from mcagent.kube.execute import execute
from mcagent.model.config import Config
from mcagent.model.errors import InputError, McagentError
from tests.waiting import allowed
from tests.worlds.exec_server import OBJECTS, channel, ended, serving


def listed(directory: Path, lines: dict[str, str]) -> Path:
    """Write the list of agents of these Nodes."""
    file = directory / "agents.yaml"
    file.write_text("".join(f"{node}: {address}\n" for node, address in lines.items()))
    return file


@pytest.mark.timing
def test_one_agent_that_hangs_stops_nobody(tmp_path: Path) -> None:
    """Every Node has its answer, or why there is none, within the deadline of one of them."""

    def page(query: str) -> Page:
        return Page(body=json.dumps({"asked": query}))

    servers = [HttpServer(tmp_path / f"n{n}", {"/trace": Query(page)}) for n in range(40)]
    lines = {f"n{n}": f"unix:{tmp_path}/n{n}" for n in range(40)}
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        hung = {f"hung{n}": f"unix:{tmp_path}/silent" for n in range(3)}
        agents = read_list(listed(tmp_path, {**lines, **hung, "gone": f"unix:{tmp_path}/gone"}))
        began = time.monotonic()
        answers = ask_nodes(agents, "/trace?a=1", timeout=1.0)
        assert time.monotonic() - began < allowed(5.0)
    for server in servers:
        server.close()
    assert [node for node, answer in answers.items() if answer.page == {"asked": "a=1"}] == sorted(lines)
    assert list(answers) == sorted(answers)
    assert all("did not answer" in answers[node].error or "timed out" in answers[node].error for node in hung)
    assert "No such file" in answers["gone"].error


def test_a_refusal_says_what_to_do(tmp_path: Path) -> None:
    """A page that is not there and one that complains are errors with words."""
    pages = {"/bad": Query(lambda query: Page(body=f"{query} is no address", status=400))}
    server = HttpServer(tmp_path / "n", pages)
    agents = read_list(listed(tmp_path, {"n": f"unix:{tmp_path}/n"}))
    with pytest.raises(McagentError, match="older version"):
        ask_node(agents, "n", "/trace")
    with pytest.raises(McagentError, match="x is no address"):
        ask_node(agents, "n", "/bad?x")
    with pytest.raises(McagentError, match="not in the list"):
        ask_node(agents, "m")
    server.close()


@pytest.mark.parametrize("text", ["n: 5", "- n", "n: status.sock", "1: unix:/a", "{", "n: host:port"])
def test_a_list_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    """The message names file and Node."""
    file = tmp_path / "agents.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=r"agents\.yaml"):
        read_list(file)


@pytest.mark.parametrize("path", ["status", "/a b", "/" + "a" * 3000, "/\u00e4"])
def test_only_paths_are_pages(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot stand in a request never gets into one."""
    assert main(["page", path]) == 2
    assert "must be a path" in capsys.readouterr().err


# --- pods/exec: an API server's side of it ----------------------------------------------------------------


def run(client: Client, *, timeout: float = 5.0, most: int = 1000) -> tuple[str, str, int]:
    """Execute something; return what it printed, and its exit code."""
    done = execute(client, namespace="n", pod="p", container="c", command=["a", "b c"], timeout=timeout, most=most)
    return done.out, done.err, done.code


def test_a_command_in_a_pod_gives_back_what_it_printed() -> None:
    """Output comes in pieces, errors apart, and the exit code last; the request names us and the container."""
    pieces = channel(1, "") + channel(1, "one ") + channel(2, "oh") + channel(1, "two\u00e4" + "x" * 200)
    with serving(lambda _: pieces + ended(3)) as (server, client):
        assert run(client) == ("one two\u00e4" + "x" * 200, "oh", 3)
    (question,) = server.asked
    assert question["command"] == ["a", "b c"]
    assert question["container"] == ["c"]
    assert question["path"] == ["/api/v1/namespaces/n/pods/p/exec"]
    assert question["authorization"] == ["Bearer our-token"]


def test_a_command_that_goes_wrong_ends_in_words() -> None:
    """Refused, too long, too late, cut off: each is an error of its own."""
    refused = b'HTTP/1.1 403 Forbidden\r\nContent-Length: 33\r\n\r\n{"kind":"Status","message":"no!"}'
    with serving(lambda _: refused) as (_, client), pytest.raises(ApiRefusalError, match="no!") as caught:
        run(client)
    assert caught.value.code == 403
    with serving(lambda _: channel(1, "x" * 2000) + ended()) as (_, client), pytest.raises(ApiTooLargeError):
        run(client)
    with serving(lambda _: channel(1, "x")) as (_, client), pytest.raises(ApiUnreachableError, match="timed out"):
        run(client, timeout=0.3)
    with serving(lambda _: b"\x88\x02\x03\xe8") as (_, client), pytest.raises(ApiGarbageError):
        run(client)


def test_agents_of_a_cluster_are_asked_in_their_pods() -> None:
    """A Node without a running Pod is a row that says so, and what would help."""
    with serving(lambda command: channel(1, json.dumps({"page": command[-1]})) + ended()) as (_, client):
        answers = ask_nodes(ClusterAgents(client=client), "/status", timeout=5.0)
    assert answers["a"].page == {"page": "/status"}
    assert "no running Pod" in answers["b"].error
    assert "--agents-ca" in answers["b"].error


NO_LISTS: list[object] = [[], {}, {"items": [{}]}, {"kind": "PodList", "metadata": {}, "items": [{"spec": 1}]}]


@pytest.mark.parametrize("answer", NO_LISTS)
def test_an_api_server_whose_answer_is_no_list_is_an_error(answer: object) -> None:
    """Whatever JSON it is; a Pod whose fields have other types is passed over."""
    with serving(lambda _: ended()) as (server, client):
        server.listed = answer
        with pytest.raises(ApiGarbageError):
            ClusterAgents(client=client).nodes()


def test_an_object_with_fields_of_wrong_types_stops_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts as one without them."""
    status = {"addresses": [1, {"type": "InternalIP"}]}
    wrong = {"metadata": {"name": "x"}, "spec": {"nodeName": 1}, "status": status}
    for path in ("/api/v1/pods", "/api/v1/nodes"):
        monkeypatch.setitem(OBJECTS, path, [wrong, *OBJECTS[path]])
    with serving(lambda _: ended()) as (_, client):
        assert ClusterAgents(client=client).nodes() == ("a", "b", "x")


@pytest.mark.parametrize("answer", ["{}", '{"node": 7}', '{"status": "ok"}'])
def test_json_that_no_agent_sends_is_an_error(tmp_path: Path, answer: str) -> None:
    """Where the Node of the local agent is asked."""
    server = HttpServer(tmp_path / "status.sock", {"/status": Query(lambda _: Page(body=answer))})
    agents = LocalAgent(Settings(core=Config(node_name="a"), listen="0.0.0.0:10351", run_dir=str(tmp_path)))
    for ask in (agents.nodes, partial(agents.ask, "a", "/status", 5.0)):
        with pytest.raises(McagentError, match=r"does not name a Node|the agent: "):
            ask()
    server.close()


# --- commands on a machine that is no Node ---------------------------------------------------------------------


@pytest.fixture
def workstation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the path of the usual kubeconfig of a machine without agent, configuration and kubeconfig."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "MCAGENT_CONFIG", "MCAGENT_NODE_NAME", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MCAGENT_RUN_DIRECTORY", str(tmp_path / "no-agent"))
    return tmp_path / ".kube/config"


AGENT_COMMANDS = ("status", "gateways", "wireguard show", "top --once", "plan --node-name a", "doctor")
TRACE = "trace --from 10.1.1.2 --to 10.2.1.2:80"


@pytest.mark.parametrize("line", [*AGENT_COMMANDS, TRACE, "page /status", "wireguard rotate"])
def test_without_node_and_kubeconfig_a_command_says_what_to_type(
    workstation: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence with the command line that works, no refused connection; this machine is not examined."""
    assert not workstation.exists()
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "kubectl -n kube-system exec ds/mcagent-agent -- mcagent " in err
    assert "refused" not in err


def pages_of_agents(command: list[str]) -> bytes:
    """Answer `mcagent page /status` in the Pod of an agent, and any other command with its words."""
    if command[:2] != ["mcagent", "page"]:
        return channel(1, " ".join(command)) + channel(2, "careful") + ended(1)
    gateway = {"name": "gw", "live": True, "tunnel": "t"}
    groups = [{"cluster": "west", "own": False, "gateways": [gateway]}]
    encryption = {"mode": "wireGuard", "peers": [], "notUsed": []}
    return channel(1, json.dumps({"node": "a", "gateways": groups, "encryption": encryption})) + ended()


def test_a_workstation_asks_the_agents_of_its_cluster(
    workstation: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each Node that answers is shown, each that does not is named with the reason, and decides the exit code."""
    with serving(pages_of_agents) as (server, _client):
        workstation.parent.mkdir()
        workstation.write_text(json.dumps(token_kubeconfig(server.url, b"", "our-token")))
        for line, shown in (("gateways", "west"), ("wireguard show", "encryption  wireGuard")):
            assert main(line.split()) == 1
            out, err = capsys.readouterr()
            assert out.startswith("Node a")
            assert shown in out
            assert f"mcagent {line}: Node b: there is no running Pod of an agent" in err
        assert main(["gateways", "a", "-o", "json"]) == 0
        assert [part["node"] for part in json.loads(capsys.readouterr().out)] == ["a"]
        assert main(["top", "--once", "--by", "service", "--interval", "0.2"]) == 0
        assert "no running Pod of an agent" in capsys.readouterr().out
        assert main(["gateways", "aa"]) == 2
        assert 'there is no Node "aa"' in capsys.readouterr().err


def test_without_a_node_a_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cluster that has none yet, or an empty list: no success without a word, and no error without one."""
    file = tmp_path / "agents.yaml"
    file.write_text("{}")
    for line in ("gateways", "wireguard show", "top --once"):
        assert main([*line.split(), "--agents", str(file)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "agents.yaml: must have a line NODE: ADDRESS for each agent" in err
    with pytest.raises(McagentError, match="the cluster has no Nodes"):
        nodes_of(StaticAgents({}))


def test_a_shell_completes_the_nodes_of_the_cluster(workstation: Path) -> None:
    """For `drain` and others; without a cluster there is nothing to offer, and no error."""
    args = Namespace(context="", kubeconfig="")
    assert complete_nodes(args) == []
    with serving(pages_of_agents) as (server, _client):
        workstation.parent.mkdir()
        workstation.write_text(json.dumps(token_kubeconfig(server.url, b"", "our-token")))
        assert complete_nodes(args) == ["a", "b"]
    parser = completed_parser("mcagent drain ")
    assert any(
        getattr(action, "completer", None) is complete_nodes
        for command in parser._subparsers._group_actions[0].choices.values()  # type: ignore[union-attr]
        for action in command._actions
    )


def test_a_plan_is_made_in_the_pod_of_its_node(workstation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With all that it was asked; output, errors and exit code are those of the Pod."""
    with serving(pages_of_agents) as (server, _client):
        workstation.parent.mkdir()
        workstation.write_text(json.dumps(token_kubeconfig(server.url, b"", "our-token")))
        assert main(["plan", "--node-name", "a", "--exit-code", "--what-if", "node b down"]) == 1
        out, err = capsys.readouterr()
        assert out == "mcagent plan --output text --timeout 30.0 --exit-code --what-if node b down"
        assert err == "careful"
        refusals = {
            "plan": "which Node? Give --node-name NAME; the Nodes are a, b",
            "plan --node-name x9": 'there is no Node "x9"; the Nodes are a, b',
            "plan --node-name aa --offline": 'there is no Node "aa" (did you mean "a"?)',
            "plan --node-name a -f new.yaml": "add --offline",
        }
        for line, refusal in refusals.items():
            assert main(line.split()) == 2
            assert refusal in capsys.readouterr().err
