"""What is known of written objects: content of unwatched kinds, outcomes, repeated writes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mcagent.controller.machinery.apply import DroppedValue, Path, Verb, Write
from mcagent.controller.machinery.cache import Cache
from mcagent.controller.machinery.reconciler import Ref, Side
from mcagent.controller.machinery.written import DROPPED_FOR, FORGET_REPEATS, FREE, FRESH, WrittenObjects
from mcagent.model.api.base import ApiObject, Metadata
from mcagent.model.api.kubernetes import ConfigMap
from mcagent.model.objects import Kind

BEAT = Ref(side=Side.LEADER, kind=Kind.CONFIG_MAP, namespace="area", name="beat")
OTHER = Ref(side=Side.LEADER, kind=Kind.CONFIG_MAP, namespace="area", name="other")
REASON = "not allowed"
Values = dict[Path, DroppedValue]


def config_map(version: str, uid: str = "u") -> ConfigMap:
    """Return an object as an API server answers with it."""
    return ConfigMap(metadata=Metadata(name="beat", namespace="area", uid=uid, resource_version=version))


class Reads:
    """What is known of one unwatched object, and the reads of it at an API server. `now` is the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.stored: ApiObject | None = config_map("1")
        self.count = 0
        self.written = WrittenObjects(Cache({Side.LEADER: [Kind.NODE]}))
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("mcagent.controller.machinery.written.time", clock)

    def read(self, ref: Ref) -> ApiObject | None:
        """Answer a read."""
        assert ref == BEAT
        self.count += 1
        return self.stored

    def present(self, epoch: int = 1) -> ApiObject | None:
        """Return the object as far as it is known, else as the API server has it."""
        return self.written.present(BEAT, epoch, self.read)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    """Give an object that was not read yet."""
    return Reads(monkeypatch)


def test_an_unwatched_object_is_read_once_a_minute(reads: Reads) -> None:
    """The answer is used until it is a minute old."""
    assert reads.present() == config_map("1")
    reads.stored = config_map("2")
    reads.now += FRESH - 1
    assert reads.present() == config_map("1")
    reads.now += 1
    assert reads.present() == config_map("2")
    assert reads.count == 2


def test_an_unwatched_object_of_another_leader_is_read_anew(reads: Reads) -> None:
    """What one leader answered is not true of the next."""
    reads.present(epoch=1)
    reads.stored = config_map("9")
    assert reads.present(epoch=2) == config_map("9")


def test_an_unwatched_object_that_is_absent_is_asked_for_each_time(reads: Reads) -> None:
    """Another client may create it; an older answer is forgotten with the absence."""
    reads.present()
    reads.now += FRESH
    reads.stored = None
    assert reads.present() is None
    reads.stored = config_map("3")
    assert reads.present() == config_map("3")
    assert reads.count == 3


def test_the_answer_to_a_write_replaces_that_to_the_read(reads: Reads) -> None:
    """The next write is made from it, without another read; its time remains that of the read."""
    reads.present()
    reads.now += FRESH - 1
    reads.written.store(BEAT, config_map("2"), config_map("1"), 1)
    assert reads.present() == config_map("2")
    assert reads.count == 1
    reads.now += 1
    reads.present()
    assert reads.count == 2


def test_an_object_that_was_not_read_is_not_known_by_a_write(reads: Reads) -> None:
    """Only the objects that are asked for again and again are kept."""
    reads.written.store(BEAT, config_map("2"), None, 1)
    assert reads.present() == config_map("1")


def test_a_deleted_or_forgotten_object_is_read_anew(reads: Reads) -> None:
    """After a deletion of ours, and after a conflict."""
    reads.present()
    reads.written.store(BEAT, None, config_map("1"), 1)
    reads.present()
    assert reads.count == 2
    reads.written.forget(BEAT)
    reads.written.forget(OTHER)
    reads.present()
    assert reads.count == 3


def test_answers_of_reads_are_pruned_when_they_are_old(reads: Reads) -> None:
    """Only then: pruning costs no read."""
    reads.present()
    reads.written.prune(reads.now + FRESH - 1)
    reads.present()
    assert reads.count == 1
    reads.written.prune(reads.now + FRESH)
    reads.present()
    assert reads.count == 2


def test_a_watched_object_is_never_read() -> None:
    """The cache has it, with the answers to writes; an absent one is absent."""
    cache = Cache({Side.LOCAL: [Kind.CONFIG_MAP]})
    written, ref = WrittenObjects(cache), Ref(kind=Kind.CONFIG_MAP, namespace="area", name="beat")

    def read(_ref: Ref) -> ApiObject | None:
        raise AssertionError("a watched object was read")

    assert written.present(ref, 1, read) is None
    written.store(ref, config_map("4"), None, 1)
    assert written.present(ref, 1, read) == config_map("4")
    assert cache.get(ref, ConfigMap) == config_map("4")
    # What is there since was not made from it: it stays.
    written.store(ref, None, config_map("3", uid="earlier"), 1)
    assert written.present(ref, 1, read) == config_map("4")
    written.store(ref, None, config_map("4"), 1)
    assert written.present(ref, 1, read) is None


def test_a_refusal_is_reported_until_a_write_succeeds() -> None:
    """A reason is news once; a success tells whether there was a refusal."""
    written = WrittenObjects(Cache({}))
    assert written.failure(BEAT) == ""
    assert written.failed(BEAT, REASON)
    assert not written.failed(BEAT, REASON)
    assert written.failed(BEAT, "quota")
    assert written.failure(BEAT) == "quota"
    assert written.failures()[BEAT] == "quota"
    assert written.succeeded(BEAT, 1)
    assert not written.succeeded(BEAT, 1)
    assert written.failure(BEAT) == ""
    assert BEAT not in written.failures()


def test_a_write_counts_as_accepted_from_the_first_question_on() -> None:
    """By the leader that accepted it; refusals, deletions and a leader that was away end it."""
    written = WrittenObjects(Cache({}))
    written.succeeded(BEAT, 1)  # before the first question
    assert not written.accepted(BEAT, 1)
    written.succeeded(BEAT, 1)
    assert written.accepted(BEAT, 1)
    assert not written.accepted(BEAT, 2)
    written.failed(BEAT, REASON)
    assert not written.accepted(BEAT, 1)
    written.forget_failure(BEAT)
    assert written.failure(BEAT) == ""
    assert not written.accepted(BEAT, 1)
    written.succeeded(BEAT, 1)
    assert written.accepted(BEAT, 1)
    written.forget_accepted()
    assert not written.accepted(BEAT, 1)
    written.succeeded(BEAT, 1)
    written.succeeded(BEAT, None)
    assert not written.accepted(BEAT, 1)


def test_a_refusal_that_is_forgotten_twice_is_no_error() -> None:
    """Nothing is left of it the first time."""
    written = WrittenObjects(Cache({}))
    written.forget_failure(BEAT)
    assert written.failures() == {}


def patch_of(version: str = "1", ref: Ref = BEAT, verb: Verb = Verb.PATCH, **content: Any) -> Write:
    """Return a write that was made from a version."""
    return Write(verb=verb, ref=ref, body={"metadata": {"resourceVersion": version}, **content})


def repeat(written: WrittenObjects, write: Write, times: int, now: float = 0.0) -> list[bool]:
    """Count a write so often; return for each whether it is the first repeated one."""
    return [written.count(write, now) for _ in range(times)]


def test_equal_writes_wait_longer_and_longer() -> None:
    """Three are free; then each waits twice as long as the one before, from the last write on."""
    written, write = WrittenObjects(Cache({})), patch_of(data={"a": "1"})
    assert FREE == 3
    assert repeat(written, write, 2) == [False, False]
    assert written.wait(write, 0.0) == 0.0
    assert written.repeated() == {}
    assert repeat(written, write, 1, now=10.0) == [True]
    assert written.repeated() == {BEAT: 3}
    assert written.wait(write, 10.0) == 1.0
    assert written.wait(write, 10.75) == 0.25
    assert written.wait(write, 11.0) <= 0.0
    assert repeat(written, write, 1, now=20.0) == [False]
    assert written.wait(write, 20.0) == 2.0
    repeat(written, write, 1, now=20.0)
    assert written.wait(write, 20.0) == 4.0
    repeat(written, write, 20, now=20.0)
    assert written.wait(write, 20.0) == 300.0


@pytest.mark.parametrize(
    ("write", "is_equal"),
    [
        (patch_of("2", data={"a": "1"}), True),  # made from a later version
        (patch_of("1", data={"a": "2"}), False),
        (patch_of("1", verb=Verb.STATUS, data={"a": "1"}), False),
        (patch_of("1", ref=OTHER, data={"a": "1"}), False),
        (Write(verb=Verb.PATCH, ref=BEAT, body={"metadata": {"labels": {}}, "data": {"a": "1"}}), False),
    ],
)
def test_writes_are_equal_but_for_the_version_they_are_made_from(write: Write, is_equal: bool) -> None:
    """Another content, another kind of write, and another object are not held up."""
    written = WrittenObjects(Cache({}))
    repeat(written, patch_of("1", data={"a": "1"}), 3)
    assert (written.wait(write, 0.0) > 0.0) is is_equal


def test_deletions_are_equal_whatever_their_preconditions() -> None:
    """An object that another client creates again each time is deleted less and less often."""
    written = WrittenObjects(Cache({}))
    for uid in "abc":
        body = {"kind": "DeleteOptions", "preconditions": {"uid": uid}}
        written.count(Write(verb=Verb.DELETE, ref=BEAT, body=body), 0.0)
    assert written.repeated() == {BEAT: 3}


def test_another_write_ends_a_row_of_equal_ones() -> None:
    """The count begins anew with it."""
    written, first, second = WrittenObjects(Cache({})), patch_of(data={"a": "1"}), patch_of(data={"a": "2"})
    repeat(written, first, 5)
    repeat(written, second, 1)
    repeat(written, first, 1)
    assert written.wait(first, 0.0) == 0.0
    assert written.repeated() == {}


def test_kinds_of_write_are_counted_apart() -> None:
    """A client that reverts content and status, or deletes what is created with a status, is noticed."""
    written, content = WrittenObjects(Cache({})), patch_of(data={"a": "1"})
    status, created = patch_of(verb=Verb.STATUS, status={"a": "1"}), patch_of(verb=Verb.CREATE, data={"a": "1"})
    for _ in range(3):
        assert written.wait(content, 0.0) == written.wait(status, 0.0) == 0.0
        repeat(written, content, 1)
        repeat(written, status, 1)
    assert written.wait(content, 0.0) == written.wait(status, 0.0) == 1.0
    assert written.repeated() == {BEAT: 3}
    for _ in range(3):
        assert written.wait(created, 0.0) == 0.0
        repeat(written, created, 1)
        repeat(written, status, 1)
    assert written.wait(created, 0.0) == 1.0


def test_a_deletion_of_ours_ends_a_row_of_creations() -> None:
    """And the reverse: what is created and deleted on demand is not held up."""
    written, created = WrittenObjects(Cache({})), patch_of(verb=Verb.CREATE, data={"a": "1"})
    deleted = Write(verb=Verb.DELETE, ref=BEAT, body={"kind": "DeleteOptions"})
    for _ in range(5):
        repeat(written, created, 1)
        repeat(written, deleted, 1)
    assert written.repeated() == {}
    assert written.wait(created, 0.0) == written.wait(deleted, 0.0) == 0.0


def test_an_object_that_was_made_again_is_written_without_a_wait() -> None:
    """A write to an earlier one is not reverted by that."""
    written = WrittenObjects(Cache({}))
    for uid in "abcd":
        write = replace(patch_of(data={"a": "1"}), uid=uid)
        assert written.wait(write, 0.0) == 0.0
        repeat(written, write, 1)


def test_the_time_of_a_condition_makes_no_other_write() -> None:
    """Each write over a condition with another status has the present time."""

    def status(second: int, reason: str = "Done") -> Write:
        ready = {"type": "Ready", "status": "True", "reason": reason, "lastTransitionTime": f"12:00:0{second}"}
        clusters = [{"clusterID": "east", "conditions": [ready]}]
        return patch_of(verb=Verb.STATUS, status={"conditions": [ready], "clusterStatuses": clusters})

    written = WrittenObjects(Cache({}))
    for second in range(3):
        repeat(written, status(second), 1)
    assert written.wait(status(4), 0.0) == 1.0
    assert written.wait(status(4, reason="Other"), 0.0) == 0.0


def test_repeated_writes_are_forgotten_after_a_while() -> None:
    """Ten minutes after the last."""
    written, write = WrittenObjects(Cache({})), patch_of(data={"a": "1"})
    repeat(written, write, 3, now=50.0)
    written.prune(50.0 + FORGET_REPEATS)
    assert written.repeated() == {BEAT: 3}
    written.prune(51.0 + FORGET_REPEATS)
    assert written.repeated() == {}
    assert written.wait(write, 51.0 + FORGET_REPEATS) == 0.0


def answered(uid: str) -> dict[str, Any]:
    """Return an object as a server answers with it."""
    return {"metadata": {"name": "beat", "uid": uid}}


def value(sent: str, *fields: str) -> DroppedValue:
    """Return a dropped value."""
    return DroppedValue(sent=sent, stored=None, fields=fields)


def test_dropped_values_add_up_and_are_news_once() -> None:
    """For an hour from the first on; an object that was created again, or another leader, begins anew."""
    written = WrittenObjects(Cache({}))
    first: Values = {("spec", "a"): value("1", "spec.a")}
    second: Values = {("spec", "b"): value("2", "spec.b")}
    assert written.add_dropped(BEAT, first, answered("u"), 1, 100.0) == {"spec.a"}
    assert written.add_dropped(BEAT, {**first, **second}, answered("u"), 1, 200.0) == {"spec.b"}
    assert written.dropped(BEAT, answered("u"), 1, 100.0 + DROPPED_FOR) == {**first, **second}
    assert written.dropped_fields(Side.LEADER) == ["ConfigMap spec.a", "ConfigMap spec.b"]
    assert written.add_dropped(BEAT, first, answered("v"), 1, 300.0) == {"spec.a"}
    assert written.dropped(BEAT, answered("v"), 1, 300.0) == first
    assert written.add_dropped(BEAT, first, answered("v"), 2, 300.0) == {"spec.a"}
    assert written.dropped(BEAT, answered("v"), 2, 300.0) == first
    assert written.dropped(OTHER, answered("v"), 2, 300.0) == {}
    written.prune(300.0 + DROPPED_FOR)
    assert written.dropped(BEAT, answered("v"), 2, 300.0) == first
    written.prune(301.0 + DROPPED_FOR)
    assert written.dropped(BEAT, answered("v"), 2, 300.0) == {}


def test_nothing_is_known_to_be_dropped_of_an_absent_object() -> None:
    """The object is sent whole when it is created again."""
    written = WrittenObjects(Cache({}))
    written.add_dropped(BEAT, {("spec",): value("1", "spec")}, answered("u"), 1, 0.0)
    assert written.dropped(BEAT, None, 1, 0.0) == {}
    assert written.dropped(BEAT, answered("u"), 1, 0.0) == {}
