"""`mcagent policy`: the rules on traffic between clusters, and which of them decides."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mcagent.api.codec import converted, to_json
from mcagent.api.policies import IsolatedPod, PolicyDecision, PolicyExplanation, PolicyList, RuleInForce
from mcagent.api.status import ProblemStatus
from mcagent.cli.common import exit_codes
from mcagent.cli.common.cluster_flags import add_cluster_flags, open_cluster
from mcagent.cli.common.manifest_files import add_manifests_flag, read_files
from mcagent.cli.common.shared_flags import add_output_flag
from mcagent.cli.common.tables import table
from mcagent.model.errors import InputError
from mcagent.model.keys.values import did_you_mean
from mcagent.model.parsing.field import listed

if TYPE_CHECKING:
    from mcagent.cli.common.policy_ends import ClusterPolicies, PolicyStep
    from mcagent.controller.admin.cluster import Cluster
    from mcagent.core.policies.rules import LocalRule
    from mcagent.core.snapshot import Change

_EPILOG = """\
examples:
  mcagent policy list
  mcagent policy explain --from shop/web-1 --to shop/cart --port 80

`mcagent policy ACTION --help` explains an action and gives more.
"""
_LIST = """\
examples:
  mcagent policy list
  mcagent policy list --node node-1 -o json
  mcagent policy list -f new-policy.yaml                as if it were applied
  mcagent policy list --local -f manifests/             asks no API server

The rules of each Node, the first that fits decides. Rules that select no Pod are not shown. What cannot be
enforced is told below the table; the exit code is 1 then.
"""
_EXPLAIN = """\
examples:
  mcagent policy explain --from shop/web-1 --to shop/cart --port 80         a Service of other clusters
  mcagent policy explain --from shop/web-1 --to 10.97.0.12 --port 53/UDP
  mcagent policy explain --from shop:app=web --to db/mysql-0 --port 3306    Pods of other clusters, by labels
  mcagent policy explain --from shop:app=web --from-cluster west --to db/mysql-0
  mcagent policy explain --from 10.2.0.7 --to db/mysql-0 -o json            a sender without a label identity
  mcagent policy explain --from shop/web-1 --to db/mysql-0 --context east --to-context west    both ends

Read from the objects, as agents with enableStretchedNetworkPolicy do it; no packet is sent. The CNI has a say of
its own: both must allow. Within the cluster (Pods with the same labels, endpoints of a Service there) the CNI
decides, and rules with toServices. Without --port the request is to a port that no rule names. An address of
another cluster is the one that packets have here: the virtual one, if its Pod CIDR has one. With --to-context the
real one may be given as well, and the sender has its own address also where its gateway translates that. The exit
code is 1 when something stands against it.
"""
_MOST = 3  # peers, ports or Pods of a row
_RAW = argparse.RawDescriptionHelpFormatter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the two actions."""
    parser.description = "Show the policy rules between clusters, or the rule that decides on a connection."
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    rules = actions.add_parser(
        "list", help="show the rules in force on each Node", epilog=_LIST, formatter_class=_RAW
    )
    rules.add_argument("--node", default="", metavar="NAME", help="only of this Node [all]")
    explain = actions.add_parser(
        "explain", help="tell what decides on a connection", epilog=_EXPLAIN, formatter_class=_RAW
    )
    source = (
        "NAMESPACE/POD of this cluster, an address, or labels of other clusters' Pods: NAMESPACE:KEY=VALUE,..."
    )
    explain.add_argument("--from", dest="source", required=True, metavar="WHO", help=source)
    target = "NAMESPACE/POD, NAMESPACE/SERVICE, or an address"
    explain.add_argument("--to", dest="target", required=True, metavar="WHO", help=target)
    explain.add_argument("--port", default="TCP", metavar="PORT", help="80, 53/UDP, ICMP (an echo request)")
    explain.add_argument(
        "--from-cluster", default="", metavar="ID", help="the sender's cluster [each that may be]"
    )
    for action in (rules, explain):
        add_output_flag(action)
        add_manifests_flag(action, "manifests that count as if applied")
        action.add_argument("--local", action="store_true", help="only these manifests: ask no API server")
        action.add_argument(
            "--failure-mode",
            choices=["closed", "open"],
            default="closed",
            help="the agents' policyFailureMode [%(default)s]",
        )
        add_cluster_flags(action)
    explain.add_argument(
        "--to-context", default="", metavar="NAME", help="the target's cluster, of the kubeconfig"
    )


def run(args: argparse.Namespace) -> int:
    """Show or explain."""
    return _explain(args) if args.action == "explain" else _list(args)


def _side(args: argparse.Namespace, context: str) -> ClusterPolicies:
    """Return a cluster's objects with the manifests of the command line."""
    from mcagent.cli.common.policy_ends import ClusterPolicies
    from mcagent.core.snapshot import apply_changes
    from mcagent.model.config import PolicyFailureMode
    from mcagent.model.objects import Snapshot

    changes: list[Change] = []
    cluster_id = ""
    if not args.local:
        args.context = context
        cluster = open_cluster(args)
        changes += _listed(cluster)
        cluster_id = _cluster_id(cluster)
    snapshot = apply_changes(Snapshot(), [*changes, *read_files(args.filename)])
    return ClusterPolicies(context, snapshot, PolicyFailureMode(args.failure_mode), cluster_id)


def _cluster_id(cluster: Cluster) -> str:
    """Return the cluster's ID in its ClusterSet; "" if there is none, or it may not be read."""
    from mcagent.kube.errors import ApiRefusalError
    from mcagent.model.api.multicluster import ClusterSet

    try:
        cluster_sets = cluster.typed(ClusterSet)
    except ApiRefusalError:
        return ""
    return next((item.spec.cluster_id for item in cluster_sets if item.spec.cluster_id), "")


def _listed(cluster: Cluster) -> Iterator[Change]:
    from mcagent.core.policies.selection import POLICY_NEEDS
    from mcagent.core.snapshot import Relist
    from mcagent.kube.errors import ApiRefusalError
    from mcagent.kube.sources.apiserver import OPTIONAL
    from mcagent.model.objects import Kind

    own = {Kind.GATEWAY, Kind.LABEL_IDENTITY, Kind.CLUSTER_INFO_IMPORT}  # the CRDs may be missing
    for kind in sorted(POLICY_NEEDS | own | {Kind.POD, Kind.NAMESPACE, Kind.ENDPOINT_SLICE}):
        try:
            yield Relist(kind=kind, items=cluster.objects(kind))
        except ApiRefusalError as error:
            if error.code != 404 or kind not in {*OPTIONAL, *own}:
                raise


# --- list -------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    from mcagent.core.policies.selection import POLICY_NEEDS

    side = _side(args, args.context)
    node_names = {pod.node_name for pod in side.snapshot.pods.values()}
    if args.node and args.node not in node_names:
        hint = did_you_mean(args.node, node_names) or f"; Nodes with Pods are {', '.join(sorted(node_names)[:20])}"
        raise InputError("list", "--node", f'no Pod is on Node "{args.node}"{hint}')
    nodes = [args.node] if args.node else sorted(node_names)
    of = tuple(f"{kind} " for kind in POLICY_NEEDS)
    unread = {problem for problem in side.snapshot.problems if problem.subject.startswith(of)}
    problems = sorted(unread.union(*(side.on(node).selected.problems for node in nodes)))
    report = PolicyList(
        rules=tuple(_rule(node, rule, side) for node in nodes for rule in side.on(node).rules),
        isolated=tuple(
            IsolatedPod(node=node, pod=_pod_of(side, address), direction=str(direction), by=names)
            for node in nodes
            for (direction, address), names in sorted(side.on(node).isolating.items(), key=str)
        ),
        problems=converted(tuple[ProblemStatus, ...], problems),
    )
    if args.output == "json":
        print(json.dumps(to_json(report), indent=2))
    else:
        print("\n".join([_table(report), *([""] if problems else []), *map(str, problems)]))
    return exit_codes.FAILED if problems else exit_codes.OK


def _rule(node: str, rule: LocalRule, side: ClusterPolicies) -> RuleInForce:
    from mcagent.cli.common.policy_view import port_text, selector_text

    peers = [
        *(["any peer"] if rule.any_peer else []),
        *map(str, rule.networks),
        *(f"Service {namespace}/{name}" for namespace, name in rule.services),
        *map(selector_text, rule.selectors),
    ]
    return RuleInForce(
        node=node,
        policy=rule.policy,
        rule=rule.name,
        direction=str(rule.direction),
        tier=rule.tier,
        verdict=str(rule.verdict),
        peers=tuple(peers or ["no peer of another cluster"]),
        ports=tuple(map(port_text, rule.ports)) or ("any",),
        pods=tuple(_pod_of(side, address) for address in rule.pods),
    )


def _pod_of(side: ClusterPolicies, address: object) -> str:
    owners = (key for key, pod in side.snapshot.pods.items() if address in pod.ips)
    return next(owners, str(address))


def _table(report: PolicyList) -> str:
    if not report.rules and not report.isolated:
        return "no rules are in force"
    plain, lists = ("node", "direction", "tier", "policy", "rule", "verdict"), ("peers", "ports", "pods")
    shown = [
        [*(getattr(rule, name) or "-" for name in plain), *(listed(getattr(rule, name), _MOST) for name in lists)]
        for rule in report.rules
    ]
    lines = table([name.upper() for name in (*plain, *lists)], shown) if shown else []
    if report.isolated:
        pods = [(entry.node, entry.direction, entry.pod, listed(entry.by, _MOST)) for entry in report.isolated]
        lines += [*([""] if lines else []), *table(("NODE", "DIRECTION", "ISOLATED POD", "BY"), pods)]
    return "\n".join(line.rstrip() for line in lines)


# --- explain ----------------------------------------------------------------------------------------------


def _explain(args: argparse.Namespace) -> int:
    from mcagent.cli.common.policy_ends import read_port, steps
    from mcagent.model.policies import Verdict

    port = read_port(args.port)
    source_side = _side(args, args.context)
    target_side = _side(args, args.to_context) if args.to_context else None
    decisions = list(steps(args.source, args.target, port, source_side, target_side, cluster=args.from_cluster))
    if not decisions:
        raise InputError("explain", "--to", "clusters are connected by IPv4, and the ends have no addresses of it")
    allowed = all(step.decision.verdict is Verdict.ALLOW for step in decisions)
    if args.output == "json":
        report = PolicyExplanation(allowed=allowed, decisions=tuple(map(_decision, decisions)))
        print(json.dumps(to_json(report), indent=2))
    else:
        print("\n".join(line for step in decisions for line in _lines(step)))
    return exit_codes.OK if allowed else exit_codes.FAILED


def _decision(step: PolicyStep) -> PolicyDecision:
    request, decision = step.request, step.decision
    return PolicyDecision(
        context=step.side,
        node=step.node,
        direction=str(request.direction),
        pod=step.pod,
        pod_address=str(request.pod),
        pod_virtual_address=str(step.virtual),
        peer_address=None if request.peer is None else str(request.peer),
        peer_real_address=None if step.real_peer is None else str(step.real_peer),
        peer_cluster=request.cluster,
        peer_labels=step.labels,
        peer_identity=request.identity,
        port=str(step.port),
        verdict=str(decision.verdict),
        policy=decision.policy,
        rule=decision.rule,
        tier=decision.tier,
        why=decision.why,
    )


def _lines(step: PolicyStep) -> Iterator[str]:
    from mcagent.model.parsing.labels import UNKNOWN
    from mcagent.model.policies import Direction

    request, decision = step.request, step.decision
    where = f"Node {step.node}" + (f" ({step.side})" if step.side else "")
    peer = "" if request.peer is None else f" {request.peer}"
    if request.direction is Direction.EGRESS:
        yield f"{where}: {step.pod} {request.pod} to{peer} {step.port}: {decision.verdict}"
    else:
        number = (
            "label identity not known" if request.identity == UNKNOWN else f"label identity {request.identity}"
        )
        of = f" of {request.cluster}" if request.cluster else ""
        sender = f"from{peer or ' a Pod'}{of} ({number})"
        yield f"{where}: {sender} to {step.pod} {request.pod} {step.port}: {decision.verdict}"
        if step.labels:
            yield f"  sender: {step.labels}"
    if step.virtual != request.pod:
        yield f"  {request.pod} is {step.virtual} in other clusters"
    if step.real_peer is not None and step.real_peer != request.peer:
        yield f"  {request.peer} is {step.real_peer} in its own cluster"
    yield f"  because {decision.why}" + (f" (tier {decision.tier})" if decision.tier else "")
    if request.direction is Direction.INGRESS and request.peer is None:
        yield "  rules with ipBlock are ignored: the sender's address is not given"
