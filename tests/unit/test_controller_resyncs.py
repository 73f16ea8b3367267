"""`mcagent.controller.machinery.resyncs`: when all keys of a reconciler are enqueued."""

from __future__ import annotations

from mcagent.controller.machinery.resyncs import Resyncs


def test_a_reconciler_that_becomes_active_is_resynced() -> None:
    """Once, urgently, and its changes are routed from then on."""
    resyncs = Resyncs()
    assert not resyncs.is_active("a", 0)
    assert resyncs.take({"a": 0}) == {"a": True}
    assert resyncs.is_active("a", 0)
    resyncs.done()
    assert resyncs.take({"a": 0}) == {}


def test_another_leader_makes_it_active_anew() -> None:
    """Also if the supervisor did not see that it was not active in between."""
    resyncs = Resyncs()
    resyncs.take({"a": 1})
    assert not resyncs.is_active("a", 2)
    assert resyncs.take({"a": 2}) == {"a": True}
    assert resyncs.take({}) == {}
    assert resyncs.take({"a": 2}) == {"a": True}


def test_what_several_request_is_done_once() -> None:
    """Urgently if one requests so; what is not active is left to the moment when it is."""
    resyncs = Resyncs()
    resyncs.take({"a": 0, "b": 0})
    resyncs.request(["a", "b", "c"], urgent=False)
    resyncs.request(["b"], urgent=True)
    assert resyncs.take({"a": 0, "b": 0}) == {"a": False, "b": True}
    assert resyncs.take({"a": 0, "b": 0}) == {}
    assert resyncs.take({"a": 0, "b": 0, "c": 0}) == {"c": True}


def test_it_is_idle_when_nothing_is_requested_or_under_way() -> None:
    """From the request until it is done it is not."""
    resyncs = Resyncs()
    assert resyncs.idle()
    resyncs.request(["a"], urgent=True)
    assert not resyncs.idle()
    resyncs.take({"a": 0})
    assert not resyncs.idle()
    resyncs.done()
    assert resyncs.idle()


def test_waiting_ends_with_a_request() -> None:
    """Then the supervisor does not wait out its period."""
    resyncs = Resyncs()
    resyncs.request(["a"], urgent=True)
    resyncs.wait(3600.0)
    resyncs.wake()
    resyncs.wait(3600.0)
