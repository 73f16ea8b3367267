"""Matches, flows and groups as values. Their text is made by `flows.text` when it is asked for, and not kept."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flows import text
from flows.actions import Actions
from flows.errors import FlowError
from flows.fields import MatchField, Term


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions that all must hold, one per field, in the order in which OVS writes them; built by `Match.of`."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def of(cls, *terms: Term) -> Match:
        """Return the match of all the conditions. Several on bits of one field become one.

        FlowError: two conditions contradict each other, a prerequisite is missing, a mask where none may be.
        """
        merged: dict[MatchField, Term] = {}
        for term in terms:
            field = term.field
            if term.value & ~term.mask or term.mask >> field.width:
                raise FlowError("", field.set_name, f"value {term.value:#x} does not fit mask {term.mask:#x}")
            have = merged.get(field)
            if have is not None:
                if (have.value ^ term.value) & have.mask & term.mask:
                    raise FlowError("", field.set_name, "two conditions contradict each other")
                term = Term(field, have.value | term.value, have.mask | term.mask)  # noqa: PLW2901
            merged[field] = term
        for field, term in merged.items():
            if not field.maskable and term.mask != field.full_mask:
                raise FlowError("", field.set_name, "takes no mask")
            for needed, values in field.needs:
                if needed not in merged or merged[needed].value not in values:
                    raise FlowError("", field.set_name, f"needs {needed.name} to be one of {values}")
        return cls(tuple(sorted((t for t in merged.values() if t.mask), key=lambda t: t.field.order)))


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
    """One group. `fields`, of a select group only: what the choice is a hash of."""

    group_id: int
    type: GroupType
    buckets: tuple[Bucket, ...]
    fields: tuple[MatchField, ...] = ()

    @property
    def body_text(self) -> str:
        """The group as `ovs-ofctl dump-groups` prints it, without the group_id."""
        return text.group_text(self)
