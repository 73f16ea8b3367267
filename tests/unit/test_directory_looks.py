"""Single looks at a directory of manifests: when a file is read, what is delivered, and what is told."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mcagent.kube.source import WatchEvent, object_key
from mcagent.kube.sources.directory import DirectorySource
from mcagent.model.api.base import ApiObject
from mcagent.model.informer_state import InformerState
from mcagent.model.objects import Kind
from tests.worlds.mirrors import has_synced


class Directory:
    """A directory whose source looks only when it is told to; it is the sink, too."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path, self.texts, self.changes = path, list[str](), 0
        self.source = DirectorySource(path, self, changed=self._changed, **options)
        self.source.set_kinds([Kind.NODE])

    def _changed(self) -> None:
        self.changes += 1

    def replace(self, kind: Kind, objects: Sequence[ApiObject]) -> None:
        """Take a list."""
        self.texts.append(" ".join([f"{kind}:", *map(object_key, objects)]))

    def apply(self, kind: Kind, event: WatchEvent) -> None:
        """Take an event."""
        self.texts.append(f"{kind}: {event.type} {event.key}")

    def forget(self, kind: Kind) -> None:
        """Forget a kind."""
        self.texts.append(f"{kind}: forgotten")

    def write(self, file: str, *names: str, age: float = 60.0) -> None:
        """Write a file of Nodes that was changed so many seconds ago."""
        text = "\n---\n".join(
            json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}) for name in names
        )
        (self.path / file).write_text(text)
        when = time.time() - age
        os.utime(self.path / file, (when, when))

    def look(self) -> list[str]:
        """Look; return what is delivered."""
        self.texts.clear()
        self.source._check()
        return list(self.texts)

    @property
    def state(self) -> InformerState:
        """The state of the Nodes."""
        return self.source.state()[Kind.NODE]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """Give an empty directory."""
    return Directory(tmp_path)


def test_before_the_first_look(directory: Directory) -> None:
    """Nothing is known, and nothing is wrong."""
    assert directory.state == InformerState(kind=Kind.NODE)
    assert not has_synced(directory.source)


def test_looks_by_default(directory: Directory) -> None:
    """Five times a second."""
    assert directory.source._check() == 0.2


def test_a_file_is_read_when_it_has_stopped_changing(directory: Directory) -> None:
    """Since longer than a look takes, or since the last look. Until all were read once, nothing is delivered."""
    directory.write("a.yaml", "a")
    directory.write("b.yaml", "b", age=-60.0)
    assert directory.look() == []
    assert not has_synced(directory.source)
    directory.write("b.yaml", "b", "bb", age=-70.0)
    assert directory.look() == []
    assert directory.look() == ["Node: a b bb"]


def test_a_file_that_changes_holds_up_no_other(directory: Directory) -> None:
    """Once everything was read. It keeps what it said until it is at rest."""
    directory.write("a.yaml", "a")
    directory.write("b.yaml", "b")
    assert directory.look() == ["Node: a b"]
    directory.write("b.yaml", "b2", age=-60.0)
    directory.write("c.yaml", "c", age=-60.0)
    directory.write("a.yaml", "a", "a2")
    assert directory.look() == ["Node: ADDED a2"]
    assert directory.look() == ["Node: ADDED b2", "Node: ADDED c", "Node: DELETED b"]
    assert directory.look() == []
    assert directory.state.events == 4


def test_a_file_that_is_removed_takes_its_objects_along(directory: Directory) -> None:
    """Also the one of which another file had the same."""
    directory.write("a.yaml", "a", "b")
    directory.write("b.yaml", "b")
    directory.look()
    assert [problem.reason for problem in directory.source.problems()] == ["DuplicateManifest"]
    (directory.path / "a.yaml").unlink()
    assert directory.look() == ["Node: DELETED a"]
    assert directory.source.problems() == ()


def test_a_file_that_does_not_change_is_not_read_again(
    directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    """One that cannot be read is logged once, and counts as read."""
    (directory.path / "a.yaml").write_text("")
    os.utime(directory.path / "a.yaml", (1.0, 1.0))
    assert directory.look() == ["Node:"]
    at = directory.state.last_event
    assert time.time() - 60 < at <= time.time()
    for _ in range(3):
        assert directory.look() == []
    (line,) = caplog.messages
    assert line.startswith(f"{directory.path}/a.yaml: the file is empty")
    assert directory.state.last_event == at


def test_a_file_is_read_again_after_a_change_of_its_mode(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content and the time of that are the same then; the agent of a systemd unit needs the mode."""

    def refuse(*_args: object, **_options: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    directory.write("a.yaml", "a")
    file = directory.path / "a.yaml"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refuse)
        assert directory.look() == ["Node:"]
    assert [problem.reason for problem in directory.source.problems()] == ["UnreadableManifest"]
    assert directory.look() == []
    changed = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == changed:  # its unit may be a tick of the kernel
        file.chmod(0o644)
    assert directory.look() == ["Node: ADDED a"]
    assert directory.source.problems() == ()


def test_changes_of_problems_are_told(directory: Directory) -> None:
    """When they come and when they go; changes of objects are not."""
    directory.write("a.yaml", "a")
    directory.look()
    directory.write("a.yaml", "b")
    directory.look()
    assert directory.changes == 0
    directory.write("a.yaml")
    directory.look()
    directory.look()
    assert directory.changes == 1
    directory.write("a.yaml", "a")
    directory.look()
    assert directory.changes == 2


def test_a_directory_that_goes_and_comes(directory: Directory, caplog: pytest.LogCaptureFixture) -> None:
    """It is told and logged once; objects stay, and what has changed meanwhile comes as events."""
    directory.write("a.yaml", "a")
    directory.look()
    away = directory.path.rename(directory.path.with_name("away"))
    for _ in range(2):
        assert directory.look() == []
    error = f"directory {directory.path}: No such file or directory"
    assert (directory.state.error, directory.state.connected, directory.state.synced) == (error, False, True)
    assert directory.changes == 1
    away.rename(directory.path)
    directory.write("b.yaml", "b")
    assert directory.look() == ["Node: ADDED b"]
    assert (directory.state.error, directory.state.connected) == ("", True)
    assert directory.changes == 2
    assert caplog.messages == [error]


def test_a_link_that_cannot_be_followed_holds_up_no_other_file(directory: Directory) -> None:
    """Its objects stay as those of any file that cannot be read, and the problem names it."""
    directory.write("a.yaml", "a")
    directory.write("b.yaml", "b")
    directory.look()
    link = directory.path / "b.yaml"
    link.unlink()
    link.symlink_to(link)
    directory.write("a.yaml", "a", "a2")
    assert directory.look() == ["Node: ADDED a2"]
    (problem,) = directory.source.problems()
    assert (problem.subject, problem.reason) == ("file b.yaml", "UnreadableManifest")
    assert problem.message == "cannot be read: Too many levels of symbolic links; its last good content stays"
    assert (directory.state.error, directory.state.connected) == ("", True)
    link.unlink()
    directory.write("b.yaml", "b2")
    assert directory.look() == ["Node: ADDED b2", "Node: DELETED b"]
    assert directory.source.problems() == ()


def test_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    """Nothing is delivered: no directory is not an empty one."""
    directory = Directory(tmp_path / "later")
    assert directory.look() == []
    assert not has_synced(directory.source)
    directory.path.mkdir()
    assert directory.look() == ["Node:"]


def test_a_stopped_source_looks_no_more(directory: Directory) -> None:
    """A look that begins too late delivers nothing."""
    directory.source.stop()
    directory.write("a.yaml", "a")
    assert directory.look() == []
