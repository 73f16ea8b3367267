"""The Corefile of a cluster's CoreDNS: names of the Multi-Cluster Services API put in, and taken out again.

Pure: text in, text out. CoreDNS' own plugin `kubernetes` answers such names where it is told so (`multicluster`,
1.12.2 and newer) and is authoritative for their zone. Two things are put in, a zone and a line, and the line is
marked: what is taken out again is that, whatever else was changed meanwhile. What is not understood is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcagent.model.errors import InputError

ZONE = "clusterset.local"
MARK = "# by mcagent dns"
OLDEST = (1, 12, 2)  # that knows `multicluster`
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\S+')
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?![\d.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plugin:
    """One `kubernetes` of a Corefile: its line, and that of its closing brace, the same where it has no block."""

    first: int
    last: int
    servers: tuple[str, ...]  # addresses of the server block around it
    zones: tuple[str, ...]
    multicluster: tuple[str, ...]  # zones
    marked: int | None  # the line that we put in


def configured(text: str, what: str) -> str:
    """Return a Corefile by which such names are answered: itself, if they are.

    Raises InputError that names `what` the Corefile is of.
    """
    plugins = [one for one in _plugins(text) if any(map(_serves, one.servers))]
    if not plugins:
        raise InputError(
            what,
            "Corefile",
            f'has no plugin "kubernetes" in a server block for "." or "{ZONE}": name them there by hand',
        )
    lines = text.splitlines(keepends=True)
    for one in reversed(plugins):
        if ZONE not in one.multicluster:
            _put_in(lines, one, what)
    return "".join(lines)


def restored(text: str) -> str:
    """Return a Corefile without what `configured` puts in: itself, if nothing of that is there."""
    lines = text.splitlines(keepends=True)
    for one in reversed([*_plugins(text)]):
        if one.marked is None:
            continue
        lines[one.first] = re.sub(rf"\s+{re.escape(ZONE)}(?=\s)", "", lines[one.first], count=1)
        if one.last - one.first == 2:  # nothing else is in the block
            lines[one.first] = re.sub(r"\s*\{(?=\s*(#|$))", "", lines[one.first])
            del lines[one.marked : one.last + 1]
        else:
            del lines[one.marked]
    return "".join(lines)


def answers(text: str) -> bool:
    """Tell whether such names are answered, whoever has seen to it."""
    return any(ZONE in one.multicluster for one in _plugins(text) if any(map(_serves, one.servers)))


def reloads(text: str) -> bool:
    """Tell whether CoreDNS looks at its Corefile again by itself."""
    return any(words[:1] == ["reload"] for words in map(_words, text.splitlines()))


def version_of(text: str) -> tuple[int, int, int] | None:
    """Return the version in an image's name, or in itself; None where there is none."""
    tag = text.rpartition("/")[2].partition("@")[0].rpartition(":")[2]
    found = _VERSION.match(tag)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _put_in(lines: list[str], one: _Plugin, what: str) -> None:
    """Put zone and line into one plugin."""
    if one.multicluster:
        others = " ".join(one.multicluster)
        raise InputError(
            what, "Corefile", f'has "multicluster {others}": name "{ZONE}" there and after "kubernetes" by hand'
        )
    if not one.zones or ZONE in one.zones:
        reason = "names no zones" if not one.zones else f'names "{ZONE}" without "multicluster {ZONE}"'
        raise InputError(what, "Corefile", f'"kubernetes" {reason}: change it by hand')
    line = lines[one.first]
    end = line[len(line.rstrip("\r\n")) :] or "\n"
    indent = line[: len(line) - len(line.lstrip())]
    words = [*_TOKEN.finditer(_code(line))]
    place = words[len(one.zones)].end()
    block = one.last > one.first
    lines[one.first] = line[:place] + f" {ZONE}" + ("" if block else " {") + line[place:]
    deeper = indent + ("\t" if indent.startswith("\t") else "    ")
    added = [f"{deeper}multicluster {ZONE} {MARK}{end}"]
    lines[one.first + 1 : one.first + 1] = added if block else [*added, f"{indent}}}{end}"]


def _plugins(text: str) -> Iterator[_Plugin]:
    """Yield each `kubernetes` directly inside of a server block."""
    depth = 0
    servers: list[str] = []  # as they are read, before their brace
    first = -1
    inside: list[tuple[int, list[str]]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        words = _words(line)
        if not words:
            continue
        opens = words[-1] == "{"
        if depth == 0:
            servers += [word.rstrip(",") for word in words[: -1 if opens else None]]
        elif depth == 1 and words[0] == "kubernetes":
            first, inside = number, []
            if not opens:
                yield _plugin(lines, number, number, servers, inside)
        elif depth == 2 and first >= 0 and words != ["}"]:
            inside.append((number, words))
        if opens:
            depth += 1
        if words[0] == "}":
            depth -= 1
            if depth == 1 and first >= 0:
                yield _plugin(lines, first, number, servers, inside)
                first = -1
            if depth == 0:
                servers = []


def _plugin(
    lines: Sequence[str], first: int, last: int, servers: Sequence[str], inside: Sequence[tuple[int, list[str]]]
) -> _Plugin:
    zones = [word for word in _words(lines[first])[1:] if word != "{"]
    named = [(number, words[1:]) for number, words in inside if words[0] == "multicluster"]
    ours = (number for number, words in named if words == [ZONE] and lines[number].rstrip().endswith(MARK))
    return _Plugin(
        first=first,
        last=last,
        servers=tuple(servers),
        zones=tuple(zones),
        multicluster=tuple(zone.rstrip(".") for _, zones in named for zone in zones),
        marked=next(ours, None),
    )


def _serves(address: str) -> bool:
    """Tell whether a server block with this address is asked for such names."""
    scheme, _, rest = address.rpartition("://")
    zone = re.sub(r":\d+$", "", rest).strip(".").lower()
    return scheme in ("", "dns") and (not zone or zone == ZONE or ZONE.endswith(f".{zone}"))


def _words(line: str) -> list[str]:
    return _TOKEN.findall(_code(line))


def _code(line: str) -> str:
    """Return a line without its comment; a comment begins where a word could."""
    for found in _TOKEN.finditer(line):
        if found[0].startswith("#"):
            return line[: found.start()]
    return line
