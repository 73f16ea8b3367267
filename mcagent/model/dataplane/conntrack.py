"""Connection tracking: the use of a table, and a connection in it."""

from __future__ import annotations

from dataclasses import dataclass

from mcagent.model.net import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """Entries and limit (0: none). `refused`: entries that found no place in the last hour; None: not counted."""

    entries: int
    limit: int
    refused: int | None = None

    @property
    def share(self) -> float:
        """The used part of the table."""
        return self.entries / self.limit if self.limit else 0.0


@dataclass(frozen=True, slots=True)
class OriginalTuple:
    """A connection by its first packet, before translation."""

    protocol: int
    source: Address
    source_port: int
    destination: Address
    destination_port: int
