"""The resources served now: the built-in ones and what CustomResourceDefinitions add.

Storage is by group and plural; the versions of one resource share their objects (conversion strategy None).
Schemas are not read: an object may have any fields.
"""

from __future__ import annotations

from collections.abc import Iterable

from devtools.apiserver.errors import Json, invalid
from devtools.apiserver.objects.resources import BUILT_IN, CRDS, ResourceType


class Registry:
    """The resources served now, by group and plural. Safe to use from many threads."""

    def __init__(self, types: Iterable[ResourceType] = BUILT_IN) -> None:
        self._built_in = {rt.store_key: rt for rt in types}
        self._types = dict(self._built_in)

    def all(self) -> list[ResourceType]:
        """Return every resource, sorted by group and plural."""
        return sorted(self._types.copy().values(), key=lambda rt: rt.store_key)

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        """Return the resource of that path, or None."""
        rt = self._types.get((group, plural))
        return rt if rt is not None and version in rt.versions else None

    def by_kind(self, api_version: str, kind: str) -> ResourceType | None:
        """Return the resource that an object with these two fields belongs to, or None."""
        group, _, version = api_version.rpartition("/")
        matching = (rt for rt in self.all() if (rt.group, rt.kind) == (group, kind) and version in rt.versions)
        return next(matching, None)

    def define(self, crd: Json) -> None:
        """Serve what a CustomResourceDefinition says. Raises ApiError 422 when it cannot be read."""
        rt = parse_crd(crd)
        self._types[rt.store_key] = rt

    def undefine(self, crd: Json) -> None:
        """Serve it no longer, unless it is built in."""
        key = parse_crd(crd).store_key
        self._types.pop(key, None)
        if key in self._built_in:
            self._types[key] = self._built_in[key]


def parse_crd(crd: Json) -> ResourceType:
    """Return the resource of a CustomResourceDefinition (apiextensions.k8s.io/v1), storage version first.

    Raises ApiError 422 when it cannot be read.
    """
    try:
        spec, names = crd["spec"], crd["spec"]["names"]
        served = sorted((v for v in spec["versions"] if v.get("served")), key=lambda v: not v.get("storage"))
        return ResourceType(
            group=spec["group"],
            versions=tuple(v["name"] for v in served),
            plural=names["plural"],
            kind=names["kind"],
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames", ())),
            status=any("status" in v.get("subresources", {}) for v in served),
            custom=True,
        )
    except (KeyError, TypeError, AttributeError) as err:
        raise invalid(CRDS.group_kind, crd["metadata"]["name"], "spec", f"cannot be read: {err!r}") from None


def crd_status(crd: Json, now: str) -> Json:
    """Return the status of a CustomResourceDefinition that the server accepts. Raises as `parse_crd`."""
    parse_crd(crd)
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now}
        for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
    ]
    stored = [v["name"] for v in crd["spec"]["versions"] if v.get("storage")]
    return {"acceptedNames": crd["spec"]["names"], "conditions": conditions, "storedVersions": stored}
