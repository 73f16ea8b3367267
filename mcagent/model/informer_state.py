"""How reading one kind of objects goes: what informers report, and metrics, /status and readiness show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcagent.model.objects import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerState:
    """The source of one kind. Times are seconds since the epoch; 0.0: never."""

    kind: Kind
    synced: bool = False  # listed completely at least once
    connected: bool = False  # changes would be noticed now: a watch is open, a directory is readable
    objects: int = 0  # that their owner has
    lists: int = 0
    events: int = 0
    restarts: Mapping[str, int] = field(default_factory=dict)  # of the watch, by reason
    last_event: float = 0.0  # when the source last said anything about this kind
    error: str = ""  # in plain words; "" while all is well
