"""`mcagent wireguard`: the keys and peers of Nodes, and a change of this Node's key."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from mcagent.agent.config import Settings
from mcagent.api.codec import from_json, to_json
from mcagent.api.status import EncryptedPeer, EncryptionStatus, Status
from mcagent.cli.common import exit_codes
from mcagent.cli.common.asking import ask_agent
from mcagent.cli.common.place import PLACE, add_place_flags, require_node, show_statuses
from mcagent.cli.common.setting_flags import load_settings
from mcagent.cli.common.shared_flags import add_output_flag, add_seconds_flag
from mcagent.cli.common.signals import terminable
from mcagent.cli.common.tables import size, table
from mcagent.cli.drain import RefusedError, add_grace, local_target, wait_drained, wait_translated
from mcagent.core.failover.draining import Phase
from mcagent.model.errors import McagentError

LOOK = 0.5  # seconds between looks at how far it is
SETTLE = 30.0  # seconds that other clusters may take to learn a key that was published

_EPILOG = f"""\
examples:
  mcagent wireguard show
  mcagent wireguard show --context east         from a workstation, of all Nodes
  mcagent wireguard show -o json | jq '.peers[] | select(.state != "established")'
  mcagent wireguard rotate                      on the gateway Node itself (in the agent's container)

`rotate` makes a key, lets the agent publish it beside the one in use, and waits until the other clusters have
learned it (--settle). Where another gateway of the cluster is live, this one then hands over to it (as with
`mcagent drain`, which ends the connections that it translates, after --grace), changes the key, and serves again:
no packet is lost. A gateway that is alone changes under traffic: what it sends in the 0.1 s after the change is
lost. Run again after an end in between, it goes on.

{PLACE}
`show` names for every peer that never shook hands, or has not for three minutes, what can be the cause, the
surest first; and gateways without a usable key. Its exit code is 1 then, or if an agent does not answer.

{exit_codes.EXPLAINED}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions with their flags."""
    parser.description = "Show the encryption of tunnels on this Node, or rotate its key."
    parser.epilog = _EPILOG
    parser.usage = "%(prog)s {show,rotate} [NODE ...] [flags]"
    parser.add_argument("action", choices=["show", "rotate"], help="what to do")
    add_output_flag(parser, more=" of `show`")
    add_seconds_flag(parser, "--settle", SETTLE, "of rotate: time for other clusters to learn the new key")
    parser.add_argument("--cancel", action="store_true", help="of rotate: forget the key that was announced")
    add_grace(parser)
    add_seconds_flag(parser, "--timeout", 60.0, "wait so long for the agent")
    add_place_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Show or rotate."""
    if args.action == "show":
        return show_statuses(
            args,
            "mcagent wireguard show",
            text=lambda status: text(_of(status)),
            members=lambda status: to_json(_of(status)),
            good=_encrypted,
        )
    settings = load_settings(args, node_needed=False)
    require_node(args, settings, "mcagent wireguard rotate")
    return _rotate(settings, args)


def _state(settings: Settings) -> EncryptionStatus:
    """Return the encryption in the agent's status. Raises McagentError."""
    return _of(from_json(Status, ask_agent(settings), "the agent"))


def _of(status: Status) -> EncryptionStatus:
    if status.encryption is None:
        raise McagentError(f"the agent of {status.node} does not report encryption")
    return status.encryption


def _encrypted(status: Status) -> bool:
    encryption = _of(status)
    return not encryption.not_used and all(peer.state in ("established", "unneeded") for peer in encryption.peers)


def text(encryption: EncryptionStatus, *, not_used: bool = True) -> str:
    """Return the state of encryption for people. `not_used`: with the gateways that are not used for its sake."""
    if encryption.mode == "none":
        return "encryption  none: traffic between clusters is not encrypted"
    by = {"kernel": "in the kernel", "userspace": "by wireguard-go (userspace: slower)"}
    how = by.get(encryption.implementation, "NOT AVAILABLE on this Node")
    lines = [f"encryption  {encryption.mode}, {how}"]
    if encryption.node_mode != "none":
        lines += [f"  Nodes     {encryption.node_mode}: tunnels between the Nodes of this cluster"]
    if encryption.device:
        announced = f", next {encryption.next_public_key}" if encryption.next_public_key else ""
        unpublished = "" if encryption.published else " (NOT PUBLISHED yet)"
        further = f" and {len(encryption.devices) - 1} more" if len(encryption.devices) > 1 else ""
        key = f"key {encryption.public_key}{unpublished}{announced}"
        lines += [f"  device    {encryption.device}{further}, {key}"]
    if encryption.peers:
        peer_column = "PEER" if any(peer.node for peer in encryption.peers) else "GATEWAY"
        with_devices = any(peer.devices > 1 for peer in encryption.peers)
        device_column = ("DEVICES",) if with_devices else ()
        head = ("CLUSTER", peer_column, "STATE", *device_column, "HANDSHAKE", "HEARD AT", "RECEIVED", "SENT")
        lines += ["", *table(head, [_row(peer, with_devices=with_devices) for peer in encryption.peers])]
    for peer in encryption.peers:
        if peer.causes:
            lines += ["", f"{name_of(peer)} {peer.gateway}: {peer.text}. Likely causes:"]
            lines += [f"  - {cause}" for cause in peer.causes]
    for refusal in encryption.not_used if not_used else ():
        lines += ["", f"{refusal.subject} {refusal.path}: {refusal.reason}: {refusal.message}"]
    return "\n".join(line.rstrip() for line in lines)


def name_of(peer: EncryptedPeer) -> str:
    """Return the name of a peer for people: its cluster, or the Node of this cluster."""
    return f"Node {peer.node}" if peer.node else peer.cluster


def _row(peer: EncryptedPeer, *, with_devices: bool) -> tuple[str, ...]:
    return (
        name_of(peer),
        peer.gateway,
        peer.state if peer.state == "established" else peer.state.upper(),
        *((f"{peer.sessions}/{peer.devices}",) if with_devices else ()),
        "never" if peer.handshake_age is None else f"{peer.handshake_age:.0f} s ago",
        peer.endpoint or "-",
        size(peer.received),
        size(peer.sent),
    )


def _rotate(settings: Settings, args: argparse.Namespace) -> int:
    from mcagent.agent.backends import key_store

    store = key_store(settings)
    if args.cancel:
        store.drop_next()
        print("no key is announced any more")
        return exit_codes.OK
    if _state(settings).mode == "none":
        raise McagentError("encryption is off: there is no key to change")
    keys = store.prepare_next()
    assert keys.next is not None
    new_key = keys.next.public
    _wait(settings, lambda now: now.published_next_key == new_key, "the new key to be published", args.timeout)
    print(f"announced: {new_key}; {args.settle:g} s for other clusters to learn it", flush=True)
    time.sleep(args.settle)
    _wait(settings, our_turn, "the gateways that change their keys first", args.timeout)
    with terminable(), _drained(settings, args.timeout, args.grace):
        store.promote_next()
        began = time.monotonic()
        _wait(
            settings,
            lambda now: now.public_key == new_key and now.published,
            "the new key to be used and published",
            args.timeout,
        )
        print(f"in use: {new_key}", flush=True)
        _wait(
            settings,
            lambda now: all(_shaken_since(peer, time.monotonic() - began) for peer in now.peers),
            "handshakes under the new key",
            args.timeout,
        )
    return exit_codes.OK


def our_turn(now: EncryptionStatus) -> bool:
    """Tell whether no peer goes first.

    Two that change at the same moment each begin with a key that the other has no longer. Of two that have
    announced one, the gateway with the lower key in use goes first.
    """
    first = [peer for peer in now.peers if peer.next_public_key and peer.public_key < now.public_key]
    return not any(peer.state == "established" for peer in first)


def _shaken_since(peer: EncryptedPeer, seconds: float) -> bool:
    """Tell whether a peer has shaken hands within that time; one that did not before is not waited for."""
    return peer.state != "established" or (peer.handshake_age or 0.0) < seconds


@contextlib.contextmanager
def _drained(settings: Settings, timeout: float, grace: float) -> Iterator[None]:
    """Drain this gateway within the context, if its cluster has another one."""
    # A drain that another user or program has started is left to it.
    serving = from_json(Status, ask_agent(settings), "the agent").drain.phase == Phase.SERVING
    target = local_target(settings)
    if serving:
        wait_translated(target, grace, _say)
        target.set(True)
    else:
        _say(f"{target.name} drains already, and stays so (if by a killed rotation: mcagent undrain --local)")
    try:
        try:
            wait_drained(target.progress(datetime.now(UTC)), target.name, timeout, _say)
        except RefusedError as error:
            print(f"{error}: the key changes under traffic", flush=True)
        yield
    finally:
        if serving:
            target.set(False)


def _say(text: str) -> None:
    print(text, flush=True)


def _wait(settings: Settings, done: Callable[[EncryptionStatus], bool], what: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not done(_state(settings)):
        if time.monotonic() > deadline:
            raise McagentError(f"waited {timeout:g} s for {what}: see the agent's log; run it again to continue")
        time.sleep(LOOK)
