"""Attacks by fields of objects of a namespace user: EndpointSlices, policies, the number of Pods.

Judged by the functions of agent and controllers that read such objects, with values and objects in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from mcagent.controller.member import exports
from mcagent.controller.member.policies import label_exports
from mcagent.core.engine import IncrementalEngine
from mcagent.core.fragments.policies import enforcement
from mcagent.core.local_cluster.endpoints import KUBERNETES_PORTS, EndpointRules
from mcagent.core.policies import limits
from mcagent.model.api.kubernetes import ApiPod
from mcagent.model.config import Config
from mcagent.model.dataplane.resources import FlowEntry
from mcagent.model.objects import Endpoint, Kind, Pod
from mcagent.model.parsing import labels
from tests.attacks.generated.search import AttackClass
from tests.attacks.policies import MESSAGE, antrea_policy, policy, snapshot
from tests.attacks.served_pods import POD, host_pod, served
from tests.attacks.tenants import POLICIES_ON, Tenants, pod, spaces
from tests.worlds.core_inputs import addresses, endpoint, meta
from tests.worlds.policy_manifests import NODE
from tests.worlds.policy_reading import CLUSTER_IDS, ENV

# --- A8: policies of a tenant that cost too much ---------------------------------------------------------------

POLICY_FLOWS, NAMESPACE_FLOWS = 100, 200  # limits, low so that little is enough to exceed them
MARGIN = 60  # flows of what replaces refused policies, and of the victim's policy
VICTIM = policy("web", "victim", [{"ipBlock": {"cidr": "10.2.0.0/16"}}])


@dataclass(frozen=True, kw_only=True)
class TenantPolicy:
    """A policy of the attacker: ipBlocks with exceptions."""

    antrea: bool
    blocks: int
    exceptions: int

    def manifest(self, name: str) -> dict[str, Any]:
        """Return the manifest."""
        peers = [
            {
                "ipBlock": {
                    "cidr": f"{20 + number}.0.0.0/8",
                    "except": [f"{20 + number}.{n}.0.77/32" for n in range(self.exceptions)],
                }
            }
            for number in range(self.blocks)
        ]
        return (antrea_policy if self.antrea else policy)(name, "attacker", peers)

    def __str__(self) -> str:
        kind = "Antrea NetworkPolicy" if self.antrea else "NetworkPolicy"
        return f"a {kind} with {self.blocks} ipBlocks of {self.exceptions} exceptions each"


def _judge_policies(attack: tuple[TenantPolicy, ...]) -> str:
    objects = [one.manifest(f"p{number}") for number, one in enumerate(attack)]
    config = Config(node_name=NODE, max_policy_flows=POLICY_FLOWS, max_namespace_policy_flows=NAMESPACE_FLOWS)
    engine = IncrementalEngine()
    with engine.one_pass():
        result = enforcement(engine, snapshot(*objects, VICTIM), ENV, config, CLUSTER_IDS)
    flows = [r for fragment in result.fragments for r in fragment.resources if isinstance(r, FlowEntry)]
    if len(flows) > NAMESPACE_FLOWS + MARGIN:
        return f"policies of one Namespace have {len(flows)} flows, the limit is {NAMESPACE_FLOWS}"
    largest = max((len(flow.actions) for flow in flows), default=0)
    if largest > MESSAGE:
        return "a flow is larger than an OpenFlow message"
    enforced = {name.policy for name in result.names.values()}
    return "" if "NetworkPolicy/victim/web" in enforced else "the policy of the other Namespace is not enforced"


class _Words(tuple[Any, ...]):
    """A tuple whose text is that of its items."""

    __slots__ = ()

    def __str__(self) -> str:
        return "; ".join(map(str, self))


def _several(items: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[_Words]:
    return st.lists(items, min_size=1, max_size=most).map(_Words)


A8 = AttackClass(
    name="A8",
    title="policies of a namespace user that cost a Node many flows",
    grammar=_several(
        st.builds(
            TenantPolicy,
            antrea=st.booleans(),
            blocks=st.integers(1, 12),
            exceptions=st.sampled_from((0, 1, 4, 16)),
        ),
        6,
    ),
    judge=_judge_policies,
    property="the policies of one Namespace have no more flows than the limit, and those of others are enforced",
    protections={"flows of policies are limited": partial(patch.object, limits, "refusals", lambda *_: {})},
    examples=100,
)

# --- A10: a tenant that uses up a quota -----------------------------------------------------------------------

LIMIT = 4


@dataclass(frozen=True, kw_only=True)
class TenantPod:
    """A Pod with labels of its own. `pending`: no Node takes it."""

    tenant: str
    pending: bool

    def __str__(self) -> str:
        return f"a {'Pending' if self.pending else 'running'} Pod of {self.tenant}"


def _judge_tenants(attack: tuple[TenantPod, ...]) -> str:
    tenants = Tenants(label_exports.LabelExports(POLICIES_ON), limit=str(LIMIT))
    tenants.put(*spaces("tenant-a", "tenant-b"))
    for number, one in enumerate(attack):
        tenants.put(pod(number, one.tenant, pending=one.pending))
    tenants.clock.forward(exports.RETRY)
    tenants.controller.due()
    tenants.settle()
    if tenants.most > LIMIT:
        return f"the cluster exports {tenants.most} label identities, the leader accepts {LIMIT}"
    for tenant in ("tenant-a", "tenant-b"):
        demand = sum(one.tenant == tenant and not one.pending for one in attack)
        places = len(tenants.names(tenant))
        if places > demand:
            return f"Pods of {tenant} without an address have label identities"
        if places < min(demand, LIMIT // 2):
            return f"{tenant} has {places} label identities for {demand} Pods, its share is {LIMIT // 2}"
    return ""


def _part_of_any_pod(pod: Any) -> str | None:
    return labels.joined(pod.labels) if isinstance(pod, ApiPod) else None


def _all_of_it(demands: Mapping[str, int], limit: int) -> dict[str, int]:
    return dict.fromkeys(demands, limit)


A10 = AttackClass(
    name="A10",
    title="a namespace user fills the quota of its cluster",
    grammar=_several(
        st.builds(TenantPod, tenant=st.sampled_from(("tenant-a", "tenant-b")), pending=st.booleans()), 10
    ),
    judge=_judge_tenants,
    property="each Namespace has a fair share of the label identities, and Pods without an address have none",
    protections={
        "Pods without an address have no label identity": partial(
            patch.object, label_exports, "_part", _part_of_any_pod
        ),
        "Namespaces share the quota": partial(patch.object, exports, "max_min_shares", _all_of_it),
    },
    examples=100,
)

# --- A11: endpoints at Nodes -----------------------------------------------------------------------------------

NODE_ADDRESSES = ("192.0.2.3", "192.0.2.1", "10.10.3.1", "10.10.3.0", "10.10.1.1")
HOME_NETWORKS = tuple(
    map(
        IPv4Network,
        ("10.10.1.0/24", "10.10.2.0/24", "10.10.3.0/24", "192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32"),
    )
)
OUTSIDE = ("169.254.169.254", "8.8.8.8", "10.96.0.1", "10.97.0.5", "127.0.0.1", "192.168.0.1")


@dataclass(frozen=True, kw_only=True)
class Slice:
    """An EndpointSlice of an exported Service, and Pods."""

    port: int
    endpoints: tuple[Endpoint, ...]
    pods: tuple[Pod, ...]

    def __str__(self) -> str:
        places = ", ".join(
            f"{endpoint.addresses[0]}:{self.port} (targetRef: {f'Pod {endpoint.pod}' if endpoint.pod else 'none'})"
            for endpoint in self.endpoints
        )
        pods = ", ".join(
            f"{pod.meta.key} {'in the host network of' if pod.host_ips else 'with'} {(*pod.host_ips, *pod.ips)[0]}"
            for pod in self.pods
        )
        return f"an EndpointSlice in Namespace default with {places}; Pods: {pods or 'none'}"


@st.composite
def _slices(draw: st.DrawFn) -> Slice:
    chosen = draw(
        st.lists(st.sampled_from((*NODE_ADDRESSES, *OUTSIDE, "10.10.3.77")), min_size=1, max_size=3, unique=True)
    )
    endpoints, pods = [], []
    for number, address in enumerate(chosen):
        name = f"web-{number}"
        endpoints.append(replace(endpoint(address), pod=draw(st.sampled_from((name, name, "", "web-0")))))
        behind = draw(st.sampled_from((address, address, *NODE_ADDRESSES)))
        space = draw(st.sampled_from(("default", "default", "monitoring")))
        ordinary = Pod(meta=meta(Kind.POD, name, namespace=space), node_name="w1", ips=addresses("10.10.3.77"))
        pod = draw(st.sampled_from((None, ordinary, host_pod(name, behind, namespace=space))))
        pods += [] if pod is None else [pod]
    return Slice(
        port=draw(st.sampled_from((22, 8080, 10250, 6443, 30080))), endpoints=tuple(endpoints), pods=tuple(pods)
    )


def _judge_slice(attack: Slice) -> str:
    places, _ = served(attack.port, *attack.endpoints, pods=attack.pods)
    references = {str(endpoint.addresses[0]): endpoint.pod for endpoint in attack.endpoints}
    for place in sorted(places):
        text = place.partition(":")[0]
        address = IPv4Address(text)
        if not any(address in network for network in HOME_NETWORKS):
            return f"other clusters reach {place}, which is not of this cluster"
        if text not in NODE_ADDRESSES or text == POD:
            continue
        if attack.port in KUBERNETES_PORTS:
            return f"other clusters reach a component of Kubernetes at {place}"
        behind = [
            endpoint
            for endpoint in attack.pods
            if endpoint.meta.namespace == "default"
            and endpoint.meta.name == references[text]
            and address in (*endpoint.host_ips, *endpoint.ips)
        ]
        if not behind:
            return f"other clusters reach {place} of a Node, where no Pod of the Namespace is in the host network"
    return ""


A11 = AttackClass(
    name="A11",
    title="a namespace user writes an EndpointSlice of an exported Service",
    grammar=_slices(),
    judge=_judge_slice,
    property="other clusters reach Pods, and at a Node's address only a Pod of the Namespace in the host network",
    protections={
        "a Node's address needs a Pod in the host network": partial(
            patch.object, EndpointRules, "is_without_pod", lambda *_: False
        ),
        "components of Kubernetes are no endpoints": partial(
            patch.object, EndpointRules, "is_kubernetes", lambda *_: False
        ),
        "an endpoint is of this cluster": partial(patch.object, EndpointRules, "is_local", lambda *_: True),
    },
    examples=500,
)
