"""The nft backend: the tables `ip NAME` and `ip6 NAME`, their base chains and their sets.

An nft set holds addresses of one family, so what is about IPv6 addresses of the underlay has a table of its own
beside the one for IPv4. Owns both tables and everything in them; other tables are never read or written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcagent.dataplane.nft.apply import apply_steps
from mcagent.dataplane.nft.observe import ELEMENT_TYPES, Listing, Table, parse_listing
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Op, Step
from mcagent.model.resources import Backend, NftChain, NftSet, Resource, ResourceKey


class NftBackend:
    """Chains and sets of our tables, in the calling thread's network namespace."""

    name = Backend.NFT

    def __init__(self, *, table: str, binary: str = "nft") -> None:
        """Remember what is ours; nothing is run before the first call."""
        self._tables = [Table(family, table, binary) for family in ELEMENT_TYPES]
        # Rules that this version of nft lists in a spelling of its own: listed -> asked for.
        self._learnt: dict[str, str] = {}

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return the chains and sets of our tables. Raises BackendError when nft cannot be run."""
        found: dict[ResourceKey, Resource] = {}
        for table in self._tables:
            listing = _list(table)
            found.update({one.key: one for one in listing.sets})
            found.update({one.key: self._as_asked(one) for one in listing.chains})
        return found

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so in one transaction per table; without those that nft refuses, if it refuses some.

        A chain with a refused rule stays as it was. Raises BackendError when nft cannot be run at all.
        """
        failed: dict[int, BackendError] = {}
        for table in self._tables:
            ours = {place: step for place, step in enumerate(steps) if _family(step) == table.family}
            refused = apply_steps(table, ours)
            self._look_back(table, [step for place, step in ours.items() if place not in refused])
            failed.update(refused)
        return ApplyResult.of(steps, failed)

    def counted(self) -> Mapping[str, int]:
        """Return how many packets the rules of each chain that counts have counted since it was last changed.

        Both families together; from any thread. No elements of sets are read, so it costs the same with any
        number of peers: 5 ms. Raises BackendError when nft cannot be run.
        """
        found: Counter[str] = Counter()
        for table in self._tables:
            found.update(_list(table, without="-t").counted())
        return found

    def close(self) -> None:
        """Nothing is held open; the tables stay."""

    def _as_asked(self, chain: NftChain) -> NftChain:
        return replace(chain, rules=tuple(self._learnt.get(rule, rule) for rule in chain.rules))

    def _look_back(self, table: Table, done: Sequence[Step]) -> None:
        """After a change: learn how nft lists what was asked for, and remove the table if it is empty now."""
        if not done:
            return
        listing = _list(table)
        listed = {chain.name: chain.rules for chain in listing.chains}
        for chain in [step.new for step in done if isinstance(step.new, NftChain)]:
            pairs = zip(listed.get(chain.name, ()), chain.rules, strict=False)
            self._learnt |= {found: asked for found, asked in pairs if found != asked}
        if listing.empty and any(step.op is Op.DELETE for step in done):
            table.run(["-f", "-"], f"delete table {table}\n")


def _list(table: Table, without: str = "-s") -> Listing:
    """Return what a table holds, nothing where there is none: without counters (-s) or without elements (-t)."""
    return parse_listing(table.list("-a", without, "-y", "-p") or "", table.family, table.name)


def _family(step: Step) -> str:
    resource = step.resource
    return resource.family if isinstance(resource, NftChain | NftSet) else "ip"  # which refuses what is no chain
