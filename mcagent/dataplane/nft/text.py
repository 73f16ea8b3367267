"""nft(8) text: the script that makes steps so, and what `nft list table` says, as resources.

Pure: runs nothing. `mcagent.dataplane.nft.backend` does. Syntax of nft 1.0.6 (Debian 12) to 1.1; no `destroy`.

Every rule carries a comment with a digest of its text. The text itself does not fit into a comment (128
bytes), so it is read back from the listing: where nft lists the rule in one of the spellings of `spellings`,
the digest proves which text was asked for, and that nobody altered the rule and left the comment.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    collapse_addresses,
    ip_address,
    ip_network,
    summarize_address_range,
)

from mcagent.model.net import Address, Network
from mcagent.model.plan import Op, Step
from mcagent.model.resources import NftChain, NftSet

ELEMENT_TYPES = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}  # by family of the table
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORD = re.compile(r"[a-z]+")
_COMMENT = re.compile(r"mc:([0-9a-f]{16})")
_RULE = re.compile(r'^\t\t(?P<text>.*?)(?: comment "(?P<comment>[^"]*)")? # handle \d+$')
_BASE = re.compile(
    r"^\t\ttype (?P<type>\S+) hook (?P<hook>\S+) priority (?P<priority>-?\d+);(?: policy (?P<policy>\S+);)?$"
)
_BLOCK = re.compile(r"^\t(?P<kind>\S+) (?P<name>\S+) \{")
_COUNTER = re.compile(r"\bcounter packets (\d+) bytes \d+\b")
_FLAGS_SLASH = re.compile(r"tcp flags (!= )?(\w+) / (\w+(?:,\w+)*)")
_FLAGS_AND = re.compile(r"tcp flags & \((\w+(?: ?\| ?\w+)*)\) (==|!=) (\w+)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a script: for which step (by place), and what it is about if it is refused."""

    text: str
    step: int
    about: str = ""


@dataclass(frozen=True, slots=True)
class ListedRule:
    """A rule as nft lists it, with the digest in its comment ("" where there is none of ours)."""

    text: str
    comment: str
    digest: str


@dataclass(slots=True)
class ListedChain:
    """A chain as nft lists it; `type` is "" for one without a hook."""

    name: str
    type: str = ""
    hook: str = ""
    priority: int = 0
    policy: str = "accept"
    rules: list[ListedRule] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ListedSet:
    """A set as nft lists it; `kind` is its type and flags."""

    kind: tuple[str, str]
    elements: tuple[Network, ...] = ()
    sockets: tuple[tuple[Address, int], ...] = ()


@dataclass(slots=True)
class Listing:
    """A table as nft lists it. `others` counts what is neither set nor chain."""

    chains: list[ListedChain] = field(default_factory=list)
    sets: dict[str, ListedSet] = field(default_factory=dict)
    others: int = 0


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


# --- scripts --------------------------------------------------------------------------------------------


def objection(step: Step, family: str, table: str) -> str:
    """Return why a step cannot be written as a script, or "" if it can."""
    resource = step.new or step.old
    if not isinstance(resource, NftChain | NftSet):
        return f"{type(resource).__name__} is not a resource of nft"
    if (resource.family, resource.table) != (family, table):
        return f"table {resource.family} {resource.table} is not ours"
    if not _NAME.fullmatch(resource.name):
        return "not a name: letters, digits and _ are"
    if isinstance(step.new, NftSet):
        version = 4 if family == "ip" else 6
        addresses = [address for address, _ in step.new.sockets or ()]
        if any(one.version != version for one in (*step.new.elements, *addresses)):
            return f"an element is not of the table's family {family}"
    if isinstance(step.new, NftChain):
        if not (_WORD.fullmatch(step.new.type) and _WORD.fullmatch(step.new.hook)):
            return "not a base chain: its type and hook are words of nft(8)"
        for place, rule in enumerate(step.new.rules, start=1):
            if re.search(r"[\n\r;#\\]|\bcomment\b", rule) or not _balanced(rule):
                return f"rule {place} is not one rule without a comment: {rule!r}"
    return ""


def _balanced(rule: str) -> bool:
    """Tell whether braces (of anonymous sets and maps) open before they close, and quotes close."""
    depth = 0
    for character in rule:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0 and rule.count('"') % 2 == 0


def script(family: str, table: str, steps: Mapping[int, Step]) -> list[Line]:
    """Return the lines of one transaction that makes the steps so.

    Sets and chains are made if they are missing, flushed and filled again: a base chain is never deleted
    to be made again (packets would pass without it), except when its type, hook or priority changes.
    """
    where = f"{family} {table}"
    early: list[Line] = [Line(f"add table {where}", -1)]
    filling: list[Line] = []
    rules: list[Line] = []
    late: list[Line] = []
    for place, step in steps.items():
        new, old = step.new, step.old
        if isinstance(new, NftSet):
            about = f"set {new.name}"
            if isinstance(old, NftSet) and (not old.intact or set_kind(old) != set_kind(new)):
                early.append(Line(f"delete set {where} {new.name}", place, about))
            early.append(Line(_add_set(where, new), place, about))
            filling.append(Line(f"flush set {where} {new.name}", place, about))
            elements = ", ".join([*map(str, new.elements), *(f"{a} . {port}" for a, port in new.sockets or ())])
            if elements:
                filling.append(Line(f"add element {where} {new.name} {{ {elements} }}", place, about))
        elif isinstance(new, NftChain):
            about = f"chain {new.name}"
            if step.op is Op.REPLACE and isinstance(old, NftChain) and _hook(old) != _hook(new):
                early.append(Line(f"flush chain {where} {new.name}", place, about))
                early.append(Line(f"delete chain {where} {new.name}", place, about))
            hook = f"type {new.type} hook {new.hook} priority {new.priority}; policy accept;"
            early.append(Line(f"add chain {where} {new.name} {{ {hook} }}", place, about))
            filling.append(Line(f"flush chain {where} {new.name}", place, about))
            for number, rule in enumerate(new.rules, start=1):
                text = f'add rule {where} {new.name} {rule} comment "mc:{digest(rule)}"'
                rules.append(Line(text, place, f"{about} rule {number} ({rule})"))
        elif isinstance(old, NftSet):
            if old.intact:  # so that it may be gone already
                early.append(Line(_add_set(where, old), place, f"set {old.name}"))
            late.append(Line(f"delete set {where} {old.name}", place, f"set {old.name}"))
        elif isinstance(old, NftChain):
            about = f"chain {old.name}"
            early.append(Line(f"add chain {where} {old.name}", place, about))  # so that it may be gone already
            filling.append(Line(f"flush chain {where} {old.name}", place, about))
            late.insert(0, Line(f"delete chain {where} {old.name}", place, about))
    return [*early, *filling, *rules, *late]


def set_kind(nft_set: NftSet) -> tuple[str, str]:
    """Return type and flags of a set, as nft lists them."""
    kind = ELEMENT_TYPES[nft_set.family]
    return (kind, "interval") if nft_set.sockets is None else (f"{kind} . inet_service", "")


def _add_set(where: str, nft_set: NftSet) -> str:
    kind, flags = set_kind(nft_set)
    return f"add set {where} {nft_set.name} {{ type {kind};{f' flags {flags};' if flags else ''} }}"


def _hook(chain: NftChain) -> tuple[str, str, int]:
    return chain.type, chain.hook, chain.priority


# --- listings -------------------------------------------------------------------------------------------


def parse_listing(text: str) -> Listing:
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
        if block["kind"] == "chain":
            listing.chains.append(_chain(block["name"], body))
        elif block["kind"] == "set":
            words = dict(
                line.strip().split(" ", 1) for line in body if line.startswith("\t\t") and " " in line.strip()
            )
            kind = (words.get("type", ""), words.get("flags", ""))
            listing.sets[block["name"]] = _set(kind, " ".join(body))
        else:
            listing.others += 1
    return listing


def counted(listing: Listing) -> dict[str, int]:
    """Return how many packets the rules of each chain have counted; chains that do not count are left out."""
    found: dict[str, int] = {}
    for chain in listing.chains:
        counts = [int(match[1]) for rule in chain.rules for match in _COUNTER.finditer(rule.text)]
        if counts:
            found[chain.name] = sum(counts)
    return found


def _chain(name: str, body: Sequence[str]) -> ListedChain:
    chain = ListedChain(name)
    for line in body:
        base, rule = _BASE.match(line), _RULE.match(line)
        if base is not None:
            chain.type, chain.hook, chain.priority = base["type"], base["hook"], int(base["priority"])
            chain.policy = base["policy"] or "accept"
        elif rule is not None:
            comment = rule["comment"] or ""
            ours = _COMMENT.fullmatch(comment)
            chain.rules.append(ListedRule(rule["text"], comment, ours[1] if ours else ""))
    return chain


def _set(kind: tuple[str, str], body: str) -> ListedSet:
    found = re.search(r"elements = \{([^}]*)\}", body)
    items = [words for item in found[1].split(",") if (words := item.split())] if found is not None else []
    if kind[0] in ELEMENT_TYPES.values():
        return ListedSet(kind, elements=_elements(items))
    pairs = [(words[0], words[2]) for words in items if len(words) > 2 and words[1] == "."]
    sockets = [(ip_address(address), int(port)) for address, port in pairs if port.isdecimal()]
    return ListedSet(kind, sockets=tuple(sorted(sockets, key=lambda one: (one[0].version, int(one[0]), one[1]))))


def _elements(items: Sequence[Sequence[str]]) -> tuple[Network, ...]:
    networks: list[Network] = []
    for word, *_ in items:  # what follows (timeout, counter, comment) is not ours
        first, dash, last = word.partition("-")
        if dash:
            networks += _range(first, last)
        else:
            networks.append(ip_network(first))
    v4 = collapse_addresses([one for one in networks if isinstance(one, IPv4Network)])
    v6 = collapse_addresses([one for one in networks if isinstance(one, IPv6Network)])
    return (*v4, *v6)


def _range(first: str, last: str) -> list[Network]:
    low, high = ip_address(first), ip_address(last)
    if isinstance(low, IPv4Address) and isinstance(high, IPv4Address):
        return list(summarize_address_range(low, high))
    if isinstance(low, IPv6Address) and isinstance(high, IPv6Address):
        return list(summarize_address_range(low, high))
    return []
