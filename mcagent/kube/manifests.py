"""Manifest files to raw objects: multi-document YAML, JSON, and nested List kinds. No watching, no state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mcagent.kube.source import RawObject, is_object
from mcagent.model.errors import SourceError
from mcagent.model.kinds import KINDS, kind_of
from mcagent.model.objects import Kind

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
MAX_FILE = 64 * 1024 * 1024  # bytes
_MAX_NESTING = 8  # of List kinds


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: values are those of JSON, so a timestamp stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifests:
    """What a file holds: objects of kinds that are read, and sentences about those that cannot be used."""

    objects: tuple[tuple[Kind, RawObject], ...]
    complaints: tuple[str, ...] = ()


def read_manifests(path: Path, namespace: str = "default") -> Manifests:
    """Read a file. Objects of other kinds are passed over; an object without a namespace gets `namespace`.

    Raises SourceError, with the place, when the file cannot be read or is not YAML (JSON) throughout.
    """
    try:
        if path.stat().st_size > MAX_FILE:
            raise SourceError(f"larger than {MAX_FILE} bytes")
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise SourceError("the file is empty (remove it to remove its objects)")
        documents = [json.loads(text)] if path.suffix == ".json" else list(yaml.load_all(text, _Loader))
    except OSError as err:
        raise SourceError(f"cannot be read: {err.strerror}") from err
    except UnicodeDecodeError as err:
        raise SourceError(f"not UTF-8 at byte {err.start}") from err
    except yaml.MarkedYAMLError as err:
        at = f"line {err.problem_mark.line + 1}: " if err.problem_mark else ""
        raise SourceError(f"not YAML: {at}{err.problem or err.context}") from err
    except (yaml.YAMLError, ValueError) as err:
        raise SourceError(f"not {'JSON' if path.suffix == '.json' else 'YAML'}: {err}") from err
    except RecursionError:
        raise SourceError("nested too deeply") from None
    objects: list[tuple[Kind, RawObject]] = []
    complaints: list[str] = []
    for number, document in enumerate(documents, start=1):
        for item in _flatten(document, 0):
            kind = kind_of(item)
            if kind is not None and is_object(item):
                objects.append((kind, _placed(kind, item, namespace)))
            elif kind is not None:
                complaints.append(f"document {number}: a {kind} without metadata.name (text)")
            elif item is not None and not (isinstance(item, dict) and "kind" in item and "apiVersion" in item):
                complaints.append(f"document {number}: no object: apiVersion and kind are missing")
    return Manifests(objects=tuple(objects), complaints=tuple(complaints))


def _flatten(document: Any, depth: int) -> Iterator[Any]:
    """Yield the objects of a document: itself, or the items of a List, of a GatewayList, ... however nested."""
    is_list = (
        isinstance(document, dict)
        and isinstance(kind := document.get("kind"), str)
        and kind.endswith("List")
        and isinstance(document.get("items"), list)
    )
    if not is_list or depth >= _MAX_NESTING:
        yield document
        return
    own = {"apiVersion": document.get("apiVersion"), "kind": document["kind"].removesuffix("List")}
    for item in document["items"]:
        # items of a typed list may leave out what the list says
        yield from _flatten(own | item if own["kind"] and isinstance(item, dict) else item, depth + 1)


def _placed(kind: Kind, item: RawObject, namespace: str) -> RawObject:
    if not KINDS[kind].namespaced or item["metadata"].get("namespace"):
        return item
    return {**item, "metadata": {**item["metadata"], "namespace": namespace}}
