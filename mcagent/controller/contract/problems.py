"""What a member does not apply of the ClusterSet: annotations of its announcement, JSON with reasons by name.

A leader does not trust it: size and names are bounded, and it is read into text alone. Pure; knows
neither policies nor Services.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from mcagent.controller.contract import names
from mcagent.model.api.base import ApiObject
from mcagent.model.parsing.field import printable

MAX_REPORTED = 32  # names in a report; the first in their order
SHOWN = 256  # characters of a reason
_MAX_REPORT = 32 * 1024  # characters


def as_report(problems: Mapping[str, str]) -> str | None:
    """Return the annotation's text; None: there are no problems. The names are DNS-1123 subdomains."""
    first = sorted(problems.items())[:MAX_REPORTED]
    return json.dumps({name: printable(why, SHOWN) for name, why in first}, ensure_ascii=False) if first else None


def read_report(announce: ApiObject | None, annotation: str) -> dict[str, str]:
    """Return the reasons of an announcement by name. Never raises; invalid entries are ignored."""
    text = (announce.annotation(annotation) if announce is not None else None) or ""
    try:
        report = json.loads(text) if text and len(text) <= _MAX_REPORT else {}
    except (ValueError, RecursionError):
        return {}
    pairs = [*report.items()][:MAX_REPORTED] if isinstance(report, dict) else ()
    return {name: why for name, why in pairs if isinstance(why, str) and why and names.is_subdomain(name)}
