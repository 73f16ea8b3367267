"""`mcagent migrate check`: what a takeover from Antrea's controllers asks for."""

from __future__ import annotations

from typing import Any

import pytest

from mcagent.controller.admin.migration import Level, Objects, check
from mcagent.controller.config import ControllerRole
from mcagent.model.objects import Kind
from tests.worlds.memory_objects import typed

AREA, HOME = "antrea-multicluster", "kube-system"


def account(name: str, cluster: str = "") -> dict[str, Any]:
    """Return a ServiceAccount of a member, annotated or not."""
    notes = {"multicluster.antrea.io/cluster-id": cluster} if cluster else None
    return {"metadata": {"name": name, "namespace": AREA, "annotations": notes}}


def binding(name: str) -> dict[str, Any]:
    """Return the RoleBinding of a member, as the guide's manifests have it."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": AREA}
    return {"roleRef": {"kind": "Role", "name": "antrea-mc-member-cluster-role"}, "subjects": [subject]}


def hook(namespace: str, kind: str = "ValidatingWebhookConfiguration") -> dict[str, Any]:
    """Return a webhook configuration of Antrea's."""
    meta = {"name": f"{namespace}-hook", "labels": {"served-by": "antrea-mc-controller", "role": "leader"}}
    return {"kind": kind, "metadata": meta, "webhooks": [{"clientConfig": {"service": {"namespace": namespace}}}]}


def config(text: str) -> dict[str, Any]:
    """Return the ConfigMap of Antrea's controller."""
    return {
        "metadata": {"name": "antrea-mc-controller-config", "namespace": HOME},
        "data": {"controller_manager_config.yaml": text},
    }


KINDS_OF = {
    "accounts": Kind.SERVICE_ACCOUNT,
    "config_maps": Kind.CONFIG_MAP,
    "cluster_sets": Kind.CLUSTER_SET,
    "claims": Kind.CLUSTER_CLAIM,
    "announces": Kind.MEMBER_CLUSTER_ANNOUNCE,
    "exports": Kind.RESOURCE_EXPORT,
    "imports": Kind.RESOURCE_IMPORT,
}


def objects_of(namespace: str, **objects: Any) -> Objects:
    """Return what a cluster has, from its JSON."""
    typed_objects: dict[str, Any] = {
        name: [typed(item, KINDS_OF[name]) for item in items] if name in KINDS_OF else items
        for name, items in objects.items()
    }
    return Objects(namespace=namespace, **typed_objects)


def texts(value: Any, level: Level) -> list[str]:
    """Return what was found of a level, with commands."""
    return [f"{item.about}: {item.text} {item.command}" for item in value if item.level is level]


def test_a_leader_that_is_ready_to_be_replaced() -> None:
    """Without controller and webhooks, with annotated accounts, nothing is left to do."""
    objects = objects_of(
        namespace=AREA,
        deployment={"spec": {"replicas": 0}},
        bindings=[binding("member-east")],
        accounts=[account("member-east", "east"), account("default")],
        exports=[{"spec": {"kind": "ClusterInfo"}}, {"spec": {"kind": "AntreaClusterNetworkPolicy"}}],
    )
    findings = check(ControllerRole.LEADER, objects)
    assert texts(findings, Level.MUST) == texts(findings, Level.LOST) == []
    assert "2 exports, 0 imports: none is deleted" in texts(findings, Level.KEPT)[0]


def test_a_leader_with_everything_in_the_way() -> None:
    """Accounts are annotated first; then the webhooks go, and their controller is stopped."""
    objects = objects_of(
        namespace=AREA,
        deployment={"spec": {"replicas": 1}},
        webhooks=[hook(AREA), hook(HOME)],
        bindings=[binding("member-west"), binding("member-east")],
        accounts=[account("member-east", "east"), account("member-west")],
        announces=[{"clusterID": "east"}, {"clusterID": "west"}],
        exports=[{"spec": {"kind": "ExternalEntity"}}, {"spec": {"kind": "LabelIdentity"}}],
    )
    findings = check(ControllerRole.LEADER, objects)
    annotate, delete, stop = texts(findings, Level.MUST)
    assert "annotate serviceaccount member-west multicluster.antrea.io/cluster-id=west" in annotate
    assert "kubectl -n antrea-multicluster scale deployment antrea-mc-controller --replicas=0" in stop
    assert "kubectl delete validatingwebhookconfiguration antrea-multicluster-hook" in delete
    entities, labels = texts(findings, Level.LOST)
    assert "1 of kind ExternalEntity" in entities
    assert "enableStretchedNetworkPolicy: true" in labels


def test_endpoints_outside_of_what_their_cluster_publishes() -> None:
    """Pods that are reached without gateways need allowedEndpointCIDRs, of which Antrea's leader knows nothing."""
    info = {"kind": "ClusterInfo", "clusterinfo": {"clusterID": "east", "serviceCIDR": "10.96.0.0/16"}}
    exports = [
        {
            "spec": {
                "clusterID": cluster,
                "kind": "Endpoints",
                "endpoints": {"subsets": [{"addresses": [{"ip": ip}]}]},
            }
        }
        for cluster, ip in (("east", "10.96.0.7"), ("east", "10.1.0.7"), ("west", "10.96.0.8"))
    ]
    findings = check(ControllerRole.LEADER, objects_of(namespace=AREA, exports=exports, imports=[{"spec": info}]))
    east, west = texts(findings, Level.LOST)
    assert "cluster east: 1 endpoints that it exports (10.1.0.7, ...)" in east
    assert "cluster west: 1 endpoints" in west
    assert "allowedEndpointCIDRs" in east


def test_an_account_that_no_member_needs() -> None:
    """The default account of Antrea's manifests is nothing to do as long as every member has one of its own."""
    default = "antrea-mc-member-access-sa"
    objects = objects_of(
        namespace=AREA,
        bindings=[binding(default), binding("member-east")],
        accounts=[account(default), account("member-east", "east")],
        announces=[{"clusterID": "east"}],
    )
    findings = check(ControllerRole.LEADER, objects)
    assert texts(findings, Level.MUST) == []
    assert f"ServiceAccount {AREA}/{default}: stands for no cluster" in texts(findings, Level.LOST)[0]


def test_an_invalid_cluster_id_is_no_part_of_a_command() -> None:
    """A member of Antrea's leader chooses the ID in its announcement, and an administrator pastes the command."""
    objects = objects_of(
        namespace=AREA,
        bindings=[binding("member-west")],
        accounts=[account("member-west")],
        announces=[{"clusterID": "west; reboot"}],
    )
    (annotate,) = texts(check(ControllerRole.LEADER, objects), Level.MUST)
    assert annotate.endswith("annotate serviceaccount member-west multicluster.antrea.io/cluster-id=CLUSTER_ID")


@pytest.mark.parametrize(
    ("claims", "level", "message"),
    [
        ([], Level.MUST, "no ClusterClaim id.k8s.io"),
        ([{"metadata": {"name": "id.k8s.io"}, "value": "east"}], Level.CHANGES, 'filled in, "east"'),
    ],
)
def test_a_cluster_set_of_v1alpha1(claims: list[dict[str, Any]], level: Level, message: str) -> None:
    """Its cluster ID is taken from the ClusterClaim, and asked for where there is none."""
    cluster_set = {
        "metadata": {"name": "blue"},
        "spec": {"leaders": [{"clusterID": "north", "server": "https://x"}]},
    }
    findings = check(ControllerRole.MEMBER, objects_of(namespace=HOME, cluster_sets=[cluster_set], claims=claims))
    assert message in "".join(texts(findings, level))
    assert "mcagent.io/member" in "".join(texts(findings, Level.CHANGES))


def test_the_secret_of_the_leader_has_to_be_readable() -> None:
    """Our controller reads one Secret only, by a Role that Antrea's needs not."""
    leader = {"clusterID": "north", "server": "https://x", "secret": "member-east"}
    cluster_set = {"metadata": {"name": "blue"}, "spec": {"clusterID": "east", "leaders": [leader]}}
    findings = check(ControllerRole.MEMBER, objects_of(namespace=HOME, cluster_sets=[cluster_set]))
    (required,) = texts(findings, Level.MUST)
    assert "create role mcagent-leader-token --verb=get,list,watch,update --resource=secrets" in required
    assert "--resource-name=member-east" in required
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["member-east"]}
    role = {"metadata": {"name": "mcagent-leader-token"}, "rules": [rule]}
    assert (
        texts(
            check(ControllerRole.MEMBER, objects_of(namespace=HOME, cluster_sets=[cluster_set], roles=[role])),
            Level.MUST,
        )
        == []
    )


def test_the_configuration_is_read() -> None:
    """What is taken is said, what is changed, and what is refused."""
    good = config(
        'apiVersion: multicluster.crd.antrea.io/v1alpha1\nkind: MultiClusterConfig\npodCIDRs: ["10.1.1.1/16"]'
    )
    findings = check(
        ControllerRole.MEMBER, objects_of(namespace=HOME, config_maps=[good, {"data": {"other": "x"}}])
    )
    assert "can be used as it is" in texts(findings, Level.KEPT)[0]
    assert "used as 10.1.0.0/16" in texts(findings, Level.CHANGES)[0]
    findings = check(
        ControllerRole.MEMBER, objects_of(namespace=HOME, config_maps=[config("endpointIPType: PodIP")])
    )
    assert "allowedEndpointCIDRs in the leader" in texts(findings, Level.MUST)[0]
    findings = check(
        ControllerRole.MEMBER,
        objects_of(namespace=HOME, config_maps=[config("enableStretchedNetworkPolicy: true")]),
    )
    assert "mcagent's controller reads Pods" in "".join(texts(findings, Level.CHANGES))
    findings = check(ControllerRole.MEMBER, objects_of(namespace=HOME, config_maps=[config("unheardOf: 1")]))
    assert "unheardOf: unknown key" in texts(findings, Level.MUST)[0]
