"""How log lines look: text for people, or one JSON object per line. No secrets: values are never logged raw.

Lines go to standard error. Under systemd (JOURNAL_STREAM) the time is left out, because the journal has it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time

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


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry = {
            "time": _stamp(record),
            "level": _PLAIN.get(record.levelname, record.levelname),
            "logger": record.name,
            "message": record.getMessage(),
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
