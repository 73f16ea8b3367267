"""Log lines of rules with `enableLogging`: every ten seconds, the packets that each rule decided on since.

One line for each rule, not for each packet: neither a flood nor a busy rule fills the log, and packets stay in the
fast path. Owns a thread, because Open vSwitch may be slow to answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from mcagent.model.node_state import PolicyRuleName
from mcagent.supervised import BackgroundLoop

log = logging.getLogger(__name__)

INTERVAL = 10.0  # seconds


class PolicyLog(BackgroundLoop):
    """Logs decisions of rules. `rules`: rules in force by number. `counts`: packets by number; None: unknown."""

    def __init__(
        self, rules: Callable[[], Mapping[int, PolicyRuleName]], counts: Callable[[], Mapping[int, int] | None]
    ) -> None:
        super().__init__(self._log, name="policy-log", patience=1.0)
        self._rules, self._counts = rules, counts
        self._last_counts: Mapping[int, int] = {}

    def _log(self) -> float:
        self.log_decisions()
        return INTERVAL

    def log_decisions(self) -> None:
        """Log the packets since the last call. Without a rule to log the switch is not queried."""
        logged = {number: rule for number, rule in self._rules().items() if rule.log_label is not None}
        counts = self._counts() if logged else {}
        if counts is None:
            return
        for number, rule in sorted(logged.items(), key=lambda item: item[1].policy):
            packets = counts.get(number, 0)
            since = packets - self._last_counts.get(number, 0)
            if since < 0:  # the flows were added again and count from zero
                since = packets
            if since and number in self._last_counts:
                label = f' logLabel "{rule.log_label}"' if rule.log_label else ""
                log.info("%s %s%s: %s, %d packets", rule.policy, rule.rule, label, rule.verdict, since)
        self._last_counts = {number: counts.get(number, 0) for number in logged}
