"""Others' netfilter rules and the connections of Pods to other clusters, as the doctor sees them.

Rules of iptables-legacy are in no list of nft: where that program is there, it is asked, too.
"""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path

from mcagent.core.doctor.observed import ChainSeen, FilterSeen
from mcagent.dataplane.netlink.connection import AF_INET, NETLINK_NETFILTER, NetlinkSocket, attributes
from mcagent.dataplane.nft.observe import NftTable, nft_errors, parse_listing, run_nft
from mcagent.model.errors import BackendError
from mcagent.model.net import Address, Network, NetworkSet

MOST_CONNECTIONS = 50_000  # that are read: more take the memory that the agent's Pod has
MOST_RULES = 20_000
_LEGACY_TABLES = Path("/proc/thread-self/net/ip_tables_names")
_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")
_TABLE = re.compile(r"^table (\S+) (\S+) \{")
_CHAIN = re.compile(r"^\tchain (\S+) \{")
_BASE = re.compile(r"^\t\ttype (\S+) hook (\S+)(?: devices? .*?)? priority ([^;]+);(?: policy (\S+);)?")
# linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h
_GET = 1 << 8 | 1
_NFGENMSG = struct.Struct("!BBH")
_WAYS = (1, 2)  # CTA_TUPLE_ORIG, CTA_TUPLE_REPLY
_IP, _SOURCE, _DESTINATION = 1, 1, 2


def see_filters(table: str, remote: Iterable[Network]) -> FilterSeen:
    """Look at everybody's chains but those of our table, and at conntrack. `remote`: networks of other clusters.

    Raises nothing: what fails is in the result.
    """
    pods: tuple[Network, ...] = ()
    error, chains = "", []
    try:
        listed = NftTable("ip", table).list("-y", "-p")
        if listed is not None:
            sets = parse_listing(listed, "ip", table).sets
            pods = next((one.elements for one in sets if one.name == "mct_pods"), ())
        code, text, words = run_nft(["-t", "-y", "-p", "list", "ruleset"])
        if code:
            error = f"nft: {nft_errors(words)}"
        chains = [one for one in parse_ruleset(text) if (one.family, one.table) not in _ours(table)]
    except (BackendError, OSError) as failure:
        error = str(failure)
    chains += _legacy()
    try:
        connections, masqueraded = see_connections(remote, pods)
        refused = ""
    except BackendError as failure:
        connections, masqueraded, refused = 0, (), str(failure)
    return FilterSeen(
        error=error,
        chains=tuple(chains),
        conntrack_error=refused,
        masqueraded=masqueraded,
        connections=connections,
        pods=pods,
    )


def _ours(table: str) -> Collection[tuple[str, str]]:
    return {("ip", table), ("ip6", table)}


def parse_ruleset(text: str) -> Iterator[ChainSeen]:
    """Read the output of `nft -t -y -p list ruleset`; after many rules the rest is left out."""
    family = table = name = ""
    base: re.Match[str] | None = None
    rules: list[str] = []
    left = MOST_RULES
    for line in text.splitlines():
        if found := _TABLE.match(line):
            family, table = found.groups()
        elif found := _CHAIN.match(line):
            name, base, rules = found[1], None, []
        elif line == "\t}" and name:
            yield _chain(family, table, name, base, rules)
            name = ""
        elif name and (found := _BASE.match(line)):
            base = found
        elif name and line.strip() and left:
            rules.append(line.strip())
            left -= 1


def _chain(family: str, table: str, name: str, base: re.Match[str] | None, rules: list[str]) -> ChainSeen:
    if base is None:
        return ChainSeen(family=family, table=table, name=name, rules=tuple(rules))
    kind, hook, priority, policy = base.groups()
    number = int(priority) if re.fullmatch(r"-?\d+", priority) else 0
    return ChainSeen(
        family=family,
        table=table,
        name=name,
        type=kind,
        hook=hook,
        priority=number,
        policy=policy or "accept",
        rules=tuple(rules),
    )


def _legacy() -> list[ChainSeen]:
    """Return the chains of iptables-legacy where it is in use and can be asked."""
    try:
        if not _LEGACY_TABLES.read_text().strip():
            return []
        done = subprocess.run(["iptables-legacy-save"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(parse_save(done.stdout))


_HOOKS = {"INPUT": "input", "FORWARD": "forward", "POSTROUTING": "postrouting", "PREROUTING": "prerouting"}


def parse_save(text: str) -> Iterator[ChainSeen]:
    """Read the output of iptables-save(8)."""
    table, policies, rules = "", dict[str, str](), dict[str, list[str]]()
    for line in (*text.splitlines(), "*"):
        if line.startswith("*"):
            for name, policy in policies.items():
                hook = _HOOKS.get(name, "")
                yield ChainSeen(
                    family="ip",
                    table=f"{table}(legacy)",
                    name=name,
                    type="nat" if table == "nat" else "filter",
                    hook=hook,
                    priority=100 if hook == "postrouting" else 0,
                    policy="drop" if policy == "DROP" else "accept",
                    rules=tuple(rules.get(name, ())),
                )
            table, policies, rules = line[1:].strip(), {}, {}
        elif line.startswith(":"):
            name, policy, *_ = line[1:].split()
            policies[name] = policy
        elif line.startswith("-A "):
            name, _, rest = line[3:].partition(" ")
            rules.setdefault(name, []).append(rest.replace("--dport", "dport"))


def see_connections(
    remote: Iterable[Network], pods: Iterable[Network]
) -> tuple[int, tuple[tuple[Address, Address, Address], ...]]:
    """Return how many connections Pods have to other clusters, and those with another source than the Pod.

    Of the kernel's own zone (0): what the bridge translates is in zones of ours. Raises BackendError.
    """
    there, here = NetworkSet(remote), NetworkSet(pods)
    try:
        count = int(_COUNT.read_text())
    except (OSError, ValueError):
        count = 0
    if count > MOST_CONNECTIONS:
        reason = f"{count} connections: more than {MOST_CONNECTIONS} are not read"
        raise BackendError("conntrack", "list", "connections", reason)
    with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
        answers = netlink.dump(_GET, _NFGENMSG.pack(AF_INET, 0, 0))
    number, translated = 0, []
    for answer in answers:
        entry = attributes(answer, _NFGENMSG.size)
        if 18 in entry and any(entry[18]):  # CTA_ZONE
            continue
        original, reply = (attributes(attributes(entry.get(way, b"")).get(_IP, b"")) for way in _WAYS)
        source, target, back = original.get(_SOURCE, b""), reply.get(_SOURCE, b""), reply.get(_DESTINATION, b"")
        if not len(source) == len(target) == len(back) == 4:
            continue
        if int.from_bytes(source) in here and int.from_bytes(target) in there:
            number += 1
            if source != back:
                translated.append((ip_address(source), ip_address(target), ip_address(back)))
    return number, tuple(translated[:100])
