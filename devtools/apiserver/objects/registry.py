"""The resources served now: the built-in ones and what CustomResourceDefinitions add.

Storage is by group and plural; the versions of one resource share their objects (conversion strategy None).
Schemas are not read: an object may have any fields.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from devtools.apiserver.errors import Json
from devtools.apiserver.objects.definitions import parse_crd
from devtools.apiserver.objects.resources import BUILT_IN, ResourceType


class Registry:
    """The resources served now, by group and plural. Safe to use from many threads."""

    def __init__(self, types: Iterable[ResourceType] = BUILT_IN) -> None:
        self._lock = threading.Lock()
        self._built_in = {t.store_key: t for t in types}
        self._types = dict(self._built_in)

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

    def define(self, crd: Json) -> None:
        """Serve what a CustomResourceDefinition says. Raises ApiError 422 when it cannot be read."""
        parsed = parse_crd(crd)
        with self._lock:
            self._types[parsed.store_key] = parsed

    def undefine(self, crd: Json) -> tuple[str, str]:
        """Serve it no longer, unless it is built in. Returns its store key."""
        key = parse_crd(crd).store_key
        with self._lock:
            if key in self._built_in:
                self._types[key] = self._built_in[key]
            else:
                self._types.pop(key, None)
        return key
