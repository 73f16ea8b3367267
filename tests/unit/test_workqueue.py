"""The work queue: each key once, never two at a time, nobody starved."""

from __future__ import annotations

import threading
import time

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
