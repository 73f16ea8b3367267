"""What `mcagent benchmark -o json` prints."""

from __future__ import annotations

from msgspec import field

from mcagent.api.codec import VERSION, CamelRecord


class BenchmarkWay(CamelRecord, frozen=True):
    """A way between the clusters: `pod`, through the tunnels, or `node`, without them.

    `encrypted`: the mode that the agent reports, None: not known. `bytes` were received in `seconds`. Numbers are
    None if `error` says why the way was not measured.
    """

    way: str = ""
    from_node: str = ""
    to_node: str = ""
    encrypted: str | None = None
    bits_per_second: float | None = None
    bytes: int | None = None
    seconds: float | None = None
    round_trip_p50_seconds: float | None = None
    round_trip_p99_seconds: float | None = None
    error: str = ""


class BenchmarkReport(CamelRecord, frozen=True):
    """A measurement between two contexts: `seconds` of sending, with a limit or none (None)."""

    api_version: str = VERSION
    source: str = field(name="from", default="")
    target: str = field(name="to", default="")
    seconds: int = 0
    limit_bits_per_second: int | None = None
    ways: tuple[BenchmarkWay, ...] = ()
