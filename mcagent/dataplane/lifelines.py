"""What this Node cannot do without on other networks: its resolvers and its default gateways. Reads files only."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from mcagent.model.net import Address, parse_address

# systemd-resolved(8): behind its stub (127.0.0.53 in resolv.conf) are those that it has been told
RESOLVED = Path("/run/systemd/resolve/resolv.conf")
MOST_BYTES, MOST_RESOLVERS = 1 << 16, 64


def read_resolvers(resolv_conf: str) -> tuple[Address, ...]:
    """Return the resolvers of a resolv.conf(5) and those behind systemd-resolved, sorted; "" means none.

    A file that cannot be read names none, and so does a line that makes no sense.
    """
    if not resolv_conf:
        return ()
    found: set[Address] = set()
    for path in (Path(resolv_conf), RESOLVED):
        try:
            with path.open("rb") as file:
                text = file.read(MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
        lines = (line.split() for line in text.splitlines())
        named = (words[1] for words in lines if len(words) > 1 and words[0] == "nameserver")
        for name in islice(named, MOST_RESOLVERS):
            try:
                found.add(parse_address(name.partition("%")[0]))
            except ValueError:
                continue
    return usable(found)


def usable(addresses: Iterable[Address]) -> tuple[Address, ...]:
    """Return addresses sorted, without those that nobody could claim anyway."""
    kept = {a for a in addresses if not (a.is_loopback or a.is_link_local or a.is_multicast or a.is_unspecified)}
    return tuple(sorted(kept, key=lambda one: (one.version, int(one))))
