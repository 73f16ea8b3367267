"""Actions as values. An empty tuple of actions is a drop."""

from __future__ import annotations

from dataclasses import dataclass

from flows.fields import Address, Bits, MatchField


@dataclass(frozen=True, slots=True)
class Output:
    """Output the packet to this port."""

    port: int


@dataclass(frozen=True, slots=True)
class OutputBits:
    """Output the packet to the port whose number is in these bits."""

    bits: Bits


@dataclass(frozen=True, slots=True)
class Goto:
    """Continue in a later table. Only the last action of a flow, never in a bucket."""

    table: int


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Look the packet up in a table, then continue with the next action."""

    table: int


@dataclass(frozen=True, slots=True)
class SetField:
    """Write the bits of `value` that are set in `mask`. A load of bits is the same action."""

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
    """Decrement the TTL or hop limit; OVS drops the packet if it expires."""


@dataclass(frozen=True, slots=True)
class Nat:
    """Address translation inside ct. Without `kind`: apply the translation of the connection.

    kind: "src" or "dst". With port None, conntrack chooses the port (source) or keeps it (destination). With
    `last_port`, conntrack chooses from the range `port` to `last_port`.
    """

    kind: str = ""
    address: Address | None = None
    port: int | None = None
    last_port: int | None = None


@dataclass(frozen=True, slots=True)
class Ct:
    """Pass the packet through conntrack; with `table`, a copy continues there with the conntrack state set.

    Without `table` the packet continues with the next action, without conntrack state. `exec_` writes ct_mark and
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
    """Clear the conntrack state of the packet.

    A packet that has passed a zone keeps its connection of that zone, even after its addresses changed
    (skb_nfct_cached in Linux' net/openvswitch/conntrack.c). So a second lookup in one zone needs this action
    first.
    """


@dataclass(frozen=True, slots=True)
class ToGroup:
    """Process the packet by a group, then continue with the next action."""

    group_id: int


@dataclass(frozen=True, slots=True)
class Meter:
    """Continue with the next action unless the meter's rate is exceeded; then OVS drops the packet."""

    meter_id: int


@dataclass(frozen=True, slots=True)
class CheckLarger:
    """Write into a bit whether the frame, with its Ethernet header, is longer than `length` bytes."""

    length: int
    bit: Bits


@dataclass(frozen=True, slots=True)
class Conjunction:
    """The flow belongs to clause `clause` (1 to `of`) of conjunctive match `conj_id`.

    A packet that matches a flow of each clause, all of one priority, is looked up again with conj_id set. A flow
    with such actions has no actions of another kind.
    """

    conj_id: int
    clause: int
    of: int


@dataclass(frozen=True, slots=True)
class ToController:
    """Send the packet as a packet-in to the clients of the bridge's management socket."""

    length: int  # the maximal number of bytes


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
    | CheckLarger
    | Conjunction
    | ToController
)
Actions = tuple[Action, ...]
DROP: Actions = ()


def set_bits(bits: Bits, value: int) -> SetField:
    """Return the action that writes `value` into these bits; FlowError if it does not fit."""
    return SetField(bits.field, bits.shifted(value), bits.mask)


def set_whole(field: MatchField, value: int) -> SetField:
    """Return the action that writes the whole field."""
    return SetField(field, value, field.full_mask)
