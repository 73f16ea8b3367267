"""A bridge, and flows and groups to write to it."""

from __future__ import annotations

from devtools.nodes.ovs import OvsInstance
from mcagent.model.dataplane.resources import FlowEntry, GroupEntry
from tests.contract.ovs_values import DATAPATH

COOKIE = 0x6D63 << 48


def flow(number: int, **changes: object) -> FlowEntry:
    """Return a flow with our cookie."""
    values: dict[str, object] = {
        "table": 40,
        "priority": 100,
        "match": f"ip,nw_dst=10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        "cookie": COOKIE | number,
        "actions": f"set_field:{number + 1:#x}->reg1,dec_ttl,group:1",
    }
    return FlowEntry(**(values | changes))  # type: ignore[arg-type]


def group(number: int, *ports: int) -> GroupEntry:
    """Return a select group over ports."""
    buckets = ",".join(f"bucket=bucket_id:{port},watch_port:{port},actions=output:{port}" for port in ports)
    return GroupEntry(group_id=number, body=f"type=select,selection_method=hash,fields(ip_src,ip_dst),{buckets}")


def make_bridge(ovs: OvsInstance) -> str:
    """Make an empty bridge and return its management socket."""
    settings = (f"datapath_type={DATAPATH}", "fail_mode=secure", "protocols=OpenFlow13,OpenFlow15")
    ovs.vsctl("--may-exist", "add-br", "br-mc", "--", "set", "bridge", "br-mc", *settings)
    return ovs.mgmt("br-mc")
