"""The one exception of the library: a value that is not a legal flow, group or text."""

from __future__ import annotations


class FlowError(Exception):
    """A flow, a group or its text breaks a rule of OpenFlow or of the declared pipeline.

    `table` names the table where it would stand ("" if none), `field` the field, register, table or action
    that is at fault, `reason` what is wrong and, where it helps, what would be right.
    """

    def __init__(self, table: str, field: str, reason: str) -> None:
        super().__init__(": ".join(part for part in (f"table {table}" if table else "", field, reason) if part))
        self.table = table
        self.field = field
        self.reason = reason
