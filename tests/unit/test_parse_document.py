"""Decoding of JSON documents, of structs, label identities and claims: limits, and exact errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from ipaddress import ip_network
from typing import Any

import pytest

from mcagent.model.api.kubernetes import ApiPod, ApiService, EndpointConditions
from mcagent.model.api.policies import Manifest
from mcagent.model.errors import InputError
from mcagent.model.objects import Kind
from mcagent.model.parsing import granted, labels
from mcagent.model.parsing.decode import read_as, read_object, read_part
from mcagent.model.parsing.document import CUT, MAX_DEPTH, TOO_LONG, decode, decode_noting_cuts, was_cut
from mcagent.model.parsing.field import Field

# --- documents --------------------------------------------------------------------------------------------


def nested(levels: int, start: str = "[", end: str = "]", inner: str = "") -> str:
    """Return JSON with so many levels."""
    return start * levels + inner + end * levels


def levels_of(value: Any) -> int:
    """Return how many lists are inside each other."""
    return 1 + max(map(levels_of, value), default=0) if isinstance(value, list) else 0


def test_the_limit_of_depth() -> None:
    """64 levels are read unchanged; of the 65th only the mark remains, and what stands beside it is read."""
    assert decode_noting_cuts(nested(MAX_DEPTH)) == (json.loads(nested(MAX_DEPTH)), False)
    value, cut = decode_noting_cuts(nested(MAX_DEPTH + 1))
    assert cut
    assert value == json.loads(nested(MAX_DEPTH, inner=f'"{CUT}"'))
    beside = nested(MAX_DEPTH, inner='[1], 2, {"a": [3]}, 4')
    assert decode(beside) == json.loads(nested(MAX_DEPTH, inner=f'"{CUT}", 2, "{CUT}", 4'))
    assert decode(nested(MAX_DEPTH, '{"a":', "}", "[]")) == json.loads(nested(MAX_DEPTH, '{"a":', "}", f'"{CUT}"'))
    mixed = nested(MAX_DEPTH // 2, '[{"a":', "}]", "[1]")  # brackets of both forms take turns
    assert decode(mixed) == json.loads(nested(MAX_DEPTH // 2, '[{"a":', "}]", f'"{CUT}"'))


def test_brackets_in_strings_do_not_count() -> None:
    """Neither for the depth nor for what is cut."""
    text = json.dumps(["[" * 200, '\\"[', "}" * 200])
    assert decode_noting_cuts(text) == (["[" * 200, '\\"[', "}" * 200], False)
    deep = f'["]", {nested(MAX_DEPTH, inner=chr(34) + "]" + chr(34))}]'
    value, cut = decode_noting_cuts(deep)
    assert cut
    assert value[0] == "]"
    assert levels_of(value) == MAX_DEPTH


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (CUT, True),
        ("other", False),
        ([1, [CUT]], True),
        ({"a": {"b": [CUT]}}, True),
        ({CUT: 1}, False),
        ([{"a": 1}, None, 2.5], False),
    ],
)
def test_marks_of_what_was_cut(value: object, expected: bool) -> None:
    """A mark is found in lists and mappings; a key is none."""
    assert was_cut(value) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"\xff"', "�"),
        ('"\ud800"', "?"),
        (rb'"\ud800"', "�"),
        (rb'"\uD800\ud800x"', "��x"),
        (rb'"\udfff"', "�"),
        (rb'"\uDbff\uDfff"', "\U0010ffff"),
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\\ud800"', r"\ud800"),
        (rb'"\n\u0041"', "\nA"),
        (b"9" * 3999, int("9" * 3999)),
        (b"9" * 5000, TOO_LONG),
        (b"-" + b"9" * 5000, TOO_LONG),
        (b"[7, " + b"9" * 5000 + b"]", [7, TOO_LONG]),
        (b" 1.5 ", 1.5),
    ],
)
def test_text_and_numbers(text: bytes | str, expected: object) -> None:
    """Half of a surrogate pair and invalid UTF-8 become U+FFFD; an integer of thousands of digits a mark."""
    assert decode(text) == expected


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("form", ["{}", "[{}, " + "9" * 5000 + "]", "[" + "9" * 5000 + ", {}]"])
def test_words_that_are_not_json(word: str, form: str) -> None:
    """Python's decoder accepts them; JSON does not have them."""
    with pytest.raises(ValueError, match=f"^{word} is not JSON$"):
        decode(form.format(word))


# --- structs ----------------------------------------------------------------------------------------------

FIRST_PORT = "spec.containers[0].ports[0]"


def with_port(port: object) -> dict[str, Any]:
    """Return the spec of a Pod whose container has this port."""
    return {"containers": [{"ports": [port]}]}


@pytest.mark.parametrize(
    ("spec", "path", "code", "reason"),
    [
        ({"nodeName": 7}, "spec.nodeName", "InvalidValue", "must be a string, is a number"),
        ({"nodeName": 7.5}, "spec.nodeName", "InvalidValue", "must be a string, is a number"),
        ({"nodeName": True}, "spec.nodeName", "InvalidValue", "must be a string, is a boolean"),
        ({"nodeName": []}, "spec.nodeName", "InvalidValue", "must be a string, is a list"),
        ({"hostNetwork": "x"}, "spec.hostNetwork", "InvalidValue", "must be true or false, is a string"),
        ({"containers": {}}, "spec.containers", "InvalidValue", "must be a list, is a mapping"),
        ({"containers": [None]}, "spec.containers[0]", "Missing", "is missing"),
        (with_port(7), FIRST_PORT, "InvalidValue", "must be a mapping, is a number"),
        (with_port({}), f"{FIRST_PORT}.containerPort", "Missing", "is missing"),
        (with_port({"containerPort": None}), f"{FIRST_PORT}.containerPort", "Missing", "is missing"),
        (
            with_port({"containerPort": "80"}),
            f"{FIRST_PORT}.containerPort",
            "InvalidPort",
            "must be a port number, is a string",
        ),
        (
            with_port({"containerPort": 65536}),
            f"{FIRST_PORT}.containerPort",
            "InvalidPort",
            "not a port: must be from 1 to 65535",
        ),
        (
            with_port({"containerPort": 1, "protocol": "x\n"}),
            f"{FIRST_PORT}.protocol",
            "InvalidProtocol",
            'must be TCP, UDP or SCTP, is "x\\n"',
        ),
    ],
)
def test_faults_of_a_pod(spec: dict[str, Any], path: str, code: str, reason: str) -> None:
    """A value of a wrong type is left out; the fault names object and field, and says what is valid."""
    pod = read_object(Kind.POD, {"metadata": {"name": "web", "namespace": "shop"}, "spec": spec, "other": 1})
    assert isinstance(pod, ApiPod)
    assert pod.key == "shop/web"
    assert pod.fault is not None
    error = pod.fault.errors[0]
    assert (error.subject, error.path, error.code, error.reason) == ("Pod shop/web", path, code, reason)
    assert {error.path for error in pod.fault.errors} == {path}


def service(ports: list[Any], **spec: Any) -> ApiService:
    """Return a Service with these ports."""
    return read_as(ApiService, {"metadata": {"name": "web"}, "spec": {"ports": ports, **spec}})


def test_several_faults() -> None:
    """Each one is named; other fields, and other fields of the same entry, stay."""
    ports = [{"port": 1, "name": 7}, 8, {"port": 2, "name": "b"}, {"port": 3, "targetPort": 1.5}]
    decoded = service(ports, type=7, clusterIP="10.96.0.7")
    assert [(port.port, port.name) for port in decoded.spec.ports] == [(1, ""), (2, "b"), (3, "")]
    assert (decoded.spec.type, decoded.spec.cluster_ip) == ("", "10.96.0.7")
    assert decoded.fault is not None
    assert sorted((error.path, error.reason) for error in decoded.fault.errors) == [
        ("spec.ports[0].name", "must be a string, is a number"),
        ("spec.ports[1]", "must be a mapping, is a number"),
        ("spec.ports[3].targetPort", "must be an integer or a string, is a number"),
        ("spec.type", "must be a string, is a number"),
    ]


@pytest.mark.parametrize(
    ("field", "value", "path", "code", "reason"),
    [
        ("labels", {"a": 7}, "labels.a", "InvalidValue", "must be a string, is a number"),
        (
            "annotations",
            {"a": "x", "b.c": None, "d": []},
            "annotations.d",
            "InvalidValue",
            "must be a string, is a list",
        ),
        ("creationTimestamp", 7, "creationTimestamp", "InvalidTime", "must be a time (RFC 3339), is a number"),
        ("generation", "x", "generation", "InvalidValue", "must be an integer, is a string"),
        ("finalizers", ["a", 7], "finalizers[1]", "InvalidValue", "must be a string, is a number"),
    ],
)
def test_faults_of_metadata(field: str, value: object, path: str, code: str, reason: str) -> None:
    """An entry of a mapping is named by its key, and the name of the object remains."""
    node = read_object(Kind.NODE, {"metadata": {"name": "n1", field: value}})
    assert node.fault is not None
    (error,) = node.fault.errors
    assert (error.subject, error.path) == ("Node n1", f"metadata.{path}")
    assert (error.code, error.reason) == (code, reason)
    assert node.name == "n1"
    if field == "annotations":
        assert node.metadata.annotations == {"a": "x"}


@pytest.mark.parametrize(
    ("metadata", "subject"),
    [
        ({"name": "web", "namespace": "shop"}, "Service shop/web"),
        ({"name": "web"}, "Service web"),
        ({"name": 7, "namespace": "shop"}, "Service shop"),
        ({"name": "web\n"}, "Service web\\n"),
        ({"name": "w" * 300}, f"Service {'w' * 253}..."),
        (7, "Service "),
    ],
)
def test_objects_are_named_in_faults(metadata: object, subject: str) -> None:
    """The name is printable and short, whatever the object has in its place."""
    decoded = read_as(ApiService, {"metadata": metadata, "spec": 7})
    assert decoded.fault is not None
    assert {error.subject for error in decoded.fault.errors} == {subject}


def test_faults_beyond_the_limit() -> None:
    """16 faults of a list or mapping are named; with more it is left out, but no other field is."""
    for count, expected in ((16, 18), (17, 0)):
        decoded = service([{"port": 1}, *[{"port": 3, "name": 7}] * count, {"port": 2}], clusterIP="10.96.0.7")
        assert len(decoded.spec.ports) == expected
        assert decoded.fault is not None
        assert len(decoded.fault.errors) == min(count, 17) + (count > 16)
        assert decoded.spec.cluster_ip == "10.96.0.7"
    labels_of_numbers = {f"l{number}": number for number in range(100)}
    node = read_object(Kind.NODE, {"metadata": {"name": "n1", "uid": "u", "labels": labels_of_numbers}})
    assert (node.name, node.metadata.uid, node.labels) == ("n1", "u", {})


def test_values_of_manifests() -> None:
    """A manifest of any kind is named as one; YAML can have values that JSON has not."""
    decoded = read_as(Manifest, {"metadata": {"name": "x"}, "kind": b"bytes"})
    assert decoded.fault is not None
    (error,) = decoded.fault.errors
    assert str(error) == "manifest x: kind: must be a string, is a bytes"


def test_parts_are_read_without_what_is_wrong() -> None:
    """A JSON object that is no object of the API has no place for faults."""
    decoded = read_part(EndpointConditions, {"ready": 7, "serving": True, "terminating": None})
    assert decoded == EndpointConditions(serving=True)


# --- label identities -------------------------------------------------------------------------------------

SHOP = "kubernetes.io/metadata.name=shop"
NO_LABEL = "has something that is no label: each is key=value, as Kubernetes takes them"
NO_NAME = "has no kubernetes.io/metadata.name among the labels of the Namespace"


@pytest.mark.parametrize(
    ("text", "namespace", "pod"),
    [
        (f"ns:{SHOP}&pod:", {labels.NAMESPACE_NAME: "shop"}, {}),
        (
            f"ns:{SHOP},team=a&pod:app=db,rev=",
            {labels.NAMESPACE_NAME: "shop", "team": "a"},
            {"app": "db", "rev": ""},
        ),
        (f"ns:{SHOP}&pod:{'k' * 63}={'v' * 63}", {labels.NAMESPACE_NAME: "shop"}, {"k" * 63: "v" * 63}),
        (f"ns:{SHOP}&pod:a_B.9-c=v_B.9-c", {labels.NAMESPACE_NAME: "shop"}, {"a_B.9-c": "v_B.9-c"}),
    ],
)
def test_label_identities(text: str, namespace: dict[str, str], pod: dict[str, str]) -> None:
    """Strict and quick reading agree, and both parts give the text."""
    expected = labels.Labels(namespace=namespace, pod=pod)
    assert labels.read_labels(Field("x", text)) == labels.parsed(text) == labels.split(text) == expected
    assert labels.identity(labels.joined(namespace), labels.joined(pod)) == text


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        (f"ns:{SHOP}&pod:" + "a" * 8192, "TooLarge", "has 8232 characters, at most 8192 allowed"),
        ("ns:a=b", "InvalidValue", "must be ns:<labels>&pod:<labels>"),
        ("ns:a=b&pod:", "InvalidValue", NO_NAME),
        ("ns:kubernetes.io/metadata.name=&pod:", "InvalidValue", NO_NAME),
        (f"ns:{SHOP}&pod:a", "InvalidValue", NO_LABEL),
        (f"ns:{SHOP}&pod:a=b=c", "InvalidValue", NO_LABEL),
        (f"ns:{SHOP}&pod:a=1,,b=2", "InvalidValue", NO_LABEL),
        (f"ns:{SHOP}&pod:{'k' * 64}=v", "InvalidValue", NO_LABEL),
        (f"ns:{SHOP}&pod:b=1,a=2", "InvalidValue", "must have its labels sorted, each once"),
        (f"ns:{SHOP}&pod:a=1,a=1", "InvalidValue", "must have its labels sorted, each once"),
    ],
)
def test_invalid_label_identities(text: str, code: str, reason: str) -> None:
    """The message says what is wrong without the text of another cluster."""
    with pytest.raises(InputError) as info:
        labels.read_labels(Field("LabelIdentity x", text, "spec.label"))
    error = info.value
    assert (error.subject, error.path) == ("LabelIdentity x", "spec.label")
    assert (error.code, error.reason) == (code, reason)
    assert labels.parsed(text) is None


def test_the_longest_label_identity() -> None:
    """8,192 characters are read."""
    start = f"ns:{SHOP}&pod:"
    pairs = [f"k{number:05}=v" for number in range((8192 - len(start)) // 9)]
    text = start + ",".join(pairs)
    text += "v" * (8192 - len(text))
    assert len(text) == labels.MAX_TEXT
    assert labels.parsed(text) == labels.split(text)


def test_names_of_label_identities() -> None:
    """The name is the start of a SHA-1 of UTF-8, as Antrea computes it."""
    assert labels.label_hash("ns:kubernetes.io/metadata.name=shop&pod:app=é") == "474cefe725136753"
    assert len(labels.label_hash("\ud800")) == 16


# --- claims -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "must be a JSON object, is a list"),
        (json.dumps({f"{number}": "" for number in range(4097)}), "has 4097 claims, at most 4096 allowed"),
        ('{"a\\n":"2026-01-01T00:00:00"}', 'not a time (RFC 3339, in UTC) for claim "a\\n"'),
        ('{"a":"2026-01-01T00:00:00.1234567Z"}', 'not a time (RFC 3339, in UTC) for claim "a"'),
        ('{"a":"2026-01-01T00:00:00.Z"}', 'not a time (RFC 3339, in UTC) for claim "a"'),
        ('{"a":"b","b":""}', 'not a time (RFC 3339, in UTC) for claim "a"'),
    ],
)
def test_invalid_times_of_claims(text: str, reason: str) -> None:
    """The message says what is expected, and names the claim."""
    with pytest.raises(ValueError, match=r".") as info:
        granted.read_granted(text)
    assert str(info.value) == reason


def test_times_of_claims() -> None:
    """Times are completed to microseconds; the limit of claims is included; the text is compact and sorted."""
    claims = {"b": "2026-01-01T00:00:00.5Z", "a": granted.REFUSED}
    text = '{"a":"","b":"2026-01-01T00:00:00.5Z"}'
    assert granted.granted_text(claims) == text
    assert granted.read_granted(text) == {"a": "", "b": "2026-01-01T00:00:00.500000Z"}
    assert len(granted.read_granted(json.dumps({f"{number}": "" for number in range(4096)}))) == 4096
    east = timezone(timedelta(hours=5))
    assert granted.at(datetime(2026, 1, 1, 5, 0, 0, 250, east)) == "2026-01-01T00:00:00.000250Z"
    assert granted.at(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000000Z"
    assert granted.to_microseconds("") == ""


def test_lists_of_claims() -> None:
    """They are sorted and distinct; CIDRs are read from claims of any kind."""
    assert granted.claims_text(["b", "a", "b"]) == "a,b"
    assert granted.claims_text([]) is None
    cidrs = granted.read_cidrs("10.10.0.0/16,fd00::/64,192.0.2.1,x,10.9.0.1/16,")
    assert cidrs == (ip_network("10.9.0.0/16"), ip_network("10.10.0.0/16"), ip_network("fd00::/64"))
    assert granted.read_cidrs("") == ()


def test_refused_cidrs() -> None:
    """At most 16 of a cluster are written and read, sorted and distinct; clusters without one are left out."""
    many = [f"10.{number}.0.0/16" for number in range(10, 28)]
    text = granted.refused_text({"west": reversed([*many, *many]), "east": ["10.1.0.0/16"], "north": []})
    assert text == json.dumps({"east": ["10.1.0.0/16"], "west": many[:16]}, separators=(",", ":"))
    assert granted.read_refused(text) == {"east": ("10.1.0.0/16",), "west": tuple(many[:16])}
    assert granted.read_refused(json.dumps({"east": many})) == {"east": tuple(many[:16])}
    assert granted.read_refused('{"east":["x",7,"10.0.0.0/8"],"west":7}') == {"east": ("10.0.0.0/8",)}


def test_the_length_of_refused_cidrs() -> None:
    """What is written has at most 16,384 characters, of which few are unused, and is read."""
    cidrs = tuple(f"10.1{number}.0.0/16" for number in range(8))
    refused = {f"cluster-{number:05}": cidrs for number in range(1000)}
    text = granted.refused_text(refused)
    assert text is not None
    assert 16_000 < len(text) <= 16_384
    assert granted.read_refused(text) == dict.fromkeys(json.loads(text), cidrs)
    assert list(json.loads(text)) == sorted(refused)[: len(json.loads(text))]
    assert granted.read_refused('{"east":["10.0.0.0/8"]}'.ljust(16_384)) == {"east": ("10.0.0.0/8",)}
    assert granted.read_refused('{"east":["10.0.0.0/8"]}'.ljust(16_385)) == {}
