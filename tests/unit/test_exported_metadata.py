"""Labels and annotations that ServiceExports ask for: what is carried, and what is left out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract.annotations import (
    MAX_ENTRIES,
    MAX_TEXT,
    ExportedMetadata,
    as_annotations,
    asked_for,
)
from mcagent.controller.contract.annotations import carried_by as read_carried_by
from mcagent.model.objects import Kind
from tests.worlds.memory_objects import typed

EXPORT = Kind.SERVICE_EXPORT
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def asked(labels: Any, annotations: Any = None) -> ExportedMetadata:
    """Return what a ServiceExport with these asks for."""
    return asked_for(typed({"spec": {"exportedLabels": labels, "exportedAnnotations": annotations}}, EXPORT))


def carried_by(raw: Any) -> ExportedMetadata:
    """Return what a ResourceExport carries."""
    return read_carried_by(typed(raw, Kind.RESOURCE_EXPORT))


@given(JSON, JSON)
def test_what_is_taken_is_carried_whole(labels: Any, annotations: Any) -> None:
    """Whatever is asked for: what the exporter takes the leader takes, too, and leaves nothing out."""
    metadata = asked(labels, annotations)
    carried = carried_by({"metadata": {"annotations": as_annotations(metadata.labels, metadata.annotations)}})
    assert (carried.labels, carried.annotations, carried.left_out) == (metadata.labels, metadata.annotations, ())


@given(JSON, st.text(max_size=20))
def test_any_carrier_is_survived(meta: Any, text: str) -> None:
    """Nothing that another cluster can write raises."""
    carried_by({"metadata": meta})
    carried_by({"metadata": {"annotations": {"mcagent.io/exported-labels": text}}})


@pytest.mark.parametrize(
    "key", ["a", "example.org/a", "app.kubernetes.io/name", "notkubernetes.io/a", "a_b.c-d", "x" * 63]
)
def test_keys_of_users_are_taken(key: str) -> None:
    """Any key that is nobody's else, also the recommended labels."""
    assert asked({key: "1"}).labels == ((key, "1"),)


@pytest.mark.parametrize(
    "key",
    [
        "kubernetes.io/a",
        "x.k8s.io/a",
        "multicluster.x-k8s.io/a",
        "multicluster.antrea.io/a",
        "mcagent.io/a",
        "app.kubernetes.io/managed-by",
        "/a",
        "a/",
        "a/b/c",
        "A B",
        "x" * 64,
        "",
    ],
)
def test_other_keys_are_left_out(key: str) -> None:
    """Reserved and malformed ones are named, and the rest is taken."""
    metadata = asked({key: "1", "mine": "1"}, {key: "1"})
    assert metadata == ExportedMetadata(labels=(("mine", "1"),), annotations=(), left_out=(key, key))


def test_there_is_an_end_to_it() -> None:
    """So many entries, so many characters; values of labels are those of labels."""
    many = asked({f"k{number:03}": "" for number in range(MAX_ENTRIES + 2)})
    assert (len(many.labels), many.left_out) == (MAX_ENTRIES, (f"k{MAX_ENTRIES:03}", f"k{MAX_ENTRIES + 1:03}"))
    assert asked(None, {"big": "x" * MAX_TEXT, "a": "1"}).annotations == (("a", "1"),)
    assert asked({"a": "no value", "b": 7, "c": "1.0"}).labels == (("c", "1.0"),)
    deep = "[" * 50_000
    assert carried_by({"metadata": {"annotations": {"mcagent.io/exported-labels": deep}}}) == ExportedMetadata()
    half = json.dumps({"a": "\ud800", "b": "\u00e4\n"})
    annotations = {"mcagent.io/exported-annotations": half}
    assert carried_by({"metadata": {"annotations": annotations}}).annotations == (("b", "\u00e4\n"),)
