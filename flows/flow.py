"""Matches, flows and groups as values. `flows.text` renders their text on demand; it is not stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flows import text
from flows.actions import Actions
from flows.errors import FlowError
from flows.fields import HashField, MatchField, Term


@dataclass(frozen=True, slots=True)
class Match:
    """A conjunction of conditions, one per field, in the order of OVS; built by `Match.of`."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def of(cls, *terms: Term) -> Match:
        """Build a match; conditions on bits of one field are merged.

        Raises FlowError if two conditions contradict each other, if a prerequisite is missing, or for a mask on a
        field that is not maskable.
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
    """A flow, not validated: `declare.Pipeline.flow` builds one that conforms to the declared tables."""

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
    """The type of a group (OpenFlow 1.5, section 5.10.1)."""

    ALL = "all"
    SELECT = "select"
    INDIRECT = "indirect"
    FAST_FAILOVER = "ff"


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of a group, live if what it watches is live or it watches nothing. `weight`: of select groups."""

    bucket_id: int
    actions: Actions
    weight: int = 1
    watch_port: int | None = None
    watch_group: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A group. `fields`: the input of the hash of a select group."""

    group_id: int
    type: GroupType
    buckets: tuple[Bucket, ...]
    fields: tuple[HashField, ...] = ()

    @property
    def body_text(self) -> str:
        """The group as `ovs-ofctl dump-groups` prints it, without the group_id."""
        return text.group_text(self)
