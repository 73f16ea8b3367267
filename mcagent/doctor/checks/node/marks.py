"""Check `marks`: our bit of the packet and connection mark in foreign rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

from mcagent.api.doctor import CheckFinding
from mcagent.dataplane.netlink.connection import NetlinkSocket
from mcagent.dataplane.netlink.routes import read_all_rules
from mcagent.doctor.check import DoctorCheck, warning
from mcagent.doctor.examined import ExaminedNode
from mcagent.doctor.readings.chains import chains
from mcagent.model.dataplane.resources import Rule

CHECK = DoctorCheck(
    name="marks",
    order=140,
    summary="our bit of the packet and connection mark in foreign rules",
    causes={
        "MarkShared": warning(
            "two programs use one bit of the mark: replies take a wrong route, or foreign rules match our packets",
            "connectionMarkBit in the configuration of all Nodes: an unused bit (docs/configuration.md)",
        ),
    },
)
_MARK = re.compile(r"\bmark\b", re.IGNORECASE)
_NUMBER = re.compile(r"\b0x([0-9a-fA-F]{1,8})\b")
_MANY = 16  # bits: a number with more is a mask of what is kept


def foreign_rules(node: ExaminedNode) -> tuple[Rule, ...]:
    """Return the policy routing rules of other programs that match a mark. Raises BackendError."""
    with closing(NetlinkSocket()) as netlink:
        rules = [rule for protocol, rule, _ in read_all_rules(netlink) if protocol != node.config.route_protocol]
    return tuple(rule for rule in rules if rule.family == 4 and rule.fwmask)


def examine(node: ExaminedNode) -> Iterator[CheckFinding]:
    """Find other programs' uses of our bit of the mark."""
    bit = 1 << node.config.ct_mark_bit
    users = {
        f"chain {chain}: {rule}"
        for chain in node.read(chains)
        for rule in chain.rules
        if _MARK.search(rule) and any(_bits(int(number, 16)) & bit for number in _NUMBER.findall(rule))
    }
    users |= {
        f"rule {rule.priority}: fwmark {rule.fwmark:#x}/{rule.fwmask:#x}"
        for rule in node.read(foreign_rules)
        if _bits(rule.fwmask) & bit
    }
    our_bit = f"bit {node.config.ct_mark_bit} ({bit:#x})"
    for text in sorted(users)[:5]:
        yield CHECK.finding("MarkShared", f"{our_bit}: {text}")
    if not users:
        yield CHECK.passed(f"{our_bit} is ours alone")


def _bits(number: int) -> int:
    """Return the bits that a number of a rule is about: of a mask that keeps others, those that it takes away."""
    return number if number.bit_count() <= _MANY else ~number & 0xFFFFFFFF
