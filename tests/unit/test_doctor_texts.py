"""The doctor's texts: reading rule sets, taking out secrets, words for people, the page."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devtools.doctor_page import filled
from mcagent.api.doctor import NodeReport
from mcagent.cli.inspect import doctor
from mcagent.cli.main import main
from mcagent.core.causes import CAUSES
from mcagent.dataplane.nft.observe import parse_ruleset
from mcagent.doctor.checks.node import openvswitch, tunnels
from mcagent.doctor.readings.chains import parse_save
from mcagent.doctor.report import section, summary
from mcagent.doctor.scrub import public_keys, scrub_object, scrub_text, scrub_value

ROOT = Path(__file__).parents[2]
RULESET = """\
table ip nat {
	set s {
		type ipv4_addr
	}

	chain POSTROUTING {
		type nat hook postrouting priority 100; policy accept;
		counter packets 1 bytes 2 jump CNI
	}

	chain CNI {
		masquerade
	}
}
table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		udp dport 6081 accept
	}
}
"""
SAVED = """\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:MINE - [0:0]
-A INPUT -p udp -m udp --dport 6081 -j DROP
-A MINE -j ACCEPT
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -j MASQUERADE
COMMIT
"""


def test_a_ruleset_is_read() -> None:
    """Base chains with hook, priority and policy, others without; the rules of each."""
    chains = {str(table): table for table in parse_ruleset(RULESET)}
    assert list(chains) == ["ip nat POSTROUTING", "ip nat CNI", "inet filter input"]
    post, mine, into = chains.values()
    assert (post.type, post.hook, post.priority, post.policy) == ("nat", "postrouting", 100, "accept")
    assert (mine.hook, mine.rules) == ("", ("masquerade",))
    assert (into.hook, into.policy, into.rules) == ("input", "drop", ("udp dport 6081 accept",))


def test_a_saved_iptables_is_read() -> None:
    """Chains of all tables, with their policies."""
    chains = {chain.name: chain for chain in parse_save(SAVED)}
    assert set(chains) == {"INPUT", "FORWARD", "MINE", "POSTROUTING"}
    assert chains["FORWARD"].policy == "drop"
    assert "dport 6081" in chains["INPUT"].rules[0]
    assert chains["POSTROUTING"].type == "nat"


@given(st.text())
def test_no_text_breaks_the_readers(garbage: str) -> None:
    """Whatever nft or iptables print is read without an exception."""
    list(parse_ruleset(garbage))
    list(parse_ruleset(RULESET + garbage))
    list(parse_save("*filter\n" + garbage.replace(":", "")))
    scrub_text(garbage)


KEY = base64.b64encode(bytes(range(32))).decode()
PUBLIC = base64.b64encode(bytes(range(1, 33))).decode()
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJzeXN0ZW0ifQ.c2lnbmF0dXJl"


def test_secrets_are_taken_out_of_texts() -> None:
    """By their form, whatever is around them; public keys that are known stay."""
    pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEI\n-----END EC PRIVATE KEY-----"
    shown = scrub_text(
        f"a {TOKEN} b {pem} c Authorization: Bearer abcdefgh12345 d {KEY} e {PUBLIC} f token=verysecret "
        f'"password": "hunter2" g private_key={"ab" * 32}',
        {PUBLIC},
    )
    for secret in (TOKEN, "MHcCAQEEI", "abcdefgh12345", KEY, "verysecret", "hunter2", "abab"):
        assert secret not in shown
    assert PUBLIC in shown
    assert "table=0,priority=10,in_port=1,cookie=0x6d63 actions=drop" in scrub_text(
        "table=0,priority=10,in_port=1,cookie=0x6d63 actions=drop"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("url=https://x?token=MARK&b=1", 'url=https://x?token="[hidden]"'),
        ('my.client-key-2" : "MARK, MARK", c', 'my.client-key-2" : "[hidden]", c'),
        ("tokentoken:'MARK", 'tokentoken:"[hidden]"'),
        ("passwd=\n MARK; next=1", 'passwd=\n "[hidden]"; next=1'),
        ("secret=token=MARK}", 'secret="[hidden]"}'),
        (
            '{"msg": "{\\"token\\": \\"MARK, MARK\\", \\"a\\": 1}"}',
            '{"msg": "{\\"token\\": "[hidden]", \\"a\\": 1}"}',
        ),
        ("HTTPS_PROXY=http://user:MARK@proxy:3128", "HTTPS_PROXY=http://[hidden]@proxy:3128"),
        ("https://10.0.0.1:6443/a@b", "https://10.0.0.1:6443/a@b"),
        ("a token b=c, private-key: null", "a token b=c, private-key: null"),
    ],
)
def test_values_are_hidden_by_the_word_before(text: str, shown: str) -> None:
    """The whole word counts; what is before and after the value stays."""
    assert scrub_text(text) == shown


def test_objects_keep_what_is_ours_and_lose_the_rest() -> None:
    """Secrets never, data never, annotations of others never; status and spec are looked through."""
    assert scrub_object({"kind": "Secret", "data": {"token": "x"}}) is None
    shown = scrub_object(
        {
            "kind": "Gateway",
            "metadata": {
                "name": "g",
                "managedFields": [{"x": "MARK1"}],
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": "MARK2",
                    "example.com/password": "MARK3",
                    "multicluster.antrea.io/gateway": "true",
                },
            },
            "data": {"k": "MARK4"},
            "spec": {"token": "MARK5", "wireGuard": {"publicKey": PUBLIC}, "deep": [{"clientSecret": "MARK6"}]},
        },
        {PUBLIC},
    )
    assert "MARK" not in str(shown)
    assert PUBLIC in str(shown)
    assert shown is not None
    assert shown["metadata"]["annotations"] == {"multicluster.antrea.io/gateway": "true"}
    assert list(public_keys({"a": [{"publicKey": PUBLIC}], "privateKey": KEY})) == [PUBLIC]


def test_nesting_is_bounded() -> None:
    """A value that is nested without end is cut, not followed."""
    value: object = "MARK"
    for _ in range(500):
        value = [value]
    assert "MARK" not in str(scrub_value(value))


def test_findings_read_well() -> None:
    """What is wrong has why and what to type below it; `quiet` leaves the rest out."""
    findings = [
        openvswitch.CHECK.passed("version 3.1.0"),
        tunnels.CHECK.finding(
            "PortBlocked", "BFD is down", subject="gateway of west", port=6081, address="192.0.2.1"
        ),
    ]
    shown = section("Node n1", findings)
    assert "  ✓ openvswitch  version 3.1.0" in shown
    assert "  ✗ tunnels      gateway of west: BFD is down" in shown
    assert "do:  open UDP 6081 from and to 192.0.2.1" in shown
    assert "✓" not in section("Node n1", findings, quiet=True)
    assert section("Node n1", findings[:1], quiet=True).endswith("✓ all is well")
    assert summary(findings) == "1 wrong, 1 fine"


def test_the_page_is_up_to_date() -> None:
    """docs/doctor.md has every check and every cause: `make docs` writes them."""
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    assert filled(page) == page


def test_every_reason_of_a_problem_is_in_the_catalogue() -> None:
    """A reason that docs/architecture.md or the code names has why and what to do."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 4]
    named = {word for row in rows for word in re.findall(r"`([A-Z][A-Za-z0-9]+)`", row.split("|")[3])}
    named |= {
        word
        for path in (ROOT / "mcagent/core").rglob("*.py")
        for word in re.findall(r'\.problem\([^)]*?"([A-Z][A-Za-z]+)"', path.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    assert named <= set(CAUSES)


@pytest.mark.parametrize(("flags", "lines"), [((), 1), (("--quiet",), 0)])
def test_the_doctor_is_silent_when_asked(
    flags: tuple[str, ...], lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--quiet prints no progress, however long a reading takes."""

    def this_node(_settings: object, progress: Callable[[str], None], _probe: str) -> NodeReport:
        progress("the kernel")
        return NodeReport(node="n1")

    monkeypatch.setenv("MCAGENT_NODE_NAME", "n1")
    monkeypatch.setattr(doctor, "this_node", this_node)
    monkeypatch.setattr(doctor, "_PATIENCE", -1.0)
    assert main(["doctor", *flags]) == 0
    assert len(capsys.readouterr().err.splitlines()) == lines
