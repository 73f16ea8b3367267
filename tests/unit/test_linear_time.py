"""The time for reading text of others grows as its length does, whatever the text: no text stops a controller.

Texts are made of the tokens of their form. Each is read at growing lengths until that takes a while or the length
is `LONGEST`; four times the length may then take `MOST` times as long, where a square takes 16 times.
"""

from __future__ import annotations

import base64
import importlib
import inspect
import itertools
import json
import pkgutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcagent.controller.admission import mutate, review
from mcagent.controller.contract import annotations as exported
from mcagent.controller.contract import (
    cidr_claims,
    cluster_uid,
    conditions,
    export_ranges,
    instances,
    member_tokens,
    names,
    policies,
    problems,
)
from mcagent.controller.leader.exports.bounds import annotation_errors
from mcagent.controller.member.networks.discovery import cidr_in_refusal
from mcagent.controller.webhook.server import read_review
from mcagent.core.health import read_finding
from mcagent.doctor.scrub import scrub_text
from mcagent.http.origin import ServerNames, is_cross_site
from mcagent.http.request import BadRequestError, parse_head
from mcagent.http.server import bearer
from mcagent.kube.errors import refusal
from mcagent.kube.version import is_supported
from mcagent.model import parsing
from mcagent.model.api.base import Metadata
from mcagent.model.api.multicluster import MemberClusterAnnounce, ResourceExport
from mcagent.model.errors import InputError
from mcagent.model.parsing import clusters, document, field, granted, labels, links, node_key, prefixes
from mcagent.model.traffic import read_traffic
from tests.unit.reading_functions import entered, reading_functions
from tests.worlds.admission_objects import AREA, OWN, World

costly = pytest.mark.costly  # the tests that measure; those of the tables run with the unit tests

MOST = 10.0  # for four times the length: 4 is linear, 16 square
NOTABLE = 0.004  # seconds of processor time: less says nothing
SHORTEST, LONGEST = 64, 64 * 1024  # characters

JSON = (
    "[",
    "{",
    "]",
    "}",
    '"',
    r"\"",
    r"\\",
    "\\",
    r"\ud800",
    r"\u0000",
    "1",
    "-",
    ".",
    "e",
    ",",
    ":",
    "a",
    "é",
    " ",
)
LISTS = ("10.0.0.0/8", "=", ",", "/", ".", "1", "a", "-", " ", "::")
LABELS = ("ns:", "&pod:", "a", "-", ".", "/", "=", ",", "a=b,", "kubernetes.io/metadata.name=a")
HEAD = ("GET / HTTP/1.1\r\n", "a:", " ", "\t", "\0", "x", "\r\n", ":", "connection:", ",", "ÿ")
NAMES = ("a", "-", ".", "0", "A", "%", " ")
SAMPLES = ("a=b", "10.0.0.0/8,10.1.0.0/16", "ns:a=b&pod:c=d", '{"a": "b"}', "local > east=3")  # read to their ends
SECRETS = ("token", "=", " ", '"', "eyJaaaaa", ".", "-----BEGIN PRIVATE KEY-----", "Bearer", "A")
TIMES = ("2026-11-28T00:00:00", ".", "1", "Z", "T", ":", "-", "+")


@dataclass(frozen=True, slots=True)
class Reader:
    """A function that reads text of others, which is made of `tokens`."""

    read: Callable[[str], object]
    tokens: Sequence[str]
    functions: Sequence[Callable[..., object]] = ()  # of `model.parsing`, that `read` calls


def read_policy(text: str) -> object:
    """Read a policy of another cluster that has the text as its content."""
    return policies.read_carried(field.Field("x", base64.b64encode(text.encode()).decode()))


def read_exported(text: str) -> object:
    """Read an export that has the text as the labels of its Service."""
    metadata = Metadata(annotations={names.EXPORTED_LABELS_ANNOTATION: text})
    return exported.carried_by(ResourceExport(metadata=metadata))


def read_service_labels(text: str) -> object:
    """Read an export whose Service has a label with the text as key and value."""
    return read_exported(json.dumps({text: "a", "a": text}))


def read_whole_review(text: str) -> object:
    """Read and judge a review of an export that is this JSON text."""
    document.decode(text)
    request = f'{{"uid": "1", "operation": "CREATE", "kind": {{"kind": "ResourceExport"}}, "object": {text}}}'
    body = f'{{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {request}}}'
    whole = read_review(body.encode())
    return review(whole, World(), OWN), mutate(whole)


def read_problems(text: str) -> object:
    """Read an announcement with the text as what its cluster does not apply."""
    annotations = {names.IMPORT_PROBLEMS_ANNOTATION: text}
    announcement = MemberClusterAnnounce(metadata=Metadata(annotations=annotations))
    return problems.read_report(announcement, names.IMPORT_PROBLEMS_ANNOTATION)


def judge_export(text: str) -> object:
    """Judge an export that has the text in all fields, by an account of that name."""
    spec = {"kind": "LabelIdentity", "labelIdentity": {"normalizedLabel": text}}
    spec |= {"clusterID": text, "name": text, "namespace": text}
    metadata = {"name": text, "namespace": AREA, "annotations": {text: text}}
    user = {"username": f"system:serviceaccount:{text}"}
    kind = {"kind": "ResourceExport"}
    names_of_object = {"name": text, "namespace": AREA, "operation": "CREATE", "userInfo": user, "kind": kind}
    return review({**names_of_object, "object": {"metadata": metadata, "spec": spec}}, World(), OWN)


def read_bounds(text: str) -> object:
    """Read what a member may claim, by an annotation with the text."""
    keys = (names.ALLOWED_CIDRS_ANNOTATION, names.ALLOWED_NAMESPACES_ANNOTATION)
    return [annotation_errors({key: text}) for key in keys]


def read_claims(text: str) -> object:
    """Read a token with the text as its claims."""
    return member_tokens.claims_of(f"e30.{base64.urlsafe_b64encode(text.encode()).decode()}.x")


def read_refusal(text: str) -> object:
    """Read a leader's refusal with the text as its body, and as its message."""
    response = SimpleNamespace(status=403, headers={})
    bodies = (text, json.dumps({"kind": "Status", "message": text}))
    return [refusal("leader", response, body.encode()) for body in bodies]


def read_host(text: str) -> object:
    """Read the headers of a request that say where it comes from, and by whom."""
    return ServerNames().accepts(text), is_cross_site({"origin": text, "host": text}), bearer(f"Bearer {text}")


READERS = {
    "a JSON document": Reader(document.decode, JSON, (document.decode, document.decode_noting_cuts)),
    "a policy": Reader(read_policy, JSON),
    "exported labels": Reader(read_exported, JSON),
    "claims": Reader(granted.read_granted, JSON, (granted.read_granted,)),
    "refused claims": Reader(granted.read_refused, JSON, (granted.read_refused,)),
    "CIDRs": Reader(granted.read_cidrs, LISTS, (granted.read_cidrs,)),
    "a member's health": Reader(read_finding, ("PeerSilent: ", ": ", "a", "\n", "\\")),
    "a member's problems": Reader(read_problems, JSON),
    "links": Reader(links.read_text, JSON, (links.read_text,)),
    "a Node's key": Reader(lambda text: node_key.read_node_key(text, "x"), JSON, (node_key.read_node_key,)),
    "prefixes": Reader(prefixes.read_prefixes, LISTS, (prefixes.read_prefixes,)),
    "label identities": Reader(labels.parsed, LABELS, (labels.parsed,)),
    "an MTU": Reader(clusters.read_mtu, LISTS, (clusters.read_mtu,)),
    "an assigned range": Reader(lambda text: export_ranges.read_record(text, export_ranges.Assigned), JSON),
    "a CIDR": Reader(lambda text: cidr_claims.cidr_claim(text, "x"), LISTS),
    "a gateway's address": Reader(cidr_claims.gateway_claim, LISTS),
    "a review": Reader(read_whole_review, JSON),
    "an export's fields": Reader(judge_export, (*LABELS, *NAMES)),
    "labels of a Service": Reader(read_service_labels, NAMES),
    "bounds of a member": Reader(read_bounds, LISTS),
    "a refusal": Reader(read_refusal, ("admission webhook ", " denied the request", '"', " not found", "a")),
    "a refused ClusterIP": Reader(cidr_in_refusal, ("The range of valid IPs is ", *LISTS)),
    "an origin": Reader(read_host, ("[", "]", ":", "http://", "a", ".", "1", " ")),
    "a version": Reader(is_supported, ("v", "1", ".", "30", "+", "-")),
    "a traffic policy": Reader(read_traffic, ("local", "*", "any", ">", ",", "=", "1", " ", "a", "-")),
    "split labels": Reader(labels.split, LABELS),
    "text with secrets": Reader(scrub_text, SECRETS),
    "shown text": Reader(field.printable, JSON, (field.printable,)),
    "escaped text": Reader(field.escaped, ("a", "\n", "\U000e0001"), (field.escaped,)),
    "a time": Reader(conditions.time_of, TIMES),
    "a request's head": Reader(lambda text: parse_head(text.encode("latin-1")), HEAD),
    "a name": Reader(names.is_subdomain, NAMES),
    "a cluster's UID": Reader(cluster_uid.is_uid, NAMES),
    "a controller's instance": Reader(instances.read_instance, (*NAMES, " ", "1")),
    "claims of a token": Reader(read_claims, JSON),
    "a token": Reader(member_tokens.claims_of, ("e30", ".", "=", "-", "_", "a")),
    "an anchor": Reader(lambda text: member_tokens.longest_life("east", f"east.{text}"), NAMES),
}
# Functions that take text apart, but none of others, by reason.
OWN_TEXT = {
    "keys that controllers make of names": (
        "controller/leader/area_holder.py:AreaHolder.desired",
        "controller/leader/area_holder.py:_area",
        "controller/leader/cluster_infos.py:ClusterInfoCopy.desired",
        "controller/leader/cluster_set.py:ClusterSetStatus.desired",
        "controller/leader/label_identities.py:LabelIdentities.desired",
        "controller/leader/members.py:Members.desired",
        "controller/leader/other_exports.py:OtherExports.desired",
        "controller/leader/policies.py:PolicyCopies.desired",
        "controller/leader/services/reconciler.py:ServiceMerge._nameless",
        "controller/leader/services/reconciler.py:ServiceMerge.desired",
        "controller/member/cleanup.py:Cleanup.desired",
        "controller/member/services/service_import.py:ServiceImports.desired",
        "controller/member/services/service_import.py:_waits",
        "controller/webhook/lookup.py:ClusterLookup.service_account",
        "kube/events.py:_target",
    ),
    "values that have been read and checked": (
        "controller/contract/ranges.py:block_of",
        "controller/member/policies/label_exports.py:_namespace_name",
        "controller/member/policies/label_exports.py:_of_pods",
        "controller/member/services/endpoints.py:behind_own_address",
        "core/policies/rules.py:_selector",
        "model/parsing/granted.py:to_microseconds",
    ),
    "configuration and credentials of the own administrator": (
        "controller/machinery/connection/membership.py:_server",
        "controller/member/networks/pod_range.py:PodRange._configured",
        "http/listening.py:is_loopback",
        "kube/addresses.py:ServerAddresses.note",
        "kube/addresses.py:ServerAddresses.of",
        "kube/credentials.py:_authorization",
        "kube/credentials.py:_context_of",
        "kube/credentials.py:token_kubeconfig",
        "model/dataplane/wireguard.py:device_names",
    ),
    "names and rules that the program itself writes": (
        "core/fragments/imported.py:parse_shares",
        "core/fragments/tunnel_guard.py:_forged",
        "model/api/base.py:_api_name",
        "model/api/base.py:as_json",
        "model/parsing/parse.py:_is_harmless",
    ),
    "an address that the kernel gives": ("http/listening.py:client_source",),
    "a token that is at most as long as the head of a request": ("kube/reviews.py:Reviewer.__call__",),
    "the status of a command in a Pod of this cluster": ("kube/execute.py:_exit_code",),
}
# They write text, or read what has been checked.
WRITERS = {
    granted.to_microseconds,
    labels.identity,
    labels.label_hash,
    labels.namespace_part,
    labels.normalised,
    labels.split,
}


def seconds(read: Callable[[str], object], text: str) -> float:
    """Return the processor time of this thread for reading a text."""
    before = time.thread_time()
    with suppress(ValueError, InputError, BadRequestError):
        read(text)
    return time.thread_time() - before


def growth(reader: Reader, start: str, repeated: str, end: str) -> float:
    """Return how many times as long a text takes that is four times as long; 0 if none takes a notable time."""
    times: list[float] = []
    length = SHORTEST
    while len(times) < 3 or (times[-1] < NOTABLE and length <= LONGEST):
        text = start + repeated * max(1, (length - len(start) - len(end)) // len(repeated)) + end
        times.append(seconds(reader.read, text))
        length *= 2
    return times[-1] / max(times[-3], NOTABLE / 1000) if times[-1] >= NOTABLE else 0.0


def check(reader: Reader, start: str, repeated: str, end: str) -> None:
    """Check the growth: the least of a few measurements, because the machine does other work, too."""
    ratios: list[float] = []
    while len(ratios) < 5 and (not ratios or min(ratios) > MOST):
        ratios.append(growth(reader, start, repeated, end))
    assert min(ratios) <= MOST, f"{start!r}, {repeated!r} repeated, {end!r}: {ratios}"


def openings(tokens: Sequence[str]) -> Iterator[str]:
    """Yield what a text may begin with: nothing, one token, or brackets that are too deep and a token."""
    yield ""
    for token in tokens:
        yield token
        yield "[" * (document.MAX_DEPTH + 2) + token


@costly
@pytest.mark.parametrize("name", READERS)
def test_each_pair_of_tokens_is_read_in_linear_time(name: str) -> None:
    """Every token is repeated after every beginning."""
    reader = READERS[name]
    for start, repeated in itertools.product(openings(reader.tokens), reader.tokens):
        check(reader, start, repeated, "")


@costly
@settings(max_examples=300)
@given(st.data())
def test_generated_texts_are_read_in_linear_time(data: st.DataObject) -> None:
    """What is repeated, and what stands before and after it, is made of any tokens."""
    reader = READERS[data.draw(st.sampled_from(sorted(READERS)))]
    words = st.lists(st.sampled_from(reader.tokens), max_size=3).map("".join)
    start = data.draw(st.sampled_from(("", *(token * (document.MAX_DEPTH + 2) for token in reader.tokens))))
    check(reader, start + data.draw(words), data.draw(words.filter(bool)), data.draw(words))


@costly
@pytest.mark.parametrize(
    ("name", "start", "repeated", "end"),
    [
        ("a JSON document", "[" * 66 + '"', '[\\"', ""),  # a string that does not end, begun at every quote
        ("claims", "[" * 66 + '"', '[\\"', ""),
        ("links", "[" * 66 + '"', '[\\"', ""),
        ("a request's head", "GET / HTTP/1.1\r\na:", " ", "\0"),  # spaces before, in and after a value
    ],
)
def test_texts_that_took_hours(name: str, start: str, repeated: str, end: str) -> None:
    """One of these, as long as it was let in, kept a thread of a controller or an agent busy for hours."""
    check(READERS[name], start, repeated, end)


@costly
def test_the_check_notices_a_square() -> None:
    """A reader that begins anew at each character is refused."""
    square = Reader(lambda text: sum(1 for _ in text for _ in text), ("a",))
    assert growth(square, "", "a", "") > MOST


def test_every_function_that_reads_text_is_checked() -> None:
    """All functions of `model.parsing` that take a text are in READERS, or named as writers."""
    names_of_modules = [f"{parsing.__name__}.{module.name}" for module in pkgutil.iter_modules(parsing.__path__)]
    takes_text = {
        function
        for module in map(importlib.import_module, names_of_modules)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
        for parameter in list(inspect.signature(function).parameters.values())[:1]
        if parameter.annotation in ("str", "bytes", "bytes | str")
    }
    checked = {function for reader in READERS.values() for function in reader.functions}
    assert takes_text == checked | WRITERS


def test_functions_that_take_text_apart_are_checked() -> None:
    """Each runs in a reader of READERS, or has a reason in OWN_TEXT."""
    run = {
        function
        for reader in READERS.values()
        for token in (*reader.tokens, *SAMPLES)
        for function in entered(lambda reader=reader, token=token: seconds(reader.read, token))  # type: ignore[misc]
    }
    own = [function for functions in OWN_TEXT.values() for function in functions]
    assert set(reading_functions()) == (set(reading_functions()) & run) | set(own)
    assert sorted(set(own) & run) == []


def test_annotations_are_bounded_before_they_are_read() -> None:
    """A text that is too long is refused by its length, however simple it is."""
    with pytest.raises(ValueError, match="characters, at most"):
        granted.read_granted(" " * granted.MAX_TEXT + "{}")
    assert granted.read_granted(" " * (granted.MAX_TEXT - 2) + "{}") == {}
    assert links.read_text("[" + " " * links.MAX_TEXT + "]") == ()
