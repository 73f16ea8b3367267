"""`mcagent top` and `mcagent status --watch`: rates from two readings, in words that fit a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.api.codec import from_json, to_json
from mcagent.api.status import Status
from mcagent.api.traffic import ServicesReport, TrafficReport
from mcagent.cli.common.live import interval_of, show
from mcagent.cli.inspect import top
from mcagent.cli.main import main
from mcagent.http.server import HttpServer, Page, Query
from mcagent.model.errors import InputError

COUNTERS = ("rx_bytes", "tx_bytes", "rx_packets", "tx_packets", "rx_dropped", "tx_errors")


def tunnel(kind: str, peer: str, ip: str, **statistics: int) -> dict[str, Any]:
    """Return a tunnel as /status has it."""
    known = {"exists": True, "up": True, "statistics": statistics}
    return {"name": f"mc-{peer}-{ip}", "peerKind": kind, "peer": peer, "remoteIP": ip, **known}


def page(*tunnels: dict[str, Any]) -> dict[str, Any]:
    """Return what is read of /status."""
    return {"node": "n1", "gateways": [], "tunnels": [*tunnels]}


def read(*tunnels: dict[str, Any], node: str = "n1", local: bool = False) -> dict[top.Key, top.Reading]:
    """Return the readings of one Node."""
    return top.readings({node: from_json(Status, page(*tunnels), node)}, local=local)


def test_rates_are_differences_by_time() -> None:
    """Both directions, per second; what one cluster's gateways have goes together where it is asked for."""
    before = read(tunnel("remote", "east", "192.0.2.1", rx_bytes=1000), tunnel("remote", "east", "192.0.2.2"))
    after = read(
        tunnel("remote", "east", "192.0.2.1", rx_bytes=5000, tx_packets=20, rx_dropped=2),
        tunnel("remote", "east", "192.0.2.2", rx_bytes=100, tx_errors=4),
    )
    (row,) = top.rates(before, after, 2.0, by=("cluster",))
    assert (row.cluster, row.tunnels, row.live) == ("east", 2, 2)
    assert (row.in_bytes_per_second, row.out_packets_per_second, row.drops_per_second) == (2050.0, 10.0, 3.0)


def test_tunnels_that_a_node_could_not_read_have_no_rate_afterwards() -> None:
    """While its ovsdb-server was away: compared with 0, all bytes of the tunnel would be of this moment."""
    unread = tunnel("remote", "east", "192.0.2.1") | {"up": None}
    assert read(unread) == {}
    (row,) = top.rates(read(unread), read(tunnel("remote", "east", "192.0.2.1", rx_bytes=10**12)), 2.0)
    assert row.in_bytes_per_second == 0.0
    missing = tunnel("remote", "east", "192.0.2.1") | {"exists": False, "up": None}
    (reading,) = read(missing).values()
    assert not reading.live


@given(
    st.lists(st.dictionaries(st.sampled_from(COUNTERS), st.integers(0, 2**40)), min_size=2, max_size=2),
    st.floats(0.2, 60),
)
def test_no_rate_is_negative_and_standing_still_is_none(counted: list[dict[str, int]], seconds: float) -> None:
    """A counter that begins anew counts from nothing; one that stands still has no rate."""
    first, second = (read(tunnel("remote", "east", "192.0.2.1", **one)) for one in counted)
    for before, after in ((first, second), (first, first), ({}, second)):
        (row,) = top.rates(before, after, seconds)
        rates = [value for name, value in to_json(row).items() if name.endswith("PerSecond")]
        assert all(value >= 0 for value in rates)
        assert before is not after or not any(rates)
        assert before or not any(rates)


def exporting(**counts: int) -> Status:
    """Return the status of a gateway that counts connections, but not those of one Service, as an older one."""
    exports = {name.replace("_", "/"): {"endpoints": 1, "hash": 7, "connections": n} for name, n in counts.items()}
    return from_json(Status, {**page(), "exports": {**exports, "shop/old": {"endpoints": 1, "hash": 7}}}, "g")


def test_services_have_connections_by_gateway() -> None:
    """The busiest Service first; a gateway that began anew counts from nothing, a new one has no rate yet."""
    before = {"g1": exporting(shop_web=100, shop_api=5), "g2": exporting(shop_web=90)}
    after = {"g1": exporting(shop_web=110, shop_api=45), "g2": exporting(shop_web=4), "g3": exporting(shop_api=8)}
    rows = top.connections(top.exported(before), top.exported(after), 2.0)
    assert [(row.service, row.connections_per_second) for row in rows] == [
        ("shop/api", 20.0),
        ("shop/web", 7.0),
        ("shop/old", 0.0),
    ]
    assert (rows[1].connections, rows[1].by_gateway) == (114, {"g1": 5.0, "g2": 2.0})
    shown = top.services_text(ServicesReport(rows=rows, late={"g4": "gone"})).splitlines()
    assert shown[1].split()[:3] == ["shop/api", "20.0", "53"]
    assert shown[2].endswith("g1 5.0, g2 2.0")
    assert shown[-1] == "Node g4 does not answer: gone"
    assert "nothing is exported" in top.services_text(ServicesReport())


def test_tunnels_inside_the_cluster_are_asked_for() -> None:
    """They are named by their Node, and no part of the traffic between clusters."""
    every = tunnel("gateway", "g1", "192.0.2.9"), tunnel("remote", "east", "192.0.2.1")
    assert {key[1] for key in read(*every)} == {"east"}
    assert {key[1:] for key in read(*every, local=True)} == {("east", "192.0.2.1"), ("", "g1")}


def test_a_table_fits_a_terminal_of_80_columns() -> None:
    """Names that are too long are cut; numbers never are."""
    long = "cluster-" + "x" * 60
    before = read(tunnel("remote", long, "192.168.2.11"), node="node-" + "y" * 60)
    after = read(tunnel("remote", long, "192.168.2.11", rx_bytes=10**11), node="node-" + "y" * 60)
    table = top.text(TrafficReport(rows=top.rates(before, after, 1.0)), "tunnel", width=80)
    assert max(map(len, table.splitlines())) <= 80
    assert "93.1 GiB" in table


def test_addresses_of_gateways_are_never_cut() -> None:
    """Two gateways of a cluster differ in their last digits; without a terminal no name is cut at all."""
    gateways = [tunnel("remote", "west", ip) for ip in ("192.168.2.11", "192.168.2.12", "2001:db8:1:2:3:4:5:6")]
    rows = top.rates(read(*gateways, node="node-" + "y" * 60), read(*gateways, node="node-" + "y" * 60), 1.0)
    report = TrafficReport(rows=rows)
    narrow, piped = top.text(report, "tunnel", width=80), top.text(report, "tunnel")
    for told in (narrow, piped):
        assert all(text in told for text in ("192.168.2.11", "192.168.2.12", "2001:db8:1:2:3:4:5:6"))
    assert "node-" + "y" * 60 in piped
    assert "node-" + "y" * 60 not in narrow


def test_a_rate_spans_two_updates_of_the_counters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters that are updated rarely give the true rate, however often they are read: here in steps of 0.5 s."""
    monkeypatch.setattr(top, "LEAST_SPAN", 1.0)
    began = time.monotonic()

    def counters() -> dict[str, Any]:
        updates = int((time.monotonic() - began) / 0.5)
        return page(tunnel("remote", "east", "192.0.2.1", rx_bytes=500_000 * updates))  # 1 MB/s

    server, line = serve(tmp_path, "n1", counters)
    agents = tmp_path / "agents.yaml"
    agents.write_text(line, encoding="utf-8")
    assert main(["top", "--agents", str(agents), "--once", "--interval", "0.2", "-o", "json"]) == 0
    server.close()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert 400_000 <= row["inBytesPerSecond"] <= 1_600_000


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "soon", "1e9"])
def test_an_interval_that_makes_no_sense_is_refused(text: str) -> None:
    """What would be right is told."""
    with pytest.raises(InputError, match="must be seconds from"):
        interval_of(text)


def serve(directory: Path, name: str, answer: Callable[[], dict[str, Any]]) -> tuple[HttpServer, str]:
    """Serve a /status at a socket; return the line of the list of agents."""
    server = HttpServer(directory / name, {"/status": Query(lambda _: Page(body=json.dumps(answer())))})
    return server, f"{name}: unix:{directory}/{name}\n"


def test_the_command_reads_all_agents_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row for each Node's tunnel, and who does not answer; without any answer it fails."""
    monkeypatch.setattr(top, "LEAST_SPAN", 0.0)
    count = iter(range(1000))
    server, line = serve(
        tmp_path, "n1", lambda: page(tunnel("remote", "east", "192.0.2.1", rx_bytes=1000 * next(count)))
    )
    agents = tmp_path / "agents.yaml"
    agents.write_text(f"{line}n2: unix:{tmp_path}/n2\n", encoding="utf-8")
    arguments = ["top", "--agents", str(agents), "--once", "--interval", "0.2"]
    assert main([*arguments, "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (row,) = report["rows"]
    assert (row["node"], row["cluster"], row["gateway"]) == ("n1", "east", "192.0.2.1")
    assert row["inBytesPerSecond"] > 0
    assert "No such file" in report["late"]["n2"]
    assert main(arguments) == 0
    assert "Node n2 does not answer" in capsys.readouterr().out
    server.close()
    assert main(arguments) == 1
    assert "n1" in capsys.readouterr().err


def test_a_terminal_is_drawn_over_and_a_file_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal one picture takes the place of the last; elsewhere they follow each other, without codes."""
    show(["one", "two"])
    assert capsys.readouterr().out == "one\n\ntwo\n"
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        show(["one", "two"])
        monkeypatch.undo()
        drawn = ""
        while not drawn.endswith("two\r\n"):  # a terminal hands on what is written piece by piece
            drawn += os.read(master, 1000).decode()
    os.close(master)
    assert drawn.count("\x1b[H\x1b[2J") == 2


def test_status_is_watched_through_a_restart_of_the_agent(tmp_path: Path) -> None:
    """An agent that does not answer is told, and the watch goes on until it is interrupted."""
    config = tmp_path / "agent.yaml"
    config.write_text(f"nodeName: n1\nrunDirectory: {tmp_path}\nlisten: 127.0.0.1:1\n", encoding="utf-8")
    # What a shell starts in the background ignores SIGINT, and so would this.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "mcagent.cli.main"]
    command += ["status", "--watch", "--interval", "0.2"]
    with subprocess.Popen([*command, "--config", str(config)], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        told = [watching.stdout.readline() for _ in range(3)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=20) == 130
    assert sum("no agent answers" in line for line in told) == 2
