"""Saves meters, groups, flows and the mode for fragments of bridges while vswitchd restarts, as ovs-save(8) does.

Owns the directory of these files, in the run directory, which a reboot empties.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from mcagent.vswitch.tools import SwitchError, Tools

log = logging.getLogger(__name__)

_REPLY = re.compile(r"^(OFPST|NXST|OFPT)_.*$\n?", flags=re.MULTILINE)
_AGE = re.compile(r"(idle|hard)_age=\d+, ?")


class SavedFlows:
    """Files BRIDGE.meters, BRIDGE.groups, BRIDGE.fragments and BRIDGE.flows in a directory."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._directory = tools.run / "mcagent-saved"

    def save(self) -> None:
        """Save all bridges, except those that do not answer. Raises SwitchError, OSError."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(mode=0o700)
        for bridge in self._tools.bridges():
            try:
                flows = self._tools.ofctl("dump-flows", bridge, "--no-names", "--no-stats")
                groups = self._tools.ofctl("dump-groups", bridge)
                meters = self._tools.ofctl("dump-meters", bridge)
                fragments = self._tools.ofctl("get-frags", bridge)
            except SwitchError as error:
                log.warning("%s: cannot save its flows: %s", bridge, error)
                continue
            self._write(bridge, "meters", "\n".join(meter_lines(meters)))
            self._write(bridge, "groups", _REPLY.sub("", groups))
            self._write(bridge, "fragments", fragments.strip())
            # Last, and under its name when it is complete: `bridges` ignores a bridge without this file.
            self._write(bridge, "new", _AGE.sub("", _REPLY.sub("", flows)))
            (self._directory / f"{bridge}.new").rename(self._directory / f"{bridge}.flows")

    def bridges(self) -> list[str]:
        """Return the names of the saved bridges."""
        return sorted(file.stem for file in self._directory.glob("*.flows"))

    def restore(self) -> bool:
        """Restore all saved bridges and delete the files; return whether every bridge was restored."""
        complete = bool(self.bridges())
        for bridge in self.bridges():
            try:
                self._restore(bridge)
            except (SwitchError, OSError, ValueError) as error:  # also for a file that is not complete
                log.warning("%s: the saved state no longer fits; its agent fills it: %s", bridge, error)
                complete = False
        shutil.rmtree(self._directory, ignore_errors=True)
        return complete

    def _restore(self, bridge: str) -> None:
        fragments = self._directory / f"{bridge}.fragments"
        if fragments.exists():  # earlier versions did not save it
            self._tools.ofctl("set-frags", bridge, fragments.read_text(encoding="utf-8"))
        for meter in (self._directory / f"{bridge}.meters").read_text(encoding="utf-8").splitlines():
            self._tools.ofctl("add-meter", bridge, meter)
        groups, flows = (self._directory / f"{bridge}.{suffix}" for suffix in ("groups", "flows"))
        if groups.stat().st_size:
            self._tools.ofctl("add-groups", bridge, str(groups), "--bundle")
        self._tools.ofctl("replace-flows", bridge, str(flows), "--bundle")

    def _write(self, bridge: str, suffix: str, text: str) -> None:
        Path(self._directory / f"{bridge}.{suffix}").write_text(text, encoding="utf-8")


def meter_lines(dumped: str) -> Iterator[str]:
    """Convert the output of dump-meters, with bands on separate lines, to lines of `ovs-ofctl add-meter`."""
    lines: list[str] = []
    for line in _REPLY.sub("", dumped).splitlines():
        if line.startswith("meter="):
            yield from lines
            lines = [line.replace(" stats", "")]
        elif lines and line.strip():
            lines[-1] += f" {line.strip()}" if not lines[-1].endswith("=") else line.strip()
    yield from lines
