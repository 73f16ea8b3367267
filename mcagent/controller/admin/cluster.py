"""The objects of one cluster for administrators' commands, and a record of changes to undo.

All I/O of the commands. Messages never have the content of a Secret.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TypeVar

from mcagent.controller.contract import names
from mcagent.controller.member.networks.discovery import discover_service_cidr
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.kube.sources.lister import Lister
from mcagent.kube.version import OLDEST, is_supported, server_version
from mcagent.model.api.base import ApiObject
from mcagent.model.errors import InputError, McagentError, SourceError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as

LOOK = 0.2  # seconds between two checks of an awaited condition
_PROGRESS = 5.0  # seconds between two reports, at most
Report = Callable[[str], None]
Object = TypeVar("Object", bound=ApiObject)


class AdminError(McagentError):
    """A command failed; the message has the reason."""


class Cluster:
    """The objects of one cluster. `report` takes lines of progress."""

    def __init__(self, client: Client, report: Report) -> None:
        self._client = client
        self.report = report
        self._undo: list[tuple[str, Callable[[], object]]] = []
        self._served: dict[str, list[RawObject]] = {}  # the resources of each group and version

    @property
    def server(self) -> str:
        """Return the URL of the API server."""
        return self._client.server

    def service_cidr(self) -> str:
        """Return the IPv4 Service CIDR. Raises SourceError."""
        return discover_service_cidr(self._client)

    def require_supported_version(self) -> None:
        """Raise AdminError if mcagent does not support the API server's version. Raises SourceError."""
        version = server_version(self._client)
        if not is_supported(version):
            oldest = f"{OLDEST[0]}.{OLDEST[1]}"
            raise AdminError(f"{self.server} is Kubernetes {version}: mcagent needs {oldest} or newer")

    def get(self, kind: Kind, namespace: str, name: str) -> RawObject | None:
        """Return an object, None if there is none. Raises SourceError."""
        return self.find(object_path(kind, namespace, name))

    def find(self, path: str) -> RawObject | None:
        """Return the object at a path, None if there is none. Raises SourceError."""
        try:
            obj: RawObject = self._client.request("GET", path)
        except ApiRefusalError as error:
            if error.code == 404 and error.reason == "NotFound":  # else the server does not serve the kind
                return None
            raise
        return obj

    def objects(self, kind: Kind, namespace: str = "") -> list[RawObject]:
        """Return all objects of a kind, of one namespace or all. Raises SourceError."""
        items, _ = Lister(
            self._client, kind, object_path(kind, namespace), report=lambda _reason, text: self.report(text)
        ).read()
        info = KINDS[kind]
        return [{"apiVersion": info.api_version, "kind": info.name} | item for item in items]

    def typed(self, cls: type[Object], namespace: str = "") -> list[Object]:
        """Return all objects of a kind as structs, of one namespace or all. Raises SourceError."""
        return [read_as(cls, obj) for obj in self.objects(cls.KIND, namespace)]

    def read(self, cls: type[Object], namespace: str, name: str) -> Object | None:
        """Return an object as a struct, None if there is none. Raises SourceError."""
        obj = self.get(cls.KIND, namespace, name)
        return None if obj is None else read_as(cls, obj)

    def stored(self, cls: type[Object], namespace: str = "") -> list[Object]:
        """Return all objects of a kind as structs; [] if its CRD is not installed. Raises SourceError."""
        is_served = self.find_any(object_path(cls.KIND, "") + "?limit=1") is not None
        return self.typed(cls, namespace) if is_served else []

    def create(self, kind: Kind, namespace: str, name: str, content: Mapping[str, object]) -> RawObject:
        """Create an object, annotated as created by a command; `undoing` deletes it after an error."""
        info = KINDS[kind]
        body: RawObject = {"apiVersion": info.api_version, "kind": info.name} | copy.deepcopy(dict(content))
        meta = body.setdefault("metadata", {})
        meta |= {"name": name, "namespace": namespace}
        meta["annotations"] = {
            **(meta.get("annotations") or {}),
            names.CREATED_BY_COMMAND_ANNOTATION: "true",
        }
        try:
            created: RawObject = self._client.request("POST", object_path(kind, namespace), body=body)
        except ApiRefusalError as error:
            if error.code == 409:
                raise AdminError(f"{kind} {namespace}/{name} exists already") from error
            raise
        path = object_path(kind, namespace, name)
        self._undo.append((f"{kind} {namespace}/{name}", lambda: self._client.request("DELETE", path)))
        self.report(f"{kind} {namespace}/{name} created")
        return created

    def annotate(self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of an object; `undoing` restores them after an error."""
        path = object_path(kind, namespace, name)
        old = (self.find(path) or {}).get("metadata", {}).get("annotations") or {}
        self._patch(path, annotations)
        before = {key: old.get(key) for key in annotations}
        self._undo.append((f"annotations of {kind} {namespace}/{name}", lambda: self._patch(path, before)))

    def set_data(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        """Set keys of a Secret's data; `undoing` restores them after an error. Raises SourceError."""
        path = object_path(Kind.SECRET, namespace, name)
        old = (self.find(path) or {}).get("data") or {}
        self.merge(path, {"data": dict(data)})
        before = {"data": {key: old.get(key) for key in data}}
        self._undo.append((f"data of Secret {namespace}/{name}", lambda: self.merge(path, before)))
        self.report(f"Secret {namespace}/{name} changed")

    def _patch(self, path: str, annotations: Mapping[str, str | None]) -> None:
        self.merge(path, {"metadata": {"annotations": dict(annotations)}})

    def merge(self, path: str, change: RawObject) -> None:
        """Change an object by a JSON merge patch (RFC 7386). Raises SourceError."""
        self._client.request("PATCH", path, body=change, content_type="application/merge-patch+json")

    def request(self, method: str, path: str, body: RawObject) -> RawObject:
        """Send a request for a subresource. Raises SourceError."""
        answer: RawObject = self._client.request(method, path, body=body)
        return answer

    def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        """Delete an object; return whether it existed. Raises SourceError."""
        return self._delete(object_path(kind, namespace, name), f"{kind} {namespace}/{name}")

    def _delete(self, path: str, shown: str) -> bool:
        try:
            self._client.request("DELETE", path, {"propagationPolicy": "Background"})
        except ApiRefusalError as error:
            if error.code == 404:
                return False
            raise
        self.report(f"{shown} deleted")
        return True

    # --- objects of any kind, as manifests have them

    def path_of(self, obj: RawObject) -> str:
        """Return the URL path of an object, "" if the API server does not serve its kind. Raises SourceError."""
        group = obj["apiVersion"]
        base = f"/apis/{group}" if "/" in group else f"/api/{group}"
        if base not in self._served:
            self._served[base] = (self.find_any(base) or {}).get("resources", [])
        meta = obj["metadata"]
        scope = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
        for served in self._served[base]:
            if served["kind"] == obj["kind"] and "/" not in served["name"]:
                return f"{base}{scope}/{served['name']}/{meta['name']}"
        return ""

    def serves(self, obj: RawObject) -> bool:
        """Tell whether the API server serves an object's kind now. Raises SourceError."""
        if not self.path_of(obj):
            self._served.clear()  # a CRD may have been created since
        return bool(self.path_of(obj))

    def find_any(self, path: str) -> RawObject | None:
        """Return the object at a path, None also if the server does not serve the path. Raises SourceError."""
        return self._client.find(path)

    def present(self, obj: RawObject) -> RawObject | None:
        """Return the object of this kind and name in the cluster, None if there is none. Raises SourceError."""
        path = self.path_of(obj)
        return self.find_any(path) if path else None

    def apply(self, obj: RawObject, *, force: bool = False, dry_run: bool = False) -> RawObject:
        """Apply an object on the server side, and return the result. Raises SourceError."""
        query = {"fieldManager": names.MANAGED_BY, "force": str(force).lower()}
        query |= {"dryRun": "All"} if dry_run else {}
        kind = "application/apply-patch+yaml"  # which JSON is
        applied: RawObject = self._client.request("PATCH", self.path_of(obj), query, body=obj, content_type=kind)
        return applied

    def remove(self, obj: RawObject) -> bool:
        """Delete an object, its dependents in the background; return whether it existed. Raises SourceError."""
        path = self.path_of(obj)
        return bool(path) and self._delete(path, shown(obj))

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Undo all changes of the block, the last first, if it raises or is interrupted."""
        self._undo.clear()
        try:
            yield
        except BaseException:
            for subject, undo in reversed(self._undo):
                with suppress(OSError):  # of a report: the terminal has gone
                    try:
                        undo()
                        self.report(f"{subject} taken back")
                    except SourceError as error:
                        if getattr(error, "code", 0) != 404:
                            self.report(f"{subject} could not be taken back: {error}")
            raise
        finally:
            self._undo.clear()

    def wait(self, met: Callable[[], bool], timeout: float) -> bool:
        """Wait until a condition holds; return whether it did within `timeout` seconds."""
        end = time.monotonic() + timeout
        while not met():
            if time.monotonic() >= end:
                return False
            time.sleep(LOOK)
        return True


class Progress:
    """Reports the state of a wait: when it changes, and otherwise every 5 s."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._began = self._reported = time.monotonic()
        self.text = ""  # the last state

    @property
    def seconds(self) -> float:
        """The time since the wait began."""
        return time.monotonic() - self._began

    def report(self, text: str, line: str) -> None:
        """Report `line` if the state `text` is new, or the last report is 5 s old."""
        if (text and text != self.text) or time.monotonic() - self._reported >= _PROGRESS:
            self.text, self._reported = text, time.monotonic()
            self._cluster.report(line)


def shown(obj: RawObject) -> str:
    """Return "Kind namespace/name" of an object, for messages."""
    meta = obj["metadata"]
    scope = f"{meta['namespace']}/" if "namespace" in meta else ""
    return f"{obj['kind']} {scope}{meta['name']}"


def made_by_command(obj: RawObject) -> bool:
    """Tell whether one of these commands, or Antrea's, created an object."""
    annotations = obj.get("metadata", {}).get("annotations") or {}
    return annotations.get(names.CREATED_BY_COMMAND_ANNOTATION) == "true"


def check_id(text: str, what: str) -> str:
    """Return a valid ID, which is used in names and as a label value. Raises InputError."""
    if not names.is_subdomain(text) or len(text) > names.MAX_LABEL:
        raise InputError(
            what, "", f'must be lower-case letters, digits, "-" and ".", at most {names.MAX_LABEL}: "{text}"'
        )
    return text


def check_name(text: str, what: str) -> str:
    """Return a valid name of an object. Raises InputError."""
    if not names.is_subdomain(text):
        raise InputError(what, "", f'not a name (RFC 1123 subdomain): "{text}"')
    return text
