"""The Node or cluster that checks examine. Each reading is made once. Knows no check."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from mcagent.agent.config import Settings
from mcagent.api.doctor import NodeReport
from mcagent.api.status import Status
from mcagent.controller.admin.fields import items_at, text_at
from mcagent.core.fragments.tunnel_guard import tunnel_port
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.model.api.base import ApiObject
from mcagent.model.config import Config
from mcagent.model.errors import McagentError
from mcagent.model.kinds import object_path
from mcagent.model.parsing.decode import read_as
from mcagent.model.plan import Desired

TIMEOUT = 10.0  # seconds for one request
PAGE = 5000  # objects of one request
OURS = {"labelSelector": "app.kubernetes.io/name=mcagent"}
Progress = Callable[[str], None]
Readings = Mapping[Callable[[Any], Any], Any]
T = TypeVar("T")
Obj = TypeVar("Obj", bound=ApiObject)


class Subject:
    """A Node or cluster. `readings`: values, or errors, that readers have returned already, by reader."""

    def __init__(self, progress: Progress = lambda _: None, readings: Readings | None = None) -> None:
        self.progress = progress
        self._readings = dict(readings or {})

    def read(self, reader: Callable[[Any], T]) -> T:
        """Call a reader, or return its earlier result. Raises McagentError if the reader did."""
        if reader not in self._readings:
            try:
                self._readings[reader] = reader(self)
            except McagentError as error:
                self._readings[reader] = error
        reading = self._readings[reader]
        if isinstance(reading, McagentError):
            raise reading
        return reading  # type: ignore[no-any-return]  # what the reader has returned


class ExaminedNode(Subject):
    """The Node of this process. `status`: of its agent; if that does not answer, `agent_error` is the reason.

    `problems_error`: why problems of the input are not in `status`, "" if they are. `desired`: returns the desired
    state of the agent of this process; `agent_report`: asks the agent of another process, which alone knows its
    desired state, for its findings. Both are None where no agent runs.

    `probed_pod`: the path of the network namespace of a Pod whose packets are probed, "" for none.
    """

    def __init__(
        self,
        settings: Settings,
        status: Status,
        agent_error: str = "",
        progress: Progress = lambda _: None,
        readings: Readings | None = None,
        *,
        probed_pod: str = "",
        problems_error: str = "",
        desired: Callable[[], Desired | None] | None = None,
        agent_report: Callable[[], NodeReport] | None = None,
    ) -> None:
        super().__init__(progress, readings)
        self.settings, self.status, self.agent_error = settings, status, agent_error
        self.problems_error, self.desired, self.agent_report = problems_error, desired, agent_report
        self.probed_pod = probed_pod

    @property
    def config(self) -> Config:
        """The agent's configuration."""
        return self.settings.core

    @property
    def tunnel_port(self) -> int:
        """The UDP port of tunnels."""
        return tunnel_port(self.config)


class ExaminedCluster(Subject):
    """A cluster, by its API. `config`: of its agents; `answered`: Nodes whose agents answer.

    `now`: seconds since the epoch; `clock`: by how much the API server is ahead of it, None if unknown.
    """

    def __init__(
        self,
        client: Client,
        config: Config,
        answered: Collection[str] = (),
        progress: Progress = lambda _: None,
        readings: Readings | None = None,
        *,
        clock: float | None = None,
        now: float = 0.0,
    ) -> None:
        super().__init__(progress, readings)
        self.client, self.config, self.answered = client, config, answered
        self.clock, self.now = clock, now or time.time()

    def items(self, path: str, query: Mapping[str, str] | None = None) -> list[RawObject]:
        """Return the items of a list; none if the server does not know the kind. Raises SourceError."""
        self.progress(path.rpartition("/")[2])
        items: list[RawObject] = []
        page = {"limit": str(PAGE), **(query or {})}
        while True:
            try:
                answer = self.client.request("GET", path, page, timeout=TIMEOUT)
            except ApiRefusalError as error:
                if error.code == 404:
                    return []
                raise
            items += items_at(answer, "items")
            if not (token := text_at(answer, "metadata", "continue")):
                return items
            page["continue"] = token

    def objects(self, cls: type[Obj], namespace: str = "", query: Mapping[str, str] | None = None) -> list[Obj]:
        """Return objects of a kind as structs; none if the server lacks the kind. Raises SourceError."""
        return [read_as(cls, item) for item in self.items(object_path(cls.KIND, namespace), query)]
