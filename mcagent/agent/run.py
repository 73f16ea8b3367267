"""The agent's process: lives until it is stopped.

Signals: SIGTERM and SIGINT end the process and leave the dataplane exactly as it is. SIGHUP reads the
configuration again: reloadable keys take effect, and the log asks for a restart where others changed.
"""

from __future__ import annotations

import gc
import logging
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from mcagent.agent.agent import Agent
from mcagent.agent.config import KEYS, Settings
from mcagent.agent.doctor_page import Diagnose
from mcagent.agent.lock import node_lock
from mcagent.model.errors import McagentError
from mcagent.observe.version import version

log = logging.getLogger(__name__)

TURN = 5.0  # seconds between two checks that the loop still runs


def run_agent(settings: Settings, *, reload: Callable[[], Settings], diagnose: Diagnose) -> None:
    """Run until SIGTERM or SIGINT. Raises BusyError while another agent holds the Node, and what `Agent` does."""
    with node_lock(Path(settings.run_dir)):
        _run(settings, reload, diagnose)


def _run(settings: Settings, reload: Callable[[], Settings], diagnose: Diagnose) -> None:
    wake = threading.Event()
    received: list[signal.Signals] = []

    def on_signal(number: int, _frame: object) -> None:
        received.append(signal.Signals(number))
        wake.set()

    for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(handled, on_signal)
    gc.disable()
    agent = Agent(settings, diagnose)
    log.info("mcagent %s on Node %s, objects from %s", version(), settings.core.node_name, settings.source)
    for remark in settings.remarks:
        log.warning("%s", remark)
    agent.start()
    while True:
        wake.wait(TURN)
        wake.clear()
        if not agent.running:
            raise McagentError("the loop ended unexpectedly, which is a bug: see the log")
        while received:
            number = received.pop(0)
            if number == signal.SIGHUP:
                _reload(agent, reload)
                continue
            if agent.settings.drain_on_stop:
                log.info("%s: draining to other gateways first", number.name)
                agent.hand_over(lambda: bool(received))
            log.info("%s: exiting; the dataplane stays as it is", number.name)
            agent.stop()
            return


def _reload(agent: Agent, reload: Callable[[], Settings]) -> None:
    """Read the configuration again and use it, unless it is invalid or changes a key that needs a restart."""
    try:
        settings = reload()
    except McagentError as error:
        log.error("the new configuration is not used: %s", error)
        return
    changed = {key.path: key for key in KEYS if key.value_in(settings) != key.value_in(agent.settings)}
    if fixed := sorted(path for path, key in changed.items() if not key.reloadable):
        log.error("the new configuration is not used: a restart is needed to change %s", ", ".join(fixed))
        return
    logging.getLogger().setLevel(settings.log_level.upper())
    for remark in settings.remarks:
        if remark not in agent.settings.remarks:
            log.warning("%s", remark)
    log.info(
        "the configuration was read again; changed: %s",
        ", ".join(sorted(changed)) or "nothing",
    )
    agent.reconfigure(settings)
