"""How log lines look: text for people, or one JSON object per line. No secrets: values are never logged raw.

Lines go to standard error. Under systemd (JOURNAL_STREAM) the time is left out, because the journal has it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import Protocol, runtime_checkable

from mcagent.model.problem import Problem

_PLAIN = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}
CLIENT_LIBRARIES = ("kubernetes", "urllib3", "pyroute2", "asyncio", "ovs")


def _stamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _one_line(text: str) -> str:
    """Names in objects come from other clusters: control characters do not reach the terminal or forge a line."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class TextFormatter(logging.Formatter):
    """`2026-01-02T03:04:05.678Z warning agent.control_loop.loop: message`."""

    def __init__(self, *, times: bool) -> None:
        super().__init__()
        self._times = times

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a traceback follows on lines of its own."""
        head = f"{_stamp(record)} " if self._times else ""
        name = record.name.removeprefix("mcagent.")
        line = f"{head}{_PLAIN.get(record.levelname, record.levelname)} {name}: {_one_line(record.getMessage())}"
        if not record.exc_info:
            return line
        # Indented: what an exception quotes from an object cannot pass as a line of its own.
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join([line, *(f"  {_one_line(part)}" for part in trace)])


@runtime_checkable
class Named(Protocol):
    """What names an object of the API, as `Meta` and the controllers' `Ref` do."""

    @property
    def kind(self) -> str:
        """Its kind."""

    @property
    def namespace(self) -> str:
        """Its namespace; "" for a cluster-scoped one."""

    @property
    def name(self) -> str:
        """Its name."""


# What a problem says it is about: "Gateway kube-system/node-1". A file of manifests is no object.
_SUBJECT = re.compile(r"([A-Z]\w*) (?:([^/\s]+)/)?([^/\s]+)( \(leader\))?")


def _about(record: logging.LogRecord) -> dict[str, object]:
    """Return the fields that name what a line is about: `extra`'s, or its first argument that names an object."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    for argument in (getattr(record, "about", None), *arguments):
        if isinstance(argument, Problem):
            found: dict[str, object] = {
                "reason": argument.reason,
                **({"field": argument.path} if argument.path else {}),
            }
            if named := _SUBJECT.fullmatch(argument.subject):
                return {"object": _named(*named.groups("")[:3]), **found}
            return found
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
    """One object per line: time, level, logger, message; the object of the API that it is about; exception.

    `object` has kind, namespace and name. Of a problem also `reason` and `field`; of a controller's, `side`: whose
    API server has it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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


def _library_talk(record: logging.LogRecord) -> bool:
    """Keep out what libraries say below a warning: it holds headers and bodies, tokens included."""
    return record.levelno >= logging.WARNING or not record.name.startswith(CLIENT_LIBRARIES)


def set_up(level: str, form: str) -> None:
    """Make the root logger write in this form ("text" or "json") from this level ("debug" ... "error") on."""
    handler = logging.StreamHandler(sys.stderr)
    journal = "JOURNAL_STREAM" in os.environ
    handler.addFilter(_library_talk)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter(times=not journal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
