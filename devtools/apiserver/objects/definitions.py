"""CustomResourceDefinitions: what they say, read into values; the status that the server gives them. Pure but for
the clock of the status."""

from __future__ import annotations

from devtools.apiserver.errors import ApiError, Json, invalid
from devtools.apiserver.objects.resources import ResourceType


def parse_crd(crd: Json) -> ResourceType:
    """Return the resource of a CustomResourceDefinition (apiextensions.k8s.io/v1).

    Raises ApiError 422 when it cannot be read.
    """
    name = str(crd.get("metadata", {}).get("name", ""))
    kind = "CustomResourceDefinition.apiextensions.k8s.io"
    try:
        spec = crd["spec"]
        names = spec["names"]
        served = [v for v in spec["versions"] if v.get("served")]
        # The preferred version is the highest; here the storage version, which is good enough for one.
        served.sort(key=lambda v: not v.get("storage"))
        parsed = ResourceType(
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
        raise invalid(kind, name, "spec", f"cannot be read: {err!r}") from None
    if name != f"{parsed.plural}.{parsed.group}":
        raise invalid(kind, name, "metadata.name", "must be spec.names.plural+'.'+spec.group")
    if not parsed.versions:
        raise ApiError(422, "Invalid", f'{kind} "{name}" is invalid: no version is served')
    return parsed


def crd_status(crd: Json, now: str) -> Json:
    """Return the status that the real server gives a CustomResourceDefinition that it accepts."""
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": now}
        for kind, reason in (("NamesAccepted", "NoConflicts"), ("Established", "InitialNamesAccepted"))
    ]
    return {
        "acceptedNames": crd["spec"]["names"],
        "conditions": conditions,
        "storedVersions": [v["name"] for v in crd["spec"]["versions"] if v.get("storage")],
    }
