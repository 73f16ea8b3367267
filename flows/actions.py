"""Actions as values. An empty tuple of actions is a drop."""

from __future__ import annotations

from dataclasses import dataclass

from flows.fields import Address, Bits, MatchField


@dataclass(frozen=True, slots=True)
class Output:
    """Send the packet out by this port."""

    port: int


@dataclass(frozen=True, slots=True)
class OutputBits:
    """Send the packet out by the port whose number stands in these bits."""

    bits: Bits


@dataclass(frozen=True, slots=True)
class Goto:
    """Go on in a later table. Only as the last action of a flow, never in a bucket."""

    table: int


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Look the packet up in a table, then go on with the actions after this one."""

    table: int


@dataclass(frozen=True, slots=True)
class SetField:
    """Write `value` where `mask` has bits. A load of bits is the same thing."""

    field: MatchField
    value: int
    mask: int


@dataclass(frozen=True, slots=True)
class Move:
    """Copy bits; both ranges have the same width."""

    source: Bits
    destination: Bits


@dataclass(frozen=True, slots=True)
class DecTtl:
    """Take one from TTL or hop limit; OVS drops the packet when it cannot."""


@dataclass(frozen=True, slots=True)
class Nat:
    """Address translation inside ct. Without `kind`: apply what the connection was given.

    kind: "src" or "dst". A port of None leaves the choice to conntrack (source) or as it is (destination); with
    `last_port` it is the first of those that conntrack may choose from.
    """

    kind: str = ""
    address: Address | None = None
    port: int | None = None
    last_port: int | None = None


@dataclass(frozen=True, slots=True)
class Ct:
    """Pass the packet through conntrack; with `table`, a copy goes on there with the result known.

    Without `table` the packet goes on with the next action, untracked as before. `exec_` writes ct_mark and
    ct_label of the connection and needs `commit`. `force` makes this packet's direction the original one.
    """

    zone: int
    table: int | None = None
    commit: bool = False
    force: bool = False
    nat: Nat | None = None
    exec_: tuple[SetField | Move, ...] = ()


@dataclass(frozen=True, slots=True)
class CtClear:
    """Forget what conntrack said of the packet.

    A packet that has been through a zone keeps its connection there, also when its addresses are changed
    (skb_nfct_cached in Linux' net/openvswitch/conntrack.c): this comes before a second look-up in one zone.
    """


@dataclass(frozen=True, slots=True)
class ToGroup:
    """Hand the packet to a group, then go on with the actions after this one."""

    group_id: int


@dataclass(frozen=True, slots=True)
class Meter:
    """Go on with the next action as long as the meter's rate is not exceeded; else OVS drops the packet."""

    meter_id: int


@dataclass(frozen=True, slots=True)
class Conjunction:
    """The flow is of clause `clause` (from 1) of the `of` clauses of conjunctive match `conj_id`.

    Where a packet matches a flow of every clause, all of one priority, it is looked up again with conj_id set.
    A flow has several of these actions, or one action of any other kind.
    """

    conj_id: int
    clause: int
    of: int


@dataclass(frozen=True, slots=True)
class ToController:
    """Hand the packet to whoever listens on the bridge's management socket, as a packet-in."""

    length: int  # bytes of it at most


Action = (
    Output
    | OutputBits
    | Goto
    | Resubmit
    | SetField
    | Move
    | DecTtl
    | Ct
    | CtClear
    | ToGroup
    | Meter
    | Conjunction
    | ToController
)
Actions = tuple[Action, ...]
DROP: Actions = ()


def set_bits(bits: Bits, value: int) -> SetField:
    """Return the action that writes `value` into these bits; FlowError when it does not fit."""
    return SetField(bits.field, bits.shifted(value), bits.mask)


def set_whole(field: MatchField, value: int) -> SetField:
    """Return the action that writes the whole field."""
    return SetField(field, value, field.full_mask)
