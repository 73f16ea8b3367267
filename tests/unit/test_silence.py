"""Which peers are silent: from which nothing ever came, though packets were sent."""

from __future__ import annotations

import math

from mcagent.core.failover.silence import ENOUGH, POLL_INTERVAL, Silence
from mcagent.model.dataplane.resources import PortStatistics


def counted(**packets: tuple[int, int]) -> dict[str, PortStatistics]:
    """Return counters: packets sent and received, by port."""
    return {
        name: PortStatistics(counters={"tx_packets": sent, "rx_packets": received}, link_up=True)
        for name, (sent, received) in packets.items()
    }


def never() -> dict[str, PortStatistics]:
    """Counters that nobody may ask for."""
    raise AssertionError("asked without need")


def test_counters_are_asked_only_while_a_peer_has_not_answered() -> None:
    """Where all have, nothing is asked and nobody is woken."""
    assert Silence().update(frozenset(), never, 5.0) == Silence()
    waiting = Silence().update(frozenset({"a"}), never, 5.0)
    assert (waiting.silent, waiting.wake) == (frozenset(), 5.0 + POLL_INTERVAL)
    assert waiting.update(frozenset({"a"}), never, 6.0) == waiting
    assert waiting.update(frozenset(), never, 6.0).wake == math.inf


def test_who_is_sent_packets_and_never_heard_of_is_silent() -> None:
    """Not who was heard of, once is enough, nor who was sent nothing yet."""
    ports = frozenset({"deaf", "heard", "new"})
    first = Silence().update(ports, never, 0.0)
    second = first.update(ports, lambda: counted(deaf=(ENOUGH, 0), heard=(50, 1), new=(1, 0)), POLL_INTERVAL)
    assert second.silent == {"deaf"}
    assert second.heard == {"heard"}
    later = second.update(ports, lambda: counted(deaf=(90, 0), heard=(90, 1), new=(90, 0)), 2 * POLL_INTERVAL)
    assert later.silent == {"deaf", "new"}


def test_a_peer_that_speaks_at_last_is_silent_no_more() -> None:
    """By its answer to BFD at once, by any other packet with the next look."""
    ports = frozenset({"a", "b"})
    silent = Silence(silent=ports, wake=POLL_INTERVAL)
    assert silent.update(frozenset({"b"}), never, 1.0).silent == {"b"}
    assert silent.update(ports, lambda: counted(a=(90, 1), b=(90, 0)), POLL_INTERVAL).silent == {"b"}


def test_ports_that_stay_silent_are_the_same_object() -> None:
    """What is compared by identity costs a pass nothing, with 1,000 silent peers too."""
    ports = frozenset({"a", "b"})
    silent = Silence(silent=ports, wake=POLL_INTERVAL)
    assert silent.update(ports, never, 1.0).silent is ports
    assert silent.update(ports, lambda: counted(a=(90, 0), b=(90, 0)), POLL_INTERVAL).silent is ports
