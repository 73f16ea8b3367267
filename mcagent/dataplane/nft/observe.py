"""What nft(8) says of our tables, as resources; and how it is run. Syntax of nft 1.0.6 (Debian 12) to 1.1.

A rule is the text that nft lists: what core asks for is written as all these versions list it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import collapse_addresses, ip_address, ip_network, summarize_address_range

from mcagent.model.errors import BackendError
from mcagent.model.net import Network, network_key
from mcagent.model.resources import Backend, NftChain, NftSet

TIMEOUT = 30.0  # seconds; 10,000 elements take 0.15 s
_NO_TABLE = ("No such file or directory", "Address family not supported")  # the second: a kernel without IPv6
# By family of the table; with "typeof", since nft 1.0.6 ends by a segmentation fault at any set that nft 1.1.3
# made with "type": where the image's is newer than the Node's, nobody could list the Node's rules any more.
ELEMENT_TYPES = {"ip": "ip daddr", "ip6": "ip6 daddr"}
_FORMER_TYPES = {"ipv4_addr": "ip daddr", "ipv6_addr": "ip6 daddr", "inet_service": "udp dport"}  # the same sets
_RULE = re.compile(r"^\t\t(.*) # handle \d+$")
_BASE = re.compile(
    r"^\t\ttype (?P<type>\S+) hook (?P<hook>\S+) priority (?P<priority>-?\d+);(?: policy (?P<policy>\S+);)?$"
)
_BLOCK = re.compile(r"^\t(?P<kind>\S+) (?P<name>\S+) \{")
_PROPERTY = re.compile(r"^\t\t(type|typeof|flags) (.*)$")
_ELEMENTS = re.compile(r"elements = \{([^}]*)\}")
_COUNTER = re.compile(r"\bcounter packets (\d+) bytes \d+\b")


@dataclass(slots=True)
class Listing:
    """A table as nft lists it. `others` counts what is neither set nor chain."""

    sets: list[NftSet] = field(default_factory=list)
    chains: list[NftChain] = field(default_factory=list)
    others: int = 0

    @property
    def empty(self) -> bool:
        """Whether the table holds nothing."""
        return not (self.sets or self.chains or self.others)

    def counted(self) -> dict[str, int]:
        """Return how many packets the rules of each chain have counted, without chains that do not count."""
        found = {
            chain.name: [int(match[1]) for rule in chain.rules for match in _COUNTER.finditer(rule)]
            for chain in self.chains
        }
        return {name: sum(counts) for name, counts in found.items() if counts}


def parse_listing(text: str, family: str, table: str) -> Listing:
    """Read the output of `nft -a -s -y -p list table`."""
    listing = Listing()
    lines = iter(text.splitlines())
    for line in lines:
        block = _BLOCK.match(line)
        if block is None:
            continue
        body: list[str] = []
        for inner in lines:
            if inner == "\t}":
                break
            body.append(inner)
        name = block["name"]
        if block["kind"] == "set":
            listing.sets.append(_set(body, family, table, name))
        elif block["kind"] == "chain":
            listing.chains.append(_chain(body, family, table, name))
        else:
            listing.others += 1
    return listing


def set_kind(nft_set: NftSet) -> tuple[str, str]:
    """Return type and flags of a set, as nft lists them."""
    kind = ELEMENT_TYPES[nft_set.family]
    return (kind, "interval") if nft_set.sockets is None else (f"{kind} . udp dport", "")


def _chain(body: Sequence[str], family: str, table: str, name: str) -> NftChain:
    found = next((base for line in body if (base := _BASE.match(line))), None)
    return NftChain(
        family=family,
        table=table,
        name=name,
        type=found["type"] if found else "",
        hook=found["hook"] if found else "",
        priority=int(found["priority"]) if found else 0,
        rules=tuple(rule[1] for line in body if (rule := _RULE.match(line))),
        intact=found is None or found["policy"] in {None, "accept"},
    )


def _set(body: Sequence[str], family: str, table: str, name: str) -> NftSet:
    properties = {found[1]: found[2] for line in body if (found := _PROPERTY.match(line))}
    former = " . ".join(_FORMER_TYPES.get(one, one) for one in properties.get("type", "").split(" . "))
    kind = (properties.get("typeof", former), properties.get("flags", ""))
    elements = _ELEMENTS.search(" ".join(body))
    items = [words for item in elements[1].split(",") if (words := item.split())] if elements else []
    found_set = NftSet(family=family, table=table, name=name)
    if kind[0] == ELEMENT_TYPES[family]:
        # What follows an element (timeout, counter, comment) is not ours.
        networks = {network for word, *_ in items for network in _networks(word)}
        merged = collapse_addresses(sorted(networks, key=network_key))  # type: ignore[type-var]
        found_set = replace(found_set, elements=tuple(merged))
    elif kind[0] == f"{ELEMENT_TYPES[family]} . udp dport":
        pairs = [(words[0], words[2]) for words in items if len(words) > 2 and words[1] == "."]
        sockets = [(ip_address(address), int(port)) for address, port in pairs if port.isdecimal()]
        found_set = replace(found_set, sockets=tuple(sorted(sockets, key=lambda one: (int(one[0]), one[1]))))
    return found_set if kind == set_kind(found_set) else replace(found_set, intact=False)


def _networks(word: str) -> Iterator[Network]:
    """Yield the networks of an element: an address, a network or a range."""
    first, dash, last = word.partition("-")
    if dash:
        yield from summarize_address_range(ip_address(first), ip_address(last))
    else:
        yield ip_network(first)


# --- the program ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """A table of nft: the family ("ip" or "ip6", of which its sets hold addresses), its name, and who is asked."""

    family: str
    name: str
    binary: str = "nft"

    def __str__(self) -> str:
        return f"{self.family} {self.name}"

    def list(self, *flags: str) -> str | None:
        """Return what `nft list table` says with these flags, or None if there is no such table.

        Raises BackendError when nft cannot be run.
        """
        code, stdout, stderr = self.run([*flags, "list", "table", self.family, self.name])
        if code == 0:
            return stdout
        if any(words in stderr for words in _NO_TABLE):
            return None
        raise self.error("list", "", nft_words(stderr))

    def run(self, arguments: Sequence[str], stdin: str = "") -> tuple[int, str, str]:
        """Return status, output and errors of nft. Raises BackendError when it cannot be run."""
        try:
            code, stdout, stderr = run_nft(arguments, stdin, binary=self.binary)
        except OSError as error:
            raise self.error("run", "", str(error)) from None
        if code and "cache initialization failed" in stderr:
            raise self.error("run", "", nft_words(stderr))  # no permission, or a kernel without nf_tables
        return code, stdout, stderr

    def error(self, operation: str, obj: str, reason: str, *, retryable: bool = True) -> BackendError:
        """Return the error of an operation on an object of this table ("" for the table itself)."""
        return BackendError(Backend.NFT, operation, f"table {self} {obj}".rstrip(), reason, retryable=retryable)


def run_nft(arguments: Sequence[str], stdin: str = "", *, binary: str = "nft") -> tuple[int, str, str]:
    """Run nft in this thread's namespace; return status, output and errors. Raises OSError when it cannot."""
    try:
        done = subprocess.run(
            [binary, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise OSError(f"there is no {binary}: install nftables") from None
    except subprocess.TimeoutExpired as error:
        raise OSError(str(error)) from None
    return done.returncode, done.stdout, done.stderr


def nft_words(stderr: str) -> str:
    """Return nft's own words, without the picture of the line it draws below them."""
    lines = [line for line in stderr.splitlines() if "Error:" in line]
    return "; ".join(lines) or stderr.strip() or "failed silently"
