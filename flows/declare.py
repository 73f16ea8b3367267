"""The declaration of a pipeline: tables, bit ranges, conntrack zones, kinds of group, cookies, priorities.

Every property of a pipeline is declared once. `Pipeline.flow` and `Pipeline.group` refuse undeclared properties
when a flow or group is built. Documentation is generated from the declaration.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flows import actions as act
from flows import text
from flows.errors import FlowError
from flows.fields import Bits, MatchField, Term
from flows.flow import Flow, Group, Match


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable:
    """A table. `fields`: fields and bits that its flows may match; `next`: tables that they may continue in."""

    number: int
    name: str
    purpose: str
    fields: tuple[MatchField | Bits, ...] = ()
    next: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupKind:
    """A kind of group: the upper eight bits of a group ID. `next`: tables that its buckets may resubmit to."""

    number: int
    name: str
    purpose: str
    next: tuple[int, ...] = ()

    def group_id(self, number: int) -> int:
        """Return a group ID; FlowError if `number` does not fit 24 bits."""
        if not 0 <= number < 1 << 24:
            raise FlowError("", f"group {self.name}", f"number {number} does not fit 24 bits")
        return self.number << 24 | number


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A conntrack zone; its number is the configured base plus `offset`."""

    offset: int
    name: str
    purpose: str


DROPS = 0x80


@dataclass(frozen=True, slots=True)
class Category:
    """The purpose of a flow: bits 40..47 of its cookie."""

    number: int
    name: str
    purpose: str

    @property
    def drops(self) -> bool:
        """Whether its flows count drops. One bit of the cookie selects all of them."""
        return bool(self.number & DROPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CookieLayout:
    """A cookie is `owner` (16 bits) | category (8 bits) | 8 bits zero | number (32 bits)."""

    owner: int

    def cookie(self, category: Category, number: int = 0) -> int:
        """Return the cookie of a flow; FlowError if `number` does not fit 32 bits."""
        if not 0 <= number < 1 << 32:
            raise FlowError("", f"cookie {category.name}", f"number {number} does not fit 32 bits")
        return self.owner << 48 | category.number << 40 | number

    @property
    def mask(self) -> tuple[int, int]:
        """Value and mask that match every cookie of the owner and no other."""
        return self.owner << 48, 0xFFFF << 48

    def split(self, cookie: int) -> tuple[int, int] | None:
        """Return category number and number of a cookie; None for a cookie of another owner."""
        if cookie >> 48 != self.owner:
            return None
        return cookie >> 40 & 0xFF, cookie & 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A whole pipeline. Its tables are checked for consistency on creation.

    `bits`: the declared ranges of registers, marks and labels; `writes`: the packet fields that actions may set.
    """

    tables: tuple[PipelineTable, ...]
    bits: tuple[Bits, ...]
    writes: tuple[MatchField, ...]
    zones: tuple[Zone, ...]
    groups: tuple[GroupKind, ...]
    categories: tuple[Category, ...]
    cookies: CookieLayout
    priorities: tuple[tuple[int, str], ...] = ()
    _tables: dict[int, PipelineTable] = field(init=False, repr=False, compare=False)
    _matchable: dict[int, dict[MatchField, int]] = field(init=False, repr=False, compare=False)
    _writable: dict[MatchField, int] = field(init=False, repr=False, compare=False)
    _kinds: dict[int, GroupKind] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tables = {table.number: table for table in self.tables}
        declared_masks: dict[MatchField, int] = {}
        for bits in self.bits:
            if declared_masks.get(bits.field, 0) & bits.mask:
                raise FlowError("", bits.name, f"overlaps another declared range of {bits.field.set_name}")
            declared_masks[bits.field] = declared_masks.get(bits.field, 0) | bits.mask
        matchable: dict[int, dict[MatchField, int]] = {}
        for table in self.tables:
            for number in table.next:
                if number not in tables:
                    raise FlowError(table.name, f"table {number}", "is not declared")
            matchable[table.number] = _masks(table.fields)
        object.__setattr__(self, "_tables", tables)
        object.__setattr__(self, "_matchable", matchable)
        object.__setattr__(self, "_writable", {**declared_masks, **_masks(self.writes)})
        object.__setattr__(self, "_kinds", {kind.number: kind for kind in self.groups})

    def flow(
        self,
        table: PipelineTable,
        priority: int,
        terms: tuple[Term, ...],
        actions: act.Actions,
        *,
        cookie: int = 0,
    ) -> Flow:
        """Build a flow; FlowError if it uses anything undeclared for its table."""
        if self._tables.get(table.number) is not table:
            raise FlowError(table.name, "", "is not declared in this pipeline")
        if not 0 <= priority <= 0xFFFF:
            raise FlowError(table.name, f"priority {priority}", "is not in 0..65535")
        try:
            match = Match.of(*terms)
        except FlowError as error:
            raise FlowError(table.name, error.field, error.reason) from None
        allowed = self._matchable[table.number]
        for term in match.terms:
            if term.mask & ~allowed.get(term.field, 0):
                raise FlowError(
                    table.name, term.field.set_name, f"mask {term.mask:#x} is not declared for matching"
                )
        self._check_actions(table.name, actions, table.next)
        for action in actions:
            if isinstance(action, act.Goto) and action.table <= table.number:
                raise FlowError(table.name, f"table {action.table}", "goto leads to later tables only")
        return Flow(table.number, priority, match, actions, cookie)

    def group(self, group: Group) -> Group:
        """Return the group itself; FlowError if it uses anything undeclared for its kind."""
        kind = self._kinds.get(group.group_id >> 24)
        if kind is None:
            raise FlowError("", f"group {group.group_id:#x}", "is of no declared kind")
        where = f"(group {kind.name})"
        if len({bucket.bucket_id for bucket in group.buckets}) != len(group.buckets):
            raise FlowError("", where, "two buckets have one bucket_id")
        for bucket in group.buckets:
            self._check_actions(where, bucket.actions, kind.next)
            if any(isinstance(action, act.Goto) for action in bucket.actions):
                raise FlowError("", where, "a bucket cannot goto a table; resubmit can")
        return group

    def _check_actions(self, where: str, actions: act.Actions, tables: tuple[int, ...]) -> None:
        last = len(actions) - 1
        for index, action in enumerate(actions):
            if isinstance(action, act.SetField):  # the frequent ones first
                self._check_write(where, action, in_ct=False)
            elif isinstance(action, act.Goto):
                if index != last:
                    raise FlowError(where, "goto_table", "is not the last action")
                self._check_next(where, action.table, tables)
            elif isinstance(action, act.Move):
                self._check_write(where, action, in_ct=False)
            elif isinstance(action, act.Resubmit):
                self._check_next(where, action.table, tables)
            elif isinstance(action, act.Ct):
                self._check_ct(where, action, tables)
            elif isinstance(action, act.CheckLarger):
                self._check_write(where, act.SetField(action.bit.field, 0, action.bit.mask), in_ct=False)
            elif isinstance(action, act.Conjunction):
                self._check_clause(where, action, actions[max(0, index - 1) : index + 2])
            elif isinstance(action, act.ToGroup) and action.group_id >> 24 not in self._kinds:
                raise FlowError(where, f"group {action.group_id:#x}", "is of no declared kind")

    @staticmethod
    def _check_clause(where: str, clause: act.Conjunction, neighbours: act.Actions) -> None:
        # A flow may have thousands of clauses. Where there is another action, one of them is its neighbour.
        if not all(isinstance(action, act.Conjunction) for action in neighbours):
            raise FlowError(where, "conjunction", "takes no other actions beside it")
        if not (2 <= clause.of <= 64 and 1 <= clause.clause <= clause.of and 0 < clause.conj_id < 1 << 32):
            raise FlowError(where, text.actions_text((clause,)), "is no clause of 2 to 64, or no ID of 32 bits")

    def _check_ct(self, where: str, ct: act.Ct, tables: tuple[int, ...]) -> None:
        if not 0 <= ct.zone <= 0xFFFF:
            raise FlowError(where, "ct", f"zone {ct.zone} is not in 0..65535")
        if not ct.commit and (ct.exec_ or (ct.nat is not None and ct.nat.kind)):
            raise FlowError(where, "ct", "nat(src|dst=...) and exec(...) need commit")
        if ct.table is not None:
            self._check_next(where, ct.table, tables)
        for inner in ct.exec_:
            self._check_write(where, inner, in_ct=True)

    def _check_next(self, where: str, number: int, tables: tuple[int, ...]) -> None:
        if number not in tables:
            name = self._tables[number].name if number in self._tables else "which is no declared table"
            raise FlowError(where, f"table {number}", f"({name}) is not declared as a next table")

    def _check_write(self, where: str, action: act.SetField | act.Move, *, in_ct: bool) -> None:
        target = action if isinstance(action, act.SetField) else action.destination
        name = target.field.set_name
        if name.startswith("ct_") is not in_ct:
            raise FlowError(where, name, "ct(exec(...)) writes fields of the connection, and nothing else does")
        if target.mask & ~self._writable.get(target.field, 0):
            raise FlowError(where, name, f"mask {target.mask:#x} is not declared for writing")


def _masks(fields: tuple[MatchField | Bits, ...]) -> dict[MatchField, int]:
    """Return the union of the bits by field."""
    masks: dict[MatchField, int] = {}
    for item in fields:
        target = item.field if isinstance(item, Bits) else item
        masks[target] = masks.get(target, 0) | (item.mask if isinstance(item, Bits) else item.full_mask)
    return masks
