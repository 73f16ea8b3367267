"""The source that reads a directory of manifests, and reads it again when it changes.

For Nodes without an API server. Files are looked at five times a second (a `stat` each; this also works on
file systems that send no inotify events) and read once they have stopped changing, so that a half-written file is
not taken for a shorter one. A file that cannot be read keeps its last good content and becomes a problem.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcagent.kube.source import EventType, Sink, WatchEvent, object_key
from mcagent.kube.sources.apiserver import IN_NAMESPACE
from mcagent.kube.sources.manifests import SUFFIXES, read_manifests
from mcagent.model.api.base import ApiObject
from mcagent.model.errors import SourceError
from mcagent.model.informer_state import InformerState
from mcagent.model.objects import Kind
from mcagent.model.parsing.decode import read_object
from mcagent.model.problem import Problem, Severity
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

# device, inode, size, mtime and ctime in ns; a change of owner or mode, which may permit to read it, changes ctime
Signature = tuple[int, int, int, int, int]
_NEVER: Signature = (0, 0, 0, 0, 0)
_UNKNOWN: Signature = (0, 0, -1, 0, 0)  # of a link that cannot be followed
Objects = Mapping[Kind, Mapping[str, ApiObject]]  # by kind and key


@dataclass(slots=True)
class _File:
    """What is known of one file."""

    seen: Signature = _NEVER  # at the last look
    read: Signature | None = None  # what `content` or `error` is of
    content: Sequence[tuple[Kind, ApiObject]] | None = None  # the last good one
    error: str = ""

    def at_rest(self, signature: Signature, interval: float) -> bool:
        """Take what a look found. Returns whether the file has stopped changing."""
        still = self.seen == signature or time.time_ns() - signature[3] > interval * 1e9
        self.seen = signature
        return still


class DirectorySource:
    """Reads kinds from the manifests (*.yaml, *.yml, *.json; not hidden, not in subdirectories) of a directory.

    `namespace` is that of Gateway and ClusterInfoImport objects ("" means all), and of objects that name none.
    `interval` is seconds between two looks. `changed` is called when problems or errors change. Field
    selectors are not applied: everything of a kind is delivered.
    """

    def __init__(
        self,
        path: Path,
        sink: Sink,
        *,
        namespace: str = "",
        interval: float = 0.2,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._sink, self._namespace = path, sink, namespace
        self._interval, self._changed = interval, changed
        self._lock = threading.Lock()  # held over a look, with its deliveries, and over a change of kinds
        self._files: dict[str, _File] = {}
        self._complete = False  # every file has been read, or found unreadable, once
        self._kinds: tuple[Kind, ...] = ()
        self._delivered: dict[Kind, Mapping[str, ApiObject]] = {}
        self._events: dict[Kind, int] = {}
        self._error = ""  # of the directory itself
        self._problems: tuple[Problem, ...] = ()
        self._last_event = 0.0
        self._loop = BackgroundLoop(self._check, name="manifests", patience=1.0)

    def start(self, kinds: Sequence[Kind]) -> None:
        """Begin to read these kinds. Returns at once."""
        self.set_kinds(kinds)
        self._loop.start()

    def set_kinds(
        self,
        kinds: Sequence[Kind],
        field_selectors: Mapping[Kind, str] | None = None,  # noqa: ARG002
        label_selectors: Mapping[Kind, str] | None = None,  # noqa: ARG002
    ) -> None:
        """Read exactly these kinds from now on."""
        with self._lock:
            if self._loop.stopping:
                return
            for kind in set(self._kinds) - set(kinds):
                self._delivered.pop(kind, None)
                self._sink.forget(kind)
            self._kinds = tuple(kinds)
            if self._complete:
                self._deliver()

    def stop(self) -> None:
        """Stop at once; nothing is delivered afterwards."""
        self._loop.stop()
        with self._lock:  # a delivery under way ends
            pass

    def state(self) -> Mapping[Kind, InformerState]:
        """Return how reading goes, by kind; all kinds come from the same files."""
        with self._lock:
            return {
                kind: InformerState(
                    kind=kind,
                    synced=kind in self._delivered,
                    connected=self._complete and not self._error,
                    last_event=self._last_event,
                    error=self._error,
                    lists=int(kind in self._delivered),
                    events=self._events.get(kind, 0),
                )
                for kind in self._kinds
            }

    def problems(self) -> tuple[Problem, ...]:
        """Return what is wrong with files, sorted."""
        with self._lock:
            return self._problems

    # --- the thread ---------------------------------------------------------------------------------------

    def _check(self) -> float:
        with self._lock:
            before = (self._problems, self._error)
            if not self._loop.stopping:
                self._look()
            changed = before != (self._problems, self._error)
        if changed:
            self._changed()
        return self._interval

    def _look(self) -> None:
        """Look at all files, read those that changed and are at rest, deliver what follows."""
        try:
            signatures = self._signatures()
        except OSError as err:
            # Everything known stays: an unmounted directory is no order to take the dataplane down.
            self._fail(f"directory {self._path}: {err.strerror}")
            return
        self._fail("")
        settled, news = True, False
        for name in self._files.keys() - signatures.keys():
            del self._files[name]
            news = True
        for name, signature in sorted(signatures.items()):
            file = self._files.setdefault(name, _File())
            at_rest = file.at_rest(signature, self._interval)
            if signature == file.read:
                continue
            if at_rest:
                self._read(name, file)
                news = True
            elif file.read is None:
                settled = False
        if (news or not self._complete) and (settled or self._complete):
            self._complete = True
            self._deliver()

    def _signatures(self) -> Mapping[str, Signature]:
        signatures: dict[str, Signature] = {}
        for entry in self._path.iterdir():
            if entry.suffix not in SUFFIXES or entry.name.startswith("."):
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # removed since, or a dangling link
            except OSError:
                if not entry.is_symlink():
                    raise
                signatures[entry.name] = _UNKNOWN  # the error of reading it is its problem
                continue
            times = (status.st_mtime_ns, status.st_ctime_ns)
            signatures[entry.name] = (status.st_dev, status.st_ino, status.st_size, *times)
        return signatures

    def _read(self, name: str, file: _File) -> None:
        file.read = file.seen
        self._last_event = time.time()
        try:
            content = read_manifests(self._path / name, self._namespace or "default")
            file.content = [(kind, read_object(kind, obj)) for kind, obj in content]
            file.error = ""
        except SourceError as err:
            file.error = str(err)
            log.warning("%s: %s", self._path / name, err)

    def _fail(self, error: str) -> None:
        if error and error != self._error:
            log.warning("%s", error)
        self._error = error

    def _deliver(self) -> None:
        """Hand what the files say now to the sink: all of a kind at first, then only what changed."""
        by_kind, self._problems = _merged(self._files, self._namespace)
        for kind in self._kinds:
            new, old = by_kind.get(kind, {}), self._delivered.get(kind)
            self._delivered[kind] = new
            if old is None:
                self._sink.replace(kind, list(new.values()))
                continue
            events = [
                WatchEvent(type=EventType.MODIFIED if key in old else EventType.ADDED, object=obj)
                for key, obj in new.items()
                if old.get(key) != obj
            ]
            events += [WatchEvent(type=EventType.DELETED, object=old[key]) for key in old.keys() - new.keys()]
            for event in events:
                self._sink.apply(kind, event)
            self._events[kind] = self._events.get(kind, 0) + len(events)


def _merged(files: Mapping[str, _File], namespace: str) -> tuple[Objects, tuple[Problem, ...]]:
    """Return the objects of all files, and the problems. Of two with one key the first file's is used."""
    objects: dict[Kind, dict[str, ApiObject]] = {}
    origin: dict[tuple[Kind, str], str] = {}
    problems: list[Problem] = []
    for name, file in sorted(files.items()):
        subject = f"file {name}"
        if file.error:
            message = file.error + ("" if file.content is None else "; its last good content stays")
            problems.append(Problem(subject=subject, path="", reason="UnreadableManifest", message=message))
        for kind, obj in file.content or ():
            key = object_key(obj)
            if kind in IN_NAMESPACE and namespace not in ("", obj.namespace):
                continue
            if (kind, key) in origin:
                message = f"{kind} {key} is already in file {origin[kind, key]}: that one is used"
                problems.append(
                    Problem(
                        subject=subject,
                        path="",
                        reason="DuplicateManifest",
                        message=message,
                        severity=Severity.WARNING,
                    )
                )
                continue
            origin[kind, key] = name
            objects.setdefault(kind, {})[key] = obj
    return objects, tuple(sorted(problems))
