"""The exception of the library: a value that is not a legal flow, group or text."""

from __future__ import annotations


class FlowError(Exception):
    """A flow, a group or its text breaks a rule of OpenFlow or of the declared pipeline.

    `table`: the name of the table, or ""; `field`: the invalid field, register, table or action; `reason`: the
    error and, where useful, a valid value.
    """

    def __init__(self, table: str, field: str, reason: str) -> None:
        super().__init__(": ".join(part for part in (f"table {table}" if table else "", field, reason) if part))
        self.table = table
        self.field = field
        self.reason = reason
