"""Flows and groups as values. Their text is made by `flows.text` when it is asked for, and not kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flows import text
from flows.actions import Actions
from flows.fields import Field
from flows.match import Match


@dataclass(frozen=True, slots=True)
class Flow:
    """One flow. Plain value: `declare.Pipeline.flow` builds one that keeps to the declared tables."""

    table: int
    priority: int
    match: Match
    actions: Actions
    cookie: int = 0

    @property
    def match_text(self) -> str:
        """The match as `ovs-ofctl dump-flows` prints it, without the priority."""
        return text.match_text(self.match)

    @property
    def actions_text(self) -> str:
        """The actions as `ovs-ofctl dump-flows` prints them ("drop" when there is none)."""
        return text.actions_text(self.actions)


class GroupType(StrEnum):
    """What a group does with its buckets (OpenFlow 1.5, section 5.10.1)."""

    ALL = "all"
    SELECT = "select"
    INDIRECT = "indirect"
    FAST_FAILOVER = "ff"


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket. It is live when what it watches is; a bucket that watches nothing is live.

    `weight` counts in select groups only.
    """

    bucket_id: int
    actions: Actions
    weight: int = 1
    watch_port: int | None = None
    watch_group: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One group. `selection_method` ("hash", "dp_hash" or "" for OVS' default) and `fields`: select only."""

    group_id: int
    type: GroupType
    buckets: tuple[Bucket, ...]
    selection_method: str = ""
    selection_param: int = 0
    fields: tuple[Field, ...] = ()

    @property
    def body_text(self) -> str:
        """The group as `ovs-ofctl dump-groups` prints it, without the group_id."""
        return text.group_text(self)
