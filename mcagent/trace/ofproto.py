"""Parser of the output of `ofproto/trace` (ovs-vswitchd(8)), with the names of our pipeline. Pure.

A trace does not query conntrack: the packet is the first of its connection, or an answer to it, with the mark and
label that the first one's trace has committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from flows.declare import Category
from flows.pipeline import declaration as d
from flows.pipeline import registers as r
from flows.pipeline import tables as t
from mcagent.api.trace import Committed, NodeTrace, TraceOutcome
from mcagent.trace.probe import MACS, SERVICES, Probe

_FLOW = re.compile(r" *(\d+)\. (?:(.*), )?priority \d+(?:, cookie (0x[0-9a-f]+))?$")
_OUTPUT = re.compile(r" +(?:output:|-> output port is )(\d+)$")
_BRIDGE = re.compile(r' *bridge\("(.*)"\)$')
_STATE = re.compile(r" *(?:Modified flow|Flow): (.*)$")
_ETH_DST = re.compile(r" +set_field:(\S+)->eth_dst$")
_FINAL = re.compile(r"Final flow: (.*)$")
_ACTIONS = re.compile(r"Datapath actions: (.*)$")
_COMMIT = re.compile(
    r"ct\((?:force_)?commit,zone=(\d+)(?:,mark=(0x[0-9a-f]+|0)/(0x[0-9a-f]+))?(?:,label=(0x[0-9a-f]+|0)/(0x[0-9a-f]+))?"
)
_TABLES = {table.number: table.name for table in t.TABLES}
_CATEGORIES = {category.number: category for category in d.PIPELINE.categories}
_RETURNED = d.COOKIES.cookie(d.FOR_RETURNED)
_REJECTS = {t.EGRESS_REJECT.number, t.REJECT_STATE.number}
_MAC_NAMES = {number: name for name, number in MACS.items()}
_ENDS = {"nw_src", "nw_dst", "tp_src", "tp_dst"}  # what a flow itself can write, beside conntrack


def read(text: str, bridge: str, probe: Probe) -> NodeTrace:
    """Parse the trace of a probe. Total: any text gives a verdict."""
    on_our_bridge, tables, rule, cookies = True, list[int](), "", list[int]()
    outputs, state, mac, dead = list[int](), dict[str, str](), probe.mac, False
    final, committed = dict[str, str](), dict[int, Committed]()
    for line in text.splitlines():
        if match := _BRIDGE.match(line):
            on_our_bridge = match[1] == bridge  # the tunnel's own packets pass other bridges
        elif match := _STATE.match(line):
            state |= fields_of(match[1])
        elif match := _FINAL.match(line):
            final |= fields_of(match[1])
            state |= {key: value for key, value in fields_of(match[1]).items() if key in _ENDS}
        elif match := _ACTIONS.match(line):
            _commit(committed, match[1])
        elif not on_our_bridge:
            continue
        elif match := _FLOW.match(line):
            if cookies and cookies[-1] == _RETURNED:  # the trace has both outcomes of the packet's measurement
                del tables[-1], cookies[-1], outputs[-1:]
                mac = probe.mac
            tables.append(int(match[1]))
            rule = match[2] or ""
            cookies.append(int(match[3] or "0", 16))
        elif match := _OUTPUT.match(line):
            outputs.append(int(match[1]))
        elif match := _ETH_DST.match(line):
            mac = mac_name(_hex("0x" + match[1].replace(":", ""), -1), mac)
        elif "no live bucket" in line:
            dead = True
    outcome, reason, number = verdict_of(tables, outputs, cookies, dead=dead)
    return NodeTrace(
        tables=tuple(map(table_name, tables)),
        outcome=outcome,
        out_port=outputs[-1] if outputs else None,
        reason=reason,
        table=table_name(tables[-1]) if tables else "",
        rule=rule,
        number=number,
        source=state.get("nw_src", str(probe.source)),
        destination=state.get("nw_dst", str(probe.destination)),
        source_port=_port(state.get("tp_src"), probe.source_port),
        port=_port(state.get("tp_dst"), probe.port),
        mac=mac,
        service=service_of(final["dl_src"]) if "dl_src" in final else probe.service,
        identity=_hex(final.get("tun_id"), probe.identity),
        rules=numbers_of(cookies, d.FOR_POLICY, d.DROP_POLICY),
        services=numbers_of(cookies, d.FOR_SERVICE),
        committed=tuple(committed.values()),
    )


def verdict_of(
    tables: Sequence[int], outputs: Sequence[int], cookies: Sequence[int], *, dead: bool
) -> tuple[TraceOutcome, str, int]:
    """Return the outcome of a packet, the reason of a drop, and the number in its cookie.

    `tables` and `cookies` are those of the matched flows; `dead`: a group had no live bucket.
    """
    parts = d.COOKIES.split(cookies[-1]) if cookies else None
    category = _CATEGORIES.get(parts[0]) if parts is not None else None
    if _REJECTS.intersection(tables):
        rules = numbers_of(cookies, d.FOR_POLICY)
        return TraceOutcome.REJECTED, "policy", rules[-1] if rules else 0
    if outputs:
        return (TraceOutcome.HOST if outputs[-1] == r.HOST_OFPORT else TraceOutcome.TUNNEL), "", 0
    if category is not None and category.drops and parts is not None:
        return TraceOutcome.DROPPED, category.name, parts[1]
    if dead:
        return TraceOutcome.DROPPED, d.DROP_NO_GATEWAY.name, 0
    return TraceOutcome.UNKNOWN, "", 0


def numbers_of(cookies: Iterable[int], *categories: Category) -> tuple[int, ...]:
    """Return the numbers in the cookies of these categories."""
    pairs = (parts for cookie in cookies if (parts := d.COOKIES.split(cookie)) is not None)
    category_numbers = {category.number for category in categories}
    return tuple(number for category, number in pairs if category in category_numbers and number)


def table_name(number: int) -> str:
    """Return a table's name; its number as text if it is not ours."""
    return _TABLES.get(number, str(number))


def mac_name(number: int, otherwise: str) -> str:
    """Return the name of a receiver's MAC address in our tunnels (`MACS`)."""
    return _MAC_NAMES.get(number, otherwise)


def _commit(committed: dict[int, Committed], actions: str) -> None:
    for match in _COMMIT.finditer(actions):
        zone, mark, mark_mask, label, label_mask = (int(text or "0", 0) for text in match.groups())
        before = committed.pop(zone, Committed())
        committed[zone] = Committed(
            zone=zone, mark=mark | before.mark & ~mark_mask, label=label | before.label & ~label_mask
        )


def fields_of(text: str) -> dict[str, str]:
    """Return the fields of "key=value,key=value"."""
    return dict(part.partition("=")[::2] for part in text.split(","))


def service_of(mac: str) -> int:
    """Return the Service's ID in a sender's MAC address in our tunnels; 0 if none."""
    number = _hex("0x" + mac.replace(":", ""), 0) - r.MAC_SERVICE
    return number if 0 < number < SERVICES else 0


def _hex(text: str | None, otherwise: int) -> int:
    try:
        return int(text or "", 0)
    except ValueError:
        return otherwise


def _port(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 6 else otherwise
