"""Attacks on claims: what a member writes to take what another one has, or will have.

Judged by the leader's reconcilers over objects in memory. Two other members report honestly which cluster answers
at each gateway that they are told of; an accomplice of the attacker reports anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from mcagent.controller.admin import allow_list
from mcagent.controller.contract import names
from mcagent.controller.leader import eligibility, ledger
from mcagent.controller.leader.contests import Contests
from mcagent.controller.leader.disputes import TRIAL, Claimant, ClaimStanding, Dispute, Quorum
from mcagent.controller.leader.eligibility import Eligibility
from mcagent.controller.settings import LeaderSettings, MemberLimits
from mcagent.kube.source import RawObject
from tests.attacks.generated.cluster_sets import Limits, account_of
from tests.attacks.generated.search import AttackClass
from tests.worlds.leader_world import FLAT, Leader, cluster_info, gateway_of, reporting

KEYS = {
    "attacker": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    "victim": "IRfSjVAaO0TJMcSZSGRCzRRBGD7h5yFXtxrRFCRJJ0A=",
    "third": "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=",
    "fourth": "QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=",
    "accomplice": "YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=",
}
SERVICE_CIDRS = {cluster: f"10.{number}.0.0/16" for number, cluster in enumerate(KEYS, 1)}
HONEST = ("third", "fourth")
VICTIM_PODS = "10.20.0.0/16"
NEXT = gateway_of("victim") + "6"  # the Node that becomes the victim's gateway when it fails over
SAME_BITS = str(ip_address(NEXT) - (1 << 28))  # a gateway there has the same tunnel endpoint
MAX_GATEWAYS = MemberLimits().max_gateways
GATEWAYS = (
    NEXT,
    gateway_of("attacker"),
    gateway_of("victim"),
    gateway_of("third"),
    "10.2.0.80",  # a Service of the victim
    "10.20.1.5",  # a Pod of the victim
    SAME_BITS,
    *(f"192.168.78.{number}" for number in range(1, 11)),
)
CIDRS = (
    "10.30.0.0/16",
    VICTIM_PODS,
    "10.2.7.0/24",
    "10.0.0.0/8",
    f"{gateway_of('victim')}/32",
    f"{NEXT}/32",
    "192.168.0.0/16",
    "192.168.50.0/24",  # a network that is no cluster's
    "203.0.113.0/24",
    "0.0.0.0/0",
)
UNCLAIMED = ("10.30.0.0/16", "10.200.0.0/16", "172.20.0.0/16", "192.168.50.0/24", "203.0.113.0/24")


@dataclass(frozen=True, kw_only=True)
class Publish:
    """The attacker writes its ClusterInfo."""

    service_cidr: str
    gateways: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    key: str  # whose; "": none

    def __str__(self) -> str:
        key = f" and the WireGuard key of the {self.key}" if self.key else ""
        cidrs = f"Service CIDR {self.service_cidr}, Pod CIDRs {_listed(self.pod_cidrs)}"
        return f"the attacker publishes gateways {_listed(self.gateways)}, {cidrs}{key}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The attacker, or its accomplice, reports which cluster answers at addresses."""

    reporter: str
    answers: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        said = ", ".join(f"the {cluster} answers at {address}" for address, cluster in self.answers)
        return f"the {self.reporter} reports: {said or 'nothing'}"


@dataclass(frozen=True, kw_only=True)
class FailOver:
    """The victim's gateway fails, and another Node becomes its gateway."""

    def __str__(self) -> str:
        return f"the victim's gateway moves to {NEXT}"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Time passes."""

    seconds: int

    def __str__(self) -> str:
        return f"{self.seconds} seconds pass"


@dataclass(frozen=True, kw_only=True)
class Claims:
    """A sequence of steps. `limits`: of the attacker's CIDRs."""

    encrypted: bool
    limits: Limits
    steps: tuple[Publish | Report | FailOver | Wait, ...]

    def __str__(self) -> str:
        head = f"tunnels are {'encrypted' if self.encrypted else 'not encrypted'}"
        return "; ".join([head, str(self.limits), *map(str, self.steps)])


_GATEWAYS = st.one_of(
    st.lists(st.sampled_from(GATEWAYS[:7]), max_size=4, unique=True).map(tuple),
    st.lists(st.sampled_from(GATEWAYS), max_size=len(GATEWAYS), unique=True).map(tuple),
    st.just(GATEWAYS[7:]),
)


def _listed(items: tuple[str, ...]) -> str:
    return ", ".join(items) or "none"


@st.composite
def _publications(draw: st.DrawFn) -> Publish:
    return Publish(
        service_cidr=draw(st.sampled_from(("10.1.0.0/16", "10.1.0.0/16", "10.2.0.0/16"))),
        gateways=draw(_GATEWAYS),
        pod_cidrs=tuple(draw(st.lists(st.sampled_from(CIDRS), max_size=4, unique=True))),
        key=draw(st.sampled_from(("attacker", "", "victim"))),
    )


_ANSWERS = st.tuples(st.sampled_from(GATEWAYS), st.sampled_from(("attacker", "victim")))
_REPORTS = st.builds(
    Report,
    reporter=st.sampled_from(("attacker", "accomplice")),
    answers=st.lists(_ANSWERS, max_size=4).map(tuple),
)
_WAITS = st.sampled_from((Wait(seconds=10), Wait(seconds=200)))


@st.composite
def _squats(draw: st.DrawFn) -> list[Publish | Report | FailOver | Wait]:
    """Draw steps that claim the address of the victim's next gateway, or what collides with it, beforehand."""
    gateways = draw(st.lists(st.sampled_from((NEXT, SAME_BITS, gateway_of("attacker"))), unique=True))
    cidrs = draw(st.lists(st.sampled_from((f"{NEXT}/32", f"{NEXT}/31", "10.30.0.0/16")), unique=True))
    publication = replace(draw(_publications()), gateways=tuple(gateways), pod_cidrs=tuple(cidrs))
    report = Report(reporter="accomplice", answers=tuple((address, "attacker") for address in gateways))
    is_reported = draw(st.booleans())
    return [publication, report if is_reported else Wait(seconds=10), draw(_WAITS), FailOver()]


@st.composite
def _grabs(draw: st.DrawFn) -> list[Publish | Report | FailOver | Wait]:
    """Draw steps that claim networks that are no cluster's."""
    cidrs = draw(st.lists(st.sampled_from(UNCLAIMED), min_size=1, unique=True))
    return [replace(draw(_publications()), gateways=(), pod_cidrs=tuple(cidrs), key=""), draw(_WAITS)]


def _steps() -> st.SearchStrategy[Publish | Report | FailOver | Wait]:
    return st.one_of(_publications(), _publications(), st.just(FailOver()), _REPORTS, _WAITS)


def _sequences(
    limits: st.SearchStrategy[Limits], aimed: st.SearchStrategy[list[Publish | Report | FailOver | Wait]]
) -> st.SearchStrategy[Claims]:
    steps = st.one_of(st.lists(_steps(), min_size=2, max_size=5), aimed).map(tuple)
    return st.builds(Claims, encrypted=st.booleans(), limits=limits, steps=steps)


class ClaimsWorld:
    """A leader with attacker, accomplice, victim and two honest members."""

    def __init__(self, *, encrypted: bool, limits: Limits) -> None:
        self.encrypted = encrypted
        self.victims_gateway = gateway_of("victim")
        self.leader = Leader(*SERVICE_CIDRS, settings=LeaderSettings(namespace="", allowed_endpoint_cidrs=FLAT))
        if (account := account_of(limits, "attacker")) is not None:
            self.leader.put(account)
        for cluster in SERVICE_CIDRS:
            self.leader.put(self._info(cluster))
            self.leader.clock.forward(60)
        self.report()

    def _info(self, cluster: str) -> RawObject:
        key = KEYS[cluster] if self.encrypted else ""
        raw = cluster_info(cluster, SERVICE_CIDRS[cluster], [VICTIM_PODS] if cluster == "victim" else (), key=key)
        if cluster == "victim":
            raw["spec"]["clusterInfo"]["gatewayInfos"] = [{"gatewayIP": self.victims_gateway}]
        return raw

    def imported(self, cluster: str) -> Any:
        """Return what all members are told of a cluster; {}: nothing."""
        spec = self.leader.imported(names.cluster_info(cluster))
        return spec["clusterinfo"] if spec else {}

    def gateways(self, cluster: str) -> list[str]:
        """Return the gateways of a cluster of which all members are told."""
        return [gateway["gatewayIP"] for gateway in self.imported(cluster).get("gatewayInfos") or ()]

    def take(self, step: Publish | Report | FailOver | Wait) -> None:
        """Carry out a step; honest members then report what they see."""
        match step:
            case Publish():
                raw = cluster_info("attacker", step.service_cidr, step.pod_cidrs, key=KEYS.get(step.key, ""))
                info = raw["spec"]["clusterInfo"]
                info["gatewayInfos"] = [{"gatewayIP": address} for address in step.gateways]
                self.leader.put(raw)
            case Report():
                self.leader.put(reporting(step.reporter, dict(step.answers), SERVICE_CIDRS))
            case FailOver():
                self.victims_gateway = NEXT
                self.leader.put(self._info("victim"))
            case Wait():
                self.wait(step.seconds)
        self.report()

    def report(self) -> None:
        """Let honest members report who answers: behind encryption only with the key that is claimed."""
        owners = {gateway_of(cluster): cluster for cluster in SERVICE_CIDRS if cluster != "victim"} | {
            self.victims_gateway: "victim"
        }
        for reporter in ("victim", *HONEST):
            answers = {
                address: owners[address]
                for cluster in SERVICE_CIDRS
                for address in self.gateways(cluster)
                if cluster != reporter and address in owners and (not self.encrypted or owners[address] == cluster)
            }
            self.leader.put(reporting(reporter, answers, SERVICE_CIDRS))

    def settle(self) -> None:
        """Let gateways prove themselves."""
        for _ in range(3):
            self.wait(TRIAL + 1)
            self.report()

    def wait(self, seconds: float) -> None:
        """Let time pass at once, and the leader do what has become due."""
        self.leader.clock.forward(seconds)
        self.leader.controller.due()
        self.leader.controller.run()

    def lost(self) -> str:
        """Return what the victim or an honest member has not, in words; "" if they have everything."""
        claim = self.imported("victim")
        if claim.get("serviceCIDR") != SERVICE_CIDRS["victim"] or claim.get("podCIDRs") != [VICTIM_PODS]:
            return "the victim has lost its CIDRs"
        if self.victims_gateway not in self.gateways("victim"):
            return f"the victim's gateway {self.victims_gateway} is refused"
        for cluster in HONEST:
            if gateway_of(cluster) not in self.gateways(cluster):
                return f"the gateway {gateway_of(cluster)} of the {cluster} member is refused"
        return ""

    def taken(self, allowed: str) -> str:
        """Return what the attacker has and must not have, in words; "": nothing.

        `allowed`: the range in which it may have CIDRs; "": any private one.
        """
        claim = self.imported("attacker")
        cidrs = [text for text in (claim.get("serviceCIDR"), *(claim.get("podCIDRs") or ())) if text]
        gateways_of_others = (self.victims_gateway, *map(gateway_of, HONEST))
        cidrs_of_others = (SERVICE_CIDRS[cluster] for cluster in ("victim", *HONEST))
        protected = [*cidrs_of_others, VICTIM_PODS, *gateways_of_others]
        for cidr in map(ip_network, cidrs):
            holder = next((text for text in protected if cidr.overlaps(ip_network(text))), "")
            if holder:
                return f"the attacker is granted {cidr}, which overlaps {holder} of another member"
            ranges = [allowed] if allowed else eligibility.PRIVATE
            if not any(cidr.subnet_of(ip_network(text)) for text in ranges):  # type: ignore[arg-type]
                return f"the attacker is granted {cidr}, which no administrator has allowed"
        gateways = self.gateways("attacker")
        if len(gateways) > MAX_GATEWAYS:
            return f"the attacker has {len(gateways)} gateways, more than {MAX_GATEWAYS}"
        inside = [
            text for text in gateways if any(ip_network(text).overlaps(ip_network(net)) for net in protected)
        ]
        return f"the attacker's gateway {inside[0]} has an address of another member" if inside else ""


def _judge(attack: Claims) -> str:
    world = ClaimsWorld(encrypted=attack.encrypted, limits=attack.limits)
    for step in attack.steps:
        had_everything = world.lost() == ""
        world.take(step)
        if had_everything and not isinstance(step, FailOver) and (lost_claims := world.lost()):
            return f"{lost_claims}, after: {step}"
    world.settle()
    return world.lost() or world.taken(attack.limits.value.allowed)


def _first_claim_stands(_: Dispute, claimant: Claimant) -> ClaimStanding:
    return ClaimStanding.GRANTED if claimant.since else ClaimStanding.REQUESTED


def _one_report_proves(self: Dispute, claimant: Claimant) -> Quorum:
    is_confirmed = any(claimant.cluster_id in report.answers for report in self.reports)
    return Quorum.MAJORITY if is_confirmed else Quorum.NONE


@contextmanager
def _no_grants() -> Iterator[None]:
    """Let everybody have what it claims."""
    with patch.object(Contests, "loss", lambda *_: None), patch.object(ledger, "losing_claims", lambda _: {}):
        yield


A1 = AttackClass(
    name="A1",
    title="a member claims addresses that another member has, or will have when its gateway fails over",
    grammar=_sequences(st.just(Limits.NONE), _squats()),
    judge=_judge,
    property="no member loses a CIDR or the gateway that answers in its name, and none has another's, or too many",
    protections={
        "a gateway must prove itself": partial(patch.object, Dispute, "standing", _first_claim_stands),
        "a proof has a quorum": partial(patch.object, Dispute, "quorum", _one_report_proves),
        "a small CIDR beside a gateway needs an administrator": partial(
            patch.object, Eligibility, "neighbours", lambda *_: {}
        ),
        "a claim has one owner": _no_grants,
        "a member has so many gateways": partial(patch.object, eligibility, "_refuse_gateway", lambda *_: ""),
    },
    examples=150,
    short=12,
)
A14 = AttackClass(
    name="A14",
    title="a member claims networks that are no cluster's",
    grammar=_sequences(st.sampled_from((Limits.DERIVED, Limits.OF_NEW_SET, *Limits)), _grabs()),
    judge=_judge,
    property="a CIDR that is granted lies in private ranges, and in those of the token or the new ClusterSet",
    protections={
        "the leader keeps to the ranges that are allowed": partial(
            patch.object, eligibility, "_refuse_cidr", lambda *_: ""
        ),
        "a new ClusterSet has a list": partial(patch.object, allow_list, "ranges_of", lambda _: []),
        "members get the list of the ClusterSet": partial(patch.object, allow_list, "inherited", lambda *_: ""),
    },
    examples=150,
    short=12,
)
