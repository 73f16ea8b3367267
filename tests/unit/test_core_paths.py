"""What a Node reports about tunnels through which no packets, or only small ones, pass."""

from __future__ import annotations

from mcagent.core.compile import compile_desired
from mcagent.model.dataplane.facts import Facts
from mcagent.model.dataplane.resources import TunnelPort
from mcagent.model.problem import Severity
from tests.worlds.core_inputs import HOME, cluster, config, resources, snapshot


def test_a_tunnel_that_only_small_packets_pass_is_a_problem_of_its_cluster() -> None:
    """And one through which nothing comes is another problem, which names the port to open."""
    objects = snapshot(*HOME, cluster("east", "10.97.0.0/16", gateways=("203.0.113.1", "203.0.113.2")))
    ports = resources(compile_desired(objects, Facts(), config("g1")))
    names = sorted(r.name for r in ports if isinstance(r, TunnelPort) and r.peer == "east")
    assert len(names) == 2
    (narrow,) = compile_desired(objects, Facts(narrow=frozenset(names[:1])), config("g1")).desired.problems
    assert (narrow.reason, narrow.path, narrow.severity) == ("PathMtu", "spec.gatewayInfos", Severity.WARNING)
    assert narrow.message.startswith("small packets pass the tunnel to 203.0.113.")
    (silent,) = compile_desired(objects, Facts(silent=frozenset(names[1:])), config("g1")).desired.problems
    assert (silent.reason, silent.path, silent.severity) == ("PeerSilent", "spec.gatewayInfos", Severity.WARNING)
    assert (
        "none ever came from there: UDP port 6081 is blocked, or the address is wrong, or no agent"
        in silent.message
    )
    assert narrow.subject == silent.subject == "ClusterInfoImport mc/east-clusterinfo"
    compiled = compile_desired(objects, Facts(silent=frozenset(names), narrow=frozenset(names)), config("g1"))
    assert sorted(problem.reason for problem in compiled.desired.problems) == ["PathMtu"] * 2 + ["PeerSilent"] * 2
