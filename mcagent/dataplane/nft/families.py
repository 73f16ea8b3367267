"""The nft backend of a Node: our table of each IP family, as one.

An nft set holds addresses of one family, so what is about IPv6 addresses of the underlay has a table of its own
beside the one for IPv4. Owns nothing but the split; both tables are `mcagent.dataplane.nft.backend`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from mcagent.dataplane.nft.backend import NftBackend
from mcagent.model.plan import ApplyResult, Step
from mcagent.model.resources import Backend, NftChain, NftSet, Resource, ResourceKey


class NftFamilies:
    """Chains and sets of the tables `ip NAME` and `ip6 NAME`, in the calling thread's network namespace."""

    name = Backend.NFT

    def __init__(self, *, table: str) -> None:
        """Remember what is ours; nothing is run before the first call."""
        self._tables = {family: NftBackend(table=table, family=family) for family in ("ip", "ip6")}

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return the chains and sets of our tables. Raises BackendError when nft cannot be run."""
        return {key: one for table in self._tables.values() for key, one in table.observe().items()}

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so, in one transaction per family; see `NftBackend.apply`."""
        results = []
        for family, table in self._tables.items():
            ours = [step for step in steps if _family(step) == family]
            if ours:
                results.append(table.apply(ours))
        return ApplyResult(
            done=tuple(step for result in results for step in result.done),
            failed=tuple(failure for result in results for failure in result.failed),
        )

    def counted(self) -> Mapping[str, int]:
        """Return how many packets each chain that counts has counted, in both families together."""
        found: Counter[str] = Counter()
        for table in self._tables.values():
            found.update(table.counted())
        return found

    def close(self) -> None:
        """Nothing is held open; the tables stay."""


def _family(step: Step) -> str:
    resource = step.new or step.old
    return resource.family if isinstance(resource, NftChain | NftSet) else "ip"  # which refuses what is no chain
