"""The role of docs/multicluster.md for those who may export Services, on a real API server."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.kube.access import account, grant, token_of
from tests.worlds.apiservers import Cluster, refusal

pytestmark = pytest.mark.real_only  # the embedded server has no ServiceAccounts without rights on ServiceExports
PAGE = Path(__file__).parents[3] / "docs/multicluster.md"
ROLE = re.compile(r"kubectl create clusterrole serviceexport-admin --verb=(\S+) --resource=(\w+)\.(\S+)")
GROUP = "multicluster.x-k8s.io"


def test_only_those_with_the_role_of_the_page_export(cluster: Cluster) -> None:
    """In the namespace of the binding. Without it, an account that may manage Services may not export them."""
    verbs, resource, group = ROLE.search(PAGE.read_text()).groups()  # type: ignore[union-attr]
    exporting = {"apiGroups": [group], "resources": [resource], "verbs": verbs.split(",")}
    serving = {"apiGroups": [""], "resources": ["services"], "verbs": ["*"]}
    for name, rules in (("exporter", [serving, exporting]), ("developer", [serving])):
        account(cluster, name)
        grant(cluster, name, *rules)
    export = {"apiVersion": f"{GROUP}/v1beta1", "kind": "ServiceExport", "metadata": {"name": "web"}}
    path = cluster.path("serviceexports", group=GROUP, version="v1beta1")
    with (
        closing(cluster.server.as_token(token_of(cluster, "exporter"))) as exporter,
        closing(cluster.server.as_token(token_of(cluster, "developer"))) as developer,
    ):
        assert cluster.refused("POST", path, export, client=developer).code == 403
        assert refusal(exporter, "POST", path, export) is None
        assert refusal(exporter, "DELETE", f"{path}/web") is None
        elsewhere = path.replace(cluster.namespace, "default")
        assert cluster.refused("POST", elsewhere, export, client=exporter).code == 403
