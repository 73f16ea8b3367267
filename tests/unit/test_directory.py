"""The directory source on real files: reading, changes, half-written and broken files, duplicates."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mcagent.kube.source import EventType, WatchEvent, object_key
from mcagent.kube.sources.directory import DirectorySource
from mcagent.kube.sources.manifests import read_manifests
from mcagent.model.api.base import ApiObject, as_json
from mcagent.model.errors import SourceError
from mcagent.model.objects import Kind
from tests.worlds.mirrors import has_synced

API = "multicluster.crd.antrea.io/v1alpha1"


def gateway(name: str, address: str = "10.0.0.1", namespace: str = "kube-system") -> str:
    """Return a Gateway manifest."""
    return (
        f"apiVersion: {API}\nkind: Gateway\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
        f"gatewayIP: {address}\ninternalIP: {address}\n"
    )


class Mirror:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.objects: dict[Kind, dict[str, ApiObject]] = {}
        self.events: list[str] = []

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take a list."""
        with self.changed:
            self.objects[kind] = {object_key(obj): obj for obj in objects}
            self.events.append("replace")
            self.changed.notify_all()

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take an event."""
        with self.changed:
            self.objects[kind].pop(event.key, None)
            if event.type is not EventType.DELETED:
                self.objects[kind][event.key] = event.object
            self.events.append(f"{event.type} {event.key}")
            self.changed.notify_all()

    def forget(self, kind: Kind) -> None:
        """Forget a kind."""
        with self.changed:
            del self.objects[kind]
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds."""
        with self.changed:
            assert self.changed.wait_for(condition, 10), f"{self.objects} {self.events}"

    def wait_keys(self, kind: Kind, *keys: str) -> None:
        """Wait until exactly these objects are known."""
        self.wait(lambda: set(self.objects.get(kind, ())) == set(keys))


class Case:
    """A directory, a source on it, and the sink."""

    def __init__(self, path: Path, interval: float = 0.02) -> None:
        self.path = path
        self.mirror = Mirror()
        self.news = threading.Semaphore(0)
        self.source = DirectorySource(
            path, self.mirror, namespace="kube-system", interval=interval, changed=self.news.release
        )

    def write(self, name: str, text: str) -> None:
        """Write a file as an editor that is careful does: another name, then a rename."""
        part = self.path / f".{name}.part"
        part.write_text(text)
        part.rename(self.path / name)

    def wait_problem(self, reason: str) -> str:
        """Wait until a problem of this reason is told; return its text."""
        end = time.monotonic() + 10
        while time.monotonic() < end:
            for problem in self.source.problems():
                if problem.reason == reason:
                    return str(problem)
            self.news.acquire(timeout=0.1)
        raise AssertionError(f"no {reason}: {self.source.problems()}")


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    """Give a directory and a source that is not started yet."""
    case = Case(tmp_path)
    yield case
    case.source.stop()


def test_all_manifests_are_read(case: Case) -> None:
    """YAML with many documents, JSON, nested Lists; other kinds and hidden files are passed over."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}}
    inner = {"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "n4"}}]}
    case.write(
        "a.yaml",
        gateway("n1")
        + "---\n"
        + gateway("n2")
        + "---\n# nothing\n---\napiVersion: v1\nkind: Pod2\nmetadata: {}\n",
    )
    case.write("b.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, inner]}))
    case.write("c.txt", gateway("no"))
    case.write(".d.yaml", gateway("no"))
    (case.path / "sub.d").mkdir()
    case.source.start([Kind.GATEWAY, Kind.NODE])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1", "kube-system/n2")
    case.mirror.wait_keys(Kind.NODE, "n3", "n4")
    assert has_synced(case.source)
    assert case.source.problems() == ()
    assert case.source.state()[Kind.NODE].connected


def test_changes_come_as_events(case: Case) -> None:
    """A changed, an added and a removed file give just the events of the objects that differ."""
    case.write("a.yaml", gateway("n1") + "---\n" + gateway("n2"))
    case.source.start([Kind.GATEWAY])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1", "kube-system/n2")
    case.write("a.yaml", gateway("n1") + "---\n" + gateway("n2", "10.0.0.2"))
    case.mirror.wait(lambda: case.mirror.events[1:] == ["MODIFIED kube-system/n2"])
    case.write("b.yml", gateway("n3"))
    case.mirror.wait(lambda: case.mirror.events[2:] == ["ADDED kube-system/n3"])
    (case.path / "a.yaml").unlink()
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n3")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("kind: [", "line"),
        ("a: b: c", "line 1"),
        ("\0", "not YAML"),
        ("", "empty"),
        ("- " * 5000, "deeply"),
    ],
)
def test_a_broken_file_keeps_its_last_good_content(case: Case, bad: str, words: str) -> None:
    """What does not parse changes nothing, becomes a problem that says where, and heals by itself."""
    case.write("a.yaml", gateway("n1"))
    case.source.start([Kind.GATEWAY])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1")
    case.write("a.yaml", bad)
    text = case.wait_problem("UnreadableManifest")
    assert text.startswith("file a.yaml")
    assert re.search(words, text)
    assert "last good content stays" in text
    assert set(case.mirror.objects[Kind.GATEWAY]) == {"kube-system/n1"}
    case.write("a.yaml", gateway("n2"))
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n2")
    assert case.source.problems() == ()


def test_a_file_broken_from_the_start_stops_no_other(case: Case) -> None:
    """The others are read; the source counts as synced, and the problem stays."""
    case.write("a.yaml", "{")
    case.write("b.yaml", gateway("n1"))
    case.source.start([Kind.GATEWAY])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1")
    case.wait_problem("UnreadableManifest")


def test_a_file_being_written_is_not_taken_for_a_shorter_one(tmp_path: Path) -> None:
    """While a file grows in place, objects that are not written yet are not taken for deleted."""
    case = Case(tmp_path, interval=0.4)
    two_gateways = gateway("n1") + "---\n" + gateway("n2")
    case.write("a.yaml", two_gateways)
    case.source.start([Kind.GATEWAY])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1", "kube-system/n2")
    text = two_gateways + "---\n" + gateway("n3")
    with (case.path / "a.yaml").open("w") as file:
        for char in text:  # each character is a change of the file, closer together than two looks
            file.write(char)
            file.flush()
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1", "kube-system/n2", "kube-system/n3")
    assert not [event for event in case.mirror.events if event.startswith("DELETED")]
    case.source.stop()


def test_of_two_that_say_the_same_the_first_wins(case: Case) -> None:
    """An object that is in two files is read from the first by name, and the other is told."""
    case.write("a.yaml", gateway("n1", "10.0.0.1"))
    case.write("b.yaml", gateway("n1", "10.0.0.2"))
    case.source.start([Kind.GATEWAY])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1")
    assert as_json(case.mirror.objects[Kind.GATEWAY]["kube-system/n1"])["gatewayIP"] == "10.0.0.1"
    assert "file b.yaml" in case.wait_problem("DuplicateManifest")


def test_the_namespace_selects_and_fills_in(case: Case) -> None:
    """Gateways of other namespaces are passed over; one without a namespace is in the configured one."""
    case.write("a.yaml", gateway("n1", namespace="other"))
    case.write("b.yaml", f"apiVersion: {API}\nkind: Gateway\nmetadata: {{name: n2}}\n")
    case.source.start([Kind.GATEWAY])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n2")


@pytest.mark.timing
def test_a_directory_that_goes_leaves_everything(case: Case, tmp_path: Path) -> None:
    """When the directory cannot be read, what is known stays, and the state says why."""
    case.write("a.yaml", gateway("n1"))
    case.source.start([Kind.GATEWAY])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1")
    away = tmp_path.rename(tmp_path.with_name("away"))
    end = time.monotonic() + 10
    while not (state := case.source.state()[Kind.GATEWAY]).error and time.monotonic() < end:
        case.news.acquire(timeout=0.1)
    assert "No such file or directory" in state.error
    assert not state.connected
    assert set(case.mirror.objects[Kind.GATEWAY]) == {"kube-system/n1"}
    away.rename(tmp_path)
    case.write("b.yaml", gateway("n2"))
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1", "kube-system/n2")


def test_kinds_come_and_go(case: Case) -> None:
    """A kind that is wanted later is delivered from what was read; one no longer wanted is forgotten."""
    case.write("a.yaml", gateway("n1") + "---\napiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
    case.source.start([Kind.GATEWAY])
    case.mirror.wait_keys(Kind.GATEWAY, "kube-system/n1")
    case.source.set_kinds([Kind.NODE])
    case.mirror.wait_keys(Kind.NODE, "n1")
    assert Kind.GATEWAY not in case.mirror.objects


def test_timestamps_stay_text(tmp_path: Path) -> None:
    """An unquoted creationTimestamp is text, as in JSON."""
    file = tmp_path / "a.yaml"
    file.write_text("apiVersion: v1\nkind: Node\nmetadata: {name: n, creationTimestamp: 2026-01-02T03:04:05Z}\n")
    ((kind, obj),) = read_manifests(file)
    assert kind is Kind.NODE
    assert obj["metadata"]["creationTimestamp"] == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("just text\n", "document 1: no object"),
        ("kind: Node\napiVersion: v1\nmetadata: {}\n", "document 1: a Node without metadata.name"),
        ("---\n# nothing\n---\nkind: List\nitems: [7]\n", "document 1: no object"),
        ("a: &x [1]\nb: *x\n", "line 2: YAML aliases"),
        ("[" * 1_000_000, "too deeply"),
        ("- " * 1_000_000, "too deeply"),
    ],
    ids=["no mapping", "no name", "no object in a list", "alias", "nested lists", "nested items"],
)
def test_a_file_is_taken_whole_or_not_at_all(tmp_path: Path, text: str, words: str) -> None:
    """A document that is no object, an alias, or endless nesting refuses the file, with the place."""
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(SourceError, match=words):
        read_manifests(file)


def test_text_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """A file that is not UTF-8 is refused with the place."""
    file = tmp_path / "a.yaml"
    file.write_bytes(b"name: \xff")
    with pytest.raises(SourceError, match="not UTF-8 at byte 6"):
        read_manifests(file)
