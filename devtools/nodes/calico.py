"""Calico on a Node: felix's iptables rules and routes, as with `natOutgoing`, no encapsulation and no policy.

The structure, order, matches and marks of the rules are felix's (felix/rules/static.go, dispatch.go, endpoints.go,
nat.go; FELIX_INTERFACEPREFIX is the lab's prefix of devices of Pods). Left out: chains of policies and host
endpoints, which are empty, and the ipset of pools, which is the CIDR of the only pool here.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from devtools.lab.topology import Cluster, Node
from devtools.nodes.node import pod_device

BLOCK = 26  # prefix length of the blocks that Calico's IPAM gives Nodes
ROUTES = "80"  # protocol of felix's routes
PODS = "pod+"
# Bits of FELIX_IPTABLESMARKMASK: accepted, and packets of Pods before the reverse path filter
_ACCEPT, _FROM_POD, _ALL, _SCRATCH = "0x10000/0x10000", "0x40000/0x40000", "0xf0000", "0xe0000"
_ACCEPTED, _CLEAR = f"-m mark --mark {_ACCEPT}", "-j MARK --set-xmark 0x0/"


def blocks(node: Node) -> list[IPv4Network]:
    """Return the blocks of a Node's Pods."""
    return sorted({IPv4Network((pod.address, BLOCK), strict=False) for pod in node.pods})


def routes(cluster: Cluster, node: Node, device: str) -> list[str]:
    """Return a Node's routes as ip(8) lines: to other Nodes' blocks; what is free in its own leads nowhere."""
    own = [f"route add blackhole {block} proto {ROUTES}" for block in blocks(node)]
    routes_to_nodes = [
        f"route add {block} via {other.address} dev {device} proto {ROUTES} onlink"
        for other in cluster.nodes
        if other.name != node.name
        for block in blocks(other)
    ]
    return own + routes_to_nodes


def rules(cluster: Cluster, node: Node) -> str:
    """Return the rules of a Node as text of iptables-restore(8)."""
    pods = [pod_device(node, pod) for pod in node.pods]
    tables = {
        "raw": _raw(),
        "mangle": _mangle(),
        "nat": _nat(str(cluster.pod_cidr)),
        "filter": [*_filter(), *_dispatch(pods), *(rule for pod in pods for rule in _endpoint(pod))],
    }
    return "".join(f"*{table}\n{_table(list(lines))}COMMIT\n" for table, lines in tables.items())


def _table(lines: list[str]) -> str:
    chains = dict.fromkeys(line.split()[1] for line in lines if line.split()[1].startswith("cali-"))
    return "".join(f":{chain} - [0:0]\n" for chain in chains) + "".join(f"{line}\n" for line in lines)


def _raw() -> Iterator[str]:
    yield "-I PREROUTING -j cali-PREROUTING"
    yield f"-A cali-PREROUTING {_CLEAR}{_ALL}"
    yield f"-A cali-PREROUTING -i {PODS} -j MARK --set-xmark {_FROM_POD}"
    yield f"-A cali-PREROUTING -m mark --mark {_FROM_POD} -m rpfilter --validmark --invert -j DROP"
    yield f"-A cali-PREROUTING {_ACCEPTED} -j ACCEPT"
    yield "-I OUTPUT -j cali-OUTPUT"
    yield f"-A cali-OUTPUT {_CLEAR}{_ALL}"
    yield f"-A cali-OUTPUT {_ACCEPTED} -j ACCEPT"


def _mangle() -> Iterator[str]:
    yield "-I PREROUTING -j cali-PREROUTING"
    yield "-A cali-PREROUTING -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    yield f"-A cali-PREROUTING {_ACCEPTED} -j ACCEPT"
    yield "-I POSTROUTING -j cali-POSTROUTING"
    yield f"-A cali-POSTROUTING {_ACCEPTED} -j RETURN"
    yield f"-A cali-POSTROUTING {_CLEAR}{_ALL}"


def _nat(pool: str) -> Iterator[str]:
    yield "-I POSTROUTING -j cali-POSTROUTING"
    yield "-A cali-POSTROUTING -j cali-nat-outgoing"
    yield f"-A cali-nat-outgoing -s {pool} ! -d {pool} -j MASQUERADE --random-fully"


def _filter() -> Iterator[str]:
    yield "-I FORWARD -j cali-FORWARD"
    yield f"-A FORWARD {_ACCEPTED} -j ACCEPT"
    yield f"-A FORWARD -j MARK --set-xmark {_ACCEPT}"
    yield f"-A cali-FORWARD {_CLEAR}{_SCRATCH}"
    yield f"-A cali-FORWARD -i {PODS} -j cali-from-wl-dispatch"
    yield f"-A cali-FORWARD -o {PODS} -j cali-to-wl-dispatch"
    yield "-I INPUT -j cali-INPUT"
    yield f"-A cali-INPUT -i {PODS} -g cali-wl-to-host"
    yield f"-A cali-INPUT {_ACCEPTED} -j ACCEPT"
    yield f"-A cali-INPUT {_CLEAR}{_ALL}"
    yield "-A cali-wl-to-host -j cali-from-wl-dispatch"
    yield "-A cali-wl-to-host -j ACCEPT"  # FELIX_DEFAULTENDPOINTTOHOSTACTION of Calico's manifests
    yield "-I OUTPUT -j cali-OUTPUT"
    yield f"-A cali-OUTPUT {_ACCEPTED} -j ACCEPT"
    yield f"-A cali-OUTPUT -o {PODS} -j RETURN"
    yield f"-A cali-OUTPUT {_CLEAR}{_ALL}"


def _dispatch(pods: list[str]) -> Iterator[str]:
    for chain, option, endpoint in (("cali-from-wl-dispatch", "-i", "fw"), ("cali-to-wl-dispatch", "-o", "tw")):
        for pod in pods:
            yield f"-A {chain} {option} {pod} -g cali-{endpoint}-{pod}"
        yield f"-A {chain} -j DROP"  # an unknown interface


def _endpoint(pod: str) -> Iterator[str]:
    for direction, profile in (("fw", "pro"), ("tw", "pri")):
        chain = f"cali-{direction}-{pod}"
        yield f"-A {chain} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
        yield f"-A {chain} -m conntrack --ctstate INVALID -j DROP"
        yield f"-A {chain} {_CLEAR}0x10000"
        if direction == "fw":
            yield f"-A {chain} -p udp -m udp --dport 4789 -j DROP"  # VXLAN, and IP in IP, of Pods
            yield f"-A {chain} -p ipencap -j DROP"
        yield f"-A {chain} -j cali-{profile}-{pod}"
        yield f"-A {chain} {_ACCEPTED} -j RETURN"
        yield f"-A {chain} -j DROP"  # no profile accepted it
        yield f"-A cali-{profile}-{pod} -j MARK --set-xmark {_ACCEPT}"
        yield f"-A cali-{profile}-{pod} {_ACCEPTED} -j RETURN"
