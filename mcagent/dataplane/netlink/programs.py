"""eBPF programs that are attached to a device: XDP, tc and tcx. Reads them, and never changes them.

tcx programs (Linux 6.6) are only in the answers of bpf(2), which container runtimes forbid without CAP_BPF or
CAP_SYS_ADMIN: the agent's Pod does not see them.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from mcagent.dataplane.netlink import connection as nl
from mcagent.dataplane.netlink.connection import NetlinkRefusal, NetlinkSocket, attributes, text
from mcagent.dataplane.netlink.links import IFINFOMSG

# linux/pkt_sched.h, linux/pkt_cls.h, linux/rtnetlink.h, linux/if_link.h
RTM_GETTFILTER = 46
TCMSG = struct.Struct("=BxxxiIII")  # family, index, handle, parent, info
HOOKS = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}  # parents: TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_(IN|E)GRESS)
TCA_KIND, TCA_OPTIONS, TCA_BPF_NAME = 1, 2, 7
IFLA_XDP, IFLA_XDP_ATTACHED = 43, 2
# linux/bpf.h
BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_QUERY = 16
_TCX = {"ingress": 46, "egress": 47}  # BPF_TCX_INGRESS, BPF_TCX_EGRESS
_QUERY = struct.Struct("=IIIIQI36x")  # target_ifindex, attach_type, flags, attach_flags, prog_ids, prog_cnt, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrograms:
    """Programs of a device, as words for people. `complete` is False if bpf(2) is forbidden, so tcx is unknown."""

    attached: tuple[str, ...] = ()
    complete: bool = True


def read_programs(netlink: NetlinkSocket, index: int) -> DevicePrograms:
    """Read the programs of a device in the namespace of the calling thread. Raises BackendError."""
    attached = [*_xdp(netlink, index), *_filters(netlink, index)]
    complete = True
    for hook, kind in _TCX.items():
        count = _tcx(index, kind)
        if count is None:
            complete = False
        elif count:
            attached.append(f"tcx {hook}: {count}")
    return DevicePrograms(attached=tuple(attached), complete=complete)


def _xdp(netlink: NetlinkSocket, index: int) -> Iterator[str]:
    answer = netlink.get(nl.RTM_GETLINK, IFINFOMSG.pack(nl.AF_UNSPEC, 0, index, 0, 0))
    if not isinstance(answer, NetlinkRefusal):
        xdp = attributes(attributes(answer, IFINFOMSG.size).get(IFLA_XDP, b""))
        if any(xdp.get(IFLA_XDP_ATTACHED, b"")):
            yield "xdp"


def _filters(netlink: NetlinkSocket, index: int) -> Iterator[str]:
    for hook, parent in HOOKS.items():
        for body in netlink.dump(RTM_GETTFILTER, TCMSG.pack(nl.AF_UNSPEC, index, 0, parent, 0)):
            values = attributes(body, TCMSG.size)
            handle = TCMSG.unpack_from(body)[2]  # 0: the answer is about a chain of filters
            if text(values.get(TCA_KIND)) == "bpf" and handle:
                name = text(attributes(values.get(TCA_OPTIONS, b"")).get(TCA_BPF_NAME))
                yield f"tc {hook}: {name or 'a program'}"


def _tcx(index: int, kind: int) -> int | None:
    """Return the number of tcx programs at a hook; None if this process may not know."""
    number = BPF_SYSCALL.get(platform.machine())
    if number is None:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    query = ctypes.create_string_buffer(_QUERY.pack(index, kind, 0, 0, 0, 0), _QUERY.size)
    if libc.syscall(number, _PROG_QUERY, query, _QUERY.size):
        # Other errors: a kernel without tcx (EINVAL), or the device is gone
        return None if ctypes.get_errno() in {errno.EPERM, errno.EACCES} else 0
    return int(_QUERY.unpack(query.raw)[5])
