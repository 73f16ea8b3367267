"""One cluster as an administrator's command sees it: objects by name, and a record of what to take back.

All I/O of the commands goes through here. Messages never hold the content of a Secret.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mcagent.controller.contract import names
from mcagent.kube.client import Client
from mcagent.kube.errors import ApiRefusalError
from mcagent.kube.source import RawObject
from mcagent.kube.sources.lister import Lister
from mcagent.model.errors import InputError, McagentError, SourceError
from mcagent.model.kinds import KINDS, object_path
from mcagent.model.objects import Kind

LOOK = 0.2  # seconds between two looks at something that is waited for
Report = Callable[[str], None]


class AdminError(McagentError):
    """A command could not do what it was asked to."""


class Cluster:
    """The objects of one cluster. `report` takes lines of progress."""

    def __init__(self, client: Client, report: Report) -> None:
        self._client = client
        self.report = report
        self._undo: list[tuple[str, Callable[[], Any]]] = []
        self._served: dict[str, list[RawObject]] = {}  # what the API server says of each group and version

    @property
    def server(self) -> str:
        """Return the URL of the API server."""
        return self._client.server

    def get(self, kind: Kind, namespace: str, name: str) -> RawObject | None:
        """Return an object, None if there is none. Raises SourceError."""
        return self.find(object_path(kind, namespace, name))

    def find(self, path: str) -> RawObject | None:
        """Return the object at a path, None if there is none. Raises SourceError."""
        try:
            found: RawObject = self._client.request("GET", path)
        except ApiRefusalError as error:
            if error.code == 404 and error.reason == "NotFound":  # else the server does not know the kind
                return None
            raise
        return found

    def objects(self, kind: Kind, namespace: str = "") -> list[RawObject]:
        """Return all objects of a kind, of one namespace or all. Raises SourceError."""
        found, _ = Lister(
            self._client, kind, object_path(kind, namespace), report=lambda _reason, text: self.report(text)
        ).read()
        info = KINDS[kind]
        return [{"apiVersion": info.api_version, "kind": info.name} | item for item in found]

    def create(self, kind: Kind, namespace: str, name: str, content: Mapping[str, Any]) -> RawObject:
        """Create an object, marked as made by a command; it is deleted again if `undoing` ends with an error."""
        info = KINDS[kind]
        body: RawObject = {"apiVersion": info.api_version, "kind": info.name} | copy.deepcopy(dict(content))
        meta = body.setdefault("metadata", {})
        meta |= {"name": name, "namespace": namespace}
        meta["annotations"] = {
            **(meta.get("annotations") or {}),
            names.CREATED_BY_COMMAND_ANNOTATION: "true",
        }
        try:
            made: RawObject = self._client.request("POST", object_path(kind, namespace), body=body)
        except ApiRefusalError as error:
            if error.code == 409:
                raise AdminError(f"{kind} {namespace}/{name} exists already") from error
            raise
        self.report(f"{kind} {namespace}/{name} created")
        path = object_path(kind, namespace, name)
        self._undo.append((f"{kind} {namespace}/{name}", lambda: self._client.request("DELETE", path)))
        return made

    def annotate(self, kind: Kind, namespace: str, name: str, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of an object, and set them back if `undoing` ends with an error."""
        path = object_path(kind, namespace, name)
        old = (self.find(path) or {}).get("metadata", {}).get("annotations") or {}
        self._patch(path, annotations)
        before = {key: old.get(key) for key in annotations}
        self._undo.append((f"annotations of {kind} {namespace}/{name}", lambda: self._patch(path, before)))

    def _patch(self, path: str, annotations: Mapping[str, str | None]) -> None:
        self.merge(path, {"metadata": {"annotations": dict(annotations)}})

    def merge(self, path: str, change: RawObject) -> None:
        """Change an object by a JSON merge patch (RFC 7386). Raises SourceError."""
        self._client.request("PATCH", path, body=change, content_type="application/merge-patch+json")

    def request(self, method: str, path: str, body: RawObject) -> RawObject:
        """Make a request that is no plain object's. Raises SourceError."""
        answer: RawObject = self._client.request(method, path, body=body)
        return answer

    def delete(self, kind: Kind, namespace: str, name: str) -> bool:
        """Delete an object; tell whether it was there. Raises SourceError."""
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
        """Return the URL path of an object, "" when the API server has no such kind. Raises SourceError."""
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

    def find_any(self, path: str) -> RawObject | None:
        """Return what is at a path, None also when the server does not know the path. Raises SourceError."""
        try:
            found: RawObject = self._client.request("GET", path)
        except ApiRefusalError as error:
            if error.code == 404:
                return None
            raise
        return found

    def there(self, obj: RawObject) -> RawObject | None:
        """Return what the cluster has of this kind and name, None if nothing. Raises SourceError."""
        path = self.path_of(obj)
        return self.find_any(path) if path else None

    def apply(self, obj: RawObject, *, force: bool = False, dry_run: bool = False) -> RawObject:
        """Apply an object on the server and return what it is now. Raises SourceError."""
        query = {"fieldManager": names.MANAGED_BY, "force": str(force).lower()}
        query |= {"dryRun": "All"} if dry_run else {}
        kind = "application/apply-patch+yaml"  # which JSON is
        made: RawObject = self._client.request("PATCH", self.path_of(obj), query, body=obj, content_type=kind)
        return made

    def remove(self, obj: RawObject) -> bool:
        """Delete an object; tell whether it was there. What it owns goes after it. Raises SourceError."""
        path = self.path_of(obj)
        return bool(path) and self._delete(path, shown(obj))

    @contextmanager
    def undoing(self) -> Iterator[None]:
        """Take back, last first, all that was made inside, if it ends with an error or is interrupted."""
        self._undo.clear()
        try:
            yield
        except BaseException:
            for what, undo in reversed(self._undo):
                try:
                    undo()
                    self.report(f"{what} taken back")
                except SourceError as error:
                    if getattr(error, "code", 0) != 404:
                        self.report(f"{what} could not be taken back: {error}")
            raise
        finally:
            self._undo.clear()

    def wait(self, met: Callable[[], bool], timeout: float) -> bool:
        """Wait until a condition holds; tell whether it did within so many seconds."""
        end = time.monotonic() + timeout
        while not met():
            if time.monotonic() >= end:
                return False
            time.sleep(LOOK)
        return True


def shown(obj: RawObject) -> str:
    """Return how messages name an object."""
    meta = obj["metadata"]
    scope = f"{meta['namespace']}/" if "namespace" in meta else ""
    return f"{obj['kind']} {scope}{meta['name']}"


def made_by_command(obj: RawObject) -> bool:
    """Tell whether one of these commands, or Antrea's, made an object."""
    annotations = obj.get("metadata", {}).get("annotations") or {}
    return annotations.get(names.CREATED_BY_COMMAND_ANNOTATION) == "true"


def check_id(text: str, what: str) -> str:
    """Return an ID; raises InputError when it cannot be one: it becomes part of names, and the value of labels."""
    if not names.is_subdomain(text) or len(text) > names.MAX_LABEL:
        raise InputError(
            what, "", f'must be lower-case letters, digits, "-" and ".", at most {names.MAX_LABEL}: "{text}"'
        )
    return text


def check_name(text: str, what: str) -> str:
    """Return the name of an object; raises InputError when it can be none."""
    if not names.is_subdomain(text):
        raise InputError(what, "", f'not a name (RFC 1123 subdomain): "{text}"')
    return text
