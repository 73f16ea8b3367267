"""What `nft list table` says, as resources. Pure; syntax of nft 1.0.6 (Debian 12) to 1.1.

Every rule carries a comment with a digest of its text. The text itself does not fit into a comment (128
bytes), so it is read back from the listing: where nft lists the rule in one of the spellings of `spellings`,
the digest proves which text was asked for, and that nobody altered the rule and left the comment.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import collapse_addresses, ip_address, ip_network, summarize_address_range

from mcagent.model.net import Network, network_key
from mcagent.model.resources import NftChain, NftSet, Resource

ELEMENT_TYPES = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}  # by family of the table
_COMMENT = re.compile(r"mc:([0-9a-f]{16})")
_RULE = re.compile(r'^\t\t(?P<text>.*?)(?: comment "(?P<comment>[^"]*)")? # handle \d+$')
_BASE = re.compile(
    r"^\t\ttype (?P<type>\S+) hook (?P<hook>\S+) priority (?P<priority>-?\d+);(?: policy (?P<policy>\S+);)?$"
)
_BLOCK = re.compile(r"^\t(?P<kind>\S+) (?P<name>\S+) \{")
_PROPERTY = re.compile(r"^\t\t(type|flags) (.*)$")
_ELEMENTS = re.compile(r"elements = \{([^}]*)\}")
_COUNTER = re.compile(r"\bcounter packets (\d+) bytes \d+\b")
_FLAGS_SLASH = re.compile(r"tcp flags (!= )?(\w+) / (\w+(?:,\w+)*)")
_FLAGS_AND = re.compile(r"tcp flags & \((\w+(?: ?\| ?\w+)*)\) (==|!=) (\w+)")


@dataclass(frozen=True, slots=True)
class ListedRule:
    """A rule as nft lists it."""

    text: str
    comment: str

    @property
    def digest(self) -> str:
        """The digest in its comment; "" where there is none of ours."""
        ours = _COMMENT.fullmatch(self.comment)
        return ours[1] if ours else ""


@dataclass(slots=True)
class Listing:
    """A table as nft lists it: its sets, its chains still without rules, and the rules by chain.

    `others` counts what is neither set nor chain.
    """

    sets: list[NftSet] = field(default_factory=list)
    chains: list[NftChain] = field(default_factory=list)
    rules: dict[str, list[ListedRule]] = field(default_factory=dict)
    others: int = 0

    @property
    def empty(self) -> bool:
        """Whether the table holds nothing."""
        return not (self.sets or self.chains or self.others)

    def resources(self, asked_for: Callable[[ListedRule], str]) -> list[Resource]:
        """Return sets and chains; `asked_for` gives the text that stands behind a listed rule."""
        chains = (replace(one, rules=tuple(map(asked_for, self.rules[one.name]))) for one in self.chains)
        return [*self.sets, *chains]

    def counted(self) -> dict[str, int]:
        """Return how many packets the rules of each chain have counted, without chains that do not count."""
        found = {
            name: [int(match[1]) for rule in rules for match in _COUNTER.finditer(rule.text)]
            for name, rules in self.rules.items()
        }
        return {name: sum(counts) for name, counts in found.items() if counts}


def parse_listing(text: str, family: str, table: str) -> Listing:
    """Read the output of `nft -a -s -y list table`."""
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
            listing.rules[name] = [
                ListedRule(rule["text"], rule["comment"] or "") for line in body if (rule := _RULE.match(line))
            ]
        else:
            listing.others += 1
    return listing


def set_kind(nft_set: NftSet) -> tuple[str, str]:
    """Return type and flags of a set, as nft lists them."""
    kind = ELEMENT_TYPES[nft_set.family]
    return (kind, "interval") if nft_set.sockets is None else (f"{kind} . inet_service", "")


def digest(text: str) -> str:
    """Return the digest of a rule's text that goes into its comment."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def spellings(listed: str) -> Iterator[str]:
    """Yield the ways to write a listed rule: nft lists some differently from version to version."""
    yield listed
    slashed = _FLAGS_AND.sub(_slash, listed)
    yield slashed
    for bar in ("|", " | "):
        yield _FLAGS_SLASH.sub(partial(_barred, bar), slashed)


def _barred(bar: str, match: re.Match[str]) -> str:
    return f"tcp flags & ({match[3].replace(',', bar)}) {'!=' if match[1] else '=='} {match[2]}"


def _slash(match: re.Match[str]) -> str:
    mask = re.sub(r" ?\| ?", ",", match[1])
    return f"tcp flags {'!= ' if match[2] == '!=' else ''}{match[3]} / {mask}"


def _chain(body: Sequence[str], family: str, table: str, name: str) -> NftChain:
    found = next((base for line in body if (base := _BASE.match(line))), None)
    return NftChain(
        family=family,
        table=table,
        name=name,
        type=found["type"] if found else "",
        hook=found["hook"] if found else "",
        priority=int(found["priority"]) if found else 0,
        rules=(),
        intact=found is None or found["policy"] in {None, "accept"},
    )


def _set(body: Sequence[str], family: str, table: str, name: str) -> NftSet:
    properties = {found[1]: found[2] for line in body if (found := _PROPERTY.match(line))}
    kind = (properties.get("type", ""), properties.get("flags", ""))
    elements = _ELEMENTS.search(" ".join(body))
    items = [words for item in elements[1].split(",") if (words := item.split())] if elements else []
    found_set = NftSet(family=family, table=table, name=name)
    if kind[0] == ELEMENT_TYPES[family]:
        # What follows an element (timeout, counter, comment) is not ours.
        networks = {network for word, *_ in items for network in _networks(word)}
        merged = collapse_addresses(sorted(networks, key=network_key))  # type: ignore[type-var]
        found_set = replace(found_set, elements=tuple(merged))
    elif kind[0] == f"{ELEMENT_TYPES[family]} . inet_service":
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
