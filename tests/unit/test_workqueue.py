"""The work queue: each key once, never two at a time, nobody starved."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mcagent.controller.machinery.workqueue import Lanes, WorkQueue
from mcagent.model.backoff import Backoff

_ENTRIES = st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["1", "2", "3"]))


class LanesMachine(RuleBasedStateMachine):
    """Any order of asks, takes, failures and passing time."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes(Backoff(first=1.0, most=8.0), chance=lambda: 0.0)
        self.now = 0.0
        self.working: set[tuple[str, str]] = set()
        self.owed: set[tuple[str, str]] = set()  # asked for and not begun since

    @rule(entry=_ENTRIES, urgent=st.booleans())
    def ask(self, entry: tuple[str, str], urgent: bool) -> None:
        """Ask for an entry now."""
        self.lanes.add(entry, urgent=urgent)
        self.owed.add(entry)

    @rule(entry=_ENTRIES, seconds=st.floats(0, 20))
    def ask_later(self, entry: tuple[str, str], seconds: float) -> None:
        """Ask for an entry later."""
        self.lanes.add_at(entry, self.now + seconds)
        self.owed.add(entry)

    @rule()
    def take(self) -> None:
        """Take one."""
        entry = self.lanes.take(self.now)
        if entry is not None:
            assert entry not in self.working
            self.working.add(entry)
            self.owed.discard(entry)

    @precondition(lambda self: self.working)
    @rule(failed=st.booleans(), data=st.data())
    def finish(self, failed: bool, data: st.DataObject) -> None:
        """Finish one that is worked on."""
        entry = data.draw(st.sampled_from(sorted(self.working)))
        self.working.discard(entry)
        wait = self.lanes.done(entry, self.now, failed=failed)
        if failed:
            assert wait is not None
            assert 0 < wait <= 8.0
            self.owed.add(entry)

    @rule(seconds=st.floats(0.1, 30))
    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    @invariant()
    def counts_agree(self) -> None:
        """What is under way is what was taken."""
        assert self.lanes.under_way() == len(self.working)

    def teardown(self) -> None:
        """In the end everything that was asked for is done."""
        self.now += 1000.0
        for _ in range(200):
            for entry in list(self.working):
                self.working.discard(entry)
                self.lanes.done(entry, self.now)
            keys = self.lanes.take(self.now)
            if keys is None:
                break
            self.working.add(keys)
            self.owed.discard(keys)
        assert not self.owed


TestLanes = LanesMachine.TestCase


@given(st.lists(_ENTRIES, max_size=20))
def test_asking_twice_is_asking_once(entries: list[tuple[str, str]]) -> None:
    """However often an entry is asked for, it is taken once."""
    lanes = Lanes()
    for entry in entries:
        lanes.add(entry)
    keys = []
    while (keys_taken := lanes.take(0.0)) is not None:
        keys.append(keys_taken)
    assert sorted(keys) == sorted(set(entries))


def test_a_lane_with_much_to_do_does_not_hold_up_another() -> None:
    """One key of a second reconciler is next but one, whatever the first has waiting."""
    lanes = Lanes()
    for number in range(25_000):
        lanes.add(("imports", str(number)))
    lanes.add(("election", "node-1"))
    assert ("election", "node-1") in [lanes.take(0.0) for _ in range(2)]


def test_a_lane_whose_keys_take_long_leaves_workers_to_others() -> None:
    """With `most` of 2 a third entry of a lane waits until one of them is done, and those of others do not."""
    lanes = Lanes(most=2)
    for key in "1234":
        lanes.add(("slow", key))
    assert [lanes.take(0.0), lanes.take(0.0), lanes.take(0.0)] == [("slow", "1"), ("slow", "2"), None]
    lanes.add(("quick", "1"))
    assert lanes.take(0.0) == ("quick", "1")
    lanes.done(("slow", "2"), 0.0)
    assert lanes.take(0.0) == ("slow", "3")
    assert lanes.take(0.0) is None
    assert lanes.depths() == {"slow": 1, "quick": 0}


def test_what_changed_goes_before_what_the_period_asks_for() -> None:
    """In a lane news come first, but the background gets every eighth turn."""
    lanes = Lanes()
    for number in range(100):
        lanes.add(("x", f"old{number}"), urgent=False)
        lanes.add(("x", f"new{number}"))
    first = [lanes.take(0.0) for _ in range(16)]
    assert sum(1 for entry in first if entry is not None and entry[1].startswith("old")) == 2


def test_failures_wait_longer_and_longer_and_a_success_forgets_them() -> None:
    """Back-off doubles up to its most, for this key only."""
    lanes, waits = Lanes(Backoff(first=1.0, most=10.0), chance=lambda: 0.0), []
    now = 0.0
    for _ in range(6):
        lanes.add(("x", "bad"))
        assert lanes.take(now) == ("x", "bad")
        waits.append(lanes.done(("x", "bad"), now, failed=True))
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    lanes.add(("x", "bad"))
    lanes.take(now)
    lanes.done(("x", "bad"), now)
    lanes.add(("x", "bad"))
    lanes.take(now)
    assert lanes.done(("x", "bad"), now, failed=True) == 1.0


def taken(lanes: Lanes, now: float = 0.0) -> list[str]:
    """Return the keys that are taken now, in order."""
    keys = []
    while (entry := lanes.take(now)) is not None:
        keys.append(entry[1])
    return keys


def test_the_eighth_turn_is_for_the_background() -> None:
    """Also where one of both has nothing: then the turn is for the other."""
    lanes = Lanes()
    for number in range(9):
        lanes.add(("x", f"new{number}"))
    lanes.add(("x", "old"), urgent=False)
    assert taken(lanes) == [*(f"new{number}" for number in range(7)), "old", "new7", "new8"]
    for number in range(9):
        lanes.add(("y", f"new{number}"))
    assert taken(lanes) == [f"new{number}" for number in range(9)]


def test_lanes_take_turns() -> None:
    """In the order in which they had their last turn; keys of a lane in the order of asking."""
    lanes = Lanes()
    for lane, key in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1"), ("b", "b2")):
        lanes.add((lane, key))
    assert lanes.depths() == {"a": 3, "b": 2, "c": 1}
    assert taken(lanes) == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert lanes.depths() == {"a": 0, "b": 0, "c": 0}


def test_a_change_moves_a_key_out_of_the_background() -> None:
    """The key is taken once, before the others; a resync does not move a key back."""
    lanes = Lanes()
    for key in ("1", "2", "3"):
        lanes.add(("x", key), urgent=False)
    lanes.add(("x", "3"))
    lanes.add(("x", "3"), urgent=False)
    assert lanes.depths() == {"x": 3}
    assert taken(lanes) == ["3", "1", "2"]


def test_a_key_is_due_at_the_earliest_time_asked_for() -> None:
    """Not before it, and once."""
    lanes = Lanes()
    assert lanes.next_due() is None
    for when in (30.0, 10.0, 20.0):
        lanes.add_at(("x", "1"), when)
    lanes.add_at(("x", "2"), 15.0)
    assert lanes.waiting() == 2
    assert lanes.next_due() == 10.0
    assert taken(lanes, 9.9) == []
    assert taken(lanes, 10.0) == ["1"]
    assert lanes.next_due() == 15.0
    assert lanes.waiting() == 1
    lanes.done(("x", "1"), 10.0)
    assert taken(lanes, 100.0) == ["2"]
    assert lanes.waiting() == 0


def test_what_becomes_due_is_urgent_or_not_as_it_was_asked_for() -> None:
    """A spread resync does not go before changes; what is tried again does."""
    lanes = Lanes()
    lanes.add_at(("x", "spread"), 1.0, urgent=False)
    lanes.add_at(("x", "again"), 2.0)
    lanes.add(("x", "change"))
    lanes.add(("x", "resync"), urgent=False)
    assert taken(lanes, 5.0) == ["change", "again", "resync", "spread"]


@pytest.mark.parametrize("due_urgent", [True, False])
@pytest.mark.parametrize("urgent", [True, False])
def test_asking_now_takes_the_place_of_asking_later(due_urgent: bool, urgent: bool) -> None:
    """The key is not done a second time when the later time comes."""
    lanes = Lanes()
    lanes.add_at(("x", "1"), 10.0, urgent=due_urgent)
    lanes.add(("x", "1"), urgent=urgent)
    assert lanes.waiting() == 0
    assert taken(lanes) == ["1"]
    lanes.done(("x", "1"), 0.0)
    assert taken(lanes, 100.0) == []


def test_the_earliest_time_counts_however_often_it_changes() -> None:
    """Times that no longer count are forgotten, and none that does is."""
    lanes = Lanes()
    for time_asked in range(500, 100, -1):
        lanes.add_at(("x", "many"), float(time_asked))
    for number in range(5):
        lanes.add_at(("x", f"once{number}"), 50.0 + number)
    assert lanes.waiting() == 6
    assert [taken(lanes, float(now)) for now in range(50, 55)] == [[f"once{number}"] for number in range(5)]
    assert taken(lanes, 100.0) == []
    assert taken(lanes, 101.0) == ["many"]
    lanes.done(("x", "many"), 101.0)
    assert taken(lanes, 1000.0) == []
    assert lanes.next_due() is None


@pytest.mark.parametrize(
    ("asked_urgently", "order"),
    [([True], ["1", "2"]), ([False], ["2", "1"]), ([True, False], ["1", "2"]), ([False, True], ["1", "2"])],
)
def test_what_changes_during_the_work_is_done_once_more(asked_urgently: list[bool], order: list[str]) -> None:
    """Only after it, and once: before the background if there was a change, else behind it."""
    lanes = Lanes()
    lanes.add(("x", "1"))
    assert taken(lanes) == ["1"]
    lanes.add(("x", "2"), urgent=False)
    for urgent in asked_urgently:
        lanes.add(("x", "1"), urgent=urgent)
    assert (lanes.under_way(), lanes.depths()) == (1, {"x": 1})
    assert lanes.done(("x", "1"), 0.0) is None
    assert (lanes.under_way(), lanes.depths()) == (0, {"x": 2})
    assert taken(lanes) == order


def test_a_failed_key_that_changed_meanwhile_is_tried_again_soon() -> None:
    """After the first back-off, not after the long one that many failures give it, and not at once."""
    lanes = Lanes(Backoff(first=1.0, most=64.0), chance=lambda: 0.0)
    for _ in range(4):
        lanes.add(("x", "1"))
        lanes.take(0.0)
        lanes.done(("x", "1"), 0.0, failed=True)
    lanes.add(("x", "1"))
    lanes.take(0.0)
    lanes.add(("x", "1"))
    assert lanes.done(("x", "1"), 100.0, failed=True) == 16.0
    assert taken(lanes, 100.9) == []
    assert taken(lanes, 101.0) == ["1"]


def test_the_wait_of_a_failed_key_has_jitter() -> None:
    """Keys that failed together are not all tried again together."""
    chances = iter([0.0, 1.0])
    lanes = Lanes(Backoff(first=8.0, most=64.0, jitter=0.5), chance=lambda: next(chances))
    waits = []
    for key in "12":
        lanes.add(("x", key))
        lanes.take(0.0)
        waits.append(lanes.done(("x", key), 0.0, failed=True))
    assert waits == [8.0, 4.0]
    assert taken(lanes, 4.0) == ["2"]
    assert lanes.next_due() == 8.0


def test_what_is_forgotten_is_not_done() -> None:
    """Neither now nor later nor once more; what is under way ends, and its failures are forgotten."""
    lanes = Lanes(Backoff(first=1.0, most=64.0), chance=lambda: 0.0)
    for _ in range(3):
        lanes.add(("x", "busy"))
        lanes.take(0.0)
        lanes.done(("x", "busy"), 0.0, failed=True)
    lanes.add(("x", "busy"))
    lanes.take(0.0)
    lanes.add(("x", "busy"))
    lanes.add(("x", "1"))
    lanes.add(("x", "2"), urgent=False)
    lanes.add_at(("x", "3"), 5.0)
    lanes.clear()
    assert (lanes.depths(), lanes.waiting(), lanes.under_way()) == ({"x": 0}, 0, 1)
    assert lanes.next_due() is None
    assert taken(lanes, 1000.0) == []
    assert lanes.done(("x", "busy"), 0.0, failed=True) == 1.0
    lanes.clear()
    lanes.add(("x", "4"))
    assert taken(lanes, 1000.0) == ["4"]


def test_a_queue_is_idle_when_nothing_is_due_or_under_way() -> None:
    """What is to be done later does not count until it is due."""
    now = 0.0
    queue = WorkQueue(Backoff(first=1.0, most=64.0, jitter=0.0), clock=lambda: now)
    assert queue.idle()
    queue.add_after(("x", "later"), 10.0)
    assert queue.idle()
    assert (queue.counts(), queue.depths()) == ((1, 0), {})
    now = 10.0
    assert not queue.idle()
    assert queue.take() == ("x", "later")
    assert not queue.idle()
    assert queue.counts() == (0, 1)
    assert queue.done(("x", "later"), failed=True) == 1.0
    assert queue.idle()
    now = 11.0
    assert queue.take() == ("x", "later")
    assert queue.done(("x", "later")) is None
    queue.add([("x", "1"), ("x", "2")])
    assert not queue.idle()
    assert queue.depths() == {"x": 2}
    queue.clear()
    assert queue.idle()


def test_a_queue_has_background_keys_and_at_most_so_many_of_a_lane() -> None:
    """As `Lanes`, of which it is made."""
    queue = WorkQueue(most=1)
    queue.add([("x", "old")], urgent=False)
    queue.add([("x", "new")])
    queue.add_after(("y", "spread"), 0.0, urgent=False)
    queue.add([("y", "change")])
    assert [queue.take(), queue.take()] == [("x", "new"), ("y", "change")]
    assert queue.depths() == {"x": 1, "y": 1}


def test_a_worker_that_waits_is_woken() -> None:
    """By a key, by the time of one, by the end of what held it up, and by the end of the queue."""
    queue, keys = WorkQueue(most=1), SimpleQueue[Any]()

    def work() -> None:
        while (entry := queue.take()) is not None:
            keys.put(entry[1])
        keys.put("end")

    thread = threading.Thread(target=work)
    thread.start()
    queue.add([("x", "1")])
    assert keys.get(timeout=30) == "1"
    queue.add([("x", "2")])
    queue.done(("x", "1"))
    assert keys.get(timeout=30) == "2"
    queue.add_after(("y", "3"), 0.01)
    assert keys.get(timeout=30) == "3"
    queue.close()
    assert keys.get(timeout=30) == "end"
    thread.join(30)
    queue.add([("z", "4")])
    assert queue.take() is None


def test_threads_never_share_a_key_and_leave_none() -> None:
    """Many adders and takers: a key is with one thread at a time, and the last ask is served."""
    queue, lock = WorkQueue(), threading.Lock()
    busy: set[str] = set()
    counts: dict[str, int] = {}
    requests = {str(number): 0 for number in range(5)}
    clashes: list[str] = []

    def work() -> None:
        while (entry := queue.take()) is not None:
            with lock:
                if entry[1] in busy:
                    clashes.append(entry[1])
                busy.add(entry[1])
                counts[entry[1]] = requests[entry[1]]
            time.sleep(0.0002)
            with lock:
                busy.discard(entry[1])
            queue.done(entry)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(1, 201):
        for key in requests:
            with lock:
                requests[key] = turn
            queue.add([("lane", key)])
    end = time.monotonic() + 10
    while not queue.idle():
        assert time.monotonic() < end
        time.sleep(0.005)
    queue.close()
    for thread in threads:
        thread.join(5)
    assert not clashes
    assert counts == requests
