"""The agent as a process on one Node: real Open vSwitch, netlink and nft in a namespace; objects from files."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.nodes import netns
from devtools.nodes.ovs import OvsInstance
from devtools.waiting import wait_until
from mcagent.core.addresses.underlay import MAPPED

pytestmark = pytest.mark.contract

CRD = "multicluster.crd.antrea.io/v1alpha1"
TABLE = "28003"
Json = dict[str, Any]


def cluster(number: int) -> Json:
    """Return a ClusterInfoImport."""
    return {
        "apiVersion": CRD,
        "kind": "ClusterInfoImport",
        "metadata": {"name": f"c{number}", "namespace": "kube-system"},
        "spec": {
            "clusterID": f"c{number}",
            "serviceCIDR": f"10.{100 + number}.0.0/16",
            "gatewayInfos": [{"gatewayIP": f"198.18.0.{number}"}],
        },
    }


LOCAL: list[Json] = [
    {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "spec": {"podCIDRs": ["10.10.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    },
    {
        "apiVersion": CRD,
        "kind": "Gateway",
        "metadata": {"name": "n1", "namespace": "kube-system"},
        "gatewayIP": "192.0.2.1",
        "internalIP": "192.0.2.1",
        "serviceCIDR": "10.96.0.0/16",
    },
]


class Node:
    """A Node, and its agent as a process."""

    def __init__(self, ovs: OvsInstance, directory: Path) -> None:
        self.ovs, self.namespace, self.directory = ovs, ovs.namespace, directory
        self.manifests = directory / "manifests"
        self.manifests.mkdir()
        self.config = directory / "agent.yaml"
        self.settings: Json = {
            "nodeName": "n1",
            "clusterID": "home",
            "datapath": "netdev",
            "source": f"dir:{self.manifests}",
            "ovsdb": ovs.socket,
            "runDirectory": str(directory / "run"),
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        self.configure()
        self.put(cluster(1), cluster(2))

    def configure(self, **changes: object) -> None:
        """Write the configuration."""
        self.settings |= changes
        self.config.write_text(yaml.safe_dump(self.settings))

    def put(self, *clusters: Json) -> None:
        """Replace the manifests, at one stroke."""
        new = self.directory / "new"
        new.write_text(yaml.safe_dump_all([*LOCAL, *clusters]))
        new.rename(self.manifests / "all.yaml")

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of an mcagent command on this Node."""
        argv = [sys.executable, "-m", "mcagent.cli.main", *arguments, "--config", str(self.config)]
        return netns.command(self.namespace, argv)

    def mcagent(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False, timeout=60)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the agent and wait until it is ready."""
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(self.command("agent"), stderr=log)
        self.processes.append(process)
        wait_until(self.ready, "the agent to be ready", timeout=30)
        return process

    @property
    def log(self) -> str:
        """What the agents have logged."""
        return (self.directory / "log").read_text()

    def get(self, path: str) -> tuple[int, str]:
        """Ask the agent; status 0 when nothing answers."""
        argv = ["curl", "-s", "--max-time", "10", "-w", "\n%{http_code}", f"http://127.0.0.1:10351{path}"]
        body, _, code = netns.execute(self.namespace, argv, check=False).stdout.rpartition("\n")
        return int(code), body

    def ready(self) -> bool:
        """What /readyz says."""
        return self.get("/readyz")[0] == 200

    def status(self) -> Json:
        """Return /status."""
        return json.loads(self.get("/status")[1])  # type: ignore[no-any-return]

    def routes(self) -> set[str]:
        """Return the CIDRs that have a route in our table, without mapped addresses."""
        shown = netns.ip(self.namespace, "-j", "route", "show", "table", TABLE)
        destinations = {route["dst"] for route in json.loads(shown)} if shown.strip() else set()
        return {text for text in destinations if ip_network(text).network_address not in MAPPED}

    def flows(self) -> list[str]:
        """Return the flows of our bridge; none when it is not there."""
        try:
            shown = self.ovs.ofctl("--no-stats", "dump-flows", self.ovs.mgmt("br-mc"))
        except Exception:  # noqa: BLE001 - no bridge, no flows
            return []
        return sorted(line.strip() for line in shown.splitlines() if "cookie" in line)

    def dataplane(self) -> tuple[list[str], str, str, str]:
        """Return everything of ours, as the tools show it."""
        return (
            self.flows(),
            netns.ip(self.namespace, "route", "show", "table", TABLE),
            netns.execute(self.namespace, ["nft", "list", "ruleset"]).stdout,
            self.ovs.vsctl("--columns=name,ofport,options", "list", "Interface"),
        )


@pytest.fixture
def node(fresh_ovs: OvsInstance, tmp_path: Path) -> Iterator[Node]:
    """Give a Node with an uplink; agents still running at the end are ended."""
    netns.ip(fresh_ovs.namespace, "link", "set", "lo", "up")
    netns.add_veth("eth0", fresh_ovs.namespace, "eth1", fresh_ovs.namespace)
    netns.add_address(fresh_ovs.namespace, "eth0", "192.0.2.1/24")
    node = Node(fresh_ovs, tmp_path)
    yield node
    for process in node.processes:
        process.kill()
        process.wait()


def test_it_follows_the_objects_and_leaves_the_dataplane_at_its_end(node: Node) -> None:
    """Clusters come and go; SIGTERM changes nothing; a restart finds the world right and does nothing."""
    process = node.start()
    assert node.routes() == {"10.101.0.0/16", "10.102.0.0/16"}
    node.put(cluster(1), cluster(3))
    wait_until(lambda: node.routes() == {"10.101.0.0/16", "10.103.0.0/16"} and node.ready(), "the change")
    before = node.dataplane()
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert node.dataplane() == before
    assert node.get("/healthz")[0] == 0
    node.start()
    status = node.status()
    assert status["lastChange"] is None
    assert status["driftCorrections"] == 0
    assert node.dataplane() == before


def test_a_gateway_object_that_does_not_count_is_asked_about_once(node: Node) -> None:
    """Other kinds are listed ahead for it, then let go for good: the agent gets ready, and stays so."""
    node.configure(enableGateway=False)
    node.start()
    passes = node.status()["passes"]
    node.put(cluster(1), cluster(2))
    wait_until(lambda: node.status()["passes"] > passes, "another pass")
    assert node.log.count("objects needed now") <= 2
    assert node.ready()


def test_a_second_agent_is_refused_and_cleanup_waits_for_the_end_of_the_first(node: Node) -> None:
    """One writer per Node, told with its own exit code."""
    process = node.start()
    second = node.mcagent("agent")
    assert second.returncode == 3
    assert f"another agent (process {process.pid}) holds this Node" in second.stderr
    assert node.mcagent("cleanup").returncode == 3
    assert node.routes()


def test_cleanup_removes_what_is_ours_and_only_that(node: Node) -> None:
    """Foreign bridges, routes and nft tables stay; a second cleanup finds nothing; a dry run removes nothing."""
    node.ovs.vsctl("add-br", "br-other", "--", "set", "Bridge", "br-other", "datapath_type=netdev")
    netns.ip(node.namespace, "route", "add", "10.250.0.0/16", "dev", "eth0")
    netns.execute(node.namespace, ["nft", "add", "table", "ip", "other"])
    process = node.start()
    process.terminate()
    process.wait(10)
    before = node.dataplane()
    dry = node.mcagent("cleanup", "--dry-run")
    assert dry.returncode == 0
    assert "delete bridge br-mc" in dry.stdout
    assert node.dataplane() == before
    done = node.mcagent("cleanup")
    assert done.returncode == 0, done.stderr
    assert node.flows() == []
    assert node.routes() == set()
    assert "mcagent" not in netns.execute(node.namespace, ["nft", "list", "ruleset"]).stdout
    assert node.ovs.vsctl("list-br").split() == ["br-other"]
    assert "mc-gw0" not in netns.ip(node.namespace, "link")
    assert TABLE not in netns.ip(node.namespace, "rule")
    assert "10.250.0.0/16" in netns.ip(node.namespace, "route")
    assert "table ip other" in netns.execute(node.namespace, ["nft", "list", "ruleset"]).stdout
    again = node.mcagent("cleanup")
    assert (again.returncode, again.stdout.strip()) == (0, "nothing of ours is here")


def test_plan_tells_what_would_change_and_changes_nothing(node: Node) -> None:
    """Before the first start everything, afterwards nothing; offline it needs no Node at all."""
    offline = node.mcagent("plan", "--offline", "-o", "json")
    assert offline.returncode == 0, offline.stderr
    before = node.mcagent("plan", "--exit-code")
    assert before.returncode == 1
    assert "route 10.101.0.0/16" in before.stdout
    assert node.ovs.vsctl("list-br") == ""
    node.start()
    after = node.mcagent("plan", "--exit-code")
    assert after.returncode == 0
    assert after.stdout.endswith("nothing to do: the dataplane is as it should be\n")
    assert json.loads(offline.stdout)["counts"]["add"] == sum(node.status()["resources"].values())


def test_the_doctor_names_each_type_of_resource_that_differs(node: Node) -> None:
    """While no agent runs, another program changes one of each; a new agent repairs them, and then says so."""

    def run(*command: str) -> str:
        return netns.execute(node.namespace, [*command]).stdout

    def first(*command: str) -> str:
        return run(*command).splitlines()[0].strip()

    def plan() -> dict[str, str]:
        report = json.loads(node.mcagent("doctor", "-o", "json").stdout)
        findings = [finding for finding in report["nodes"][0]["findings"] if finding["check"] == "plan"]
        return {finding.get("subject", ""): f"{finding['level']}: {finding['seen']}" for finding in findings}

    agent = node.start()
    assert plan() == {"": "ok: the Node is as it should be"}
    agent.kill()
    agent.wait()
    assert plan() == {"": "ok: the Node is as it should be"}
    ovs, device = node.ovs, ("dev", "mc-gw0")
    run("sysctl", "-qw", "net.ipv4.conf.mc-gw0.forwarding=0", "net.ipv4.conf.mc-gw0.rp_filter=1")
    run("ip", "rule", "del", *first("ip", "rule", "show", "table", TABLE).partition(":")[2].split())
    run("ip", "route", "del", "table", TABLE, first("ip", "route", "show", "table", TABLE).split()[0])
    run("ip", "neigh", "del", first("ip", "neigh", "show", *device).split()[0], *device)
    run("ip", "address", "del", first("ip", "-4", "-o", "address", "show", *device).split()[3], *device)
    run("nft", "add", "element", "ip", "mcagent", "mct_pods", "{ 10.77.0.0/16 }")
    run(
        "nft",
        "flush",
        "chain",
        "ip",
        "mcagent",
        re.findall(r"chain (\w+)", run("nft", "list", "table", "ip", "mcagent"))[0],
    )
    ovs.ofctl("del-groups", ovs.mgmt("br-mc"))
    ovs.ofctl("del-meters", ovs.mgmt("br-mc"))
    tunnel = next(port for port in ovs.vsctl("list-ports", "br-mc").split() if port.startswith("mcr-"))
    ovs.vsctl("set", "interface", tunnel, "options:remote_ip=192.0.2.99")
    differences = plan()
    assert set(differences) >= {
        *("Link", "LinkAddress", "Neighbour", "Route", "Rule", "NftChain", "NftSet"),
        *("FlowEntry", "GroupEntry", "TunnelPort"),
    }, differences
    assert re.match(
        r"warning: link mc-gw0 up .* forwarding 0 rp_filter 1; should be: .* forwarding 1 rp_filter 2",
        differences["Link"],
    )
    node.start()
    assert plan() == {"": "ok: the Node is as it should be"}


def test_status_is_for_people_and_tells_by_its_exit_code(node: Node) -> None:
    """0 when ready, 1 when no agent answers."""
    mcagent = node.mcagent("status")
    assert mcagent.returncode == 1
    assert "no agent answers" in mcagent.stderr
    node.start()
    shown = node.mcagent("status")
    assert shown.returncode == 0
    assert "Node n1: ready" in shown.stdout
    assert "remote c1" in shown.stdout


def test_a_reload_takes_over_what_may_change_and_refuses_the_rest(node: Node) -> None:
    """SIGHUP: a new allow-list is in force at once; another bridge name asks for a restart; nonsense is told."""
    process = node.start()
    node.configure(allowedRemoteCIDRs=["10.101.0.0/16"])
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: node.routes() == {"10.101.0.0/16"}, "the allow-list")
    node.configure(bridge="br-else")
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: "a restart is needed to change bridge" in node.log, "the refusal")
    node.configure(bridge="br-mc", mtu="much")
    process.send_signal(signal.SIGHUP)
    wait_until(lambda: "mtu: must be" in node.log, "the finding")
    assert process.poll() is None
    assert node.ready()


def test_a_directory_that_goes_away_shows_and_changes_nothing(node: Node) -> None:
    """Without its source the agent keeps the dataplane and says that it is not ready."""
    node.start()
    before = node.dataplane()
    node.manifests.rename(node.directory / "away")
    wait_until(lambda: not node.ready(), "the agent to say so")
    assert node.dataplane() == before
    assert node.get("/healthz")[0] == 200
    (node.directory / "away").rename(node.manifests)
    wait_until(node.ready, "the agent to be ready again")
    assert node.dataplane() == before


def test_metrics_count_tunnels_drops_and_changes(node: Node) -> None:
    """Counters of Open vSwitch and of the loop are scraped."""
    node.start()
    netns.execute(node.namespace, ["ping", "-c", "1", "-W", "1", "10.101.0.1"], check=False)
    status, body = node.get("/metrics")
    assert status == 200
    tunnel = next(tunnel for tunnel in node.status()["tunnels"] if tunnel["peer"] == "c1")
    assert re.search(rf'mcagent_tunnel_up{{peer="c1",peer_kind="remote",tunnel="{tunnel["name"]}"}} 1.0', body)
    assert f'mcagent_tunnel_transmit_bytes_total{{peer="c1",peer_kind="remote",tunnel="{tunnel["name"]}"}}' in body
    assert 'mcagent_dropped_packets_total{reason="spoofed"}' in body
    assert 'mcagent_changes_total{kind="TunnelPort",op="add"} 2.0' in body
    assert "mcagent_gateway_active 1.0" in body
