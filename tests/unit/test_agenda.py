"""`mcagent.controller.agenda`: when all keys of a reconciler are asked for."""

from __future__ import annotations

from mcagent.controller.agenda import Agenda


def test_keys_are_asked_for_when_a_reconciler_comes_into_use() -> None:
    """Once, urgently, and its changes are routed from then on."""
    agenda = Agenda()
    assert not agenda.uses("a", 0)
    assert agenda.turn({"a": 0}) == {"a": True}
    assert agenda.uses("a", 0)
    agenda.done()
    assert agenda.turn({"a": 0}) == {}


def test_another_leader_brings_it_into_use_anew() -> None:
    """Also if the supervisor did not see that it was out of use in between."""
    agenda = Agenda()
    agenda.turn({"a": 1})
    assert not agenda.uses("a", 2)
    assert agenda.turn({"a": 2}) == {"a": True}
    assert agenda.turn({}) == {}
    assert agenda.turn({"a": 2}) == {"a": True}


def test_what_several_ask_for_is_done_once() -> None:
    """Urgently if one asks so; what is not in use is left to the moment when it is."""
    agenda = Agenda()
    agenda.turn({"a": 0, "b": 0})
    agenda.ask(["a", "b", "c"], urgent=False)
    agenda.ask(["b"], urgent=True)
    assert agenda.turn({"a": 0, "b": 0}) == {"a": False, "b": True}
    assert agenda.turn({"a": 0, "b": 0}) == {}
    assert agenda.turn({"a": 0, "b": 0, "c": 0}) == {"c": True}


def test_it_is_idle_when_nothing_is_asked_or_under_way() -> None:
    """From the question to the end of the turn it is not."""
    agenda = Agenda()
    assert agenda.idle()
    agenda.ask(["a"], urgent=True)
    assert not agenda.idle()
    agenda.turn({"a": 0})
    assert not agenda.idle()
    agenda.done()
    assert agenda.idle()


def test_waiting_ends_when_somebody_asks() -> None:
    """Then the supervisor does not wait out its period."""
    agenda = Agenda()
    agenda.ask(["a"], urgent=True)
    agenda.wait(3600.0)
    agenda.wake()
    agenda.wait(3600.0)
