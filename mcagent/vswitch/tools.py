"""Runs the programs of Open vSwitch for the instance whose sockets are in a directory.

Owns how ovs-vsctl(8), ovs-appctl(8), ovs-ofctl(8) and ovsdb-tool(1) are called.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mcagent.model.errors import McagentError

log = logging.getLogger(__name__)

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
# of other_config: vswitchd keeps the datapath's flows, and exchanges no packets with it
HOLD = "flow-restore-wait"
OWNER = "mcagent-owner"  # of external_ids: on bridges of agents
_TIMEOUT = 20.0  # seconds for a program
_READ = '["Open_vSwitch", {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["_uuid"]}]'
_FLOWS = re.compile(r"flow_count=(\d+)")


class SwitchError(McagentError):
    """Open vSwitch cannot be run here, or a program of it failed."""


class ExitCodeError(SwitchError):
    """A program ran and reported a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Directories of an instance: `run` has its sockets, `data` its database."""

    run: Path
    data: Path

    @property
    def socket(self) -> Path:
        """The database's socket."""
        return self.run / "db.sock"

    @property
    def database(self) -> Path:
        """The database's file."""
        return self.data / "conf.db"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that point the programs to the instance."""
        return {
            **os.environ,
            "OVS_RUNDIR": str(self.run),
            "OVS_DBDIR": str(self.data),
            "OVS_LOGDIR": str(self.run),
        }

    def answers(self) -> bool:
        """Return whether an ovsdb-server listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, contextlib.suppress(OSError):
            client.settimeout(5.0)
            client.connect(str(self.socket))
            return True
        return False

    def make_database(self) -> None:
        """Create the database, or convert it to the present schema. Raises SwitchError.

        A database that cannot be read is replaced: agents write the content of their bridges again. One that can
        be read, and cannot be converted (a full disk), is used as it is: ovs-vswitchd needs no newer columns.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        if not self.database.exists():
            self._create(self.database)
            return
        try:
            if self._call("ovsdb-tool", "needs-conversion", str(self.database), str(SCHEMA)).strip() == "yes":
                self._call("ovsdb-tool", "convert", str(self.database), str(SCHEMA))
        except ExitCodeError as error:
            if not self._is_readable():
                self._replace_database(str(error))
                return
            log.error("%s is not converted to the present schema, and is used as it is: %s", self.database, error)

    def _is_readable(self) -> bool:
        """Return whether ovsdb-tool reads the whole database. Raises SwitchError."""
        try:
            self._call("ovsdb-tool", "query", str(self.database), _READ)
        except ExitCodeError:
            return False
        return True

    def _replace_database(self, reason: str) -> None:
        """Replace the database by an empty one, and keep the former file, the last of its kind, beside it."""
        damaged, new = (self.database.with_name(f"{self.database.name}.{suffix}") for suffix in ("damaged", "new"))
        try:
            new.unlink(missing_ok=True)  # left by a process that was killed here
            self._create(new)  # first: on a full disk this fails, and the database stays
            self.database.replace(damaged)
            new.replace(self.database)
        except OSError as error:
            raise SwitchError(f"{self.database} is damaged ({reason}), and cannot be replaced: {error}") from None
        log.error(
            "%s is damaged and was replaced by an empty one; it is now %s: %s", self.database, damaged, reason
        )

    def _create(self, database: Path) -> None:
        self._call("ovsdb-tool", "create", str(database), str(SCHEMA))

    def vsctl(self, *arguments: str) -> str:
        """Run ovs-vsctl without waiting for vswitchd; return its output. Raises SwitchError."""
        return self._call("ovs-vsctl", "--timeout=15", f"--db=unix:{self.socket}", "--no-wait", *arguments)

    def appctl(self, *arguments: str) -> str:
        """Send vswitchd a command; return its answer. Raises SwitchError."""
        return self._call("ovs-appctl", "--timeout=5", "-t", "ovs-vswitchd", *arguments)

    def ofctl(self, command: str, bridge: str, *arguments: str) -> str:
        """Run ovs-ofctl on a bridge; return its output. Raises SwitchError."""
        management = f"unix:{self.run / bridge}.mgmt"
        return self._call("ovs-ofctl", "--timeout=15", "-O", "OpenFlow15", command, management, *arguments)

    def bridges(self) -> list[str]:
        """Return the names of all bridges in the database."""
        return self.vsctl("list-br").split()

    def owned_by_agents(self) -> set[str]:
        """Return the names of the agents' bridges."""
        return set(self.vsctl("--bare", "--columns=name", "find", "bridge", f"external_ids:{OWNER}!=[]").split())

    def flow_count(self, bridge: str) -> int:
        """Return the number of flows of a bridge; 0 while it does not exist."""
        with contextlib.suppress(SwitchError):
            count = _FLOWS.search(self.ofctl("dump-aggregate", bridge))
            return int(count[1]) if count else 0
        return 0

    def hold(self) -> None:
        """Make the next vswitchd leave the datapath unchanged until `release`."""
        self.vsctl("set", "Open_vSwitch", ".", f"other_config:{HOLD}=true")

    def release(self) -> None:
        """Let vswitchd manage the datapath: it deletes datapath flows that its OpenFlow flows do not justify."""
        self.vsctl("remove", "Open_vSwitch", ".", "other_config", HOLD)

    def _call(self, *command: str) -> str:
        try:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SwitchError(f"{command[0]}: {error}") from None
        if done.returncode:
            reason = (done.stderr or done.stdout).strip()
            raise ExitCodeError(f"{' '.join(command[:6])}: {reason}")
        return done.stdout
