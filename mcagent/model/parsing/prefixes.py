"""The annotation with the virtual Pod CIDRs of a cluster, on its Gateways: which one replaces which real one.

The text has pairs, separated by commas: "10.244.0.0/16=100.72.0.0/16". The member's controller writes it
(`mcagent.controller.member.networks`), and agents read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network

from mcagent.model.net import PodPrefix, overlaps

PREFIXES_ANNOTATION = "mcagent.io/pod-prefixes"
MAX_PREFIXES = 16  # Pod CIDRs of one cluster with a virtual one
MAX_TEXT = MAX_PREFIXES * 2 * len("255.255.255.255/32,")  # characters


def prefixes_text(prefixes: Iterable[PodPrefix]) -> str | None:
    """Return the value of the annotation; None (no annotation) without prefixes."""
    return ",".join(f"{prefix.real}={prefix.virtual}" for prefix in prefixes) or None


def read_prefixes(text: str) -> tuple[PodPrefix, ...]:
    """Return the prefixes of the annotation; ValueError says what is wrong.

    All CIDRs are IPv4 and disjoint, and those of a pair have the same length.
    """
    if len(text) > MAX_TEXT:
        raise ValueError("too long")
    prefixes: list[PodPrefix] = []
    networks: list[IPv4Network] = []
    for pair in filter(None, text.split(",")):
        real, _, virtual = pair.partition("=")
        try:
            prefix = PodPrefix(real=IPv4Network(real), virtual=IPv4Network(virtual))
        except ValueError:
            raise ValueError('must be pairs of IPv4 CIDRs, like "10.244.0.0/16=100.72.0.0/16"') from None
        networks += (IPv4Network(real), IPv4Network(virtual))
        prefixes.append(prefix)
        if prefix.real.prefixlen != prefix.virtual.prefixlen:
            raise ValueError(f"{real} and {virtual} have different lengths")
    if any(overlaps(a, b) for place, a in enumerate(networks) for b in networks[:place]):
        raise ValueError("CIDRs overlap")
    return tuple(prefixes)
