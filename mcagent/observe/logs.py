"""Formats log lines: text, or one JSON object per line.

Lines go to standard error. Under systemd (JOURNAL_STREAM) the time is omitted, because the journal has it. Control
characters are escaped: names come from other clusters, and must not forge lines or reach a terminal.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import Protocol, runtime_checkable

from mcagent.model.parsing.field import escaped
from mcagent.model.problem import Problem

_PLAIN = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}
CLIENT_LIBRARIES = ("kubernetes", "urllib3", "pyroute2", "asyncio", "ovs")


def _stamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z warning agent.control_loop.loop: message`."""

    def __init__(self, *, times: bool) -> None:
        super().__init__()
        self._times = times

    def format(self, record: logging.LogRecord) -> str:
        """Format the line; a traceback follows on separate lines."""
        head = f"{_stamp(record)} " if self._times else ""
        name = record.name.removeprefix("mcagent.")
        line = f"{head}{_PLAIN.get(record.levelname, record.levelname)} {name}: {escaped(record.getMessage())}"
        if not record.exc_info:
            return line
        # Indented, so that text of objects in an exception cannot look like a log line.
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"  {escaped(part)}" for part in trace)])


@runtime_checkable
class Named(Protocol):
    """A value that identifies an object of the API, such as `Meta` and the controllers' `Ref`."""

    @property
    def kind(self) -> str:
        """Its kind."""

    @property
    def namespace(self) -> str:
        """Its namespace; "" for a cluster-scoped one."""

    @property
    def name(self) -> str:
        """Its name."""


# The subject of a problem: "Gateway kube-system/node-1". A file of manifests does not match.
_SUBJECT = re.compile(r"([A-Z]\w*) (?:([^/\s]+)/)?([^/\s]+)( \(leader\))?")


def _about(record: logging.LogRecord) -> dict[str, object]:
    """Return fields that identify the object of a line: of `extra`, or of the first argument with an object."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    for argument in (getattr(record, "about", None), *arguments):
        if isinstance(argument, Problem):
            fields: dict[str, object] = {
                "reason": argument.reason,
                **({"field": argument.path} if argument.path else {}),
            }
            if named := _SUBJECT.fullmatch(argument.subject):
                return {"object": _named(*named.groups("")[:3]), **fields}
            return fields
        if isinstance(argument, Named):
            side = getattr(argument, "side", None)
            return {
                "object": _named(argument.kind, argument.namespace, argument.name),
                **({"side": str(side)} if side is not None else {}),
            }
    return {}


def _named(kind: str, namespace: str, name: str) -> dict[str, str]:
    return {"kind": str(kind), **({"namespace": namespace} if namespace else {}), "name": name}


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, object of the API, exception.

    `object` has kind, namespace and name. A problem adds `reason` and `field`; a controller's object adds `side`,
    the API server that has it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the line."""
        entry: dict[str, object] = {
            "time": _stamp(record),
            "level": _PLAIN.get(record.levelname, record.levelname),
            "logger": record.name,
            "message": record.getMessage(),
            **_about(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)  # ASCII only: no control character of any set


def _is_wanted(record: logging.LogRecord) -> bool:
    """Drop messages of libraries below a warning: they contain headers and bodies, including tokens."""
    return record.levelno >= logging.WARNING or not record.name.startswith(CLIENT_LIBRARIES)


def set_up(level: str, form: str) -> None:
    """Configure the root logger: format "text" or "json", lowest level "debug" ... "error"."""
    handler = logging.StreamHandler(sys.stderr)
    journal = "JOURNAL_STREAM" in os.environ
    handler.addFilter(_is_wanted)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(times=not journal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
