"""The lines of a watch, read strictly. Pure: a line in; an event, a bookmark or an error out.

Source of the form: Kubernetes API concepts, "Efficient detection of changes"; metav1.WatchEvent.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mcagent.kube.errors import ApiGarbageError, status_error
from mcagent.kube.source import EventType, RawObject, is_object
from mcagent.model.errors import McagentError
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.document import decode_noting_cuts


class BadLineError(McagentError):
    """A line is no event of the kind that is watched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a watch. A bookmark has no `type`; an event of an unknown type has no `version` either.

    `version` is the resourceVersion from which to go on. `cut`: the object was nested too deeply, and is cut.
    """

    version: str = ""
    type: EventType | None = None
    object: RawObject = field(default_factory=dict)
    cut: bool = False


def read_line(kind: Kind, line: bytes, where: str) -> Line:
    """Read a line of a watch of a kind; `where` is how errors name the watch.

    Raises BadLineError, and for an ERROR event ApiRefusalError, ExpiredError or ApiGarbageError.
    """
    shown = f"{line[:60]!r}"
    try:
        event, cut = decode_noting_cuts(line)
    except ValueError:
        raise BadLineError(f"a line is not JSON: {shown}") from None
    word, obj = (event.get("type"), event.get("object")) if isinstance(event, dict) else (None, None)
    if not isinstance(word, str) or not isinstance(obj, dict):
        raise BadLineError(f"a line is not an event: {shown}")
    if word == "ERROR":
        if obj.get("kind") != "Status" or not isinstance(obj.get("code"), int):
            raise ApiGarbageError(f"{where}: an ERROR event without a Status")
        raise status_error(where, obj)
    meta = obj.get("metadata")
    version = meta.get("resourceVersion") if isinstance(meta, dict) else None
    if not isinstance(version, str):
        version = ""
    if word == "BOOKMARK" and version:
        return Line(version=version)
    if word not in EventType.__members__:
        return Line()
    if not version or not is_object(obj) or obj.get("kind", KINDS[kind].name) != KINDS[kind].name:
        raise BadLineError(f"an event without a usable object: {shown}")
    return Line(version=version, type=EventType(word), object=obj, cut=cut)
