"""The resources served now: the built-in ones and what CustomResourceDefinitions add, with their schemas.

Storage is by group and plural; the versions of one resource share their objects (conversion strategy None). A
custom resource of the built-in table has no schema, and so takes anything, until its definition is created.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from devtools.apiserver.errors import Json
from devtools.apiserver.objects.definitions import Definition, parse_definition
from devtools.apiserver.objects.resources import BUILT_IN, ResourceType
from devtools.apiserver.storage.listtypes import Lists, lists_of


class Registry:
    """The resources served now, by group and plural. Safe to use from many threads."""

    def __init__(self, types: Iterable[ResourceType] = BUILT_IN) -> None:
        self._lock = threading.Lock()
        self._built_in = {t.store_key: t for t in types}
        self._types = dict(self._built_in)
        self._definitions: dict[tuple[str, str], Definition] = {}

    def all(self) -> list[ResourceType]:
        """Return every resource, sorted by group and plural."""
        with self._lock:
            return sorted(self._types.values(), key=lambda t: t.store_key)

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        """Return the resource of that path, or None."""
        with self._lock:
            found = self._types.get((group, plural))
        return found if found is not None and version in found.versions else None

    def get(self, key: tuple[str, str]) -> ResourceType | None:
        """Return the resource stored under `key`, or None."""
        with self._lock:
            return self._types.get(key)

    def by_kind(self, api_version: str, kind: str) -> tuple[ResourceType, str] | None:
        """Return the resource and version that an object with these two fields belongs to."""
        group, _, version = api_version.rpartition("/")
        for found in self.all():
            if found.group == group and found.kind == kind and version in found.versions:
                return found, version
        return None

    def schema(self, rt: ResourceType, api_version: str) -> Json | None:
        """Return the schema of objects of an `apiVersion`; None: they may be anything."""
        with self._lock:
            definition = self._definitions.get(rt.store_key)
        return definition.schemas.get(api_version.rpartition("/")[2]) or None if definition else None

    def stored_schema(self, rt: ResourceType) -> Json | None:
        """Return the schema of the version in which objects are stored; None: they may be anything."""
        with self._lock:
            definition = self._definitions.get(rt.store_key)
        return definition.stored or None if definition else None

    def lists(self, rt: ResourceType, api_version: str) -> Lists:
        """Return which lists of a resource are merged by item."""
        return lists_of(rt, self.schema(rt, api_version))

    def define(self, crd: Json) -> None:
        """Serve what a CustomResourceDefinition says. Raises ApiError 422 when it cannot be read."""
        parsed = parse_definition(crd)
        with self._lock:
            self._types[parsed.rt.store_key] = parsed.rt
            self._definitions[parsed.rt.store_key] = parsed

    def undefine(self, crd: Json) -> tuple[str, str]:
        """Serve it no longer, unless it is built in. Returns its store key."""
        key = parse_definition(crd).rt.store_key
        with self._lock:
            self._definitions.pop(key, None)
            if key in self._built_in:
                self._types[key] = self._built_in[key]
            else:
                self._types.pop(key, None)
        return key
