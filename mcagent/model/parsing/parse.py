"""Structs of the API (`mcagent.model.api`) to the frozen values of `mcagent.model.objects`.

Owns which path each field is read from and what is an error. Only the form is judged here; whether a
well-formed address may be used, and who wins a conflict, is `mcagent.core`'s business. Nothing but
`InputError` is raised, whatever the value: other clusters write some of these objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcagent.model.api import base as api
from mcagent.model.errors import InputError
from mcagent.model.kinds import kind_of
from mcagent.model.objects import ApiObject, Kind, Meta
from mcagent.model.parsing.clusters import (
    parse_cluster_info,
    parse_gateway,
    parse_label_identity,
    parse_service_export,
    parse_service_import,
)
from mcagent.model.parsing.decode import read_object
from mcagent.model.parsing.field import Field, describe, printable
from mcagent.model.parsing.fields import problem_of
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


def parse_object(raw: object, kind: Kind | None = None) -> Parsed:
    """Return what an object says: a struct, or the JSON of one. InputError names object, path and what is wrong.

    `kind` is for items of a list, which the API server sends without `kind` and `apiVersion`.
    """
    obj = raw if isinstance(raw, api.ApiObject) else _decoded(raw, kind)
    meta = _meta(obj)
    problems: list[Problem] = []
    for error in obj.fault.errors if obj.fault is not None else ():
        if not _is_harmless(meta.kind, error.path):
            raise error
        problems.append(problem_of(error))
    value = _PARSERS[meta.kind](meta, obj, problems)
    return Parsed(meta=meta, value=value, problems=tuple(problems))


def _is_harmless(kind: Kind, path: str) -> bool:
    """Tell whether a fault at a path is only reported, while the rest of the object is used."""
    if path.startswith("status"):
        return kind not in (Kind.NODE, Kind.POD)
    return kind is Kind.SERVICE_EXPORT or _HARMLESS.match(path) is not None


# Encryption, what others noted on an object, and what only controllers read.
_HARMLESS = re.compile(
    r"(spec\.)?(gatewayInfos\[\d+\]\.)?wireGuard\b|spec\.sessionAffinityConfig\b"
    r"|metadata\.(annotations|finalizers|ownerReferences|managedFields|uid|generation|deletionTimestamp)\b"
)


def _decoded(raw: object, kind: Kind | None) -> api.ApiObject:
    read_kind = kind or kind_of(raw)
    if not isinstance(raw, Mapping):
        raise InputError(str(read_kind or "object"), "", f"must be a mapping, is {describe(raw)}")
    if read_kind is None:
        api_version, name = raw.get("apiVersion"), raw.get("kind")
        shown = [printable(v) if isinstance(v, str) else describe(v) for v in (api_version, name)]
        raise InputError(
            "object", "kind", f"not a kind that is read here: {shown[0]} {shown[1]}", code="UnknownKind"
        )
    return read_object(read_kind, raw)


def _meta(obj: api.ApiObject) -> Meta:
    """Return which object this is; InputError when it has no usable name or namespace."""
    kind, meta = obj.KIND, obj.metadata
    for path in ("metadata.name", "metadata.namespace"):
        if obj.fault is not None and (obj.is_faulty(path) or obj.fault.errors[0].path == "metadata"):
            error = obj.fault.errors[0]
            raise InputError(str(kind), error.path, error.reason, code=error.code)
    Field(str(kind), meta.name or None, "metadata.name").name()
    Field(str(kind), meta.namespace, "metadata.namespace").name("")
    created = Field(obj.subject, meta.creation_timestamp or None, "metadata.creationTimestamp")
    return Meta(
        kind=kind,
        name=meta.name,
        namespace=meta.namespace,
        created=created.timestamp(),
        resource_version=printable(meta.resource_version),
    )


_PARSERS: Mapping[Kind, Callable[[Meta, Any, list[Problem]], ApiObject | None]] = {
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
