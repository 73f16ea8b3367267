"""The page /topology of agents and leaders: clusters, links between them, changes and problems.

A browser draws it: lists are truncated; counts are not.
"""

from __future__ import annotations

from msgspec import field

from mcagent.api.codec import VERSION, Record


class ShownCluster(Record, frozen=True):
    """A cluster. `ready` and `services` are None if unknown."""

    id: str = ""
    own: bool = False
    ready: bool | None = None
    since: str = ""
    why: str = ""
    gateways: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    services: int | None = None


class ShownLink(Record, frozen=True):
    """A link from one cluster to another, as observed by the first one.

    Traffic of both directions: a rate, or the total (`bytes`), from which clients compute a rate.
    """

    source: str = ""
    target: str = ""
    live: int = 0
    tunnels: int = 0
    since: str = ""
    why: str = ""
    bytes_per_second: int | None = None
    bytes: int | None = None
    round_trip_seconds: float | None = None  # by probes, of the slowest tunnel; only on the Node's page
    loss_ratio: float | None = None  # of the tunnel with the highest loss
    lost: bool = False  # nothing gets through, also if tunnels count as live from which no packet ever came


class Change(Record, frozen=True):
    """A link or gateway that went up (`good`) or down."""

    at: str = ""
    source: str = ""
    target: str = ""
    good: bool = False
    text: str = ""


class ShownProblem(Record, frozen=True):
    """A problem that a user should look at."""

    subject: str = ""
    reason: str = ""
    message: str = ""
    error: bool = True


class Topology(Record, frozen=True):
    """A ClusterSet as seen by the Node or controller."""

    name: str = ""
    clusters: tuple[ShownCluster, ...] = ()
    links: tuple[ShownLink, ...] = ()
    changes: tuple[Change, ...] = ()  # latest first
    problems: tuple[ShownProblem, ...] = ()
    problem_count: int = 0
    policies: int | None = None  # None: unknown


class TopologyPage(Record, frozen=True):
    """The whole page. `scope`: "node" or "clusterset"; `name`: of the Node, or of the leader's replica."""

    api_version: str = field(name="apiVersion", default=VERSION)
    scope: str = ""
    name: str = ""
    version: str = ""
    at: str = ""
    sets: tuple[Topology, ...] = ()
