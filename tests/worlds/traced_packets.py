"""Outputs of Open vSwitch for packets that are traced."""

from __future__ import annotations

from ipaddress import IPv4Address

from mcagent.model.config import Config
from mcagent.trace.pages import VswitchdControl
from mcagent.trace.probe import Probe

PROBE = Probe(
    in_port=1,
    source=IPv4Address("10.1.3.2"),
    destination=IPv4Address("10.102.0.80"),
    protocol="tcp",
    source_port=40000,
    port=80,
)

NOWHERE = VswitchdControl("unix:/nowhere/db.sock", Config(node_name="n", cluster_id="east"))
GOOD = "in_port=1&source=10.1.3.2&destination=10.102.0.80&protocol=tcp&source_port=40000&port=80&mac=plain"


# As ovs-vswitchd 3.1 said it on a worker: through conntrack, to a gateway, by a bridge of the underlay.
TO_GATEWAY = """\
Flow: tcp,in_port=1,dl_src=0a:6d:63:00:00:01,dl_dst=aa:bb:cc:dd:ee:f0,nw_src=10.1.3.2,nw_dst=10.102.0.80,tp_src=40000,tp_dst=80

bridge("br-mc")
---------------
 0. ip,in_port=1,dl_dst=aa:bb:cc:dd:ee:f0, priority 100, cookie 0x6d63010000000000
    set_field:0->pkt_mark
    goto_table:10
10. ip,reg0=0x1/0xf,nw_src=10.1.3.0/24, priority 224, cookie 0x6d63030000113a0c
    ct(table=30,zone=28003)
    drop
     -> A clone of the packet is forked to recirculate. The forked pipeline will be resumed at table 30.

Final flow: tcp,reg0=0x1
Datapath actions: ct(zone=28003),recirc(0x2)

===============================================================================
recirc(0x2) - resume conntrack with default ct_state=trk|new (use --ct-next to customize)
===============================================================================

Flow: recirc_id=0x2,ct_state=new|trk,eth,tcp,in_port=1,nw_src=10.1.3.2,nw_dst=10.102.0.80,tp_src=40000,tp_dst=80

bridge("br-mc")
---------------
    thaw
        Resuming from table 30
30. ct_state=+new-rpl+trk,ip, priority 100, cookie 0x6d63010000000000
    goto_table:40
40. ip,reg0=0x1/0xf,nw_dst=10.102.0.0/16, priority 216, cookie 0x6d63020000080ed0
    group:67108864
     -> using bucket 43287
    bucket 43287
            output:43287
             -> output to native tunnel

        bridge("br-phy")
        ----------------
         0. priority 0
            output:7
"""  # noqa: E501 (recorded)
