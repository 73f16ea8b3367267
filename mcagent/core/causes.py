"""Reasons of problems of the input (docs/architecture.md): why each matters, and what to do. Data.

Events, `mcagent status` and `mcagent doctor` show these texts. What was decided is in the problem's own message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProblemCause:
    """Why a reason matters, and what to do. `check`: of `mcagent doctor`; a problem has its own severity."""

    check: str
    why: str
    do: str
    warning: bool = False  # whether docs/doctor.md lists it as a warning


_UNREACHED = "that network of the other cluster is not reached from here"
_NO_GATEWAY = "that gateway is not used: the others of its cluster carry its part, if there are any"
_NO_TUNNEL = "that Node takes no part in multi-cluster traffic"
_NOT_SERVED = "other clusters that connect to the Service are not answered"


def _cidr(do: str, why: str = _UNREACHED) -> ProblemCause:
    return ProblemCause("cidrs", why, do)


def _input(why: str, do: str) -> ProblemCause:
    return ProblemCause("input", why, do)


def _service(why: str, do: str) -> ProblemCause:
    return ProblemCause("services", why, do)


_READ = "the object is not used; its last good version serves on, if there was one"
_EDIT = "correct the field: kubectl edit, and look at `kubectl describe` for the Event"

CAUSES: Mapping[str, ProblemCause] = {
    "OverlapsLocal": _cidr(
        "give one of the two another network; where that cannot be: connect by Services only "
        "(enablePodToPodConnectivity: false, docs/identical-cidrs.md)",
        "an address in both can only mean one of them: this cluster's own is kept, the other is not reached",
    ),
    "OverlapsRemote": _cidr(
        "give one of the two clusters another network, or take its podCIDRs out of the ClusterSet; "
        "mcagent get clusterset shows who has it",
        "an address in both can only mean one of them: the cluster that claimed it first is reached",
    ),
    "OverlappingCIDR": _cidr("give one of the two another network"),
    "DuplicatePodCIDR": _cidr(
        "kubectl get nodes -o custom-columns=N:.metadata.name,C:.spec.podCIDR; the CNI or "
        "kube-controller-manager gave it twice",
        "Pods of that Node are not reached from other clusters",
    ),
    "RedundantCIDR": _cidr("leave the smaller one out of podCIDRs", "the larger one stands for both"),
    "HostBitsSet": _cidr("write the network's first address", "it is used with its host bits cleared"),
    "RefusedByLeader": _cidr(
        "mcagent get resourceexport, on the leader, says why", "sources are translated towards that cluster",
    ),
    "NotAllowed": _cidr("allowedRemoteCIDRs in the agents' configuration, if it is meant to be reached"),
    "LeftOut": _cidr(
        "kubectl describe clusterinfoimport NAME: condition Ready names the address",
        "sources are translated towards that cluster",
    ),
    "PodCIDRRefused": _cidr(
        "mcagent status on a gateway of that cluster says why; or leave the CIDR out of podCIDRs",
        "connections to that cluster have a gateway's address as their source",
    ),
    "PartlyProtected": _cidr(
        "nothing, unless Pods of that cluster have these addresses: then give one of the two another network",
        "the named addresses are never reached through a tunnel, and packets from there are dropped",
    ),
    "PartlyLocal": _cidr(
        "give what appeared later (a network of this Node: ip address, ip route; a Node; a Pod), or that cluster, "
        "another network",
        "the rest of that cluster's CIDR is reached as before; the part stays this cluster's",
    ),
    "RoutedElsewhere": _cidr(
        "ip route show; delete the route if it is not needed; if the network is that cluster's, add its CIDR to "
        "allowedRemoteCIDRs in the agents' configuration (docs/ownership.md#networks-of-nodes)",
        "this Node goes on to use its own route: no cluster takes over a network that Nodes reach otherwise",
    ),
    "Protected": _cidr(
        "another network for that cluster: this one holds an address that this Node cannot do without",
    ),
    "NotUnicast": _cidr("another network for that cluster"),
    "PrefixTooShort": _cidr("smaller networks: a cluster may claim a /8 at most"),
    "IPv6NotSupported": _cidr(
        "IPv4 networks for Pods and Services; gateways may have IPv6 addresses (docs/underlay.md)",
    ),
    "IsGateway": _cidr("take the gateway's address out of the cluster's CIDRs: it is for tunnels"),
    "PodCIDRsMissing": _cidr(
        "podCIDRs in the configuration", "only Pods that are known already find their way",
    ),
    "DuplicateClusterID": _input("the older object is used", "give one of the two clusters another ID"),
    "DuplicateAddress": _input(
        _NO_GATEWAY,
        "kubectl get gateways -A -o wide; kubectl get nodes -o wide; each gateway and Node needs an address of "
        "its own; delete the object of a Node that no longer exists",
    ),
    "DuplicateGateway": _input(
        "the older Gateway of that Node is used", "delete one of the two Gateway objects",
    ),
    "DuplicateKey": _input(_NO_GATEWAY, "mcagent wireguard rotate, on one of the two Nodes"),
    "UnknownNode": _input(
        "the Gateway is not used", "kubectl get nodes; delete the Gateway, or name it as its Node",
    ),
    "NoUsableAddress": _input(
        _NO_TUNNEL, "kubectl get node NODE -o jsonpath={.status.addresses}: it needs an InternalIP",
    ),
    "NoExternalIP": _input(
        "that Node is no gateway",
        "kubectl get node NODE -o jsonpath={.status.addresses}: it needs an ExternalIP; or set "
        "gatewayIPPrecedence: internal in the configuration of the member's controller",
    ),
    "NoRole": _input(
        "packets to other clusters are dropped on this Node, so that they cannot leave by the default route",
        "mcagent get gateway; annotate a Node: kubectl annotate node NODE multicluster.antrea.io/gateway=true; "
        "kubectl get node NODE -o yaml: it needs an InternalIP",
    ),
    "LastValueUsed": ProblemCause(
        "input",
        "traffic goes on with the last value; agents that start now do not know it",
        "kubectl get node NODE -o yaml; the cloud controller or the kubelet has to write the field again",
        warning=True,
    ),
    "NodeDeleted": ProblemCause(
        "input",
        "this Node goes on; other Nodes have removed their tunnels to it",
        "kubectl get nodes; restart the kubelet to register the Node, or stop its agent and run mcagent cleanup",
        warning=True,
    ),
    "MixedFamilies": _input(
        _NO_GATEWAY,
        "gateways that are to reach each other need addresses of one IP version (docs/underlay.md)",
    ),
    "NoGateway": _input(
        "what is for that cluster is dropped and counted",
        "mcagent get clusterset; annotate a Node there: kubectl annotate node NODE "
        "multicluster.antrea.io/gateway=true",
    ),
    "AddressNotHere": _input(
        "processes of this Node itself do not reach other clusters; Pods do",
        "ip address: is the InternalIP of the Node object on a device of this Node?",
    ),
    "LabelsUnverified": ProblemCause(
        "input",
        "policies of other clusters that select by label can be deceived by Pods of this Node with a raw socket",
        "drop the capability NET_RAW from Pods (Pod Security Standard restricted), or use a CNI with a device for "
        "each Pod; unverifiedLabels: withhold sends no labels from this Node (docs/policies.md#verified-labels)",
        warning=True,
    ),
    "UplinkOutside": _input(
        "nothing leaves this Node by a tunnel",
        "put the uplink on a bridge of Open vSwitch (docs/underlay.md), or use the kernel's datapath",
    ),
    "PeerSilent": ProblemCause(
        "tunnels",
        "packets are sent there, and nothing ever came back: no traffic gets through",
        "open the tunnels' UDP port (geneve 6081) between the two gateways; mcagent doctor says in which "
        "direction it is closed",
        warning=True,
    ),
    "ClusterUnreachable": ProblemCause(
        "tunnels",
        "packets to that cluster are lost; new connections to imported Services go to other clusters",
        "mcagent doctor, on the gateways of this cluster; mcagent gateways --history shows since when",
        warning=True,
    ),
    "PathMtu": ProblemCause(
        "path-mtu",
        "large packets to that gateway are lost, so connections hang as soon as they carry more than a little",
        "mcagent doctor, on this gateway, measures what passes; set mtu to it in all clusters, or repair the path",
        warning=True,
    ),
    "NotEncrypted": ProblemCause(
        "wireguard",
        "what cannot be encrypted is dropped, unless encryptionFallback is allowClear, or nodeTrafficEncryption "
        "preferred",
        "trafficEncryptionMode: wireGuard in that cluster, or nodeTrafficEncryption on that Node, too; "
        "mcagent wireguard show",
    ),
    "NoKey": ProblemCause(
        "wireguard", "what cannot be encrypted is dropped",
        "mcagent wireguard show, on that gateway",
    ),
    "EncryptionUnavailable": ProblemCause(
        "wireguard", "this Node can encrypt nothing",
        "what the message says; or set the key back to its former value (docs/encryption.md#requirements)",
    ),
    "NoEndpoint": ProblemCause(
        "wireguard", "no tunnel can end there",
        "look at spec.gatewayInfos of that cluster's ClusterInfo",
    ),
    "InvalidKey": ProblemCause(
        "wireguard", "that gateway is not encrypted to",
        "mcagent wireguard rotate, on that gateway",
    ),
    "PeerEncrypts": ProblemCause(
        "wireguard", "that cluster takes nothing in the clear",
        "trafficEncryptionMode: wireGuard here, too",
        warning=True,
    ),
    "NoService": _service(_NOT_SERVED, "create the Service, or delete the ServiceExport"),
    "OutsideServiceCIDR": _service(
        _NOT_SERVED,
        "a cluster has one serviceCIDR: correct it in the controller's configuration if it is wrong. For a "
        "ClusterIP of a second ServiceCIDR: create the Service anew with a spec.clusterIP of the first, or set "
        "endpointIPType: PodIP",
    ),
    "EndpointElsewhere": _service(
        "that endpoint gets nothing from other clusters",
        "endpoints of an exported Service are Pods or Nodes of this cluster",
    ),
    "PodsOutsideCIDRs": ProblemCause(
        "pod-routing",
        "the CNI takes Pods' addresses from other ranges (Calico's IPAM, Cilium's cluster-pool): other clusters "
        "reach no such Pod",
        "podRouting: perPod in the configuration of all agents (docs/cni.md)",
    ),
    "EndpointOfKubernetes": _service(
        "that endpoint gets nothing from other clusters",
        "do not export what leads to a Node's own ports",
    ),
    "EndpointOfNode": _service(
        "that endpoint gets nothing from other clusters",
        "an endpoint at a Node's address needs a Pod of its namespace in the host network (targetRef)",
    ),
    "EndpointWithoutPort": _service(
        "that endpoint gets nothing from other clusters at this port",
        "name the port in the EndpointSlice as in the Service; targetPort must name a port of the Pods",
    ),
    "EndpointIPv6": _service(
        "other clusters get no answer from the Service", "IPv4 endpoints: ipFamilies of the Service",
    ),
    "EndpointsSilent": _service(
        "no answer from these endpoints can reach other clusters",
        "run an agent on each Node that has Pods, and open the tunnel port between Nodes (PeerSilent)",
    ),
    "TooManyEndpoints": _service(
        "the first 256 endpoints are used", "split the Service, if its other endpoints are needed",
    ),
    "NotEnforceable": _input(
        "in place of the rule, policyFailureMode decides: closed (default) forbids, open leaves it out",
        "docs/policies.md lists what can be enforced; mcagent policy list shows the rules in force",
    ),
    "IdentitiesUnknown": ProblemCause(
        "input",
        "policies treat some Pods of the named clusters like Pods of unknown labels, so connections are dropped",
        "fewer different sets of labels in these clusters, or endpoints of the Services that rules name; or raise "
        "the named limit (docs/policies.md)",
        warning=True,
    ),
    "PartlyEnforced": ProblemCause(
        "input",
        "Pods that the rule selects reach these endpoints",
        "a policy of the CNI for these Pods, which it enforces in its own dataplane (docs/policies.md)",
        warning=True,
    ),
    "InvalidValue": _input(_READ, _EDIT),
    "InvalidCIDR": _cidr(_EDIT, _READ),
    "InvalidAddress": _input(_READ, _EDIT),
    "InvalidName": _input(_READ, _EDIT),
    "InvalidPort": _input(_READ, _EDIT),
    "InvalidTime": _input(_READ, _EDIT),
    "Missing": _input(_READ, _EDIT),
    "TooMany": _input(_READ, "fewer entries: the message says how many there may be"),
    "TooLarge": _input(_READ, "a smaller object"),
    "UnknownKind": _input("the object is not read", "take it out of the directory of manifests"),
    "UnreadableManifest": _input(
        "the file is not read; its objects stay as they were",
        "correct the file: mcagent plan --offline reads it",
    ),
}  # fmt: skip

UNKNOWN = ProblemCause(
    "input",
    "what is named is not used, or not as written; the rest is",
    "correct the object; `kubectl describe` shows its Events",
)


def remedy(reason: str) -> str:
    """Return what to do about a problem of this reason, "" where that is not known."""
    cause = CAUSES.get(reason)
    return cause.do if cause is not None else ""
