"""What is written of an object: JSON merge patches (RFC 7386) as structs. Knows no kind.

A patch is a struct with the fields given only, and these are written as they are, also empty ones: nothing is
guessed from a default value. In a list every item is written whole, so items may be plain structs, of which fields
with default values are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, ParamSpec, TypeVar

import msgspec

from mcagent.model.api.base import NO_TEXTS, ApiObject, ApiPart, Metadata

ABSENT: Any = None  # the value of a field that must be absent
UNSET: Any = msgspec.UNSET  # the value of a field that is not written, as if it were not given

_Fields = ParamSpec("_Fields")
_Part = TypeVar("_Part", bound=ApiPart)
_Object = TypeVar("_Object", bound=ApiObject)


def patch(part: Callable[_Fields, _Part], /, *args: _Fields.args, **fields: _Fields.kwargs) -> _Part:
    """Return a patch of a part. Fields that are not given stay as they are; they are UNSET, and must not be read.

    Raises TypeError for a field that is a struct, but no patch.
    """
    return _patch_of(part)(*args, **fields)  # type: ignore[no-any-return]


def whole(part: _Part) -> _Part:
    """Return a patch with all fields of a part: one without a value must be absent."""
    values = {name: getattr(part, name) for name in part.__struct_fields__}
    fields = {name: whole(value) if isinstance(value, ApiPart) else value for name, value in values.items()}
    return _patch_of(type(part))(**{name: value or ABSENT for name, value in fields.items()})  # type: ignore[no-any-return]


def metadata_patch(
    *,
    labels: Mapping[str, str | None] = NO_TEXTS,
    annotations: Mapping[str, str | None] = NO_TEXTS,
    finalizers: Sequence[str] | None = None,
) -> Metadata:
    """Return a patch of metadata. A label or annotation that is None must be absent.

    `finalizers`: all that the object has to have; None: they stay as they are.
    """
    texts: dict[str, Any] = {"labels": labels, "annotations": annotations}
    fields = {name: values for name, values in texts.items() if values}
    if finalizers is not None:
        fields["finalizers"] = tuple(finalizers) or ABSENT
    return patch(Metadata, **fields)


def annotated(kind: type[_Object], annotations: Mapping[str, str | None]) -> _Object:
    """Return a patch of annotations alone."""
    return patch(kind, metadata=metadata_patch(annotations=annotations))


@cache
def _patch_of(part: type[ApiPart]) -> Any:
    """Return the class of patches of a part: its fields without defaults, but for `fault`."""
    fields = [
        (field.name, Any, msgspec.field(default=UNSET, name=field.encode_name))
        for field in msgspec.structs.fields(part)
        if field.name != "fault"
    ]
    own = {"__post_init__": _check_parts, "IS_PATCH": True}
    return msgspec.defstruct(part.__name__, fields, bases=(part,), namespace=own, frozen=True, gc=False)


def _check_parts(new_patch: ApiPart) -> None:
    for name in new_patch.__struct_fields__:
        value = getattr(new_patch, name)
        if isinstance(value, ApiPart) and not value.IS_PATCH:
            raise TypeError(f"{type(new_patch).__name__}.{name} is no patch")
