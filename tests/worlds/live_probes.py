"""Real probes and what a switch shows of them, for tests of traces."""

from __future__ import annotations

# As ovs-vswitchd 3.1 said it: on the userspace datapath, on the kernel's, and of what is no probe.
FLOWS = """\
tunnel(tun_id=0xffffff,src=192.168.1.13,dst=192.168.1.12,geneve(),flags(-df-csum+key)),skb_mark(0),recirc_id(0),\
in_port(5),packet_type(ns=0,id=0),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.2,dst=10.102.0.80,\
proto=6,tos=0xbc,ttl=63,frag=no),tcp(src=40000,dst=80), packets:2, bytes:196, used:6.183s, \
actions:set(ipv4(ttl=62)),tnl_push(tnl_port(5),header(size=50)),1
recirc_id(0),in_port(3),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.0/255.255.255.0,proto=6,\
tos=0xbc/0xfc,frag=no), packets:0, bytes:0, used:never, actions:drop
recirc_id(0),in_port(3),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.0/255.255.255.0,proto=6,\
tos=0xbc/0xfc,frag=no), packets:3, bytes:0, used:never, actions:check_pkt_len(size=1464,gt(1),le(drop))
recirc_id(0),in_port(3),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.2/255.255.255.15,\
dst=10.102.0.0/255.255.0.15,proto=6,tos=0xbc,frag=no),tcp(src=64/0x7e), packets:4, bytes:0, used:1.0s, actions:1
recirc_id(0),in_port(3),eth(dst=aa:bb:cc:dd:ee:f0),eth_type(0x0800),ipv4(src=10.1.3.3/255.255.255.15,\
dst=10.102.0.0/255.255.0.15,proto=6,tos=0xbc,frag=no),tcp(src=64/0x7e), packets:9, bytes:0, used:1.0s, actions:1
recirc_id(0x2),in_port(3),eth_type(0x0800),ipv4(src=10.1.3.2,dst=10.102.0.80,proto=6,tos=0xbc/0x3,frag=no), \
packets:1, bytes:98, used:1.109s, flags:S, actions:1
recirc_id(0),in_port(3),eth_type(0x0800),ipv4(src=10.1.0.0/255.255.0.0,proto=6,tos=0/0xfc,frag=no), \
packets:9, bytes:98, used:1.109s, actions:1
recirc_id(0),in_port(3),eth_type(0x0800),ipv4(src=10.9.0.0/255.255.0.0,proto=6,tos=0xbc/0xfc,frag=no), \
packets:9, bytes:98, used:1.109s, actions:1
recirc_id(0),in_port(3),eth_type(0x0800),ipv4(src=10.1.3.2,proto=1,tos=0xbc/0xfc,frag=no), \
packets:9, bytes:98, used:1.109s, actions:1
"""

ENDS = "orig=(src=10.1.3.2,dst=10.102.0.80,sport=40000,dport=80),"
ENDS += "reply=(src=10.102.0.80,dst=10.1.3.2,sport=80,dport=40000)"
ECHO = "icmp,orig=(src=10.1.3.2,dst=10.102.0.80,id=40000,type=8,code=0),"
ECHO += "reply=(src=10.102.0.80,dst=10.1.3.2,id=40000,type=0,code=0)"
