"""Which clusters get the connections to an imported Service, in real packets, as its ServiceImport says."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from devtools.lab import faults
from devtools.lab.api import Json
from devtools.lab.lab import Lab
from devtools.lab.topology import POD_PORT, generate
from devtools.nodes import netns
from devtools.traffic import traffic
from devtools.waiting import wait_until
from mcagent.model.traffic import TRAFFIC_ANNOTATION
from tests.lab.gateways import wait_for_bfd
from tests.lab.traces import trace
from tests.worlds.imported import ADDRESS, PORT, answered, endpoint_slice, import_service, pods

CONNECTIONS = 2000  # a share of 3/4 is off by 0.05 in less than one of a million runs
IN_TIME = 15.0  # seconds until a change counts


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two clusters with a gateway and a worker each; a Service of both is imported by the first one.

    Agents have no word about it in their configuration.
    """
    lab = make_lab(generate(pods=2))
    import_service(lab)
    lab.wait_ready()
    return lab


def say(lab: Lab, text: str | None, **spec: object) -> None:
    """Annotate the ServiceImport; None: say nothing."""
    change: Json = {"metadata": {"annotations": {TRAFFIC_ANNOTATION: text}}, "spec": spec}
    lab.api(lab.topology.clusters[0].name).patch("ServiceImport", "both", change)


def becomes(lab: Lab, client: str, *clusters: str) -> None:
    """Wait until these clusters, and no others, answer a client."""
    wait_until(
        lambda: set(answered(lab, client, 12, timeout=0.5)) == set(clusters),
        f"{' and '.join(clusters)} to answer",
        timeout=IN_TIME,
    )


def shares_told(lab: Lab) -> dict[str, float]:
    """Return the share of each endpoint as `mcagent trace` tells it, and traces the other cluster's."""
    worker = lab.topology.clusters[0].workers[0]
    walk, shown = trace(lab, worker.name, worker.pods[0].address, f"{ADDRESS}:{PORT}", "--proto", "udp")
    assert walk["answered"], shown
    assert walk["service"]["chosen_by"] == f"the agent of {worker.name}"
    return {endpoint["address"]: endpoint["share"] for endpoint in walk["service"]["endpoints"]}


def share(lab: Lab, client: str) -> float:
    """Return the share of the first cluster in many connections."""
    return answered(lab, client, CONNECTIONS)["east"] / CONNECTIONS


def tell(lab: Lab, ready: int) -> None:
    """Let the other cluster tell how many ready endpoints it has."""
    east, west = lab.topology.clusters
    target = ([str(west.services[0].cluster_ip)], west.services[0].port)
    lab.api(east.name).apply(endpoint_slice("west", *target, told=ready))


def test_connections_follow_ready_endpoints_without_a_word_about_it(lab: Lab) -> None:
    """Four Pods here and one ClusterIP there: the other cluster's share is that of the Pods behind it."""
    east = lab.topology.clusters[0]
    client, node = lab.namespace(east.workers[0].pods[0]), east.workers[0].name
    say(lab, None)
    for ready, part, last in ((16, 0.2, 3276), (1, 0.8, None), (12, 0.25, 4095)):
        tell(lab, ready)
        if last is None:  # as kube-proxy would choose, which knows nothing of the Service here
            wait_until(lambda: "mct_import" not in listed(lab, node), "the chains to go", timeout=IN_TIME)
            continue
        shown = f"map {{ 0-{last} :"
        wait_until(lambda shown=shown: shown in listed(lab, node), "the Pods' shares", timeout=IN_TIME)  # type: ignore[misc]
        measured_share = share(lab, client)
        print(f"\n4 : {ready} gave this cluster {measured_share:.1%}")
        assert measured_share == pytest.approx(part, abs=0.05)


def test_connections_follow_weights_ranks_and_readiness(lab: Lab) -> None:
    """Shared 3 : 1, whatever the numbers of endpoints; or here first, while anything is ready here."""
    east = lab.topology.clusters[0]
    api = lab.api(east.name)
    own = [str(pod.address) for pod in pods(east)]
    west_web = str(lab.topology.clusters[1].services[0].cluster_ip)
    for place in (
        east.workers[0].pods[0],
        east.gateways[0].pods[0],
        east.workers[0],
    ):  # a process of the Node, too
        client = lab.namespace(place)
        say(lab, "local=3, west=1")
        becomes(lab, client, "east", "west")
        measured_share = share(lab, client)
        print(f"\n3 : 1 gave this cluster {measured_share:.1%}")
        assert measured_share == pytest.approx(0.75, abs=0.05)
        shares = shares_told(lab)
        assert sum(part for address, part in shares.items() if address in own) == pytest.approx(0.75, abs=0.001)
        assert shares[west_web] == pytest.approx(0.25, abs=0.001)
        say(lab, "local > *")
        becomes(lab, client, "east")
    api.apply(endpoint_slice("east", own, POD_PORT, ready=False))  # kube-proxy would choose the same now
    wait_until(lambda: "mct_import" not in listed(lab, east.workers[0].name), "the chains to go", timeout=IN_TIME)
    api.apply(endpoint_slice("east", own, POD_PORT))
    becomes(lab, client, "east")


def test_an_endpoint_reaches_itself_and_affinity_holds(lab: Lab) -> None:
    """A Pod that the Service leads to itself gets its own answer; with affinity every client has one endpoint."""
    east = lab.topology.clusters[0]
    client = lab.namespace(east.workers[0].pods[1])
    say(lab, "local")
    becomes(lab, client, "east")
    pods_reached = {traffic.udp(client, ADDRESS, PORT, b"x").pod for _ in range(60)}
    assert {pod.name for pod in pods(east)} <= pods_reached  # by a port of before, perhaps that connection's, too
    say(lab, "local", sessionAffinity="ClientIP")
    wait_until(
        lambda: len({traffic.udp(client, ADDRESS, PORT, b"x").pod for _ in range(20)}) == 1,
        "one endpoint for the client",
        timeout=IN_TIME,
    )


@pytest.mark.timing
def test_a_cluster_that_no_gateway_reaches_is_left_in_the_time_of_bfd_and_returns(lab: Lab) -> None:
    """Its objects stay what they are; who has lost it gets its connections elsewhere, and nobody else notices."""
    east, west = lab.topology.clusters
    client, node = lab.namespace(east.workers[0].pods[0]), east.workers[0].name
    say(lab, None, sessionAffinity="None")
    becomes(lab, client, "east", "west")
    wait_for_bfd(lab, *east.nodes)
    cut = faults.link_cut(lab, *(gateway.name for gateway in west.gateways))
    cut.inject()
    try:
        began = time.monotonic()
        cluster_ip = str(west.services[0].cluster_ip)
        wait_until(lambda: cluster_ip not in listed(lab, node), "the cluster to be left", timeout=5.0)
        print(f"\nleft {time.monotonic() - began:.2f} s after its loss")
        assert set(answered(lab, client, 40)) == {"east"}
        assert "no gateway of this cluster reaches it" in lab.mcagent(node, "status", check=False)
    finally:
        cut.heal()
    becomes(lab, client, "east", "west")


def test_what_is_left_to_kube_proxy_has_no_rules(lab: Lab) -> None:
    """ "any" takes the chains away, and a wrong text counts as nothing said, which brings them back."""
    east = lab.topology.clusters[0]
    node = east.workers[0].name
    say(lab, "local")
    wait_until(lambda: "mct_import_pre" in listed(lab, node), "the chains", timeout=IN_TIME)
    say(lab, "any")
    wait_until(lambda: "mct_import" not in listed(lab, node), "the chains to go", timeout=IN_TIME)
    say(lab, "Local!")
    wait_until(lambda: "mct_import_pre" in listed(lab, node), "the chains", timeout=IN_TIME)
    assert "is not a cluster" in lab.mcagent(node, "status", check=False)


def listed(lab: Lab, node: str) -> str:
    """Return the Node's nft table."""

    return netns.execute(
        lab.namespace(lab.topology.node(node)[1]), ["nft", "-s", "list", "table", "ip", "mcagent"]
    ).stdout


def test_a_udp_client_leaves_a_cluster_that_leaves_the_import(lab: Lab) -> None:
    """It keeps its port, and its Node ends the connection, since the Service is not known to a kube-proxy here.

    For the same reason a third cluster exports the Service, too: with one alone, the choice is left to kube-proxy.
    """
    east, west = lab.topology.clusters
    client, api = lab.namespace(east.workers[0].pods[0]), lab.api(east.name)
    cluster_ip = ([str(west.services[0].cluster_ip)], west.services[0].port)
    api.create(endpoint_slice("north", [str(pods(east)[0].address)], POD_PORT, told=9))
    say(lab, "west > local")
    becomes(lab, client, "west")
    with traffic.udp_socket(client, ADDRESS, PORT) as stream:
        assert lab.topology.pod(traffic.exchange(stream, b"first").pod)[0] is west
        say(lab, "*=1, west=0")
        becomes(lab, client, "east")
        assert (
            lab.topology.pod(traffic.exchange(stream, b"second").pod)[0] is west
        )  # shares are of new connections
        api.delete("EndpointSlice", "both-west")
        try:
            wait_until(
                lambda: lab.topology.pod(_next(stream).pod)[0] is east, "the client to meet the other cluster"
            )
        finally:
            api.create(endpoint_slice("west", *cluster_ip, told=len(pods(east))))
            api.delete("EndpointSlice", "both-north")
            say(lab, None)


def _next(stream: socket.socket) -> traffic.Reply:
    """Send a datagram that was not sent before, and return the answer to it."""
    return traffic.exchange(stream, str(time.monotonic_ns()).encode())
