"""Parses nft's lists of the agent's tables into resources, and runs nft(8) 1.0.6 (Debian 12) to 1.1.

A rule is the text that nft lists: core writes rules as all these versions list them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import collapse_addresses, ip_address, ip_network, summarize_address_range
from itertools import takewhile

from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import NftChain, NftSet
from mcagent.model.errors import BackendError
from mcagent.model.net import Network, network_key

TIMEOUT = 30.0  # seconds; 10,000 elements take 0.15 s
_NO_TABLE = ("No such file or directory", "Address family not supported")  # the second: a kernel without IPv6
# By family of the table; with "typeof", because nft 1.0.6 crashes on every set that nft 1.1.3 created with "type":
# if the image has a newer nft than the Node, the Node's nft could not list its rules any more.
ELEMENT_TYPES = {"ip": "ip daddr", "ip6": "ip6 daddr"}
_FORMER_TYPES = {"ipv4_addr": "ip daddr", "ipv6_addr": "ip6 daddr", "inet_service": "udp dport"}  # the same sets
_RULE = re.compile(r"^\t\t(.*) # handle \d+$")
_TABLE = re.compile(r"^table (\S+) (\S+) \{")
_DORMANT = re.compile(r"^\tflags .{0,100}\bdormant\b")  # no packet passes the chains of this table
_BASE = re.compile(
    r"^\t\ttype (?P<type>\S+) hook (?P<hook>\S+)(?: devices? .{0,1000}?)? priority (?P<priority>[^;]+);"
    r"(?: policy (?P<policy>\S+);)?$"
)
_NUMBER = re.compile(r"-?\d+")
MAX_FOREIGN_RULES = 20_000
_BLOCK = re.compile(r"^\t(?P<kind>\S+) (?P<name>\S+) \{")
_PROPERTY = re.compile(r"^\t\t(type|typeof|flags) (.*)$")
_ELEMENTS = re.compile(r"elements = \{([^{}]*)\}")
_COUNTER = re.compile(r"\bcounter packets (\d+) bytes \d+\b")


@dataclass(slots=True)
class TableListing:
    """The content of a table. `other_count`: the number of objects that are neither set nor chain."""

    sets: list[NftSet] = field(default_factory=list)
    chains: list[NftChain] = field(default_factory=list)
    other_count: int = 0

    @property
    def empty(self) -> bool:
        """Whether the table holds nothing."""
        return not (self.sets or self.chains or self.other_count)

    def packet_counts(self) -> dict[str, int]:
        """Return the packets counted by the rules of each chain, without chains that have no counter."""
        counters = {
            chain.name: [int(match[1]) for rule in chain.rules for match in _COUNTER.finditer(rule)]
            for chain in self.chains
        }
        return {name: sum(counts) for name, counts in counters.items() if counts}


def parse_listing(text: str, family: str, table: str) -> TableListing:
    """Parse the output of `nft -a -s -y -p list table`."""
    listing, dormant = TableListing(), False
    lines = iter(text.splitlines())
    for line in lines:
        block = _BLOCK.match(line)
        if block is None:
            dormant = dormant or _DORMANT.match(line) is not None
            continue
        body, name = _body(lines), block["name"]
        if block["kind"] == "set":
            listing.sets.append(_set(body, family, table, name))
        elif block["kind"] == "chain":
            chain = _chain(body, family, table, name)
            listing.chains.append(replace(chain, intact=chain.intact and not dormant))
        else:
            listing.other_count += 1
    return listing


def _body(lines: Iterator[str]) -> list[str]:
    """Take the lines of a block up to its end."""
    return list(takewhile(lambda line: line != "\t}", lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignChain:
    """A chain of another program. `hook` is "" if it is no base chain; rules are in the form that nft prints."""

    family: str
    table: str
    name: str
    type: str = ""
    hook: str = ""
    priority: int = 0
    policy: str = "accept"
    rules: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.family} {self.table} {self.name}"


def parse_ruleset(text: str) -> Iterator[ForeignChain]:
    """Read the output of `nft -t -y -p list ruleset`; rules after the first MAX_FOREIGN_RULES are left out."""
    family = table = ""
    remaining = MAX_FOREIGN_RULES
    lines = iter(text.splitlines())
    for line in lines:
        if header := _TABLE.match(line):
            family, table = header.groups()
        elif (block := _BLOCK.match(line)) and block["kind"] == "chain":
            body = _body(lines)
            base = next((match for inner in body if (match := _BASE.match(inner))), None)
            rules = [rule for inner in body if (rule := inner.strip()) and not _BASE.match(inner)][:remaining]
            remaining -= len(rules)
            chain = ForeignChain(family=family, table=table, name=block["name"], rules=tuple(rules))
            if base is not None:
                policy = base["policy"] or "accept"
                chain = replace(
                    chain, type=base["type"], hook=base["hook"], priority=_priority(base), policy=policy
                )
            yield chain


def _priority(base: re.Match[str]) -> int:
    return int(base["priority"]) if _NUMBER.fullmatch(base["priority"]) else 0


def set_kind(nft_set: NftSet) -> tuple[str, str]:
    """Return type and flags of a set, as nft lists them."""
    kind = ELEMENT_TYPES[nft_set.family]
    if nft_set.learned:
        return kind, "dynamic,timeout"
    return (kind, "interval") if nft_set.sockets is None else (f"{kind} . udp dport", "")


def _chain(body: Sequence[str], family: str, table: str, name: str) -> NftChain:
    base_chain = next((base for line in body if (base := _BASE.match(line))), None)
    return NftChain(
        family=family,
        table=table,
        name=name,
        type=base_chain["type"] if base_chain else "",
        hook=base_chain["hook"] if base_chain else "",
        priority=_priority(base_chain) if base_chain else 0,
        rules=tuple(rule[1] for line in body if (rule := _RULE.match(line))),
        intact=base_chain is None or base_chain["policy"] in {None, "accept"},
    )


def _set(body: Sequence[str], family: str, table: str, name: str) -> NftSet:
    properties = {match[1]: match[2] for line in body if (match := _PROPERTY.match(line))}
    former = " . ".join(_FORMER_TYPES.get(name, name) for name in properties.get("type", "").split(" . "))
    kind = (properties.get("typeof", former), properties.get("flags", ""))
    elements = _ELEMENTS.search(" ".join(body))
    items = [words for item in elements[1].split(",") if (words := item.split())] if elements else []
    result = NftSet(family=family, table=table, name=name)
    if "dynamic" in kind[1]:
        result = replace(result, learned=True)
    elif kind[0] == ELEMENT_TYPES[family]:
        # The agent adds nothing to an element (timeout, counter, comment).
        networks = {network for word, *_ in items for network in _networks(word)}
        merged = collapse_addresses(sorted(networks, key=network_key))  # type: ignore[type-var]
        result = replace(result, elements=tuple(merged))
    elif kind[0] == f"{ELEMENT_TYPES[family]} . udp dport":
        pairs = [(words[0], words[2]) for words in items if len(words) > 2 and words[1] == "."]
        sockets = [(ip_address(address), int(port)) for address, port in pairs if port.isdecimal()]
        result = replace(result, sockets=tuple(sorted(sockets, key=lambda socket: (int(socket[0]), socket[1]))))
    return result if kind == set_kind(result) else replace(result, intact=False)


def _networks(word: str) -> Iterator[Network]:
    """Yield the networks of an element: an address, a network or a range."""
    first, dash, last = word.partition("-")
    if dash:
        yield from summarize_address_range(ip_address(first), ip_address(last))
    else:
        yield ip_network(first)


# --- the program ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NftTable:
    """A table of nft: family ("ip" or "ip6", also of the addresses in its sets), name and program."""

    family: str
    name: str
    binary: str = "nft"

    def __str__(self) -> str:
        return f"{self.family} {self.name}"

    def list(self, *flags: str) -> str | None:
        """Return the output of `nft list table`; None: there is no such table. BackendError: nft cannot be run."""
        code, stdout, stderr = self.run([*flags, "list", "table", self.family, self.name])
        if code == 0:
            return stdout
        if any(words in stderr for words in _NO_TABLE):
            return None
        raise self.error("list", "", nft_errors(stderr))

    def run(self, arguments: Sequence[str], stdin: str = "") -> tuple[int, str, str]:
        """Run nft; return exit status, output and errors. Raises BackendError when it cannot be run."""
        try:
            code, stdout, stderr = run_nft(arguments, stdin, binary=self.binary)
        except OSError as error:
            raise self.error("run", "", str(error)) from None
        if code and "cache initialization failed" in stderr:
            raise self.error("run", "", nft_errors(stderr))  # no permission, or a kernel without nf_tables
        return code, stdout, stderr

    def error(self, operation: str, obj: str, reason: str, *, retryable: bool = True) -> BackendError:
        """Make the error of an operation on an object of this table ("" for the table itself)."""
        return BackendError(Backend.NFT, operation, f"table {self} {obj}".rstrip(), reason, retryable=retryable)


def run_nft(arguments: Sequence[str], stdin: str = "", *, binary: str = "nft") -> tuple[int, str, str]:
    """Run nft in this thread's namespace; return exit status, output and errors. Raises OSError."""
    try:
        done = subprocess.run(
            [binary, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",  # comments of other programs
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise OSError(f"there is no {binary}: install nftables") from None
    except subprocess.TimeoutExpired as error:
        raise OSError(str(error)) from None
    return done.returncode, done.stdout, done.stderr


def nft_errors(stderr: str) -> str:
    """Return nft's error messages, without the quoted lines below them."""
    lines = [line for line in stderr.splitlines() if "Error:" in line]
    return "; ".join(lines) or stderr.strip() or "failed silently"
