"""Manifest files to raw objects: multi-document YAML, JSON, and nested List kinds. No watching, no state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mcagent.kube.source import RawObject, is_object
from mcagent.model.errors import SourceError
from mcagent.model.kinds import KINDS, kind_of
from mcagent.model.objects import Kind
from mcagent.model.parsing.document import MAX_DEPTH, decode

SUFFIXES = frozenset({".yaml", ".yml", ".json"})
MAX_FILE = 64 * 1024 * 1024  # bytes
_MAX_NESTING = 8  # of List kinds


FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""YAML's safe loader; libyaml's parser, where it is, is ten times as fast."""


class _Loader(FastLoader):  # type: ignore[misc]
    """YAML as Kubernetes reads it: values are those of JSON, so a timestamp stays text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_manifests(path: Path, namespace: str = "default") -> list[tuple[Kind, RawObject]]:
    """Return the objects of a file. Other kinds are passed over; one without a namespace gets `namespace`.

    A file is taken whole or not at all. Raises SourceError, with the place, when the file cannot be read, is not
    YAML (JSON) throughout, or holds a document that is no object.
    """
    objects: list[tuple[Kind, RawObject]] = []
    for number, document in enumerate(_documents(path), start=1):
        for item in _flatten(document, 0):
            kind = kind_of(item)
            if kind is None:
                if not (isinstance(item, dict) and item.get("apiVersion") and item.get("kind")):
                    raise SourceError(f"document {number}: no object: apiVersion and kind are missing")
            elif not is_object(item):
                raise SourceError(f"document {number}: a {kind} without metadata.name (text)")
            else:
                objects.append((kind, _placed(kind, item, namespace)))
    return objects


def _documents(path: Path) -> list[Any]:
    """Return the documents of a file that are not empty. Raises SourceError."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise SourceError(f"larger than {MAX_FILE} bytes")
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise SourceError("the file is empty (remove it to remove its objects)")
        if path.suffix == ".json":
            return [decode(text)]
        _check_events(text)
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
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


def _check_events(text: str) -> None:
    """Refuse what is nested too deeply (libyaml runs out of stack) and aliases (they can grow without end)."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        at = f"line {event.start_mark.line + 1}: " if event.start_mark else ""
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise SourceError(f"{at}YAML aliases (*{event.anchor}) are not supported")
        if depth > MAX_DEPTH:
            raise SourceError(f"{at}nested too deeply")


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
