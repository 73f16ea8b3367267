"""What all objects of the API have in common: names, metadata, conditions. Knows no kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from mcagent.model.errors import InputError
from mcagent.model.objects import Kind

_ACRONYMS = {"ip": "IP", "ips": "IPs", "id": "ID", "cidr": "CIDR", "cidrs": "CIDRs"}
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # as large as the object, and of no use here

NO_TEXTS: Mapping[str, str] = MappingProxyType({})
NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


def _api_name(name: str) -> str:
    """Return the API's name of a field: "gateway_ip" is `gatewayIP`."""
    first, *words = name.split("_")
    return first + "".join(_ACRONYMS.get(word) or word.capitalize() for word in words)


# `gc=False`: the values are those of JSON documents, which hold no cycles.
class ApiPart(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename=_api_name):
    """A JSON object with known fields. What is absent or null has the field's default."""

    IS_PATCH: ClassVar[bool] = False  # made by `patches.patch`


class Fault:
    """Which fields of an object were left out, as errors, in order. No JSON value can be decoded into one."""

    __slots__ = ("errors",)

    def __init__(self, errors: Sequence[InputError]) -> None:
        self.errors = tuple(errors)


class Metadata(ApiPart, frozen=True):
    """metav1.ObjectMeta. Times are texts of RFC 3339."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int | None = None
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()
    labels: Mapping[str, str] = NO_TEXTS
    annotations: Mapping[str, str] = NO_TEXTS

    def __post_init__(self) -> None:
        if _LAST_APPLIED in self.annotations:
            assert isinstance(self.annotations, dict)
            del self.annotations[_LAST_APPLIED]


class ApiObject(ApiPart, frozen=True):
    """An object of any kind. `fault` is set where a field had a value of a wrong type, and was left out."""

    KIND: ClassVar[Kind]

    metadata: Metadata = Metadata()
    fault: Fault | None = None

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The object's namespace; "" for a cluster-scoped one."""
        return self.metadata.namespace

    @property
    def key(self) -> str:
        """Namespace and name, "mcs/east-clusterinfo"; the namespace of a cluster-scoped object is empty."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def subject(self) -> str:
        """How messages name the object: "ResourceExport mcs/east-clusterinfo"."""
        meta = self.metadata
        return f"{self.KIND} {meta.namespace}/{meta.name}" if meta.namespace else f"{self.KIND} {meta.name}"

    @property
    def labels(self) -> Mapping[str, str]:
        """The object's labels."""
        return self.metadata.labels

    @property
    def is_deleting(self) -> bool:
        """Whether the object is on its way out: only its finalizers hold it."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def age(self) -> tuple[str, str, str]:
        """A sort key, the oldest first: creation time, then namespace and name."""
        return (self.metadata.creation_timestamp, self.metadata.namespace, self.metadata.name)

    def annotation(self, key: str) -> str | None:
        """Return an annotation; None when there is none."""
        return self.metadata.annotations.get(key)

    def is_faulty(self, path: str) -> bool:
        """Tell whether a field at or below a path had a value of a wrong type."""
        return self._fault_at(path) is not None

    def _fault_at(self, path: str) -> InputError | None:
        below = (f"{path}.", f"{path}[")
        errors = self.fault.errors if self.fault is not None else ()
        return next((error for error in errors if error.path == path or error.path.startswith(below)), None)

    def check(self, path: str, *, but: str = "") -> None:
        """Raise InputError if a field at or below a path had a value of a wrong type.

        Fields whose paths contain `but` do not count.
        """
        error = self._fault_at(path)
        if error is not None and not (but and but in error.path):
            raise error


class Condition(ApiPart, frozen=True):
    """metav1.Condition, and Antrea's own condition types, which have the same fields."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int | None = None

    @property
    def is_true(self) -> bool:
        """Whether the status is True."""
        return self.status == "True"

    @property
    def is_false(self) -> bool:
        """Whether the status is False."""
        return self.status == "False"


NO_CONDITION = Condition()


class SharedConditions(ApiPart, frozen=True):
    """A status whose conditions several controllers write: kept as they were read, and written so."""

    entries: tuple[Mapping[str, Any], ...] = msgspec.field(default=(), name="conditions")

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The texts of the conditions; what has a wrong type is left out."""
        return tuple(
            Condition(**{field: entry[name] for field, name in _TEXTS.items() if isinstance(entry.get(name), str)})
            for entry in self.entries
        )


_TEXTS = {name: _api_name(name) for name in ("type", "status", "reason", "message", "last_transition_time")}


def condition_of(conditions: Sequence[Condition], kind: str) -> Condition:
    """Return the condition of a type; an empty one where there is none."""
    return next((condition for condition in conditions if condition.type == kind), NO_CONDITION)


def as_json(value: Any) -> Any:
    """Return an object, a part of one, or a list of parts as JSON, without its fault; lists are tuples."""
    if isinstance(value, ApiObject) and value.fault is not None:
        value = msgspec.structs.replace(value, fault=None)
    return msgspec.to_builtins(value, enc_hook=dict)
