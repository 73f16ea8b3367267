"""The one place that writes: sends the writes that `plan` asks for.

Owns when a write may be sent (the permit of the Lease), and what errors and answers mean.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mcagent.controller.machinery.apply import Verb, Write, dropped_values, plan
from mcagent.controller.machinery.connection.connection import AwayError, LeaderConnection
from mcagent.controller.machinery.reconciler import Json, Ref, Side, Wanted
from mcagent.controller.machinery.statistics import Statistics
from mcagent.controller.machinery.written import WrittenObjects
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiGarbageError, ApiRefusalError, ApiUnreachableError
from mcagent.kube.source import checked_object, is_object
from mcagent.model.api.base import ApiObject, as_json
from mcagent.model.errors import SourceError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.parsing.decode import read_object

log = logging.getLogger(__name__)

WRITE_TIMEOUT = 10.0  # seconds
_MERGE_PATCH = "application/merge-patch+json"
_MOST_WRITES = 4  # create, status, and each once more


class ConflictError(SourceError):
    """Another client wrote the object first. `present` is the object now; None: there is none."""

    def __init__(self, message: str, present: ApiObject | None) -> None:
        super().__init__(message)
        self.present = present


class NotLeadingError(SourceError):
    """This replica does not hold the lease (any more): nothing may be written."""


class Writer:
    """Makes objects what they should be, on both sides.

    `epoch` is that of the leader for which it was decided what to write. `permit` says how many seconds from now
    this replica may write (0 or less: not at all): a write that would not be sent by then is not sent at all.
    """

    def __init__(
        self,
        local: Client,
        connection: LeaderConnection | None,
        epoch: int,
        permit: Callable[[], float],
        *,
        statistics: Statistics,
        written: WrittenObjects,
    ) -> None:
        self._local, self._connection, self._epoch = local, connection, epoch
        self._permit, self._statistics, self._written = permit, statistics, written

    def plan(self, step: Wanted | Ref, present: ApiObject | None) -> Write | None:
        """Return the next write, without values that the API server drops."""
        return self._plan(step, None if present is None else as_json(present))

    def _plan(self, step: Wanted | Ref, present: Json | None) -> Write | None:
        ref = step if isinstance(step, Ref) else step.ref
        return plan(step, present, self._written.dropped(ref, present, self._epoch, time.monotonic()))

    def carry_out(self, step: Wanted | Ref, present: ApiObject | None, first: Write) -> list[Write]:
        """Write until nothing is left to do, beginning with the result of `plan`; returns what was written.

        Raises ConflictError, AwayError, NotLeadingError, ApiRefusalError, ApiUnreachableError, ApiGarbageError.
        """
        written: list[Write] = []
        write: Write | None = first
        while write is not None and len(written) < _MOST_WRITES:
            previous, present = present, self._send(write)
            written.append(write)
            self._written.store(write.ref, present, previous, self._epoch)
            write = self._next(step, write, present)
        return written

    def _next(self, step: Wanted | Ref, write: Write, answer: ApiObject | None) -> Write | None:
        """Return the next write after one that was answered; what the answer lacks is not sent again."""
        present = None if answer is None else as_json(answer)
        following = self._plan(step, present)
        if following is None or present is None or following.verb in (Verb.CREATE, Verb.DELETE):
            return following
        if not (dropped := dropped_values(write.body, following.body, present)):
            return following
        if fields := self._written.add_dropped(write.ref, dropped, present, self._epoch, time.monotonic()):
            names = ", ".join(sorted(fields))
            log.warning("%s: the API server drops %s: not sent again for an hour", write.ref, names)
        return self._plan(step, present)

    def present(self, ref: Ref) -> ApiObject | None:
        """Return an object as far as it is known, else as the API server has it; None: there is none."""
        return self._written.present(ref, self._epoch, self._read)

    def _read(self, ref: Ref) -> ApiObject | None:
        try:
            return _object(self._request(ref.side, "get", "GET", _path(ref)), ref)
        except ApiRefusalError as err:
            if err.code == 404 and err.reason == "NotFound":
                return None
            raise

    def _send(self, write: Write) -> ApiObject | None:
        ref = write.ref
        try:
            match write.verb:
                case Verb.CREATE:
                    path = object_path(ref.kind, ref.namespace)
                    return _object(self._request(ref.side, "create", "POST", path, write.body), ref)
                case Verb.DELETE:
                    answer = self._request(ref.side, "delete", "DELETE", _path(ref), write.body)
                    if is_object(answer) and answer.get("kind") == KINDS[ref.kind].name:
                        last = read_object(ref.kind, answer)
                        return last if last.is_deleting else None  # finalizers hold it, or (a Service) it is gone
                    return None
                case _:
                    path = _path(ref) + ("/status" if write.verb is Verb.STATUS else "")
                    return _object(self._request(ref.side, write.verb, "PATCH", path, write.body), ref)
        except ApiRefusalError as err:
            if write.verb is Verb.DELETE and err.code == 404 and err.reason == "NotFound":
                return None
            if err.code == 409 or (err.code == 404 and write.verb is not Verb.CREATE):
                present = self._read(ref)
                if err.code == 409 or present is None:
                    raise ConflictError(f"{ref}: {err}", present) from err
            raise  # also a 404 of a present object: its kind has no status

    def _request(self, side: Side, verb: str, method: str, path: str, body: Json | None = None) -> object:
        leader = self._connection if side is Side.LEADER else None
        if side is Side.LEADER and leader is None:
            raise AwayError("this controller has no leader to write to")
        client = leader.client(self._epoch) if leader is not None else self._local
        timeout = WRITE_TIMEOUT
        if method != "GET":
            timeout = min(timeout, self._permit())
            if timeout <= 0:
                raise NotLeadingError("this replica does not hold the lease")
        content_type = _MERGE_PATCH if method == "PATCH" else "application/json"
        try:
            answer = client.request(method, path, body=body, content_type=content_type, timeout=timeout)
        except (ApiRefusalError, ApiUnreachableError, ApiGarbageError) as err:
            self._statistics.requested(side, verb, _code(err))
            if leader is not None:
                leader.request_ended(err)
            raise
        self._statistics.requested(side, verb, "ok")
        if leader is not None:
            leader.request_ended(None)
        return answer


def _code(error: SourceError) -> str:
    """Return how metrics name an error: by its HTTP status, if there is one."""
    if isinstance(error, ApiRefusalError):
        return str(error.code)
    return "garbage" if isinstance(error, ApiGarbageError) else "unreachable"


def _path(ref: Ref) -> str:
    return object_path(ref.kind, ref.namespace, ref.name)


def _object(answer: object, ref: Ref) -> ApiObject:
    """Return the answer if it is the object of `ref`. Raises ApiGarbageError."""
    obj = checked_object(answer, ref.kind, ref)
    if obj["metadata"]["name"] != ref.name:
        raise ApiGarbageError(f"{ref}: the answer is another object")
    return read_object(ref.kind, obj)
