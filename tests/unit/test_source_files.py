"""Files of manifests and lines of watches: which objects there are, and the exact reason of each refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mcagent.kube.errors import ApiGarbageError
from mcagent.kube.source import EventType, WatchEvent, object_key
from mcagent.kube.sources.directory import DirectorySource
from mcagent.kube.sources.manifests import read_manifests
from mcagent.kube.sources.watch import BadLineError, read_line
from mcagent.model.api.base import ApiObject
from mcagent.model.errors import SourceError
from mcagent.model.objects import Kind
from mcagent.model.problem import Problem, Severity
from tests.waiting import until
from tests.worlds.mirrors import has_synced

GATEWAY_API = "multicluster.crd.antrea.io/v1alpha1"


def node(name: str, **fields: Any) -> dict[str, Any]:
    """Return a Node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, **fields}


def gateway(name: str, **metadata: str) -> dict[str, Any]:
    """Return a Gateway."""
    return {"apiVersion": GATEWAY_API, "kind": "Gateway", "metadata": {"name": name, **metadata}}


def listed(kind: str, *items: Any, version: str = "v1") -> dict[str, Any]:
    """Return an object of a List kind."""
    return {"apiVersion": version, "kind": kind, "items": list(items)}


def nested(levels: int, item: Any) -> Any:
    """Return a List in a List and so on."""
    return listed("List", nested(levels - 1, item)) if levels else item


# --- one file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (node("a"), ["Node a"]),
        (gateway("a"), ["Gateway space/a"]),
        (gateway("a", namespace="own"), ["Gateway own/a"]),
        (gateway("a", namespace=""), ["Gateway space/a"]),
        (listed("List", node("a"), gateway("b")), ["Node a", "Gateway space/b"]),
        (listed("NodeList", {"metadata": {"name": "a"}}, node("b")), ["Node a", "Node b"]),
        (listed("GatewayList", {"metadata": {"name": "a"}}, version=GATEWAY_API), ["Gateway space/a"]),
        (listed("NodeList", gateway("a")), ["Gateway space/a"]),
        (listed("List"), []),
        (nested(8, node("a")), ["Node a"]),
        (nested(9, node("a")), []),
        ({"apiVersion": "apps/v1", "kind": "Deployment"}, []),
    ],
)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_objects_of_a_document(tmp_path: Path, suffix: str, document: Any, names: list[str]) -> None:
    """Items of lists are objects, of the kind of a typed list; a namespace is filled in where one belongs."""
    file = tmp_path / f"a.{suffix}"
    file.write_text(json.dumps(document))
    assert [f"{kind} {object_key(obj)}" for kind, obj in read_manifests(file, "space")] == names


def test_the_namespace_by_default(tmp_path: Path) -> None:
    """It is that of kubectl; other fields of the metadata stay."""
    file = tmp_path / "a.yml"
    file.write_text(json.dumps(gateway("a", uid="u")) + "\n---\n\n--- # nothing\n")
    assert read_manifests(file) == [(Kind.GATEWAY, gateway("a", uid="u", namespace="default"))]


DEEP = "- " * 70 + "x"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.yaml", "", "the file is empty (remove it to remove its objects)"),
        ("a.yaml", " \n", "the file is empty (remove it to remove its objects)"),
        ("a.yaml", "kind: Node", "document 1: no object: apiVersion and kind are missing"),
        ("a.yaml", "apiVersion: v1", "document 1: no object: apiVersion and kind are missing"),
        ("a.yaml", "{apiVersion: v1, kind: X}\n---\n7", "document 2: no object: apiVersion and kind are missing"),
        ("a.yaml", "{apiVersion: v1, kind: Node}", "document 1: a Node without metadata.name (text)"),
        (
            "a.yaml",
            "{apiVersion: v1, kind: Node, metadata: {name: 7}}",
            "document 1: a Node without metadata.name (text)",
        ),
        ("a.yaml", "a: 1\nb: &x [1]\nc: *x\n", "line 3: YAML aliases (*x) are not supported"),
        ("a.yaml", f"a: 1\nb:\n{DEEP}", "line 3: nested too deeply"),
        ("a.yaml", "a: 1\nb: c: d", "not YAML: line 2: mapping values are not allowed in this context"),
        ("a.json", "{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("a.json", "NaN", "not JSON: NaN is not JSON"),
        ("a.json", "7", "document 1: no object: apiVersion and kind are missing"),
        ("missing.yaml", None, "cannot be read: No such file or directory"),
        ("a.yaml", b"ab\xff", "not UTF-8 at byte 2"),
    ],
)
def test_reasons_why_a_file_is_not_read(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    """The message has the place in the file, and what is expected."""
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SourceError) as info:
        read_manifests(file)
    assert str(info.value) == message


def test_the_size_and_depth_of_files(tmp_path: Path) -> None:
    """A file of more than 64 MiB is not read; 64 levels are."""
    file = tmp_path / "a.yaml"
    with file.open("wb") as content:
        content.truncate(64 * 1024 * 1024 + 1)
    with pytest.raises(SourceError, match=r"^larger than 67108864 bytes$"):
        read_manifests(file)
    file.write_text(json.dumps(node("a", spec=json.loads("[" * 62 + "]" * 62))))
    assert len(read_manifests(file)) == 1


# --- lines of a watch -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        (b"{" + b"x" * 100, BadLineError, f"a line is not JSON: {b'{' + b'x' * 59!r}"),
        (b"[]", BadLineError, "a line is not an event: b'[]'"),
        (b'{"type":7,"object":{}}', BadLineError, 'a line is not an event: b\'{"type":7,"object":{}}\''),
        (b'{"type":"ADDED"}', BadLineError, 'a line is not an event: b\'{"type":"ADDED"}\''),
        (
            b'{"type":"ADDED","object":{}}',
            BadLineError,
            'an event without a usable object: b\'{"type":"ADDED","object":{}}\'',
        ),
        (b'{"type":"ERROR","object":{}}', ApiGarbageError, "server: an ERROR event without a Status"),
        (
            b'{"type":"ERROR","object":{"kind":"Status"}}',
            ApiGarbageError,
            "server: an ERROR event without a Status",
        ),
    ],
)
def test_reasons_why_a_line_is_not_used(line: bytes, error: type[Exception], message: str) -> None:
    """The log shows the beginning of the line."""
    with pytest.raises(error) as info:
        read_line(Kind.NODE, line, "server")
    assert str(info.value) == message


@pytest.mark.parametrize(
    ("word", "metadata", "version"),
    [
        ("BOOKMARK", {"resourceVersion": "7"}, "7"),
        ("BOOKMARK", {}, ""),
        ("BOOKMARK", {"resourceVersion": 7}, ""),
        ("BOOKMARK", 7, ""),
        ("OTHER", {"resourceVersion": "7"}, ""),
    ],
)
def test_lines_without_an_object(word: str, metadata: object, version: str) -> None:
    """A bookmark has the version from which to continue; other types of events are for later clients."""
    line = read_line(Kind.NODE, json.dumps({"type": word, "object": {"metadata": metadata}}).encode(), "server")
    assert (line.version, line.type, line.object, line.cut) == (version, None, {}, False)


def test_lines_with_an_object() -> None:
    """The object has its own kind or none; what is nested too deeply is marked."""
    meta = {"name": "a", "resourceVersion": "7"}
    for obj in ({"metadata": meta}, {"kind": "Node", "metadata": meta}):
        for word in EventType:
            line = read_line(Kind.NODE, json.dumps({"type": word, "object": obj}).encode(), "server")
            assert (line.version, line.type, line.object, line.cut) == ("7", word, obj, False)
    deep = f'{{"type":"ADDED","object":{{"metadata":{json.dumps(meta)},"spec":{"[" * 80 + "]" * 80}}}}}'
    assert read_line(Kind.NODE, deep.encode(), "server").cut


# --- a directory ------------------------------------------------------------------------------------------


class Deliveries:
    """A sink that keeps what is delivered, in order."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take a list."""
        self.texts.append(f"{kind}: {' '.join(object_key(obj) for obj in objects)}".rstrip())

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take an event."""
        self.texts.append(f"{kind}: {event.type} {event.key}")

    def forget(self, kind: Kind) -> None:
        """Forget a kind."""
        self.texts.append(f"{kind}: forgotten")


Start = Callable[..., DirectorySource]


@pytest.fixture
def deliveries() -> Deliveries:
    """Give a sink."""
    return Deliveries()


@pytest.fixture
def start(tmp_path: Path, deliveries: Deliveries) -> Iterator[Start]:
    """Give a function that starts a source; it is stopped at the end."""
    sources: list[DirectorySource] = []

    def begin(*kinds: Kind, namespace: str = "") -> DirectorySource:
        source = DirectorySource(tmp_path, deliveries, namespace=namespace, interval=0.01)
        sources.append(source)
        source.start(kinds)
        until(lambda: has_synced(source))
        return source

    yield begin
    for source in sources:
        source.stop()


def put(directory: Path, name: str, *documents: Any) -> None:
    """Replace a file at once."""
    part = directory / f".{name}"
    part.write_text("\n---\n".join(json.dumps(document) for document in documents))
    part.rename(directory / name)


def test_states_of_a_source(tmp_path: Path, deliveries: Deliveries, start: Start) -> None:
    """All kinds have one list; events are counted by kind; without a kind nothing is synced."""
    put(tmp_path, "a.yaml", node("n1"), gateway("g1"))
    source = start(Kind.NODE, Kind.GATEWAY)
    assert deliveries.texts == ["Node: n1", "Gateway: default/g1"]
    state = source.state()[Kind.NODE]
    assert (state.kind, state.synced, state.connected, state.error) == (Kind.NODE, True, True, "")
    assert (state.lists, state.events) == (1, 0)
    assert state.last_event > 0
    put(tmp_path, "a.yaml", node("n1", spec={"unschedulable": True}), node("n2"))
    until(lambda: source.state()[Kind.NODE].events == 2)
    until(lambda: source.state()[Kind.GATEWAY].events == 1)
    assert deliveries.texts[2:] == ["Node: MODIFIED n1", "Node: ADDED n2", "Gateway: DELETED default/g1"]
    source.set_kinds([Kind.GATEWAY])
    assert deliveries.texts[5:] == ["Node: forgotten"]
    assert list(source.state()) == [Kind.GATEWAY]
    source.set_kinds([])
    assert not has_synced(source)
    source.set_kinds([Kind.NODE])
    assert deliveries.texts[7:] == ["Node: n1 n2"]
    source.stop()
    source.set_kinds([Kind.GATEWAY])
    assert deliveries.texts[8:] == []


def test_an_empty_directory(tmp_path: Path, deliveries: Deliveries, start: Start) -> None:
    """It is synced; a kind without objects has an empty list. A dangling link is no file."""
    (tmp_path / "a.yaml").symlink_to(tmp_path / "missing")
    source = start(Kind.NODE)
    assert deliveries.texts == ["Node:"]
    assert source.problems() == ()


def test_problems_of_files(tmp_path: Path, start: Start) -> None:
    """Each names the file; of two files with one object the first by name counts."""
    put(tmp_path, "a.yaml", node("n1"), gateway("g1", namespace="other"))
    put(tmp_path, "b.yaml", node("n1"), gateway("g1", namespace="other"), gateway("g2"))
    put(tmp_path, "c.yaml", 7)
    source = start(Kind.NODE, Kind.GATEWAY, namespace="space")
    unreadable = "document 1: no object: apiVersion and kind are missing"
    assert source.problems() == (
        Problem(
            "file b.yaml",
            "",
            "DuplicateManifest",
            "Node n1 is already in file a.yaml: that one is used",
            Severity.WARNING,
        ),
        Problem("file c.yaml", "", "UnreadableManifest", unreadable),
    )
    put(tmp_path, "c.yaml", node("n3"))
    until(lambda: len(source.problems()) == 1)
    put(tmp_path, "c.yaml", 7)
    until(lambda: len(source.problems()) == 2)
    assert source.problems()[1].message == f"{unreadable}; its last good content stays"


def test_namespaces_of_gateways(tmp_path: Path, deliveries: Deliveries, start: Start) -> None:
    """With a namespace, only its Gateways count; without one, those of all."""
    put(tmp_path, "a.yaml", gateway("g1", namespace="other"), gateway("g2"), gateway("g3", namespace="space"))
    start(Kind.GATEWAY, namespace="space")
    assert deliveries.texts == ["Gateway: space/g2 space/g3"]
    start(Kind.GATEWAY)
    assert deliveries.texts[1:] == ["Gateway: other/g1 default/g2 space/g3"]
