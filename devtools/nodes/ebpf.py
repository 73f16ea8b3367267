"""An eBPF program that forwards packets past netfilter, as a CNI with eBPF host routing does.

Owns the program (after fib_redirect in Cilium's bpf/lib/fib.h), its loading and its attachment. It runs where a
packet of a Pod, or of the underlay, enters the Node: it looks up the route and sends it to the device, past
all rules of netfilter. The kernel keeps packets to the Node itself, and those from a client's port to addresses
outside of the Pod CIDR: Cilium has a table of connections, here the range of the port tells requests, which
netfilter masquerades, from replies.

A bridge floods frames to a MAC address that it does not know, for example of a Node whose link is down. Nodes that
forwarded these frames would send them to the same MAC address again, without end; so they are left to the kernel,
which drops them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from devtools.errors import LabError
from devtools.nodes import netns

FIRST_CLIENT_PORT = 32768  # Linux' net.ipv4.ip_local_port_range
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _OBJ_PIN = 5, 6  # enum bpf_cmd (linux/bpf.h)
_SCHED_CLS = 3  # enum bpf_prog_type
_LOAD_BYTES, _STORE_BYTES, _REDIRECT, _FIB_LOOKUP, _REDIRECT_NEIGH = 26, 9, 23, 69, 152  # helper functions
_FIB_NO_NEIGHBOUR, _FIB_FRAGMENTATION = 7, 8
_OK, _SHOT = 0, 2  # TC_ACT_…
_PACKET_HOST = 0  # linux/if_packet.h: the frame has the device's own MAC address
_LOG_BYTES = 1 << 20
# On the stack, from its end: struct bpf_fib_lookup, IPv4 header with 4 bytes behind it, struct bpf_redir_neigh.
_FIB, _HEADER, _NEIGHBOUR = -64, -88, -112

_R0, _R1, _R2, _R3, _R4, _R5, _R6, _R7, _R10 = 0, 1, 2, 3, 4, 5, 6, 7, 10
_BYTE, _WORD, _DOUBLE = 0x10, 0x00, 0x18
Instruction = tuple[int, int, int, int | str, int]  # code, destination, source, offset or label, immediate
EXIT: Instruction = (0x95, 0, 0, 0, 0)


def program(uplink: int, pods: IPv4Network, only: IPv4Address | None = None) -> bytes:
    """Return the program. `uplink`: index of the device; `pods`: of the cluster; `only`: the sender's address."""
    neighbour = (_value(_R3, 20), _value(_R4, 0))
    return _assembled([
        _copy(_R6, _R1),
        _load(_WORD, _R2, _R6, 4),  # pkt_type, of struct __sk_buff
        _unless(_R2, _PACKET_HOST, "to kernel"),
        _load(_WORD, _R2, _R6, 16),  # protocol
        _unless(_R2, socket.htons(0x0800), "to kernel"),
        *(_store_value(_DOUBLE, place, 0) for place in (*range(_FIB, 0, 8), *range(_NEIGHBOUR, _HEADER, 8))),
        *_bytes(_LOAD_BYTES, 14, _HEADER, 24),
        _unless(_R0, 0, "to kernel"),
        _load(_WORD, _R2, _R10, _HEADER + 12),
        *([] if only is None else [_unless(_R2, _number(only), "drop")]),
        _store(_WORD, _FIB + 16, _R2),
        _load(_WORD, _R2, _R10, _HEADER + 16),
        _store(_WORD, _FIB + 32, _R2),
        _store_value(_BYTE, _FIB, socket.AF_INET),
        _load(_BYTE, _R2, _R10, _HEADER + 9),  # protocol
        _store(_BYTE, _FIB + 1, _R2),
        _load(_BYTE, _R2, _R10, _HEADER + 1),  # type of service
        _store(_BYTE, _FIB + 12, _R2),
        _load(_WORD, _R2, _R6, 40),  # ifindex, of struct __sk_buff
        _store(_WORD, _FIB + 8, _R2),
        _copy(_R1, _R6),
        *_stack(_R2, _FIB),
        _value(_R3, 64),
        _value(_R4, 0),
        _call(_FIB_LOOKUP),
        _copy(_R7, _R0),
        _if(_R7, _FIB_FRAGMENTATION, "drop"),
        _if(_R7, 0, "route"),
        _unless(_R7, _FIB_NO_NEIGHBOUR, "to kernel"),
        "route",
        _load(_WORD, _R2, _R10, _FIB + 8),
        _unless(_R2, uplink, "redirect"),
        _load(_WORD, _R2, _R10, _HEADER + 16),
        (0x54, _R2, 0, 0, _number(pods.netmask)),
        (0xB4, _R3, 0, 0, _number(pods.network_address)),
        (0x1D, _R2, _R3, "redirect", 0),
        _load(_BYTE, _R2, _R10, _HEADER + 9),
        _if(_R2, socket.IPPROTO_ICMP, "to kernel"),
        _load(_BYTE, _R2, _R10, _HEADER + 20),  # the upper byte of the source port
        (0x35, _R2, 0, "to kernel", FIRST_CLIENT_PORT >> 8),
        "redirect",
        _if(_R7, _FIB_NO_NEIGHBOUR, "resolve"),
        *_bytes(_STORE_BYTES, 0, _FIB + 58, 6),  # destination MAC
        *_bytes(_STORE_BYTES, 6, _FIB + 52, 6),
        _load(_WORD, _R1, _R10, _FIB + 8),
        _value(_R2, 0),
        _call(_REDIRECT),
        EXIT,
        "resolve",
        _store_value(_WORD, _NEIGHBOUR, socket.AF_INET),
        _load(_WORD, _R2, _R10, _FIB + 32),  # the next hop
        _store(_WORD, _NEIGHBOUR + 4, _R2),
        _load(_WORD, _R1, _R10, _FIB + 8),
        *_stack(_R2, _NEIGHBOUR),
        *neighbour,
        _call(_REDIRECT_NEIGH),
        EXIT,
        "to kernel",
        _value(_R0, _OK),
        EXIT,
        "drop",
        _value(_R0, _SHOT),
        EXIT,
    ])  # fmt: skip


def _number(address: IPv4Address) -> int:
    """Return an address as a register has it after a load from the packet."""
    return int.from_bytes(address.packed, sys.byteorder, signed=True)


def _copy(to: int, source: int) -> Instruction:
    return (0xBF, to, source, 0, 0)


def _value(to: int, value: int) -> Instruction:
    return (0xB7, to, 0, 0, value)


def _stack(to: int, place: int) -> tuple[Instruction, Instruction]:
    return _copy(to, _R10), (0x07, to, 0, 0, place)


def _load(size: int, to: int, pointer: int, offset: int) -> Instruction:
    return (0x61 | size, to, pointer, offset, 0)


def _store(size: int, place: int, source: int) -> Instruction:
    return (0x63 | size, _R10, source, place, 0)


def _store_value(size: int, place: int, value: int) -> Instruction:
    return (0x62 | size, _R10, 0, place, value)


def _if(register: int, value: int, label: str) -> Instruction:
    return (0x15, register, 0, label, value)


def _unless(register: int, value: int, label: str) -> Instruction:
    return (0x56, register, 0, label, value)  # of the lower 32 bits


def _call(function: int) -> Instruction:
    return (0x85, 0, 0, 0, function)


def _bytes(function: int, offset: int, place: int, length: int) -> tuple[Instruction, ...]:
    """Copy bytes between the packet, from `offset` on, and the stack."""
    arguments = (_copy(_R1, _R6), _value(_R2, offset), *_stack(_R3, place), _value(_R4, length), _value(_R5, 0))
    return (*arguments, _call(function))


def _assembled(code: Sequence[Instruction | str]) -> bytes:
    labels: dict[str, int] = {}
    instructions: list[Instruction] = []
    for line in code:
        if isinstance(line, str):
            labels[line] = len(instructions)
        else:
            instructions.append(line)
    words = []
    for place, (operation, to, source, offset, value) in enumerate(instructions):
        jump = labels[offset] - place - 1 if isinstance(offset, str) else offset
        words.append(struct.pack("=BBhi", operation, source << 4 | to, jump, value))
    return b"".join(words)


# --- loading --------------------------------------------------------------------------------------------


def attach(namespace: str, device: str, code: bytes) -> None:
    """Run the program for each packet that enters the Node by a device. Raises LabError."""
    netns.execute(namespace, ["tc", "qdisc", "replace", "dev", device, "clsact"])
    prefix = f"mcagent-bpf.{os.getpid()}."
    with tempfile.TemporaryDirectory(prefix=prefix) as directory, _bpf_file_system(Path(directory)):
        pinned = Path(directory) / "program"
        descriptor = _load_program(code)
        try:
            path = ctypes.create_string_buffer(bytes(pinned))
            _bpf(_OBJ_PIN, struct.pack("=QII", ctypes.addressof(path), descriptor, 0))
        finally:
            os.close(descriptor)
        # Not `ip netns exec`, in whose mount namespace the file is missing.
        argv = ["nsenter", f"--net={netns.NETNS_DIRECTORY / namespace}", "tc", "filter", "replace", "dev", device]
        netns.run([*argv, "ingress", "prio", "1", "handle", "1", "bpf", "da", "object-pinned", str(pinned)])
        pinned.unlink()


@contextmanager
def _bpf_file_system(directory: Path) -> Iterator[None]:
    netns.run(["mount", "-t", "bpf", "bpf", str(directory)])
    try:
        yield
    finally:
        netns.run(["umount", str(directory)])


def _load_program(code: bytes) -> int:
    instructions = ctypes.create_string_buffer(code, len(code))
    license_text = ctypes.create_string_buffer(b"GPL")  # the helper functions of routing require it
    log = ctypes.create_string_buffer(_LOG_BYTES)
    addresses = (ctypes.addressof(instructions), ctypes.addressof(license_text))
    attributes = struct.pack("=IIQQ", _SCHED_CLS, len(code) // 8, *addresses)
    try:
        return _bpf(_PROG_LOAD, attributes)
    except OSError:
        attributes += struct.pack("=IIQ", 1, _LOG_BYTES, ctypes.addressof(log))
    try:
        return _bpf(_PROG_LOAD, attributes)
    except OSError as error:
        raise LabError(f"the kernel refuses the eBPF program: {error}: {log.value.decode()[-400:]}") from None


def _bpf(command: int, attributes: bytes) -> int:
    """Call bpf(2). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result: int = libc.syscall(_SYSCALL[platform.machine()], command, ctypes.byref(buffer), len(attributes))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
