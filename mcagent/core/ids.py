"""IDs that follow from names: of clusters, Nodes, Services and meters, OpenFlow ports, names of tunnel ports.

Everything here is a pure function of a set of names, so every Node comes to the same IDs without asking anybody,
and so does a restart. Knows nothing of what is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from flows.pipeline.registers import HOST_OFPORT

FIRST_OFPORT = 2
LAST_OFPORT = 65000  # 65280 (0xff00) and above are reserved in OpenFlow 1.0 numbering, which OVS keeps

# The largest ID. Registers, cookies and group IDs have room for 24 bits; of meters, every version of Open vSwitch
# has 16 bits in both datapaths.
CLUSTERS = NODES = SERVICES = (1 << 24) - 1
METERS = (1 << 14) - 1
# Added to the ID of a cluster's meter: that of its probes, and of packets about which all Nodes are asked.
PROBE_METERS, ASK_METERS = 1 << 14, 1 << 15


def name_hash(name: str) -> int:
    """Return 64 bits of the name's SHA-256."""
    return int.from_bytes(sha256(name.encode("utf-8", "surrogatepass")).digest()[:8])


def assign_ids(names: Iterable[str], largest: int = CLUSTERS) -> dict[str, int]:
    """Give each name an ID from 1 to `largest`: its hash, in sorted order the next free one on collision.

    OverflowError where there are more names than IDs.
    """
    ids: dict[str, int] = {}
    used: set[int] = set()
    for name in sorted(names):
        if len(used) == largest:
            raise OverflowError(f"more than {largest} names need an ID")
        one = name_hash(name) % largest
        while one + 1 in used:
            one = (one + 1) % largest
        used.add(one + 1)
        ids[name] = one + 1
    return ids


def tunnel_port_name(prefix: str, *identity: object) -> str:
    """Return a device name of 15 characters (the longest that Linux takes: IFNAMSIZ less the final NUL).

    `identity` is all that must not change under a name: with another address it is another port, and the new
    one is made before the old one goes.
    """
    text = "\0".join(str(part) for part in identity)
    return prefix + sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:11]


def assign_ofports(names: Iterable[str], in_use: Mapping[str, int]) -> dict[str, int]:
    """Give each tunnel port its OpenFlow port. What a name has in `in_use` stays; nobody else's is taken.

    The rest get the hash of their name and, in sorted order, the next free number on collision.
    """
    taken = set(in_use.values())
    taken.add(HOST_OFPORT)
    span = LAST_OFPORT - FIRST_OFPORT + 1
    ports: dict[str, int] = {}
    kept: dict[int, str] = {}
    wanted: list[str] = []
    for name in sorted(set(names)):
        number = in_use.get(name)
        if number is not None and FIRST_OFPORT <= number <= LAST_OFPORT and kept.setdefault(number, name) is name:
            ports[name] = number
        else:
            wanted.append(name)
    if len(taken) + len(wanted) > span:
        raise OverflowError(f"more than {span} tunnel ports are wanted")
    for name in wanted:
        offset = name_hash(name) % span
        while offset + FIRST_OFPORT in taken:
            offset = (offset + 1) % span
        ports[name] = offset + FIRST_OFPORT
        taken.add(offset + FIRST_OFPORT)
    return ports
