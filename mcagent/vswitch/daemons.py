"""Starts and ends the two daemons of an Open vSwitch as children of this process.

Owns the processes, and the restart that keeps the datapath: flows are saved at the end, vswitchd starts with
other_config:flow-restore-wait, and the flag is removed when it has its flows again.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import time
from collections.abc import Callable

from mcagent.vswitch.saved_flows import SavedFlows
from mcagent.vswitch.tools import SwitchError, Tools

log = logging.getLogger(__name__)

_DATABASE, _SWITCH = "ovsdb-server", "ovs-vswitchd"
_START = 20.0  # seconds for a daemon to answer
_END = 10.0  # seconds for a daemon to end by itself
FILLED = 60.0  # seconds for agents to add flows to their bridges after a crash or a reboot
FILLED_FOREIGN = 2.0  # the same if a bridge is another program's: the Node's own network may depend on it
_STEADY = 0.3  # seconds without a new flow
_STEP = 0.05  # seconds between two checks
_LOG = ("-vconsole:info", "-vsyslog:off", "-vfile:off")
SHORT_LIVED = 10.0  # seconds
TRIES = 5  # number of consecutive short runs


class Daemons:
    """ovsdb-server and ovs-vswitchd of one instance."""

    def __init__(self, tools: Tools, stopped: Callable[[], bool]) -> None:
        self._tools, self._stopped = tools, stopped
        self._saved_flows = SavedFlows(tools)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._began: dict[str, float] = {}
        self._short: dict[str, int] = {}
        self._held = False  # the datapath has flows, and vswitchd has none of its bridges' flows yet

    def start(self) -> None:
        """Start both. Raises SwitchError."""
        self._tools.run.mkdir(parents=True, exist_ok=True)
        # Left by daemons of an earlier container, whose PIDs mean nothing in this one.
        for pattern in ("ovs*.pid", "ovs*.ctl"):
            for stale in self._tools.run.glob(pattern):
                stale.unlink(missing_ok=True)
        self._tools.make_database()
        self._start_database()
        self._tools.vsctl("init")
        self._start_switch()

    def restart_ended(self) -> None:
        """Restart daemons that have ended. Raises SwitchError after TRIES consecutive short runs."""
        for name, start in ((_DATABASE, self._start_database), (_SWITCH, self._start_switch)):
            code = self._running[name].poll()
            if code is None:
                continue
            lived = time.monotonic() - self._began[name]
            self._short[name] = self._short.get(name, 0) + 1 if lived < SHORT_LIVED else 0
            if self._short[name] >= TRIES:
                raise SwitchError(f"{name} exited {TRIES} times within seconds: see its output above")
            log.error("%s exited (code %d) after %.0f s: restarting it", name, code, lived)
            start()

    def stop(self) -> None:
        """End both daemons; the kernel's datapath keeps forwarding by its present flows."""
        if self._is_up(_SWITCH):
            try:
                if not self._held:  # else those of the vswitchd before are still there, or agents add them
                    self._saved_flows.save()
            except (SwitchError, OSError) as error:
                log.warning("cannot save flows, which agents add again after the start: %s", error)
            with contextlib.suppress(SwitchError):
                self._tools.appctl("exit")
        self._end(_SWITCH)
        self._end(_DATABASE)

    def _start_database(self) -> None:
        self._spawn(_DATABASE, str(self._tools.database), f"--remote=punix:{self._tools.socket}")
        self._wait(_DATABASE, self._tools.answers)

    def _start_switch(self) -> None:
        bridges = self._tools.bridges()
        self._held = bool(bridges)
        if bridges:
            self._tools.hold()
        else:
            self._tools.release()
        began, have_flows = time.monotonic(), False
        self._spawn(_SWITCH, f"unix:{self._tools.socket}")
        try:
            self._wait(_SWITCH, lambda: self._has(bridges))
            if not self._stopped():
                have_flows = self._saved_flows.restore() or self._wait_filled(bridges)
        finally:
            # If this ends before, the datapath keeps its flows, and the next vswitchd is held, too.
            if bridges and (have_flows or not self._stopped()):
                self._tools.release()
        self._held = bool(bridges) and not have_flows and self._stopped()
        took = time.monotonic() - began
        if bridges and have_flows:
            log.info("ovs-vswitchd forwards again: %s, after %.2f s", ", ".join(bridges), took)
        elif bridges and not self._held:
            log.warning(
                "ovs-vswitchd forwards after %.1f s, and bridges have no flows: no agent filled them", took
            )

    def _has(self, bridges: list[str]) -> bool:
        """Return whether vswitchd has created the bridges, or has had the time for those that it can."""
        with contextlib.suppress(SwitchError):
            created = self._tools.appctl("ofproto/list").split()
            return set(bridges) <= set(created) or time.monotonic() - self._began[_SWITCH] > _START / 4
        return False

    def _wait_filled(self, bridges: list[str]) -> bool:
        """Wait until agents have added flows to their bridges; return whether they have."""
        owned = self._tools.owned_by_agents()
        limit = FILLED if owned == set(bridges) else FILLED_FOREIGN
        deadline = time.monotonic() + limit
        before, since = [0], time.monotonic()
        while time.monotonic() < deadline and not self._stopped() and self._is_up(_SWITCH):
            counts = [self._tools.flow_count(bridge) for bridge in sorted(owned)]
            if counts != before:
                before, since = counts, time.monotonic()
            elif all(counts) and time.monotonic() - since >= _STEADY:
                return True
            time.sleep(_STEP)
        return not owned

    def _spawn(self, name: str, *arguments: str) -> None:
        pid_file = f"--pidfile={self._tools.run / name}.pid"
        command = [name, *arguments, pid_file, "--no-chdir", *_LOG]
        self._began[name] = time.monotonic()
        try:
            self._running[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=self._tools.environment)
        except OSError as error:
            raise SwitchError(f"{name}: {error}") from None

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        while not ready():
            if not self._is_up(name) or self._stopped():
                return  # `restart_ended` handles it
            if time.monotonic() - self._began[name] > _START:
                raise SwitchError(f"{name} does not answer after {_START:.0f} s")
            time.sleep(_STEP)

    def _is_up(self, name: str) -> bool:
        return name in self._running and self._running[name].poll() is None

    def _end(self, name: str) -> None:
        if not self._is_up(name):
            return
        process = self._running[name]
        if name == _DATABASE:
            process.terminate()
        try:
            process.wait(_END)
        except subprocess.TimeoutExpired:
            log.warning("%s does not exit: killing it", name)
            process.kill()
            process.wait()
