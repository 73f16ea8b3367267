"""Policies of Kubernetes as ResourceExports and ResourceImports carry them: whole, as bytes in `raw.data`.

Antrea's contract has `raw`, and nobody who reads it. Pure; what comes in is checked like all of other clusters.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcagent.controller.contract import names
from mcagent.model.errors import InputError
from mcagent.model.field import Field, printable
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from mcagent.model.parsing.document import decode

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
    """A policy. `namespace` is "" unless it is a NetworkPolicy; `spec` is JSON that nobody here understands."""

    kind: Kind
    namespace: str
    name: str  # as members call it
    spec: Mapping[str, Any]


def read_carried(field: Field) -> Carried:
    """Return the policy in `raw.data`. Raises InputError."""
    document = Field(field.subject, _decoded(field), field.path)
    what = (document.get("apiVersion").text(), document.get("kind").text())
    if what not in _KINDS:
        known = ", ".join(" ".join(key) for key in _KINDS)
        raise document.get("kind").error(f"is not a replicated kind ({known}): {printable(' '.join(what))}")
    kind, meta = _KINDS[what], document.get("metadata")
    namespace = meta.get("namespace").name("")
    if KINDS[kind].namespaced is not bool(namespace):
        how = "given" if KINDS[kind].namespaced else "left out"
        raise meta.get("namespace").error(f"must be {how} for a {what[1]}")
    name = names.imported(meta.get("name").name())
    if not names.is_subdomain(name):
        raise meta.get("name").error("is too long")
    spec = document.get("spec").value
    if not isinstance(spec, Mapping) or not spec:
        raise document.get("spec").error("must be a non-empty mapping")
    return Carried(
        kind=kind,
        namespace=namespace,
        name=SINGLE if kind is Kind.BASELINE_ADMIN_NETWORK_POLICY else name,
        spec=spec,
    )


def _decoded(field: Field) -> object:
    text = field.text()
    if len(text) > MAX_BYTES * 4 // 3 + 4:
        raise field.error(f"has more than {MAX_BYTES} bytes", "TooLarge")
    try:
        return decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, InputError) as error:
        raise field.error(f"must be a manifest as JSON, in base64: {printable(str(error))}") from None
