"""The names of a Node's facilities."""

from __future__ import annotations

from enum import StrEnum


class Backend(StrEnum):
    """The facilities of a Node. Each has one backend, the only writer of its resources."""

    __hash__ = str.__hash__  # Enum's own is Python code, and dearer than all else in a look-up

    OVSDB = "ovsdb"
    OPENFLOW = "openflow"
    NETLINK = "netlink"
    NFT = "nft"
    WIREGUARD = "wireguard"
