"""Causes that are seen on a Node: why each matters, what to type next. Data of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping

from mcagent.core.doctor.words import Cause

NODE_CAUSES: Mapping[str, Cause] = {
    "AgentSilent": Cause(
        "agent", "failed",
        "the dataplane goes on as it is, but nobody follows changes of the API, or puts back what others "
        "change",
        "kubectl -n kube-system get pods -l app.kubernetes.io/component=agent -o wide; then `kubectl logs"
        " --previous`, or journalctl -u mcagent",
    ),
    "AgentNotReady": Cause(
        "agent", "failed",
        "the dataplane does not equal what the API asks for, or changes would not be noticed",
        "mcagent status; the agent's log says what was refused",
    ),
    "AgentThreadDead": Cause(
        "agent", "failed", "a part of the agent has ended, which is a bug",
        "restart the agent, which drops no traffic, and report it with `mcagent doctor --bundle FILE.tgz`",
    ),
    "Draining": Cause(
        "agent", "warning", "other gateways were asked to take over from this Node",
        "mcagent undrain, when it is to return",
    ),
    "OvsdbAway": Cause(
        "openvswitch", "failed",
        "without Open vSwitch's database nothing can be programmed; the kernel's datapath forwards what "
        "it knows already",
        "systemctl status ovsdb-server, or kubectl -n kube-system get pods -l "
        "app.kubernetes.io/component=openvswitch; the key `ovsdb` says where the socket is",
    ),
    "VswitchdAway": Cause(
        "openvswitch", "failed",
        "no new connection is forwarded, and peers hear no BFD: they use other gateways",
        "systemctl status ovs-vswitchd; its log is /var/log/openvswitch/ovs-vswitchd.log",
    ),
    "BridgeMissing": Cause(
        "openvswitch", "failed", "there is nothing that could forward to other clusters",
        "mcagent status: the agent makes the bridge as soon as it runs and reaches the database",
    ),
    "NoFlows": Cause(
        "openvswitch", "failed", "the bridge drops everything until its flows are there",
        "mcagent status; mcagent plan shows what the agent would program",
    ),
    "VersionOld": Cause(
        "openvswitch", "warning", "mcagent is tested with Open vSwitch 2.17 and later",
        "upgrade Open vSwitch, or let mcagent bring it: mcagent deploy --help, `openvswitch`",
    ),
    "NoKernelDatapath": Cause(
        "datapath", "failed", "the bridge is for the kernel's datapath, which this kernel does not have",
        "modprobe openvswitch; where there is no such module: datapath: netdev in the configuration",
    ),
    "UserspaceDatapath": Cause(
        "datapath", "warning", "the kernel has Open vSwitch's datapath now, which is many times faster",
        "restart the agent when a short loss does no harm: it changes the datapath of the bridge",
    ),
    "ApiAway": Cause(
        "api", "failed",
        "the dataplane stays as it is and gateways still fail over, but no change of the API gets here",
        "curl -k {server}/readyz on this Node; the agent catches up by itself when it answers",
    ),
    "ClockOff": Cause(
        "api", "warning",
        "certificates and tokens are judged by the clock, WireGuard refuses handshakes of a clock that "
        "was set back, and times of different Nodes cannot be compared",
        "chronyc tracking, or timedatectl: is the time synchronised?",
    ),
    "NotAllowed403": Cause(
        "permissions", "failed", "the agent cannot read, or write, what its role on this Node needs",
        "kubectl auth can-i {verb} {resource} --as=system:serviceaccount:kube-system:mcagent-agent; then "
        "apply the manifests of this version again: mcagent deploy member --apply",
    ),
    "TunnelMissing": Cause(
        "tunnels", "failed", "the API asks for this tunnel, and the bridge does not have it",
        "mcagent status; mcagent plan",
    ),
    "TunnelError": Cause(
        "tunnels", "failed", "Open vSwitch refuses the tunnel: nothing goes to this peer",
        "read the words of Open vSwitch; lsmod | grep -e geneve -e vxlan; another tunnel with the same "
        "key may exist",
    ),
    "PortBlocked": Cause(
        "tunnels", "failed",
        "the peer is there, but tunnel packets between the two are lost: UDP port {port} is closed "
        "between them, by a firewall, a security group or a network policy of hosts",
        "open UDP {port} from and to {address}; to see where they end: tcpdump -ni any udp port {port} "
        "and host {address}, on both sides",
    ),
    "OneWay": Cause(
        "tunnels", "failed",
        "the peer's packets arrive here and ours do not get there (BFD stays in state init): UDP port "
        "{port} is closed in one direction",
        "open UDP {port} towards {address}; to see it: tcpdump -ni any udp port {port} and host "
        "{address}, on the peer",
    ),
    "PeerDown": Cause(
        "tunnels", "failed",
        "the peer answers neither BFD nor probes: the Node or the network to it is down, or probes are "
        "filtered",
        "ping {address}; kubectl get nodes in its cluster; if it is up: open UDP {port} between the two",
    ),
    "PeerNeverHeard": Cause(
        "tunnels", "warning",
        "packets are sent and nothing ever came back; it is used without BFD, as a peer that speaks none "
        "(Antrea's gateways)",
        "if that cluster runs mcagent: open UDP {port} between here and {address}",
    ),
    "PathDown": Cause(
        "tunnels", "warning",
        "the peer asks to be sent nothing: it drains, has no flows yet, or reaches no other cluster",
        "mcagent gateways --history; mcagent status on the peer",
    ),
    "MtuTooLarge": Cause(
        "path-mtu", "failed",
        "small packets pass and large ones are lost: connections open, then hang (a TLS handshake, a "
        "large answer)",
        "mtu: {mtu} in the configuration of all clusters (docs/configuration.md), or let the network pass"
        " packets of {needed} bytes",
    ),
    "MtuDiffers": Cause(
        "path-mtu", "warning",
        "the device's MTU is larger than the uplink's less what the tunnel adds: large packets are lost",
        "mtu: 0 in the configuration, which takes the uplink's",
    ),
    "NoHandshake": Cause(
        "wireguard", "failed", "what is for this gateway is dropped, since it cannot be encrypted",
        "mcagent wireguard show, here and on that gateway",
    ),
    "ReachedInClear": Cause(
        "wireguard", "warning",
        "traffic to this gateway is not encrypted (encryptionFallback: allowClear)",
        "trafficEncryptionMode: wireGuard in that cluster, too",
    ),
    "RouteShadowed": Cause(
        "routes", "failed",
        "packets for that network leave by another device: a rule or route of somebody else comes before "
        "ours",
        "ip rule; ip route get {address}; choose rulePriority below the foreign rule's, or protect the "
        "network with protectedCIDRs if it is your own",
    ),
    "RulesMissing": Cause(
        "routes", "failed", "nothing of this Node's kernel finds the way to other clusters",
        "mcagent plan; ip rule; ip route show table {table}",
    ),
    "RpFilterStrict": Cause(
        "rp-filter", "warning",
        "tunnel packets arrive by one device and the way back leads by another: a strict filter drops them",
        "sysctl -w net.ipv4.conf.{device}.rp_filter=2 (and in /etc/sysctl.d)",
    ),
    "RpFilterDrops": Cause(
        "rp-filter", "warning",
        "the kernel drops packets because the way back to their source leads by another device",
        "nstat -az TcpExtIPReversePathFilter; sysctl -w net.ipv4.conf.all.log_martians=1 names them in "
        "the kernel's log",
    ),
    "ForwardingOff": Cause(
        "forwarding", "failed", "the kernel passes nothing on between Pods and other clusters",
        "sysctl -w {what}=1 (and in /etc/sysctl.d)",
    ),
    "ForwardPolicyDrop": Cause(
        "forwarding", "warning",
        "what no rule of that chain accepts is dropped, and none names our device or this Node's Pods",
        "iptables -A FORWARD -i {device} -j ACCEPT; iptables -A FORWARD -o {device} -j ACCEPT "
        "(docs/doctor.md)",
    ),
    "RuleDropsTunnel": Cause(
        "firewall", "failed", "a rule on this very Node drops tunnel packets",
        "nft list chain {chain}; take the rule away, or accept UDP {port} before it",
    ),
    "RuleDropsDevice": Cause(
        "firewall", "warning", "a rule of somebody else drops packets of our device",
        "nft list chain {chain}",
    ),
    "InputPolicyDrop": Cause(
        "firewall", "warning",
        "what no rule of that chain accepts is dropped, and none accepts UDP {port}: tunnels of peers end"
        " there",
        "accept UDP {port} in the firewall of this Node (firewall-cmd --add-port={port}/udp, ufw allow "
        "{port}/udp)",
    ),
    "Masqueraded": Cause(
        "masquerade", "failed",
        "the other cluster sees this Node instead of the Pod: policies do not match, replies may not find"
        " back",
        "nft list ruleset | grep -n -i -e masquerade -e snat; take {networks} out of the CNI's "
        "masquerade; then conntrack -D --orig-src POD",
    ),
    "NatBeforeOurs": Cause(
        "masquerade", "warning", "that chain translates sources before ours can keep them",
        "nft list chain {chain}",
    ),
    "MarkShared": Cause(
        "marks", "warning",
        "two programs use one bit of the mark: replies take the wrong way, or the other's rules match ours",
        "connectionMarkBit in the configuration of all Nodes: a bit that nobody uses "
        "(docs/configuration.md)",
    ),
}  # fmt: skip
