"""A match: conditions on fields, in the order in which Open vSwitch writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flows.errors import FlowError
from flows.fields import FIELDS, Field, Term

_BY_NAME = {field.name: field for field in FIELDS}


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions that all must hold. Terms are sorted, one per field; build with `Match.of`."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def of(cls, *terms: Term) -> Match:
        """Return the match of all the conditions. Several on bits of one field become one.

        FlowError: two conditions contradict each other, a prerequisite is missing, a mask where none may be.
        """
        merged: dict[Field, Term] = {}
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
            for name, values in field.needs:
                needed = merged.get(_BY_NAME[name])
                if needed is None or needed.value not in values:
                    raise FlowError("", field.set_name, f"needs {name} to be one of {values}")
        return cls(tuple(sorted((t for t in merged.values() if t.mask), key=_order)))

    def matches(self, packet: Mapping[Field, int]) -> bool:
        """Tell whether a packet (all its fields; absent ones count as 0) meets every condition."""
        return all(packet.get(term.field, 0) & term.mask == term.value for term in self.terms)

    def get(self, field: Field) -> Term | None:
        """Return the condition on the field, if there is one."""
        return next((term for term in self.terms if term.field is field), None)


def _order(term: Term) -> int:
    return term.field.order
