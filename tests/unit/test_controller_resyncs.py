"""`mcagent.controller.machinery.resyncs`: when all keys of a reconciler are asked for."""

from __future__ import annotations

from mcagent.controller.machinery.resyncs import Resyncs


def test_keys_are_asked_for_when_a_reconciler_comes_into_use() -> None:
    """Once, urgently, and its changes are routed from then on."""
    resyncs = Resyncs()
    assert not resyncs.uses("a", 0)
    assert resyncs.turn({"a": 0}) == {"a": True}
    assert resyncs.uses("a", 0)
    resyncs.done()
    assert resyncs.turn({"a": 0}) == {}


def test_another_leader_brings_it_into_use_anew() -> None:
    """Also if the supervisor did not see that it was out of use in between."""
    resyncs = Resyncs()
    resyncs.turn({"a": 1})
    assert not resyncs.uses("a", 2)
    assert resyncs.turn({"a": 2}) == {"a": True}
    assert resyncs.turn({}) == {}
    assert resyncs.turn({"a": 2}) == {"a": True}


def test_what_several_ask_for_is_done_once() -> None:
    """Urgently if one asks so; what is not in use is left to the moment when it is."""
    resyncs = Resyncs()
    resyncs.turn({"a": 0, "b": 0})
    resyncs.ask(["a", "b", "c"], urgent=False)
    resyncs.ask(["b"], urgent=True)
    assert resyncs.turn({"a": 0, "b": 0}) == {"a": False, "b": True}
    assert resyncs.turn({"a": 0, "b": 0}) == {}
    assert resyncs.turn({"a": 0, "b": 0, "c": 0}) == {"c": True}


def test_it_is_idle_when_nothing_is_asked_or_under_way() -> None:
    """From the question to the end of the turn it is not."""
    resyncs = Resyncs()
    assert resyncs.idle()
    resyncs.ask(["a"], urgent=True)
    assert not resyncs.idle()
    resyncs.turn({"a": 0})
    assert not resyncs.idle()
    resyncs.done()
    assert resyncs.idle()


def test_waiting_ends_when_somebody_asks() -> None:
    """Then the supervisor does not wait out its period."""
    resyncs = Resyncs()
    resyncs.ask(["a"], urgent=True)
    resyncs.wait(3600.0)
    resyncs.wake()
    resyncs.wait(3600.0)
