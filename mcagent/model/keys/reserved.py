"""Numbers and names that other programs on a Node use, which no key may have. Constants only."""

ROUTE_PROTOCOLS = (  # /etc/iproute2/rt_protos
    *((number, "the kernel or by hand-made routes") for number in range(5)),
    (8, "gated"), (9, "router advertisements"), (10, "mrt"), (11, "zebra"), (12, "bird"), (13, "dnrouted"),
    (14, "xorp"), (15, "ntk"), (16, "dhcp"), (17, "mrouted"), (18, "keepalived"), (42, "babel"), (84, "ovn"),
    (99, "openr"), (186, "bgp"), (187, "isis"), (188, "ospf"), (189, "rip"), (192, "eigrp"),
)  # fmt: skip
ROUTE_TABLES = tuple(
    (n, f'the routing table "{name}"') for n, name in ((253, "default"), (254, "main"), (255, "local"))
)
NFT_TABLES = tuple(
    (name, f"a table of {owner}")
    for owner, names in {
        "iptables-nft": ("filter", "nat", "mangle", "raw", "security"),
        "firewalld": ("firewalld",),
    }.items()
    for name in names
)
