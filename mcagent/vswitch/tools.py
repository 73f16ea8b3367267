"""The programs of Open vSwitch that act on the one instance whose sockets are in a directory.

Owns how they are called (ovs-vsctl(8), ovs-appctl(8), ovs-ofctl(8), ovsdb-tool(1)), and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mcagent.model.errors import McagentError

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
HOLD = (
    "flow-restore-wait"  # of other_config: vswitchd keeps the datapath's flows, and exchanges no packets with it
)
OWNER = "mcagent-owner"  # of external_ids: bridges that an agent fills
_TIMEOUT = 20.0  # seconds for a program
_FLOWS = re.compile(r"flow_count=(\d+)")


class SwitchError(McagentError):
    """Open vSwitch cannot be run here, or a program of it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Where an instance is: `run` has its sockets, `data` its database."""

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
        """What tells the programs where the instance is."""
        return {
            **os.environ,
            "OVS_RUNDIR": str(self.run),
            "OVS_DBDIR": str(self.data),
            "OVS_LOGDIR": str(self.run),
        }

    def answers(self) -> bool:
        """Tell whether an ovsdb-server listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one, contextlib.suppress(OSError):
            one.settimeout(5.0)
            one.connect(str(self.socket))
            return True
        return False

    def make_database(self) -> None:
        """Make the database, or bring one of an older Open vSwitch to the present schema. Raises SwitchError."""
        self.data.mkdir(parents=True, exist_ok=True)
        if not self.database.exists():
            self._call("ovsdb-tool", "create", str(self.database), str(SCHEMA))
        elif self._call("ovsdb-tool", "needs-conversion", str(self.database), str(SCHEMA)).strip() == "yes":
            self._call("ovsdb-tool", "convert", str(self.database), str(SCHEMA))

    def vsctl(self, *arguments: str) -> str:
        """Run ovs-vsctl without waiting for vswitchd; return its output. Raises SwitchError."""
        return self._call("ovs-vsctl", "--timeout=15", f"--db=unix:{self.socket}", "--no-wait", *arguments)

    def appctl(self, *arguments: str) -> str:
        """Give vswitchd a command; return its answer. Raises SwitchError."""
        return self._call("ovs-appctl", "--timeout=5", "-t", "ovs-vswitchd", *arguments)

    def ofctl(self, command: str, bridge: str, *arguments: str) -> str:
        """Run ovs-ofctl on a bridge; return its output. Raises SwitchError."""
        management = f"unix:{self.run / bridge}.mgmt"
        return self._call("ovs-ofctl", "--timeout=15", "-O", "OpenFlow15", command, management, *arguments)

    def bridges(self) -> list[str]:
        """Return the bridges that the database has."""
        return self.vsctl("list-br").split()

    def owned(self) -> set[str]:
        """Return the bridges that an agent fills."""
        return set(self.vsctl("--bare", "--columns=name", "find", "bridge", f"external_ids:{OWNER}!=[]").split())

    def flow_count(self, bridge: str) -> int:
        """Return how many flows a bridge has; 0 while it is not there."""
        with contextlib.suppress(SwitchError):
            found = _FLOWS.search(self.ofctl("dump-aggregate", bridge))
            return int(found[1]) if found else 0
        return 0

    def hold(self) -> None:
        """Have the next vswitchd leave the datapath as it is until `release`."""
        self.vsctl("set", "Open_vSwitch", ".", f"other_config:{HOLD}=true")

    def release(self) -> None:
        """Let vswitchd work: it forgets what the datapath has and its flows would not make."""
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
            raise SwitchError(f"{' '.join(command[:6])}: {reason}")
        return done.stdout
