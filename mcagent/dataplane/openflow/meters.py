"""Meters of our bridge: messages to Open vSwitch, which takes them in no bundle, and what ovs-ofctl prints.

Owns its connections. Must not know what the meters are for.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Sequence

from mcagent.dataplane.openflow import messages as wire
from mcagent.model.errors import BackendError
from mcagent.model.plan import Op, Step
from mcagent.model.resources import MeterEntry

TIMEOUT = 5.0  # seconds for each answer
BATCH = 256  # meters; ovs-vswitchd does other things in between
_COMMANDS = {Op.ADD: wire.METER_ADD, Op.REPLACE: wire.METER_MODIFY, Op.DELETE: wire.METER_DELETE}
_METER = re.compile(r"^meter=(\d+) (.*) bands=\n((?:type=.*\n?)*)", re.MULTILINE)
_RATE = re.compile(r"type=drop rate=(\d+) burst_size=(\d+)\s*")
_DROPPED = re.compile(r"^\d+: ?packet_count:(\d+)", re.MULTILINE)
_FLAGS = "pktps burst stats"


def parse(text: str) -> list[MeterEntry]:
    """Return the meters that `ovs-ofctl dump-meters` prints. One that is none of ours has no rate."""
    found = []
    for number, flags, bands in _METER.findall(text):
        band = _RATE.fullmatch(bands)
        rate, burst = (int(band[1]), int(band[2])) if band is not None and flags == _FLAGS else (0, 0)
        found.append(MeterEntry(meter_id=int(number), rate=rate, burst=burst))
    return found


def dropped(text: str) -> int:
    """Return how many packets all meters together dropped, of what `ovs-ofctl meter-stats` prints."""
    return sum(map(int, _DROPPED.findall(text)))


def apply(path: str, steps: Sequence[Step]) -> dict[int, BackendError]:
    """Make the steps so at the management socket `path`; return the errors by place. Raises BackendError."""
    failed: dict[int, BackendError] = {}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(path)
            wire.greet(connection)
            for at in range(0, len(steps), BATCH):
                some = (_message(at + place, step) for place, step in enumerate(steps[at : at + BATCH]))
                connection.sendall(b"".join(some) + wire.barrier_request())
                while (answer := wire.receive(connection)).kind != wire.BARRIER_REPLY:
                    if answer.kind == wire.ECHO_REQUEST:
                        connection.sendall(wire.echo_reply(answer))
                    elif answer.kind == wire.ERROR and 0 < answer.xid <= len(steps):
                        failed[answer.xid - 1] = _refusal(steps[answer.xid - 1], answer)
    except OSError as error:
        raise BackendError("openflow", "apply", path, str(error)) from None
    return failed


def _message(place: int, step: Step) -> bytes:
    meter = step.new or step.old
    assert isinstance(meter, MeterEntry)
    return wire.meter_mod(_COMMANDS[step.op], meter.meter_id, meter.rate, meter.burst, place + 1)


def _refusal(step: Step, answer: wire.Message) -> BackendError:
    kind, code = struct.unpack_from("!HH", answer.body)
    meter = step.new or step.old
    assert isinstance(meter, MeterEntry)
    reason = f"Open vSwitch refuses it (error {kind}/{code}): without meters set newConnections: 0"
    return BackendError("openflow", str(step.op), f"meter {meter.meter_id}", reason, retryable=False)
