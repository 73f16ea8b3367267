"""The doctor over whole clusters: the API of each, and every Node's agent asked for its page /doctor."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from mcagent.agent.config import Settings
from mcagent.agent.dry_run import relist
from mcagent.cli.common.agent_config import read_config_map
from mcagent.cli.common.agents import Agents, Answer, OfCluster, ask_nodes, open_agents
from mcagent.cli.common.cluster_flags import usual_kubeconfig
from mcagent.controller.admin.doctor_rules import examine_cluster
from mcagent.controller.admin.doctor_view import ClusterSeen, read_cluster
from mcagent.core.compile import compile_desired
from mcagent.core.doctor.catalogue import NODE_CHECKS
from mcagent.core.doctor.finding import Finding, fine, found, of_plain, of_problem, skipped
from mcagent.core.snapshot import apply_changes
from mcagent.kube.client import Client
from mcagent.model.config import Config
from mcagent.model.errors import McagentError, SourceError
from mcagent.model.facts import Facts
from mcagent.model.objects import Kind, Snapshot

ASK = 20.0  # seconds for the doctor of another Node
_FACTS = frozenset({"AddressNotHere", "UplinkOutside", "PodCIDRsMissing", "EncryptionUnavailable"})


def look_at_clusters(
    args: argparse.Namespace, settings: Settings, progress: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """Return what is found in each cluster that the flags name, and on its Nodes. Raises InputError, OSError."""
    clusters, nodes = [], []
    kubeconfig = settings.kubeconfig or usual_kubeconfig()
    for context in args.context or [""]:
        client = Client(kubeconfig, context, user_agent="mcagent-doctor")
        try:
            seen = read_cluster(client, progress)
            args.kubeconfig = kubeconfig
            ways = argparse.Namespace(**{**vars(args), "context": context})
            agents = OfCluster(client=client) if not args.agents else open_agents(ways, lambda: settings)
            answers = {} if seen.error else _ask(agents, progress)
            told = [_of_node(answer) for answer in answers.values()]
            clusters.append(_of_cluster(context, client, seen, settings, told))
            nodes += told
        finally:
            client.close()
    return {"clusters": clusters, "nodes": nodes}


def _ask(agents: Agents, progress: Callable[[str], None]) -> Mapping[str, Answer]:
    progress("the Nodes")
    try:
        return ask_nodes(agents, "/doctor", timeout=ASK)
    except McagentError as error:
        return {"": Answer(node="(all)", error=str(error))}


def _of_node(answer: Answer) -> dict[str, Any]:
    """Return a Node's part; what another version's agent says that makes no sense is left out."""
    if answer.page is None:
        findings: list[Finding] = [found("AgentNotAsked", answer.error)]
    else:
        raw = answer.page.get("findings")
        read = [of_plain(one) for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []
        findings = [one for one in read if one is not None and one.check in NODE_CHECKS]
        findings = findings or [found("AgentNotAsked", "its answer holds no findings")]
    return {"node": answer.node, "findings": [one.plain() for one in findings]}


def _of_cluster(
    context: str, client: Client, seen: ClusterSeen, settings: Settings, told: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    answered = [n["node"] for n in told if all(one["reason"] != "AgentNotAsked" for one in n["findings"])]
    more = [] if seen.error or answered else _input(client, _config(client, settings))
    findings = examine_cluster(seen, more, answered)
    name = context or client.server
    return {"cluster": name, "server": client.server, "findings": [one.plain() for one in findings]}


def _config(client: Client, settings: Settings) -> Config:
    """Return the configuration of the cluster's agents: their ConfigMap, else what is configured here."""
    try:
        found = read_config_map(client)
    except McagentError:
        found = None
    return settings.core if found is None else found[0].core


def _input(client: Client, config: Config) -> list[Finding]:
    """Judge the cluster's input as a gateway's agent would, where no agent could be asked."""
    try:
        problems = input_problems(client, config)
    except SourceError as error:
        return [skipped("cidrs", str(error))]
    findings = [of_problem(one) for one in problems if one.reason not in _FACTS]
    told = {one.check for one in findings}
    words = {"cidrs": "no network is refused", "input": "gateways and clusters are used as written"}
    return findings + [fine(check, text) for check, text in words.items() if check not in told]


def input_problems(client: Client, config: Config) -> tuple[Any, ...]:
    """Return the problems of Gateways, Nodes, ClusterInfoImports as a gateway sees them. Raises SourceError."""
    kinds = (Kind.GATEWAY, Kind.NODE, Kind.CLUSTER_INFO_IMPORT)
    snapshot = apply_changes(Snapshot(), [relist(client, kind, config.namespace) for kind in kinds])
    gateway = next((one.meta.name for one in snapshot.gateways.values()), config.node_name)
    compiled = compile_desired(snapshot, Facts(), replace(config, node_name=gateway))
    return compiled.desired.problems
