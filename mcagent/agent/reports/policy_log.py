"""Log lines of rules with `enableLogging`: every ten seconds, how many packets each has decided on since.

A line for each rule, not for each packet: so neither a flood nor a rule that allows much fills a log, and packets
stay in the fast path. Owns a thread, for Open vSwitch may be slow to answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from mcagent.model.node_state import PolicyRuleName
from mcagent.supervised import Supervised

log = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds


class PolicyLog:
    """Logs what rules decide. `rules` are those in force, `counts` the packets of each by its number."""

    def __init__(
        self, rules: Callable[[], Mapping[int, PolicyRuleName]], counts: Callable[[], Mapping[int, int]]
    ) -> None:
        self._rules, self._counts = rules, counts
        self._before: Mapping[int, int] = {}
        self._stopping = threading.Event()
        self._thread = Supervised(self._run, name="policy-log", until=self._stopping)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what was counted since the last lines is not logged."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self.look()

    def look(self) -> None:
        """Log what was decided since the last look. Without a rule to log nothing is asked for."""
        logged = {number: rule for number, rule in self._rules().items() if rule.log_label is not None}
        counts = self._counts() if logged else {}
        for number, rule in sorted(logged.items(), key=lambda item: item[1].policy):
            packets = counts.get(number, 0)
            since = packets - self._before.get(number, 0)
            if since < 0:  # flows were made anew, and count from zero
                since = packets
            if since and number in self._before:
                label = f' logLabel "{rule.log_label}"' if rule.log_label else ""
                log.info("%s %s%s: %s, %d packets", rule.policy, rule.rule, label, rule.verdict, since)
        self._before = {number: counts.get(number, 0) for number in logged}
