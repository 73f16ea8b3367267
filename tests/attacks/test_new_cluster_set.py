"""A ClusterSet that `mcagent clusterset init` creates: members claim CIDRs of a list only."""

from __future__ import annotations

import pytest

from mcagent.controller.contract import names
from mcagent.model.objects import Kind
from tests.attacks.catalogue import Attacker, Group, attack
from tests.worlds.admin_site import INIT, Site, make_token, server, site
from tests.worlds.leader_world import AREA, Leader, cluster_info

__all__ = ["server", "site"]

DATABASE = "192.168.50.0/24"  # beside the ClusterSet, behind the default route of Nodes


@attack(
    Group.ADDRESSES,
    Attacker.MEMBER,
    wants="receive what Pods and Nodes of others send to a private network beside the ClusterSet by claiming it",
    stopped_by="the list of a new ClusterSet (`clusterset init --allow-cidr`), which each member's account gets",
)
@pytest.mark.parametrize("flags", [(), ("--allow-cidr", "10.0.0.0/8")])
def test_a_private_network_of_nobody(site: Site, flags: tuple[str, ...]) -> None:
    """The leader grants CIDRs in the list, also in that which `init` derives from its own cluster."""
    assert site.run(*INIT, "blue", *flags)[0] == 0
    assert make_token(site, "attacker")[0] == 0
    account = site.get(Kind.SERVICE_ACCOUNT, "attacker")
    assert account is not None
    leader = Leader("attacker")
    leader.put({"kind": "ServiceAccount", "metadata": {**account["metadata"], "namespace": AREA}})
    leader.put(cluster_info("attacker", "10.96.0.0/16", [DATABASE]))
    granted = leader.imported(names.cluster_info("attacker"))
    assert granted is not None
    assert granted["clusterinfo"]["serviceCIDR"] == "10.96.0.0/16"
    assert "podCIDRs" not in granted["clusterinfo"]
