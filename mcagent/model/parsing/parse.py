"""Raw API objects (decoded JSON or YAML) to the frozen values of `mcagent.model.objects`.

Owns which path each field is read from and what is an error. Only the form is judged here; whether a
well-formed address may be used, and who wins a conflict, is `mcagent.core`'s business. Nothing but
`InputError` is raised, whatever the value: other clusters write some of these objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mcagent.model.errors import InputError
from mcagent.model.field import Field, describe, printable
from mcagent.model.kinds import kind_of
from mcagent.model.objects import ApiObject, Kind, Meta
from mcagent.model.parsing.clusters import (
    parse_cluster_info,
    parse_gateway,
    parse_label_identity,
    parse_service_export,
    parse_service_import,
)
from mcagent.model.parsing.kubernetes import (
    parse_endpoint_slice,
    parse_namespace,
    parse_node,
    parse_pod,
    parse_service,
)
from mcagent.model.parsing.policies import parse_antrea_policy, parse_network_policy, parse_tier
from mcagent.model.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What an object says. `value` is None for a well-formed object that is of no interest (see `parse_pod`)."""

    meta: Meta
    value: ApiObject | None
    problems: tuple[Problem, ...] = ()


def parse_meta(raw: object, kind: Kind | None = None) -> Meta:
    """Return which object this is; InputError when it has no usable kind, name or namespace.

    `kind` is for items of a list, which the API server sends without `kind` and `apiVersion`.
    """
    found = kind or kind_of(raw)
    if not isinstance(raw, Mapping):
        raise InputError(str(found or "object"), "", f"must be a mapping, is {describe(raw)}")
    if found is None:
        api_version, name = raw.get("apiVersion"), raw.get("kind")
        shown = [printable(v) if isinstance(v, str) else describe(v) for v in (api_version, name)]
        raise InputError(
            "object", "kind", f"not a kind that is read here: {shown[0]} {shown[1]}", code="UnknownKind"
        )
    metadata = Field(found, raw).get("metadata")
    name = metadata.get("name").name()
    namespace = metadata.get("namespace").name("")
    metadata.subject = f"{found} {namespace}/{name}" if namespace else f"{found} {name}"
    return Meta(
        kind=found,
        name=name,
        namespace=namespace,
        created=metadata.get("creationTimestamp").timestamp(),
        resource_version=printable(metadata.get("resourceVersion").text("")),
    )


def parse_object(raw: object, kind: Kind | None = None) -> Parsed:
    """Return what the object says; InputError names the object, the path and what is wrong there."""
    meta = parse_meta(raw, kind)
    problems: list[Problem] = []
    value = _PARSERS[meta.kind](meta, Field(meta.subject, raw), problems)
    return Parsed(meta=meta, value=value, problems=tuple(problems))


_PARSERS: Mapping[Kind, Callable[[Meta, Field, list[Problem]], ApiObject | None]] = {
    Kind.GATEWAY: parse_gateway,
    Kind.CLUSTER_INFO_IMPORT: parse_cluster_info,
    Kind.NODE: parse_node,
    Kind.POD: parse_pod,
    Kind.SERVICE: parse_service,
    Kind.ENDPOINT_SLICE: parse_endpoint_slice,
    Kind.SERVICE_EXPORT: parse_service_export,
    Kind.SERVICE_IMPORT: parse_service_import,
    Kind.NAMESPACE: parse_namespace,
    Kind.LABEL_IDENTITY: parse_label_identity,
    Kind.NETWORK_POLICY: parse_network_policy,
    Kind.ANTREA_NETWORK_POLICY: parse_antrea_policy,
    Kind.CLUSTER_NETWORK_POLICY: parse_antrea_policy,
    Kind.TIER: parse_tier,
}
