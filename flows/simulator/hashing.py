"""The bucket selection of Open vSwitch for select groups, bit for bit.

Owns the hash; must not know groups or packets. Source: lib/hash.h and lib/hash.c (the MurmurHash3-like variant of
builds without SSE 4.2, as distributions ship them), pick_hash_select_group and group_best_live_bucket in
ofproto/ofproto-dpif-xlate.c, Open vSwitch 3.1. A build with SSE 4.2 selects other buckets, but all gateways with
the same build select the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable

MASK = 0xFFFFFFFF


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & MASK


def hash_add(state: int, data: int) -> int:
    """Mix one 32-bit word into the state."""
    if data:
        data = _rotate(data * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
    return (_rotate(state ^ data, 13) * 5 + 0xE6546B64) & MASK


def hash_finish(state: int, length: int) -> int:
    """Return the hash of the mixed words; `length`: the number of bytes."""
    state ^= length
    state = (state ^ state >> 16) * 0x85EBCA6B & MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & MASK
    return state ^ state >> 16


def hash_bytes(data: bytes, basis: int) -> int:
    """Return the hash of bytes in network order, read as little-endian words."""
    state = basis
    for start in range(0, len(data), 4):
        state = hash_add(state, int.from_bytes(data[start : start + 4], "little"))
    return hash_finish(state, len(data))


def hash_int(value: int, basis: int) -> int:
    """Return the hash of one 32-bit number."""
    return hash_finish(hash_add(hash_add(value, 0), basis), 8)


def basis_of(parameter: int, fields: Iterable[bytes]) -> int:
    """Return the hash of the selection fields, which are in the order of their numbers in Open vSwitch."""
    state = hash_finish(hash_add(hash_add(0, parameter & MASK), parameter >> 32), 8)
    for field in fields:
        state = hash_bytes(field, state)
    return state


def score(bucket_id: int, weight: int, basis: int) -> int:
    """Return a bucket's score (highest random weight). The highest score wins; of equal ones the last bucket."""
    return (hash_int(bucket_id, basis) & 0xFFFF) * weight
