"""What messages advise for a join by manifests: commands that make what `mcagent clusterset join` makes."""

from __future__ import annotations

import shlex

import pytest

from mcagent.controller.admin import join_config
from mcagent.controller.admin.listing import rows
from mcagent.controller.contract.commands import bind_account, let_read_token
from mcagent.kube.errors import status_error
from tests.worlds.admission_objects import AREA, an_announce, ask, sa

ANNOTATION = "multicluster.antrea.io/cluster-id"


def test_the_members_commands_let_its_controller_read_one_secret() -> None:
    """A Role for this Secret's name alone, bound to the controller's account: as join creates them."""
    first, second = let_read_token("kube-system", "member-east-token").split(" && ")
    assert shlex.split(first)[:4] == ["kubectl", "-n", "kube-system", "create"]
    assert {*shlex.split(first)[4:]} == {
        "role",
        "mcagent-leader-token",
        "--verb=get,list,watch,update",
        "--resource=secrets",
        "--resource-name=member-east-token",
    }
    assert {*shlex.split(second)[4:]} == {
        "rolebinding",
        "mcagent-leader-token",
        "--role=mcagent-leader-token",
        "--serviceaccount=kube-system:mcagent-controller",
    }


@pytest.mark.parametrize(
    ("server", "local"),
    [
        ("https://127.0.0.1:40123", True),
        ("https://[::1]:6443", True),
        ("https://localhost:6443/k8s", True),
        ("https://192.0.2.1:6443", False),
        ("https://api.east.example.com", False),
    ],
)
def test_an_api_server_that_members_do_not_reach_is_recognised(server: str, local: bool) -> None:
    """A kubeconfig of kind, or of a tunnel, has an address of the administrator's machine."""
    assert join_config.is_local(server) is local


def test_the_leader_answers_an_unannotated_account_with_the_command() -> None:
    """The guide's ServiceAccount has no annotation: the refusal ends with the command that adds it."""
    decision = ask("CREATE", an_announce("east"), user=sa("admin-sa"))
    assert not decision.allowed
    assert decision.message.endswith(f": kubectl -n {AREA} annotate serviceaccount admin-sa {ANNOTATION}=east")


@pytest.mark.parametrize("cluster", ["", "East", "east; reboot", "$(reboot)", "east\nreboot"])
def test_what_is_no_cluster_id_is_no_part_of_a_command(cluster: str) -> None:
    """A member chooses this text, and an administrator may paste the command."""
    assert bind_account(AREA, "admin-sa", cluster) == ""
    decision = ask("CREATE", an_announce(cluster), user=sa("admin-sa"))
    assert "kubectl" not in decision.message


def test_a_refusal_by_admission_does_not_blame_the_role() -> None:
    """Webhooks and policies refuse with the status that missing rights have."""
    for message in (
        'admission webhook "announces.mcagent.io" denied the request: ServiceAccount a/b stands for no cluster',
        "ValidatingAdmissionPolicy 'a.mcagent.io' with binding 'a' denied request: spec is wrong",
    ):
        error = status_error("POST /x", {"code": 403, "reason": "Forbidden", "message": message})
        assert str(error) == f"POST /x: refused by admission: {message}"
    denied = {"code": 403, "message": 'secrets "x" is forbidden: User "y" cannot get resource'}
    assert "not allowed: the role lacks a rule for it" in str(status_error("GET /x", denied))


def test_an_object_that_is_missing_does_not_blame_the_crds() -> None:
    """Only a resource that the API server does not serve does."""
    missing = {"code": 404, "reason": "NotFound", "message": 'nodes "n9" not found'}
    assert str(status_error("PATCH /api/v1/nodes/n9", missing)) == 'PATCH /api/v1/nodes/n9: nodes "n9" not found'
    for message in ("the server could not find the requested resource", "404 page not found", ""):
        unknown = {"code": 404, "reason": "NotFound", "message": message}
        assert "are the CRDs installed?" in str(status_error("GET /apis/x", unknown))


def test_get_clusterset_shows_the_commands_whole() -> None:
    """The commands are at the end of the condition's message, which the table shortens in the middle only."""
    commands = let_read_token("kube-system", "member-east-token")
    message = (
        f"Disconnected from leader: Secret kube-system/member-east-token cannot be read: {'x' * 300}: {commands}"
    )
    conditions = [{"type": "Ready", "status": "False", "message": message}]
    cluster_set = {
        "apiVersion": "multicluster.crd.antrea.io/v1alpha2",
        "kind": "ClusterSet",
        "metadata": {"name": "blue", "namespace": "kube-system"},
        "status": {"conditions": conditions},
    }
    (row, *_) = rows("clusterset", [cluster_set], 0.0)
    assert row[-1].startswith("Disconnected from leader")
    assert row[-1].endswith(commands)
