"""A cause in the catalogue, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a reason matters and what to type next. `level`: as the doctor finds it; {…} are filled in by it."""

    check: str
    level: str
    why: str
    do: str
