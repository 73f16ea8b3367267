"""Attacks by the leader: policies that it plants in its members. Judged by a naive reader of policies."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from mcagent.controller.member.policies import consent, policy_imports
from mcagent.controller.settings import MemberSettings, ReplicatedPolicies
from mcagent.kube.source import RawObject
from mcagent.model.kinds import KINDS
from mcagent.model.objects import Kind
from tests.attacks.generated.search import AttackClass
from tests.attacks.replicated_policies import ISOLATED, POLICIES, cluster_wide, member_with_owner, planted
from tests.worlds import policy_oracle
from tests.worlds.kubernetes_policies import started
from tests.worlds.member_world import AREA, north_of


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A policy in the Common Area, and the consent of a member's administrator."""

    namespaced: ReplicatedPolicies
    cluster_wide: ReplicatedPolicies
    namespaces: tuple[str, ...]
    spec: RawObject

    def __str__(self) -> str:
        raw = self.spec.get("raw")
        document = json.loads(base64.b64decode(raw["data"])) if raw else self.spec["clusternetworkpolicy"]
        return (
            f"the leader exports {json.dumps(document)}; the member's consent: networkPolicies {self.namespaced}, "
            f"clusterPolicies {self.cluster_wide}, namespaces {list(self.namespaces)}"
        )


@st.composite
def _planted(draw: st.DrawFn) -> Planted:
    rules = st.sampled_from(
        ([], [{}], [{"from": [{"podSelector": {}}]}], [{"from": [{"ipBlock": {"cidr": "10.2.0.0/16"}}]}])
    )
    if draw(st.booleans()):
        kinds = [kind for kind in POLICIES if kind is not Kind.NETWORK_POLICY]
        action = draw(st.sampled_from(("Allow", "Pass", "Drop", "Deny")))
        spec = cluster_wide(draw(st.sampled_from(kinds)), action)
        if policy_spec := spec.get("clusternetworkpolicy"):
            policy_spec |= {"appliedTo": [{"namespaceSelector": {}}], "ingress": [{"action": action}]}
    else:
        content: RawObject = {
            "podSelector": {},
            "policyTypes": draw(st.sampled_from((["Ingress"], ["Ingress", "Egress"]))),
        }
        ingress = draw(st.none() | rules)
        content |= {} if ingress is None else {"ingress": ingress}
        spec = planted(content, draw(st.sampled_from(("shop", "kube-system", "till"))))
    consents = st.sampled_from(ReplicatedPolicies)
    return Planted(
        namespaced=draw(consents),
        cluster_wide=draw(consents),
        namespaces=draw(st.sampled_from(((), ("shop",), ("*",)))),
        spec=spec,
    )


def _judge_planted(attack: Planted) -> str:
    view = member_with_owner()
    controller = started(
        view,
        replicated_network_policies=attack.namespaced,
        replicated_cluster_policies=attack.cluster_wide,
        replicated_namespaces=attack.namespaces,
    )
    manifest = {"name": "p-antreaclusternetworkpolicy", "namespace": AREA}
    north_of(view).put({"kind": "ResourceImport", "metadata": manifest, "spec": {"name": "p"} | attack.spec})
    controller.run()
    for kind in POLICIES:
        accepted = attack.namespaced if kind is Kind.NETWORK_POLICY else attack.cluster_wide
        for raw in view.local.list(kind):
            if raw["metadata"]["name"] == "own":
                continue
            space = raw["metadata"].get("namespace", "")
            if accepted not in (ReplicatedPolicies.ISOLATE, ReplicatedPolicies.ALLOW):
                return f"a policy ({kind}) of the leader is applied without consent"
            if kind is Kind.NETWORK_POLICY and not (
                space in attack.namespaces or ("*" in attack.namespaces and not space.startswith("kube-"))
            ):
                return (
                    f"a NetworkPolicy of the leader is applied in Namespace {space}, for which there is no consent"
                )
            if accepted is ReplicatedPolicies.ISOLATE and (why := _opens(kind, raw)):
                return why
    return ""


def _opens(kind: Kind, raw: RawObject) -> str:
    """Return what a policy opens that its owner has closed."""
    if kind not in (Kind.NETWORK_POLICY, Kind.CLUSTER_NETWORK_POLICY):  # the oracle does not read these kinds
        actions = [rule.get("action") for way in ("ingress", "egress") for rule in raw["spec"].get(way) or ()]
        return "" if all(action == "Deny" for action in actions) else f"a policy ({kind}) of the leader allows"
    info = KINDS[kind]
    document = {**raw, "apiVersion": info.api_version, "kind": info.name}
    objects: list[Any] = [
        {"kind": "Namespace", "metadata": {"name": "shop"}},
        {"kind": "Pod", "metadata": {"name": "p", "namespace": "shop"}, "spec": {"containers": []}},
        {"kind": "Tier", "metadata": {"name": "emergency"}, "spec": {"priority": 50}},
        ISOLATED,
    ]
    for direction in ("ingress", "egress"):
        request = policy_oracle.Request(
            direction=direction, pod=("shop", "p"), address="10.2.0.9", cluster="west", port=80
        )
        before, _ = policy_oracle.judged(objects, request)
        after, _ = policy_oracle.judged([*objects, document], request)
        if before != "Allow" and after == "Allow":
            return f"a policy ({kind}) of the leader opens {direction} of Pods that their owner has isolated"
    return ""


@contextmanager
def _without_consent() -> Iterator[None]:
    everything = MemberSettings(
        replicated_network_policies=ReplicatedPolicies.ALLOW, replicated_cluster_policies=ReplicatedPolicies.ALLOW
    )
    written, read = consent.written_kinds(everything), consent.read_kinds(everything)
    with (
        patch.object(policy_imports, "written_kinds", lambda _: written),
        patch.object(policy_imports, "read_kinds", lambda _: read),
        patch.object(consent, "_ACCEPTING", frozenset(ReplicatedPolicies)),
    ):
        yield


A13 = AttackClass(
    name="A13",
    title="the leader plants policies in its members",
    grammar=_planted(),
    judge=_judge_planted,
    property="a policy of the leader is applied only with consent, and with `isolate` it opens nothing",
    protections={
        "policies need consent": _without_consent,
        "consent is for named Namespaces": partial(patch.object, consent, "_is_named", lambda *_: True),
        "with `isolate` policies only deny": partial(patch.object, consent, "_opening", lambda *_: ""),
    },
    examples=200,
)
