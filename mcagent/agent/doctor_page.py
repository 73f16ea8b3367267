"""The page /doctor: one run at a time, at most one every FRESH seconds, and a short queue of requests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Protocol

from mcagent.agent.config import Settings
from mcagent.api.codec import from_json, to_json
from mcagent.api.doctor import NodeReport
from mcagent.api.status import Status
from mcagent.http.server import Page
from mcagent.model.plan import Desired

FRESH = 5.0  # seconds for which a result of the page is reused
_QUEUE = 4  # requests handled at the same time


class Diagnose(Protocol):
    """Examines this Node: settings, the agent's status and desired state in, findings out."""

    def __call__(self, settings: Settings, status: Status, *, desired: Callable[[], Desired | None]) -> NodeReport:
        """Raises no error."""


class DoctorPage:
    """The page /doctor. `diagnose` is a parameter because `mcagent.doctor` imports the agent."""

    def __init__(
        self,
        diagnose: Diagnose,
        settings: Callable[[], Settings],
        status: Callable[[], Page],
        desired: Callable[[], Desired | None],
    ) -> None:
        self._diagnose, self._settings, self._status, self._desired = diagnose, settings, status, desired
        self._lock, self._queue = threading.Lock(), threading.BoundedSemaphore(_QUEUE)
        self._last: tuple[float, str] = (-FRESH, "")

    def __call__(self) -> Page:
        """Return the page; status 503 if too many requests wait, as each holds one of few connections."""
        if not self._queue.acquire(blocking=False):
            return Page(body="the doctor is busy: ask again in some seconds\n", status=503)
        try:
            return self._page()
        finally:
            self._queue.release()

    def _page(self) -> Page:
        with self._lock:
            if time.monotonic() - self._last[0] >= FRESH:
                status = from_json(Status, json.loads(self._status().body), "the page /status")
                report = self._diagnose(self._settings(), status, desired=self._desired)
                self._last = (time.monotonic(), json.dumps(to_json(report)) + "\n")
            return Page(body=self._last[1], content_type="application/json")
