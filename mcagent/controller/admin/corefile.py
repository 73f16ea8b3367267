"""The Corefile of a cluster's CoreDNS, with and without the zone of the Multi-Cluster Services API.

Pure: text in, text out. CoreDNS' plugin `kubernetes` (1.12.2 and newer) resolves such names if it has the line
`multicluster`, and is authoritative for their zone. A zone and a marked line are added, and only these are removed
again, whatever else was changed meanwhile. An unknown form of the file is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcagent.model.errors import InputError

ZONE = "clusterset.local"
MARK = "# by mcagent dns"
OLDEST = (1, 12, 2)  # with `multicluster`
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\S+')
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?![\d.])")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plugin:
    """One `kubernetes` of a Corefile."""

    first: int  # its line
    last: int  # the line of its closing brace, `first` if it has no block
    servers: tuple[str, ...]  # addresses of the server block around it
    zones: tuple[str, ...]
    multicluster: tuple[str, ...]  # zones
    marked: int | None  # the line that mcagent added


def configured(text: str, what: str) -> str:
    """Return a Corefile with the zone, unchanged if it has the zone.

    Raises InputError; its subject is `what`, the name of the Corefile's object.
    """
    plugins = [plugin for plugin in _plugins(text) if any(map(_serves, plugin.servers))]
    if not plugins:
        raise InputError(
            what,
            "Corefile",
            f'has no plugin "kubernetes" in a server block for "." or "{ZONE}": name them there by hand',
        )
    lines = text.splitlines(keepends=True)
    for plugin in reversed(plugins):
        if ZONE not in plugin.multicluster:
            _add_zone(lines, plugin, what)
    return "".join(lines)


def restored(text: str) -> str:
    """Return a Corefile without the additions of `configured`, unchanged if it has none."""
    lines = text.splitlines(keepends=True)
    for plugin in reversed([*_plugins(text)]):
        if plugin.marked is None:
            continue
        first = plugin.first
        lines[first] = re.sub(rf"\s+{re.escape(ZONE)}(?=\s)", "", lines[first], count=1)
        if plugin.last - first == 2:  # the block has no other line
            lines[first] = re.sub(r"\s*\{(?=\s*(#|$))", "", lines[first])
            del lines[plugin.marked : plugin.last + 1]
        else:
            del lines[plugin.marked]
    return "".join(lines)


def answers(text: str) -> bool:
    """Tell whether CoreDNS resolves such names, whether or not mcagent configured it."""
    return any(ZONE in plugin.multicluster for plugin in _plugins(text) if any(map(_serves, plugin.servers)))


def reloads(text: str) -> bool:
    """Tell whether the Corefile has the plugin `reload`."""
    return any(words[:1] == ["reload"] for words in map(_words, text.splitlines()))


def version_of(text: str) -> tuple[int, int, int] | None:
    """Return the version in an image's name or a version's text; None if it has none."""
    tag = text.rpartition("/")[2].partition("@")[0].rpartition(":")[2]
    version = _VERSION.match(tag)
    return (int(version[1]), int(version[2]), int(version[3])) if version else None


def _add_zone(lines: list[str], plugin: _Plugin, what: str) -> None:
    """Add zone and line to a plugin."""
    if plugin.multicluster:
        zones = " ".join(plugin.multicluster)
        raise InputError(
            what, "Corefile", f'has "multicluster {zones}": name "{ZONE}" there and after "kubernetes" by hand'
        )
    if not plugin.zones or ZONE in plugin.zones:
        reason = "names no zones" if not plugin.zones else f'names "{ZONE}" without "multicluster {ZONE}"'
        raise InputError(what, "Corefile", f'"kubernetes" {reason}: change it by hand')
    line = lines[plugin.first]
    end = line[len(line.rstrip("\r\n")) :] or "\n"
    indent = line[: len(line) - len(line.lstrip())]
    words = [*_TOKEN.finditer(_code(line))]
    place = words[len(plugin.zones)].end()
    block = plugin.last > plugin.first
    lines[plugin.first] = line[:place] + f" {ZONE}" + ("" if block else " {") + line[place:]
    deeper = indent + ("\t" if indent.startswith("\t") else "    ")
    added = [f"{deeper}multicluster {ZONE} {MARK}{end}"]
    lines[plugin.first + 1 : plugin.first + 1] = added if block else [*added, f"{indent}}}{end}"]


def _plugins(text: str) -> Iterator[_Plugin]:
    """Yield each `kubernetes` that is a direct child of a server block."""
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
    marked = (number for number, words in named if words == [ZONE] and lines[number].rstrip().endswith(MARK))
    return _Plugin(
        first=first,
        last=last,
        servers=tuple(servers),
        zones=tuple(zones),
        multicluster=tuple(zone.rstrip(".") for _, zones in named for zone in zones),
        marked=next(marked, None),
    )


def _serves(address: str) -> bool:
    """Tell whether a server block with this address resolves such names."""
    scheme, _, host = address.rpartition("://")
    zone = re.sub(r":\d+$", "", host).strip(".").lower()
    return scheme in ("", "dns") and (not zone or zone == ZONE or ZONE.endswith(f".{zone}"))


def _words(line: str) -> list[str]:
    return _TOKEN.findall(_code(line))


def _code(line: str) -> str:
    """Return a line without its comment; a comment begins where a word could."""
    for token in _TOKEN.finditer(line):
        if token[0].startswith("#"):
            return line[: token.start()]
    return line
