"""The nft backend: the tables `ip NAME` and `ip6 NAME`, their base chains and their sets.

An nft set holds addresses of one family, so IPv6 addresses of the underlay have a table of their own. Owns both
tables and everything in them; other tables are never read or written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcagent.dataplane.nft.apply import apply_steps
from mcagent.dataplane.nft.observe import ELEMENT_TYPES, NftTable, TableListing, parse_listing
from mcagent.model.dataplane.backend import Backend
from mcagent.model.dataplane.resources import NftChain, NftSet, Resource, ResourceKey
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Op, Step


class NftBackend:
    """Chains and sets of the agent's tables, in the calling thread's network namespace."""

    name = Backend.NFT

    def __init__(self, *, table: str, binary: str = "nft") -> None:
        """`table` is the name of the agent's tables. No program is run before the first call."""
        self._tables = [NftTable(family, table, binary) for family in ELEMENT_TYPES]
        # Rules that this version of nft lists in another spelling: requested by family and spelling.
        self._requested: dict[tuple[str, str], str] = {}

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Read the chains and sets of the agent's tables. Raises BackendError when nft cannot be run."""
        resources: dict[ResourceKey, Resource] = {}
        for table in self._tables:
            listing = _list(table)
            resources.update({item.key: item for item in listing.sets})
            resources.update({chain.key: self._as_requested(chain) for chain in listing.chains})
        return resources

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Carry out the steps in one transaction per table, without those that nft refuses.

        A chain with a refused rule is not changed. Raises BackendError when nft cannot be run at all.
        """
        failed: dict[int, BackendError] = {}
        for table in self._tables:
            table_steps = {place: step for place, step in enumerate(steps) if _family(step) == table.family}
            refused = apply_steps(table, table_steps)
            self._read_back(table, [step for place, step in table_steps.items() if place not in refused])
            failed.update(refused)
        return ApplyResult.of(steps, failed)

    def packet_counts(self) -> Mapping[str, int]:
        """Read the packets counted by the rules of each chain since it was last changed; without uncounted chains.

        Sums both families; from any thread. Elements of sets are not read, so that it takes 5 ms with any number
        of peers. Raises BackendError when nft cannot be run.
        """
        counts: Counter[str] = Counter()
        for table in self._tables:
            counts.update(_list(table, without="-t").packet_counts())
        return counts

    def close(self) -> None:
        """Does nothing: no socket is open, and the tables stay."""

    def _as_requested(self, chain: NftChain) -> NftChain:
        requested = (self._requested.get((chain.family, rule), rule) for rule in chain.rules)
        return replace(chain, rules=tuple(requested))

    def _read_back(self, table: NftTable, done: Sequence[Step]) -> None:
        """After a change: record how nft lists the requested rules, and delete the table if it is empty."""
        if not done:
            return
        listing = _list(table)
        listed = {chain.name: chain.rules for chain in listing.chains}
        for chain in [step.new for step in done if isinstance(step.new, NftChain)]:
            pairs = zip(listed.get(chain.name, ()), chain.rules, strict=False)
            self._requested |= {(table.family, spelling): rule for spelling, rule in pairs if spelling != rule}
        spellings = {(table.family, spelling) for rules in listed.values() for spelling in rules}
        self._requested = {
            key: rule for key, rule in self._requested.items() if key in spellings or key[0] != table.family
        }
        if listing.empty and any(step.op is Op.DELETE for step in done):
            table.run(["-f", "-"], f"delete table {table}\n")


def _list(table: NftTable, without: str = "-s") -> TableListing:
    """List a table, empty if it does not exist: without counters (-s) or without elements (-t)."""
    return parse_listing(table.list("-a", without, "-y", "-p") or "", table.family, table.name)


def _family(step: Step) -> str:
    resource = step.resource
    # `apply_steps` refuses other resources.
    return resource.family if isinstance(resource, NftChain | NftSet) else "ip"
