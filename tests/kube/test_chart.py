"""The Helm chart by Helm: linted, rendered for every role; installed, upgraded, removed on a real API server."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devtools.waiting import wait_until
from mcagent.cli.main import main
from mcagent.config.reader import ConfigText
from mcagent.controller.admin.manifests import GIVEN_CONFIG
from mcagent.controller.config import ControllerRole, load
from mcagent.core.policies.rules import TIERS
from mcagent.kube.errors import ApiRefusalError
from tests.worlds.apiservers import Cluster, Server, collection, leave_out
from tests.worlds.client_certificates import Authority

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/mcagent"
TERM = (
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"
)
POD = (
    "podLabels.team=net",
    "podAnnotations.note=text",
    "extraEnv[0].name=HTTPS_PROXY",
    "extraEnv[0].value=http://192.0.2.1:3128",
    "serviceAccount.annotations.note=text",
    f"{TERM}.key=pool",
    f"{TERM}.operator=Exists",
)
ALL = {
    "everything": (
        "leader.enabled=true",
        "leader.allNamespaces=true",
        "leader.hostNetwork=true",
        "member.hostNetwork=true",
        "admissionPolicies.agentServiceAccounts={nodes/agent,nodes/other-agent}",
        "imagePullSecrets[0].name=registry",
        "member.networkPolicy.webhookFrom={10.0.0.0/8,192.168.0.0/16}",
        "member.networkPolicy.egressTo={10.96.0.1/32,192.0.2.0/28}",
        "dns.configureCoreDNS=true",
        "member.config.replicatedPolicies.networkPolicies=isolate",
        "member.config.replicatedPolicies.clusterPolicies=allow",
        "dns.coreDNS.version=1.15.0",
        "agent.config.clusterID=east",
        "agent.config.wireGuard.port=51900",
        "agent.addedCapabilities={DAC_OVERRIDE}",
        "agent.updateStrategy.type=OnDelete",
        "openvswitch.updateStrategy.type=OnDelete",
        "openvswitch.podLabels.team=net",
        "image.registry=registry.example.com/net",
        *(f"{role}.{value}" for role in ("agent", "member", "leader") for value in POD),
        "metricsReader.subjects[0].kind=ServiceAccount",
        "metricsReader.subjects[0].name=prometheus",
        "metricsReader.subjects[0].namespace=monitoring",
    ),
    "own-certificate": (
        "member.webhook.certSecret=cert",
        "member.webhook.annotations.cert-manager\\.io/inject-ca-from=x/y",
    ),
    "agent-alone": ("member.enabled=false",),
    "openvswitch-of-antrea": (
        "openvswitch.deploy=never",
        "openvswitch.directory=/var/run/antrea/openvswitch",
    ),
    "leader-alone": ("agent.enabled=false", "member.enabled=false", "leader.enabled=true"),
}
Helm = Callable[..., str]


@pytest.fixture
def helm(request: pytest.FixtureRequest, tmp_path: Path) -> Helm:
    """Give a function that runs Helm and returns what it prints; the test is left out where there is none."""
    search = subprocess.run([ROOT / "tests/helm/find-helm"], capture_output=True, text=True, check=False)
    if search.returncode:
        leave_out(request, f"{search.stderr.strip()} (make chart does)")

    def run(*arguments: str, fails: bool = False, kubeconfig: str = "/dev/null") -> str:
        done = subprocess.run(
            [search.stdout.strip(), *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KUBECONFIG": kubeconfig},
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run


def sets(values: tuple[str, ...]) -> list[str]:
    """Return the flags that set values."""
    return [word for value in values for word in ("--set", value)]


def test_lint_has_no_finding(helm: Helm) -> None:
    """`helm lint --strict` is content."""
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("agent.config.clusterId=x", "additional properties 'clusterId' not allowed"),
        ("nameOverride=net", "additional properties 'nameOverride' not allowed"),  # docs/deploy.md has the reason
        ("leader.enabled=true,leader.namespace=mc", "choose another leader.namespace"),
        ("agent.enabled=false,member.enabled=false", "nothing to install"),
        ("agent.config.mtu=large", "at '/agent/config/mtu'"),
        ("agent.config.podCIDRs={10.1.0.5/33}", "at '/agent/config/podCIDRs/0'"),
        (
            "agent.config.bfd.local.interval=1m30s",
            'local.interval must be a duration from 10ms to 10s, not "1m30s"',
        ),
        ("agent.config.resyncPeriod=500ms", "agent.config.resyncPeriod must be a duration from 1s to 86400s"),
        (
            "leader.config.staleAfter=5s,leader.enabled=true",
            "leader.config.staleAfter must be a duration from 60s",
        ),
        (
            "podMonitor.enabled=true,metricsReader.enabled=false",
            "podMonitor.enabled needs metricsReader.enabled=true",
        ),
    ],
)
def test_what_is_wrong_is_said(helm: Helm, value: str, message: str) -> None:
    """Helm's error names the value."""
    assert message in helm("template", "mcagent", str(CHART), "-n", "mc", "--set", value, fails=True)


def test_every_crd_stays_when_the_release_goes(helm: Helm) -> None:
    """And so does what users have stored under it; `crds.keep=false` gives that up."""
    for keep in (True, False):
        manifests = helm(
            "template", "mcagent", str(CHART), *sets(("leader.enabled=true", f"crds.keep={str(keep).lower()}"))
        )
        crds = [obj for obj in yaml.safe_load_all(manifests) if obj and obj["kind"] == "CustomResourceDefinition"]
        assert len(crds) == len([*(CHART / "files/crds").glob("*.yaml")])
        policies = [
            obj["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep" for obj in crds
        ]
        assert policies == [keep] * len(crds)


def test_policies_are_installed_when_asked_for(helm: Helm) -> None:
    """The CRDs of Antrea's policies; their Tiers once the API server has their CRD. None by default."""
    tier = ("--api-versions", "crd.antrea.io/v1beta1/Tier")
    rendered = {
        (install, flags): [
            obj
            for obj in yaml.safe_load_all(
                helm("template", "mcagent", str(CHART), "--set", f"policies.install={install}", *flags)
            )
            if obj and "crd.antrea.io" in (obj["apiVersion"].partition("/")[0], obj.get("spec", {}).get("group"))
        ]
        for install, flags in (("false", tier), ("true", ()), ("true", tier))
    }
    assert [len(objects) for objects in rendered.values()] == [0, 3, 3 + len(TIERS)]
    for obj in rendered["true", tier]:
        assert obj["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.real_only
@pytest.mark.parametrize("cluster_id", ["west", ""])
def test_the_notes_name_the_cluster_that_is_installed(helm: Helm, cluster: Cluster, cluster_id: str) -> None:
    """Typed as they are printed, the commands of the notes act for this cluster and no other."""
    values = ("crds.install=false", "leader.enabled=true", f"agent.config.clusterID={cluster_id}")
    flags = ("--dry-run=client", "--take-ownership", "-n", "mc", *sets(values))
    printed = helm("install", "mcagent", str(CHART), *flags, kubeconfig=str(cluster.server.kubeconfig))
    notes = printed.partition("NOTES:")[2]
    assert re.findall(r"--clusterid (\S+)", notes) == [cluster_id or "CLUSTER-ID"] * 2
    assert not re.search(r"\b(east|north|blue)\b", notes)
    assert "run `mcagent uninstall` before `helm uninstall`" in notes


@pytest.mark.parametrize(
    ("value", "restarted"),
    [
        ("agent.config.logLevel=debug", {"DaemonSet mc mcagent-agent"}),
        ("member.config.maxActiveGateways=2", {"Deployment mc mcagent-member"}),
        ("leader.config.staleAfter=1h", {"Deployment antrea-multicluster mcagent-leader"}),
        ("member.networkPolicy.enabled=false", set()),
    ],
)
def test_another_configuration_restarts_who_reads_it(helm: Helm, value: str, restarted: set[str]) -> None:
    """The Pods of a workload change with its configuration, and with no other's."""

    def pods(*values: str) -> dict[str, Any]:
        text = helm("template", "mcagent", str(CHART), "-n", "mc", *sets(("leader.enabled=true", *values)))
        objects = [obj for obj in yaml.safe_load_all(text) if obj and obj["kind"] in ("Deployment", "DaemonSet")]
        names = [(obj["kind"], obj["metadata"].get("namespace", "mc"), obj["metadata"]["name"]) for obj in objects]
        return {" ".join(name): obj["spec"]["template"] for name, obj in zip(names, objects, strict=True)}

    before, after = pods(), pods(value)
    assert {name for name in before if before[name] != after[name]} == restarted


@pytest.mark.parametrize(("replicas", "host_network", "away"), [(2, False, 1), (1, False, 0), (1, True, 1)])
def test_one_replica_answers_until_the_next_does(helm: Helm, replicas: int, host_network: bool, away: int) -> None:
    """A roll-out ends the only replica once another is ready, unless both want the ports of one Node."""
    values = (f"member.replicas={replicas}", f"member.hostNetwork={str(host_network).lower()}")
    manifests = by_name(helm("template", "mcagent", str(CHART), *sets(values)))
    (controller,) = (obj for name, obj in manifests.items() if name.startswith("Deployment"))
    assert controller["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": away, "maxSurge": 1}


@pytest.mark.parametrize("role", ["member", "leader"])
def test_ports_are_those_of_the_configuration(helm: Helm, role: str) -> None:
    """Probes, Service, NetworkPolicy and Prometheus find the ports that the configuration has."""
    values = (
        "leader.enabled=true",
        f"{role}.config.health.healthProbeBindAddress=:9080",
        f"{role}.config.metrics.bindAddress=:10443",
        f"{role}.config.webhook.port=9500",
    )
    text = helm("template", "mcagent", str(CHART), "-n", "mc", *sets(values))
    objects = {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(text) if obj}
    pod = objects["Deployment", f"mcagent-{role}"]["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert ports == {"health": 9080, "metrics": 10443, "webhook": 9500}
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "10443"
    (opened,) = objects["NetworkPolicy", f"mcagent-{role}"]["spec"]["ingress"]
    assert {rule["port"] for rule in opened["ports"]} == set(ports.values())


@pytest.mark.parametrize(
    ("listen", "probed"),
    [("127.0.0.1:10371", ("127.0.0.1", 10371)), (":10371", ("127.0.0.1", 10371)), ("[::1]:10361", ("::1", 10361))],
)
def test_probes_ask_where_the_agent_serves_health(helm: Helm, listen: str, probed: tuple[str, int]) -> None:
    """The kubelet would end each agent whose `healthListen` is another than it asks."""
    flags = ("--set-string", f"agent.config.healthListen={listen}")
    manifests = by_name(helm("template", "mcagent", str(CHART), *flags))
    (agent,) = (obj for name, obj in manifests.items() if name.endswith("mcagent-agent") and "Daemon" in name)
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        target = container[probe]["httpGet"]
        assert (target["host"], target["port"]) == probed
    message = helm("template", str(CHART), "--set-string", "agent.config.healthListen=0", fails=True)
    assert "agent.config.healthListen must be address:port" in message


@pytest.mark.parametrize(("replicas", "budgets"), [(1, 0), (2, 1)])
def test_a_budget_does_not_stop_the_drain_of_a_node(helm: Helm, replicas: int, budgets: int) -> None:
    """A PodDisruptionBudget for the only replica would refuse each eviction for ever."""
    text = helm("template", "mcagent", str(CHART), "--set", f"member.replicas={replicas}")
    kinds = [obj["kind"] for obj in yaml.safe_load_all(text) if obj]
    assert kinds.count("PodDisruptionBudget") == budgets


@pytest.mark.parametrize("role", ["member", "leader"])
def test_probes_reach_the_health_of_controllers(helm: Helm, role: str) -> None:
    """The kubelet would end each controller that serves health on the loopback: it asks the Pod's address."""
    loopback = ("--set-string", f"{role}.config.health.healthProbeBindAddress=127.0.0.1:8080")
    message = helm("template", str(CHART), "--set", "leader.enabled=true", *loopback, fails=True)
    assert f"{role}.config.health.healthProbeBindAddress must be an address of all devices" in message
    on_nodes = ("leader.enabled=true", "leader.hostNetwork=true", "member.enabled=false")
    assert helm("template", str(CHART), *sets(on_nodes), *loopback)  # that of the leader is another one then


def test_webhooks_of_a_leader_may_be_missed_for_a_takeover(helm: Helm) -> None:
    """With failurePolicy Ignore nothing of a leader is refused while its controller does not answer."""
    values = ("agent.enabled=false", "member.enabled=false", "leader.enabled=true", "leader.allNamespaces=true")
    for policy, failure_policy in (("Fail", {"Fail", "Ignore"}), ("Ignore", {"Ignore"})):
        flags = sets((*values, f"leader.webhook.failurePolicy={policy}"))
        manifests = by_name(helm("template", "mcagent", str(CHART), *flags))
        hooks = [hook["failurePolicy"] for obj in manifests.values() for hook in obj.get("webhooks", ())]
        assert set(hooks) == failure_policy


@pytest.mark.parametrize("role", ["member", "leader"])
def test_access_to_the_webhook_can_be_restricted(helm: Helm, tmp_path: Path, role: str) -> None:
    """The NetworkPolicy allows what is listed, and DNS; the controller gets the authority of certificates."""
    pem = Authority().pem
    network = {"webhookFrom": ["192.0.2.0/28"], "egressTo": ["192.0.2.0/28", "10.96.0.1/32"]}
    values = {
        "networkPolicy": network,
        "config": {"webhook": {"clientCA": pem, "clientNames": ["kube-apiserver"]}},
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"leader": {"enabled": True}, role: {"enabled": True, **values}}))
    text = helm("template", "mcagent", str(CHART), "-n", "mc", "-f", str(file))
    objects = {(obj["kind"], obj["metadata"]["name"]): obj for obj in yaml.safe_load_all(text) if obj}
    policy = objects["NetworkPolicy", f"mcagent-{role}"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    webhook, pages = policy["ingress"]
    assert [port["port"] for port in webhook["ports"]] == [9443]
    assert [source["ipBlock"]["cidr"] for source in webhook["from"]] == network["webhookFrom"]
    assert {port["port"] for port in pages["ports"]} == {8080, 8443}
    dns, servers = policy["egress"]
    assert {(rule["port"], rule["protocol"]) for rule in dns["ports"]} == {
        (port, protocol) for port in (53, 5353, 8053) for protocol in ("TCP", "UDP")
    }
    assert servers["ports"] == [{"protocol": "TCP"}]
    assert [target["ipBlock"]["cidr"] for target in servers["to"]] == network["egressTo"]
    (config,) = objects["ConfigMap", f"mcagent-{role}"]["data"].values()
    settings = load(ControllerRole(role), ConfigText(config, "ConfigMap"), {}, {})
    assert (settings.webhook_client_ca, settings.webhook_client_names) == (pem, ("kube-apiserver",))


def test_values_of_pods_reach_their_pods(helm: Helm) -> None:
    """All images are of the registry; labels, variables, affinity and strategy are those given."""
    manifests = by_name(helm("template", "mcagent", str(CHART), *sets(ALL["everything"])))
    workloads = {name: obj["spec"] for name, obj in manifests.items() if "template" in obj.get("spec", {})}
    for name, spec in workloads.items():
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"].startswith("registry.example.com/net/mcagent"), name
        if "mcagent-dns" in name:
            continue
        labels = spec["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items(), name
        assert labels["team"] == "net", name
        assert pod["affinity"].keys() == {"nodeAffinity"}, name
        if "openvswitch" not in name:
            assert {"name": "HTTPS_PROXY", "value": "http://192.0.2.1:3128"} in container["env"], name
        if name.startswith("DaemonSet"):
            assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert len(workloads) >= 4


def test_accounts_of_gateways_are_values(helm: Helm) -> None:
    """Policies always come along; further accounts write Gateways, and agents may have tokens without a Node."""

    def expressions(*values: str) -> dict[str, str]:
        manifests = helm("template", "mcagent", str(CHART), "-n", "mc", *sets(values))
        policies = [
            obj for obj in yaml.safe_load_all(manifests) if obj and obj["kind"] == "ValidatingAdmissionPolicy"
        ]
        return {obj["metadata"]["name"]: str(obj["spec"]) for obj in policies}

    default = expressions()
    for account in ("mc:mcagent-agent", "mc:mcagent-controller", "kube-system:antrea-agent"):
        assert f"'system:serviceaccount:{account}'" in default["gateways.mcagent.io"]
    changed = expressions(
        "admissionPolicies.controllerServiceAccounts={a/controller}",
        "admissionPolicies.agentServiceAccounts={a/agent}",
    )
    assert "'system:serviceaccount:a:controller'" in changed["gateways.mcagent.io"]
    assert all(
        "'system:serviceaccount:a:agent'" in changed[name] for name in changed if name.startswith("gateways")
    )
    without_node = expressions("admissionPolicies.agentsWithoutNode=true", "admissionPolicies.enabled=true")
    assert default.keys() - without_node.keys() == {"gateways-of-agents.mcagent.io"}


def test_the_command_deploys_what_the_chart_makes(helm: Helm, capsys: pytest.CaptureFixture[str]) -> None:
    """`mcagent deploy` with the same values gives the same objects, in other namespaces than the defaults, too."""
    tier = ("--api-versions", "crd.antrea.io/v1beta1/Tier")
    manifests = helm(
        "template", "mcagent", str(CHART), "-n", "mc", *tier, *sets(("leader.namespace=area", *DEPLOYED))
    )
    assert main(["deploy", "-n", "mc", "--leader-namespace", "area", *DEPLOY]) == 0
    own_manifests = by_name(capsys.readouterr().out)
    assert own_manifests.pop("Namespace mc")["metadata"]["labels"] == {"app.kubernetes.io/name": "mcagent"}
    assert own_manifests == by_name(manifests)


DEPLOYED = (
    *("leader.enabled=true", "leader.allNamespaces=true", "policies.install=true"),
    *("image.repository=reg/mcagent", "image.tag=v7", "openvswitch.image.repository=reg/mcagent-openvswitch"),
    *("openvswitch.deploy=always", "agent.config.clusterID=east", "agent.config.podCIDRs={10.2.0.0/16}"),
    *("agent.config.wireGuard.port=51900", "member.config.maxActiveGateways=3", "leader.config.staleAfter=1h"),
    "member.config.enableStretchedNetworkPolicy=true",
    *("agent.config.trafficEncryptionMode=wireGuard", "agent.config.nodeTrafficEncryption=preferred"),
    *(
        "member.config.replicatedPolicies.networkPolicies=Isolate",
        "member.config.replicatedPolicies.namespaces={shop}",
    ),
)
DEPLOY = (
    *("--role", "all", "--with", "leader-all-namespaces", "--with-policies", "--clusterid", "east"),
    *("--image", "reg/mcagent:v7", "--openvswitch", "always", "--set", "agent.config.podCIDRs=[10.2.0.0/16]"),
    *("--set", "agent.config.wireGuard.port=51900", "--set", "member.config.maxActiveGateways=3"),
    *("--set", "leader.config.staleAfter=1h", "--set", "member.config.enableStretchedNetworkPolicy=true"),
    *("--set", "agent.config.trafficEncryptionMode=wireGuard"),
    *("--set", "agent.config.nodeTrafficEncryption=preferred"),
    *("--set", "member.config.replicatedPolicies.networkPolicies=Isolate"),
    *("--set", "member.config.replicatedPolicies.namespaces=[shop]"),
)


def by_name(text: str) -> dict[str, dict[str, Any]]:
    """Return manifests by what they are called, without the tools' own annotations; configurations are read."""
    manifests = {}
    for manifest in filter(None, yaml.safe_load_all(text)):
        kind, meta = manifest["kind"], manifest["metadata"]
        for annotation in ("helm.sh/resource-policy", GIVEN_CONFIG):
            meta.get("annotations", {}).pop(annotation, None)
        if not meta.get("annotations", True):
            del meta["annotations"]
        if kind in ("ServiceAccount", "ConfigMap", "DaemonSet"):
            meta.setdefault("namespace", "mc")
        if kind in ("Deployment", "DaemonSet"):  # each is of the text, which both write their own way
            manifest["spec"]["template"]["metadata"].get("annotations", {}).pop("checksum/config", None)
        if kind == "ConfigMap":
            manifest["data"] = {file: yaml.safe_load(content) for file, content in manifest["data"].items()}
        manifests[" ".join(filter(None, (kind, meta.get("namespace"), meta["name"])))] = manifest
    return manifests


@pytest.mark.real_only
@pytest.mark.parametrize("name", ALL)
def test_a_real_api_server_takes_what_is_rendered(helm: Helm, cluster: Cluster, name: str) -> None:
    """Strict validation of every field of every object, in another namespace than the default."""
    namespace = cluster.namespace
    manifests = helm(
        "template", "mcagent", str(CHART), "-n", namespace, *sets(("leader.namespace=default", *ALL[name]))
    )
    for manifest in yaml.safe_load_all(manifests):
        if manifest is not None and manifest["kind"] not in ("CustomResourceDefinition", "Namespace"):
            manifest["metadata"].setdefault("namespace", namespace)
            dry_run(cluster.server, manifest)


def dry_run(server: Server, manifest: dict[str, Any]) -> None:
    """Have the API server judge an object without storing it; one that is there already is right, too."""
    if manifest["kind"].startswith("Cluster") or "admissionregistration" in manifest["apiVersion"]:
        manifest["metadata"].pop("namespace")
    try:
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        server.client.request("POST", collection(server.client, manifest), query, body=manifest)
    except ApiRefusalError as error:
        if error.code != 409:
            raise


@pytest.mark.real_only
def test_pod_monitors_are_as_their_operator_declares_them(helm: Helm, cluster: Cluster) -> None:
    """Each PodMonitor passes the validation of the Prometheus operator's CRD, and names a token that is there."""
    server, namespace = cluster.server, cluster.namespace
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    server.client.request("POST", crds, body=pod_monitor_crd())
    values = ("leader.enabled=true", "leader.namespace=default", "podMonitor.enabled=true")
    chart_objects = list(
        filter(None, yaml.safe_load_all(helm("template", "m", str(CHART), "-n", namespace, *sets(values))))
    )
    monitors = [obj for obj in chart_objects if obj["kind"] == "PodMonitor"]
    path = f"/apis/monitoring.coreos.com/v1/namespaces/{namespace}/podmonitors"
    wait_until(lambda: is_served(server, path), "PodMonitors to be served", timeout=20)
    for monitor in monitors:
        server.client.request("POST", path, {"dryRun": "All", "fieldValidation": "Strict"}, body=monitor)
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        token = endpoint["authorization"]["credentials"]["name"]
        assert [
            obj["type"] for obj in chart_objects if obj["kind"] == "Secret" and obj["metadata"]["name"] == token
        ] == ["kubernetes.io/service-account-token"]
    assert [monitor["spec"]["namespaceSelector"]["matchNames"] for monitor in monitors] == [
        [namespace],
        [namespace],
        ["default"],
    ]
    server.client.request("DELETE", f"{crds}/podmonitors.monitoring.coreos.com")


def is_served(server: Server, path: str) -> bool:
    """Whether the API server knows a collection."""
    try:
        server.client.request("GET", path)
    except ApiRefusalError as error:
        if error.code not in (404, 429):  # 429: its storage is made
            raise
        return False
    return True


# Fields of PodMonitorSpec and PodMetricsEndpoint, prometheus-operator v0.86 (podmonitor_types.go).
MONITOR_FIELDS = (
    "attachMetadata", "bodySizeLimit", "jobLabel", "keepDroppedTargets", "labelLimit", "labelNameLengthLimit",
    "labelValueLengthLimit", "namespaceSelector", "podTargetLabels", "sampleLimit", "scrapeClass",
    "scrapeProtocols", "selector", "selectorMechanism", "targetLimit",
)  # fmt: skip
ENDPOINT_FIELDS = (
    "authorization", "basicAuth", "bearerTokenSecret", "enableHttp2", "filterRunning", "followRedirects",
    "honorLabels", "honorTimestamps", "interval", "metricRelabelings", "noProxy", "oauth2", "params", "path",
    "port", "portNumber", "proxyConnectHeader", "proxyFromEnvironment", "proxyUrl", "relabelings", "scheme",
    "scrapeTimeout", "targetPort", "tlsConfig", "trackTimestampsStaleness",
)  # fmt: skip


def pod_monitor_crd() -> dict[str, Any]:
    """Return the operator's CRD with its fields, their content unchecked but for the reference to a Secret."""
    anything: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
    text = {"type": "string"}
    secret = {"type": "object", "required": ["key"], "properties": dict.fromkeys(("key", "name"), text)}
    endpoint = dict.fromkeys(ENDPOINT_FIELDS, anything)
    endpoint["authorization"] = {"type": "object", "properties": {"type": text, "credentials": secret}}
    endpoints = {"type": "array", "items": {"type": "object", "properties": endpoint}}
    spec = {**dict.fromkeys(MONITOR_FIELDS, anything), "podMetricsEndpoints": endpoints}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}}
    names = {"plural": "podmonitors", "singular": "podmonitor", "kind": "PodMonitor", "listKind": "PodMonitorList"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "podmonitors.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


@pytest.mark.real_only
def test_install_upgrade_roll_back_and_remove(helm: Helm, cluster: Cluster) -> None:
    """What controllers filled in stays over an upgrade and a roll-back; CRDs stay after the release's end."""
    kubeconfig = str(cluster.server.kubeconfig)
    here = ("-n", cluster.namespace)
    flags = sets(("crds.install=false", "agent.config.clusterID=east"))

    def run(*arguments: str) -> str:
        return helm(*arguments, *here, kubeconfig=kubeconfig)

    def get(path: str) -> Any:
        return cluster.server.client.request("GET", path)

    secret = f"/api/v1/namespaces/{cluster.namespace}/secrets/mcagent-member-webhook"
    daemons = f"/apis/apps/v1/namespaces/{cluster.namespace}/daemonsets/mcagent-agent"
    notes = run("install", "mcagent", str(CHART), "--take-ownership", *flags)
    assert "mcagent clusterset join -f join.yaml --clusterid east --token-secret-file east-token.yaml" in notes
    filled = {"data": {"tls.crt": "eA=="}}
    cluster.server.client.request("PATCH", secret, body=filled, content_type="application/merge-patch+json")
    run("upgrade", "mcagent", str(CHART), *flags, *sets(("image.tag=9.9.9",)))
    assert get(secret)["data"] == {"tls.crt": "eA=="}
    assert get(daemons)["spec"]["template"]["spec"]["containers"][0]["image"] == "mcagent:9.9.9"
    generation = get(daemons)["metadata"]["generation"]
    run("upgrade", "mcagent", str(CHART), "--reset-then-reuse-values", *sets(("agent.config.logLevel=debug",)))
    assert get(daemons)["metadata"]["generation"] == generation + 1  # the agents are restarted
    assert get(daemons)["spec"]["template"]["spec"]["containers"][0]["image"] == "mcagent:9.9.9"
    run("rollback", "mcagent", "1")
    assert get(daemons)["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":0.1.0")
    run("uninstall", "mcagent")
    with pytest.raises(ApiRefusalError, match=r"not found|404"):
        get(daemons)
    assert get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
