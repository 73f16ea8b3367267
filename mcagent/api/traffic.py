"""The lines that `mcagent top -o json` prints."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from mcagent.api.codec import VERSION, CamelRecord


class TrafficRow(CamelRecord, frozen=True):
    """The traffic of a tunnel, or of all tunnels of a cluster or Node.

    A row has those of `node`, `cluster` ("": the Nodes' own) and `gateway` that it is about. `live`: of `tunnels`.
    """

    node: str | UnsetType = UNSET
    cluster: str | UnsetType = UNSET
    gateway: str | UnsetType = UNSET
    tunnels: int = 0
    live: int = 0
    in_bytes_per_second: float = 0.0
    out_bytes_per_second: float = 0.0
    in_packets_per_second: float = 0.0
    out_packets_per_second: float = 0.0
    drops_per_second: float = 0.0


class TrafficReport(CamelRecord, frozen=True):
    """The busiest first. `late`: Nodes whose agents do not answer, with the reasons."""

    api_version: str = VERSION
    rows: tuple[TrafficRow, ...] = ()
    late: dict[str, str] = {}


class ServiceRow(CamelRecord, frozen=True):
    """The connections to an exported Service. `connections`: so far; `by_gateway`: per second, by Node."""

    service: str = ""
    connections_per_second: float = 0.0
    connections: int = 0
    by_gateway: dict[str, float] = {}


class ServicesReport(CamelRecord, frozen=True):
    """The same with `--by service`."""

    api_version: str = VERSION
    rows: tuple[ServiceRow, ...] = ()
    late: dict[str, str] = {}
