"""The agent's pages of traces: what they ask ovs-vswitchd, which frames real probes are, what they answer."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import Any

import pytest

from flows.pipeline.declaration import COOKIES, DROP_SPOOFED
from mcagent.model.config import Config
from mcagent.model.errors import BackendError
from mcagent.model.node_state import NodeState
from mcagent.model.plan import Desired
from mcagent.trace.live_pages import LivePage, SeenPage
from mcagent.trace.pages import TracePage, VswitchdControl
from tests.worlds.live_probes import ECHO, ENDS, FLOWS
from tests.worlds.traced_packets import GOOD, NOWHERE, TO_GATEWAY

CONFIG = Config(node_name="n", cluster_id="east", bridge="br-mc", ct_zone_base=28000)
SHOWN = "system@ovs-system: hit:1\n  br-mc:\n"
ANSWERED = f"tcp,{ENDS},zone=28000,status=SEEN_REPLY|CONFIRMED"
UNANSWERED = f"tcp,{ENDS},zone=28000,status=CONFIRMED"
QUERIES = {
    protocol: GOOD.replace("tcp", protocol).replace("source_port=40000", "source_port=30000")
    for protocol in ("tcp", "udp", "icmp")
}


class RecordedSwitch(VswitchdControl):
    """Answers commands with recorded texts, the last one again and again; keeps the commands."""

    def __init__(self, **answers: str | Sequence[str]) -> None:
        super().__init__("unix:/nowhere/db.sock", CONFIG)
        texts = {"trace": TO_GATEWAY, "show": SHOWN, "dump_conntrack": "", "dump_flows": "", **answers}
        self._answers = {name: [text] if isinstance(text, str) else list(text) for name, text in texts.items()}
        self.commands: list[tuple[str, ...]] = []

    def call(self, command: str, *arguments: str) -> str:
        """Return the next answer to a command."""
        self.commands.append((command, *arguments))
        answers = self._answers[command.rpartition("/")[2].replace("-", "_")]
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def dumps(self) -> list[tuple[str, ...]]:
        """Return the commands that read conntrack."""
        return [command for command in self.commands if command[0] == "dpctl/dump-conntrack"]


def sent_packet(frame: bytes) -> dict[str, Any]:
    """Return the fields of a frame (RFC 791, 793) that probes differ by."""
    packet = frame[14:]
    payload = packet[20:]
    fields: dict[str, Any] = {
        "macs": (frame[:6].hex(":"), frame[6:12].hex(":")),
        "tos": packet[1],
        "protocol": packet[9],
        "ends": (str(IPv4Address(packet[12:16])), str(IPv4Address(packet[16:20]))),
    }
    if packet[9] == 1:
        kind, _, _, identifier, number = struct.unpack("!BBHHH", payload[:8])
        return {**fields, "echo": (kind, identifier, number), "data": payload[8:]}
    fields["ports"] = struct.unpack("!HH", payload[:4])
    if packet[9] == 17:
        return {**fields, "data": payload[8:]}
    return {**fields, "sequence": int.from_bytes(payload[4:8]), "flags": payload[13]}


class Probing:
    """A page that sends probes, with the frames that it sent; pauses are recorded and take no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, switch: RecordedSwitch, pods: str = "10.1.3.2") -> None:
        self.frames: list[tuple[int, dict[str, Any]]] = []
        self.pauses: list[tuple[str, float]] = []
        self.now = 0.0
        self.broken: Callable[[], None] = lambda: None

        def sleep(seconds: float) -> None:
            self.pauses.append((threading.current_thread().name, seconds))

        clock = SimpleNamespace(sleep=sleep, monotonic=lambda: self.now)
        monkeypatch.setattr("mcagent.trace.live_pages.time", clock)
        self.page = LivePage(switch, lambda address: str(address) == pods, self._send)

    def _send(self, port: int, frames: Sequence[bytes]) -> None:
        self.broken()
        self.frames += [(port, sent_packet(frame)) for frame in frames]

    def ask(self, query: str) -> tuple[int, Any]:
        """Return status and value of an answer, after the reset of its connection."""
        page = self.page(query)
        for thread in threading.enumerate():
            if thread.name == "trace-reset":
                thread.join(10)
        return page.status, json.loads(page.body) if page.status == 200 else page.body


# --- real probes


def test_a_tcp_connection_is_opened_and_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probe is the same SYN, marked as a probe; the reset follows later, is not marked, and ends them all."""
    probing = Probing(monkeypatch, RecordedSwitch(dump_conntrack=["", ANSWERED]))
    assert probing.ask(QUERIES["tcp"])[0] == 200
    ports, packets = zip(*probing.frames, strict=True)
    *syns, reset = packets
    assert ports == (1, 1, 1, 1)
    assert len({packet["sequence"] for packet in syns}) == 1
    for packet in packets:
        assert packet["macs"] == ("aa:bb:cc:dd:ee:f0", "0a:6d:63:00:00:01")
        assert (packet["ends"], packet["ports"]) == (("10.1.3.2", "10.102.0.80"), (30000, 80))
        assert packet["protocol"] == 6
    assert {(packet["flags"], packet["tos"]) for packet in syns} == {(0x02, 0xBC)}
    assert (reset["flags"], reset["tos"]) == (0x04, 0)
    assert reset["sequence"] == (syns[0]["sequence"] + 1) % 2**32
    assert ("trace-reset", 5.0) in probing.pauses


@pytest.mark.parametrize("sequence", [0, 2**32 - 1])
def test_the_number_after_the_last_one_is_zero(monkeypatch: pytest.MonkeyPatch, sequence: int) -> None:
    """Sequence numbers have 32 bits."""
    monkeypatch.setattr(
        "mcagent.trace.live_pages.secrets", SimpleNamespace(randbits=lambda bits: sequence % 2**bits)
    )
    probing = Probing(monkeypatch, RecordedSwitch(dump_conntrack=["", ANSWERED]))
    probing.ask(QUERIES["tcp"])
    assert [packet["sequence"] for _, packet in probing.frames] == [*[sequence] * 3, (sequence + 1) % 2**32]


def test_datagrams_and_echo_requests_need_no_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """An echo has the source port as its identifier, and each one its number."""
    probing = Probing(monkeypatch, RecordedSwitch())
    probing.ask(f"{QUERIES['udp']}&count=2")
    assert [(packet["ports"], packet["data"], packet["tos"]) for _, packet in probing.frames] == [
        ((30000, 80), b"mcagent trace --live", 0xBC)
    ] * 2
    probing.frames.clear()
    probing.ask(f"{QUERIES['icmp']}&count=2")
    assert [(packet["echo"], packet["data"], packet["tos"]) for _, packet in probing.frames] == [
        ((8, 30000, number), b"mcagent trace --live", 0xBC) for number in (0, 1)
    ]


def test_probes_are_sent_one_after_the_other_until_an_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause before each further probe lets datapath flows count it; conntrack is read after each wait."""
    switch = RecordedSwitch(dump_conntrack=["", UNANSWERED, ANSWERED])
    probing = Probing(monkeypatch, switch)
    status, answer = probing.ask(f"{QUERIES['tcp']}&count=2".replace("source_port=30000", "source_port=40000"))
    assert (status, answer["node"], answer["sent"], answer["answered"]) == (200, "n", 2, True)
    assert [seconds for name, seconds in probing.pauses if name != "trace-reset"] == [0, 0.2, 0.2, 0.4]
    assert switch.dumps() == [("dpctl/dump-conntrack", "-m", "-s", "system@ovs-system", "zone=28000")] * 3


def test_the_wait_for_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, after 1.4 seconds; the default is three probes."""
    probing = Probing(monkeypatch, RecordedSwitch(dump_conntrack=["", UNANSWERED]))
    _, answer = probing.ask(GOOD)
    assert (answer["sent"], answer["answered"]) == (3, False)
    assert [seconds for name, seconds in probing.pauses if name != "trace-reset"] == [0, 0.2, 0.2, 0.2, 0.4, 0.8]


def test_an_answer_to_the_virtual_address_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conntrack of the bridge has the Pod's virtual address, where it has one."""
    virtual = TO_GATEWAY.replace("10.1.3.2", "100.72.3.2")
    entry = ANSWERED.replace("10.1.3.2", "100.72.3.2")
    probing = Probing(monkeypatch, RecordedSwitch(trace=virtual, dump_conntrack=["", entry]))
    status, answer = probing.ask(GOOD)
    assert (status, answer["answered"]) == (200, True)
    assert {packet["ends"][0] for _, packet in probing.frames} == {"10.1.3.2"}
    in_use = Probing(monkeypatch, RecordedSwitch(trace=virtual, dump_conntrack=entry))
    assert (in_use.ask(GOOD)[0], in_use.frames) == (409, [])


def test_a_port_with_a_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe with it could end the Pod's connection."""
    probing = Probing(monkeypatch, RecordedSwitch(dump_conntrack=UNANSWERED))
    assert probing.ask(GOOD) == (409, "port 40000 of 10.1.3.2 is in use: nothing is sent\n")
    assert probing.frames == []


def test_a_source_that_is_no_pod_of_this_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the list of Pods, and by the flows, which drop its packets as spoofed."""
    refusal = (403, "10.1.3.2 is not a Pod of this Node: nothing sent\n")
    elsewhere = Probing(monkeypatch, RecordedSwitch(), pods="10.1.3.9")
    assert (elsewhere.ask(GOOD), elsewhere.frames) == (refusal, [])
    cookie = COOKIES.cookie(DROP_SPOOFED, 1)
    spoofed = f'bridge("br-mc")\n10. reg0=0x1/0xf, priority 10, cookie {cookie:#x}\n'
    refused = Probing(monkeypatch, RecordedSwitch(trace=spoofed))
    assert (refused.ask(GOOD), refused.frames) == (refusal, [])


def test_a_bridge_without_a_datapath_is_a_fault_of_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer names bridge and cause."""
    probing = Probing(monkeypatch, RecordedSwitch(show="system@ovs-system: hit:1\n  br-int:\n"))
    status, text = probing.ask(GOOD)
    assert (status, text) == (503, "openflow: find the datapath of br-mc: Open vSwitch names none\n")


def test_a_reset_that_cannot_be_sent_is_no_fault_of_the_agent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The switch may have been restarted meanwhile."""
    probing = Probing(monkeypatch, RecordedSwitch(dump_conntrack=["", ANSWERED]))

    def fail_in_thread() -> None:
        if threading.current_thread().name == "trace-reset":
            raise BackendError("openflow", "send", "a packet", "it is gone")

    probing.broken = fail_in_thread
    assert probing.ask(QUERIES["tcp"])[0] == 200
    assert len(probing.frames) == 3
    assert caplog.records == []  # of a thread that has died


def test_a_query_for_probes_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names what a probe is, and how many there may be."""
    probing = Probing(monkeypatch, RecordedSwitch())
    text = "a probe is a Pod's first packet (in_port 1, mac plain), icmp, tcp, udp\n"
    assert probing.ask(GOOD.replace("in_port=1", "in_port=2")) == (400, text)
    assert probing.ask(GOOD.replace("tcp", "sctp")) == (400, text)
    assert probing.ask(f"{GOOD}&count=6") == (400, "count must be a number from 0 to 5\n")
    assert probing.ask(f"{GOOD}&count=5")[1]["sent"] == 5
    assert probing.ask(f"{GOOD}&number=5")[0] == 400


def test_probes_are_bounded_in_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three at once, then one in two seconds."""
    probing = Probing(monkeypatch, RecordedSwitch())
    assert [probing.ask(GOOD)[0] for _ in range(4)] == [200, 200, 200, 429]
    assert probing.ask(GOOD)[1] == "probes are sent every two seconds at most: ask again\n"
    probing.now = 2.0
    assert [probing.ask(GOOD)[0] for _ in range(2)] == [200, 429]


# --- their traces


def test_the_traces_of_probes_are_read_in_all_zones_of_the_right_datapath() -> None:
    """Only flows that match the probes' type of service are dumped."""
    switch = RecordedSwitch(
        dump_flows=FLOWS, dump_conntrack=[ANSWERED, "", ANSWERED.replace("28000", "28002"), ""]
    )
    page = SeenPage(switch)(GOOD)
    answer = json.loads(page.body)
    assert (page.status, page.content_type, answer["node"]) == (200, "application/json", "n")
    assert [flow["packets"] for flow in answer["flows"]] == [2, 0, 3, 4]
    assert answer["tracked"] == [{"zone": zone, "answered": True} for zone in (28000, 28002)]
    assert ("dpctl/dump-flows", "system@ovs-system", "filter=ip,nw_tos=188") in switch.commands
    assert [command[-1] for command in switch.dumps()] == [f"zone={28000 + offset}" for offset in range(4)]
    assert ("dpif/show",) in switch.commands


def test_a_query_for_traces_is_refused_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet as /trace takes it, of the protocols of probes, and not too often: twelve at once."""
    monkeypatch.setattr("mcagent.trace.live_pages.time", SimpleNamespace(monotonic=lambda: 0.0))
    page = SeenPage(RecordedSwitch())
    refused = page(GOOD.replace("tcp", "sctp"))
    assert (refused.status, refused.body) == (400, "protocol is one of icmp, tcp, udp\n")
    assert page(f"{GOOD}&count=1").status == 400
    pages = [page(GOOD) for _ in range(13)]
    assert [answer.status for answer in pages] == [200] * 12 + [429]
    assert pages[-1].body == "asked too often: ask again\n"


def test_echo_requests_are_traced_by_their_identifier() -> None:
    """Conntrack has no ports of them."""
    entry = f"{ECHO},id=0,zone=28000,status=SEEN_REPLY|CONFIRMED"
    page = SeenPage(RecordedSwitch(dump_conntrack=[entry, "", "", ""]))
    tracked = [json.loads(page(query).body)["tracked"] for query in (GOOD.replace("tcp", "icmp"), GOOD)]
    assert tracked == [[{"zone": 28000, "answered": True}], []]


# --- traces of flows


def test_the_page_of_a_trace_has_the_names_of_its_node() -> None:
    """The Node's own, before the first pass; then also what follows from the desired state."""
    switch = RecordedSwitch()
    states: list[Desired | None] = [None, Desired(fragments={}, problems=(), state=NodeState(mtu=1450))]
    page = TracePage(switch, lambda: states.pop(0))
    first, second = page(GOOD), json.loads(page(GOOD).body)
    answer = json.loads(first.body)
    assert (first.status, first.content_type, first.body[-1]) == (200, "application/json", "\n")
    assert (answer["node"], answer["tables"], answer["mtu"]) == (
        "n",
        ["Classify", "Source", "Departure", "Route"],
        0,
    )
    assert (second["node"], second["mtu"]) == ("n", 1450)
    command, bridge, flow, *options = switch.commands[0]
    assert (command, bridge, options) == ("ofproto/trace", "br-mc", [])
    assert flow.startswith("in_port=1,tcp,")


def test_the_control_socket_is_beside_the_databases() -> None:
    """The text of an error has its path, without the scheme of the database's socket."""
    page = TracePage(NOWHERE, lambda: None)(GOOD)
    assert page.status == 503
    assert page.body.startswith("openflow: ofproto/trace /nowhere/ovs-vswitchd.ctl: ")
    assert page.body.endswith("\n")


def test_too_many_traces_are_refused_with_the_rate() -> None:
    """Twenty at once, then ten a second."""
    now = [0.0]
    page = TracePage(RecordedSwitch(), lambda: None, clock=lambda: now[0])
    answers = [page(GOOD) for _ in range(21)]
    assert [answer.status for answer in answers] == [200] * 20 + [429]
    assert answers[-1].body == "more than 10 traces a second: ask again\n"
    now[0] = 0.5
    assert [page(GOOD).status for _ in range(6)] == [200] * 5 + [429]
    now[0] = 100.0
    assert [page(GOOD).status for _ in range(21)] == [200] * 20 + [429]
