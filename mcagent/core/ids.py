"""IDs derived from names: of clusters, Nodes, Services and meters, OpenFlow ports, names of tunnel ports.

All IDs are pure functions of a set of names, so all Nodes compute the same ones without communication, and so does
an agent after a restart. Must not know what is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256

from flows.pipeline.registers import HOST_OFPORT

FIRST_OFPORT = 2
LAST_OFPORT = 65000  # 65280 (0xff00) and above are reserved in OpenFlow 1.0 numbering, which OVS keeps

# The largest IDs. Registers, cookies and group IDs have 24 bits; meter IDs have 16 bits in all versions of Open
# vSwitch and both datapaths.
CLUSTERS = NODES = SERVICES = (1 << 24) - 1
METERS = (1 << 14) - 1
# Offsets from the ID of a cluster's meter to those of its probes, and of its queries to all Nodes.
PROBE_METERS, ASK_METERS = 1 << 14, 2 << 14
# IDs of the meters of fragments: those of clusters have an offset, those that this Node sends follow.
FRAGMENT_METERS, FRAGMENT_LIMITS, SENDERS = 3 << 14, 256, 64
SENDER_METERS = tuple(FRAGMENT_METERS + FRAGMENT_LIMITS + 1 + number for number in range(SENDERS))

ENDED_METER = FRAGMENT_METERS  # of this Node; the ID of no cluster's meter is 0


def name_hash(name: str) -> int:
    """Return the first 64 bits of the name's SHA-256."""
    return int.from_bytes(sha256(name.encode("utf-8", "surrogatepass")).digest()[:8])


def assign_ids(names: Iterable[str], largest: int = CLUSTERS) -> dict[str, int]:
    """Assign each name an ID from 1 to `largest`: its hash; on a collision, in sorted order, the next free ID.

    Raises OverflowError if there are more names than IDs.
    """
    names = tuple(names)
    if len(names) > largest:
        raise OverflowError(f"more than {largest} names need an ID")
    return share_ids(names, largest)


def share_ids(names: Iterable[str], largest: int) -> dict[str, int]:
    """Assign IDs as `assign_ids` does. If there are more names than IDs, as few as possible have the same one."""
    ordered = sorted(names)
    most = -(-len(ordered) // largest)  # rounded up
    ids: dict[str, int] = {}
    holders: Counter[int] = Counter()
    for name in ordered:
        index = name_hash(name) % largest
        while holders[index] == most:
            index = (index + 1) % largest
        holders[index] += 1
        ids[name] = index + 1
    return ids


def tunnel_port_name(prefix: str, *identity: object) -> str:
    """Return a device name of 15 characters (the longest that Linux takes: IFNAMSIZ less the final NUL).

    `identity`: the properties that must not change under a name. A tunnel with another address is another port, so
    that the new port can exist before the old one is deleted.
    """
    text = "\0".join(str(part) for part in identity)
    return prefix + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:11]


def assign_ofports(names: Iterable[str], in_use: Mapping[str, int]) -> dict[str, int]:
    """Assign each tunnel port an OpenFlow port number. Numbers in `in_use` are kept by their names.

    Other names get the hash of the name; on a collision, in sorted order, the next free number. Raises
    OverflowError if there are more names than numbers.
    """
    used_numbers = set(in_use.values())
    used_numbers.add(HOST_OFPORT)
    span = LAST_OFPORT - FIRST_OFPORT + 1
    ports: dict[str, int] = {}
    owners: dict[int, str] = {}
    unassigned: list[str] = []
    for name in sorted(set(names)):
        number = in_use.get(name)
        if (
            number is not None
            and FIRST_OFPORT <= number <= LAST_OFPORT
            and owners.setdefault(number, name) is name
        ):
            ports[name] = number
        else:
            unassigned.append(name)
    if len(used_numbers) + len(unassigned) > span:
        raise OverflowError(f"more than {span} tunnel ports are wanted")
    for name in unassigned:
        offset = name_hash(name) % span
        while offset + FIRST_OFPORT in used_numbers:
            offset = (offset + 1) % span
        ports[name] = offset + FIRST_OFPORT
        used_numbers.add(offset + FIRST_OFPORT)
    return ports
