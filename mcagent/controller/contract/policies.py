"""Policies of Kubernetes in ResourceExports and ResourceImports: a manifest in `raw.data`. Pure.

Antrea's API has the field `raw`, which Antrea's controllers do not read. The manifest is checked.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

from mcagent.controller.contract import names
from mcagent.model.api.policies import Manifest
from mcagent.model.errors import InputError
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_as
from mcagent.model.parsing.document import decode
from mcagent.model.parsing.field import Field, describe, printable

CARRIED = (
    Kind.NETWORK_POLICY,
    Kind.ADMIN_NETWORK_POLICY,
    Kind.BASELINE_ADMIN_NETWORK_POLICY,
    Kind.UPSTREAM_CLUSTER_NETWORK_POLICY,
)
MAX_BYTES = 64 * 1024
SINGLE = "default"  # the only name that a BaselineAdminNetworkPolicy may have

_KINDS = {(KINDS[kind].api_version, KINDS[kind].name): kind for kind in CARRIED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A replicated policy, as members create it."""

    kind: Kind
    namespace: str  # "": cluster-scoped
    name: str
    spec: Mapping[str, object]  # not read: the member's API server validates it


def read_carried(field: Field) -> Carried:
    """Return the policy in `raw.data`. Raises InputError."""
    document = _decoded(field)
    type_names = (document.api_version, document.kind)
    for name, text in zip(("apiVersion", "kind"), type_names, strict=True):
        if not text:
            raise _wrong(field, name, "is missing")
    if type_names not in _KINDS:
        replicated = ", ".join(" ".join(key) for key in _KINDS)
        raise _wrong(field, "kind", f"is not a replicated kind ({replicated}): {printable(' '.join(type_names))}")
    kind, namespace = (
        _KINDS[type_names],
        Field(field.subject, document.namespace, f"{field.path}.metadata.namespace"),
    )
    if KINDS[kind].namespaced is not bool(namespace.name("")):
        how = "given" if KINDS[kind].namespaced else "left out"
        raise namespace.error(f"must be {how} for a {document.kind}")
    name = names.imported(Field(field.subject, document.name, f"{field.path}.metadata.name").name())
    if not names.is_subdomain(name):
        raise _wrong(field, "metadata.name", "is too long")
    if not document.spec:
        raise _wrong(field, "spec", "must be a non-empty mapping")
    return Carried(
        kind=kind,
        namespace=document.namespace,
        name=SINGLE if kind is Kind.BASELINE_ADMIN_NETWORK_POLICY else name,
        spec=document.spec,
    )


def _wrong(field: Field, path: str, why: str) -> InputError:
    return InputError(field.subject, f"{field.path}.{path}", why)


def _decoded(field: Field) -> Manifest:
    text = field.text()
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise field.error(f"has more than {MAX_BYTES} bytes", "TooLarge")
    try:
        content = decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, InputError) as error:
        raise field.error(f"must be a manifest as JSON, in base64: {printable(str(error))}") from None
    if not isinstance(content, dict):
        raise field.error(f"must be a mapping, is {describe(content)}")
    document = read_as(Manifest, content)
    if document.fault is not None:
        raise _wrong(field, document.fault.errors[0].path, document.fault.errors[0].reason)
    return document


def as_stored(kind: Kind, spec: Mapping[str, object]) -> Mapping[str, object]:
    """Return a policy as the API server stores it: Kubernetes' own kind in its Go types, with their defaults."""
    if kind is not Kind.NETWORK_POLICY:
        return spec
    fields = _without_omitted(spec)
    types = ["Ingress", "Egress"] if "egress" in fields else ["Ingress"]
    return {"podSelector": {}, "policyTypes": types} | fields


def _without_omitted(value: Mapping[str, object], key: str = "") -> dict[str, object]:
    """Return a value without what networking/v1 leaves out (`omitempty`); a port without a protocol has TCP."""
    fields = {name: _stored(inner, name) for name, inner in value.items() if inner is not None}
    fields = {
        name: inner for name, inner in fields.items() if inner != [] and (name, inner) != ("matchLabels", {})
    }
    return {"protocol": "TCP"} | fields if key == "ports" else fields


def _stored(value: object, key: str) -> object:
    if isinstance(value, list):
        return [_stored(item, key) for item in value]
    return _without_omitted(value, key) if isinstance(value, Mapping) else value
