"""Lists by pages, from an API server in memory: how pages shrink and grow, what bad objects and answers cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from mcagent.kube.client import MAX_ANSWER, Client
from mcagent.kube.errors import ApiGarbageError, ApiTooLargeError, ExpiredError
from mcagent.kube.source import RawObject
from mcagent.kube.sources.lister import PAGE_BYTES, TOO_DEEP, Lister
from mcagent.model.kinds import object_path
from mcagent.model.objects import Kind

PATH = object_path(Kind.NODE, "")
SERVER = "https://192.0.2.1:6443"
JSON, NAMES_ONLY = "application/json", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def node(name: str, size: int = 1, **fields: Any) -> RawObject:
    """Return a Node with an annotation of `size` characters."""
    return {"metadata": {"name": name, "annotations": {"a": "x" * size}}, **fields}


class Pages(Client):
    """A client of an API server with these Nodes: it answers as large as is asked for, or with `answer`.

    `expired`: how many requests for a page that follows another find its version compacted.
    """

    server = SERVER

    def __init__(self, *nodes: RawObject, answer: bytes | None = None, expired: int = 0) -> None:
        self.nodes, self.answer, self.expired = nodes, answer, expired
        self.queries: list[dict[str, str]] = []
        self.most: list[int] = []
        self.timeouts: list[float] = []

    def get(
        self, path: str, query: Mapping[str, str], *, timeout: float, most: int = MAX_ANSWER, accept: str = JSON
    ) -> bytes:
        """Return a page. Raises ApiTooLargeError, ExpiredError."""
        assert path == PATH
        self.queries.append(dict(query))
        self.most.append(most)
        self.timeouts.append(timeout)
        if self.answer is not None:
            return self.answer
        if self.expired and "continue" in query:
            self.expired -= 1
            raise ExpiredError("compacted", code=410)
        first = int(query.get("continue", "0"))
        last = min(first + int(query.get("limit", "1000")), len(self.nodes))
        meta = {"resourceVersion": f"1{last}"} | ({"continue": str(last)} if last < len(self.nodes) else {})
        items = list(self.nodes[first:last])
        kind = "NodeList"
        if accept == NAMES_ONLY:
            kind, items = (
                "PartialObjectMetadataList",
                [{"metadata": {"name": n["metadata"]["name"]}} for n in items],
            )
        text = json.dumps({"kind": kind, "metadata": meta, "items": items}).encode()
        if len(text) > most:
            raise ApiTooLargeError(f"more than {most} bytes")
        return text

    @property
    def limits(self) -> list[str | None]:
        """The page sizes that were asked for."""
        return [query.get("limit") for query in self.queries]


def names(nodes: list[RawObject]) -> list[str]:
    """Return the names of Nodes."""
    return [node["metadata"]["name"] for node in nodes]


def test_a_list_is_read_page_by_page() -> None:
    """Each page continues the one before it, has the selectors, and the time that was configured."""
    client = Pages(*map(node, "abcde"))
    lister = Lister(client, Kind.NODE, PATH, {"labelSelector": "x"}, page=2, timeout=7.0)
    objects, version = lister.read()
    assert names(objects) == list("abcde")
    assert version == "15"
    selected = {"labelSelector": "x", "limit": "2"}
    assert client.queries == [selected, selected | {"continue": "2"}, selected | {"continue": "4"}]
    assert client.timeouts == [7.0] * 3


def test_a_list_by_default() -> None:
    """500 objects a page, and 32 MiB; a minute for each; objects as they came, and what is cut passes silently."""
    client = Pages(*map(node, "ab"), node("c", deep=deep()))
    objects, _ = Lister(client, Kind.NODE, PATH).read()
    assert objects[:2] == list(client.nodes[:2])
    assert (client.queries, client.most, client.timeouts) == ([{"limit": "500"}], [PAGE_BYTES], [60.0])


def test_pages_shrink_until_they_fit_and_grow_again() -> None:
    """A page that is too large is halved and asked for again; a small answer doubles it, up to the configured."""
    large, small = [node(f"l{number}", 900) for number in range(4)], [node(f"s{number}") for number in range(20)]
    client = Pages(*large, *small)
    lister = Lister(client, Kind.NODE, PATH, page=8, page_bytes=2400)
    assert names(lister.read()[0]) == names([*large, *small])
    # Two large ones fit in 2400 bytes, and are no small answer; two small ones are: a quarter of it.
    assert client.limits == ["8", "4", "2", "2", "2", "4", "8", "8"]
    client.queries.clear()
    client.nodes = tuple(large)
    lister.read()
    assert client.limits == ["8", "4", "2", "2"]
    client.queries.clear()
    lister.read()  # as large as they were good last
    assert client.limits == ["2", "2"]


def test_an_object_that_is_too_large_costs_only_itself() -> None:
    """It is named, with its kind and the limit, and the others are read."""
    reports: list[tuple[str, str]] = []
    client = Pages(node("a"), node("big", 5000), node("c"))
    lister = Lister(
        client,
        Kind.NODE,
        PATH,
        {"fieldSelector": "y"},
        page=4,
        page_bytes=2000,
        timeout=9.0,
        report=lambda word, text: reports.append((word, text)),
    )
    objects, version = lister.read()
    assert names(objects) == ["a", "c"]
    assert version == "13"
    assert reports == [("too-large", "Node big has more than 2000 bytes: it is not read")]
    assert all(query["fieldSelector"] == "y" for query in client.queries)
    assert set(client.timeouts) == {9.0}


def test_the_last_object_may_be_too_large() -> None:
    """The version to watch from is that of the list of names; without a report it passes silently."""
    objects, version = Lister(Pages(node("a"), node("big", 5000)), Kind.NODE, PATH, page_bytes=2000).read()
    assert (names(objects), version) == (["a"], "12")


def deep() -> Any:
    """Return a value that is nested too deeply."""
    return json.loads("[" * 80 + "]" * 80)


def test_what_is_nested_too_deeply_is_cut_and_told() -> None:
    """Of that object alone."""
    reports: list[tuple[str, str]] = []
    lister = Lister(
        Pages(node("a"), node("b", deep=deep()), node("c")),
        Kind.NODE,
        PATH,
        report=lambda word, text: reports.append((word, text)),
    )
    assert names(lister.read()[0]) == ["a", "b", "c"]
    assert reports == [("nested", f"Node b: {TOO_DEEP}")]


def test_a_history_that_is_compacted_between_two_pages() -> None:
    """Everything is listed in one answer, as large as an answer may be; nothing of the first page comes twice."""
    client = Pages(*map(node, "abc"), expired=1)
    objects, version = Lister(client, Kind.NODE, PATH, page=2, page_bytes=2000).read()
    assert (names(objects), version) == (["a", "b", "c"], "13")
    assert client.queries == [{"limit": "2"}, {"limit": "2", "continue": "2"}, {}]
    assert client.most == [2000, 2000, MAX_ANSWER]


def test_a_list_that_does_not_fit_in_one_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pages there is no smaller one."""
    monkeypatch.setattr("mcagent.kube.sources.lister.MAX_ANSWER", 200)
    client = Pages(node("a"), node("b", 500), expired=1)
    with pytest.raises(ApiTooLargeError):
        Lister(client, Kind.NODE, PATH, page=1).read()
    assert client.limits == ["1", "1", None]


def test_a_list_that_is_stopped_asks_for_no_further_page() -> None:
    """What came is returned."""
    client = Pages(*map(node, "abc"))
    assert names(Lister(client, Kind.NODE, PATH, page=1).read(stopping=lambda: True)[0]) == ["a"]


def test_each_object_is_kept_in_the_form_that_is_wanted() -> None:
    """Raw objects of a page are not held until the list ends."""
    objects, _ = Lister(Pages(*map(node, "abc")), Kind.NODE, PATH, page=2, keep=lambda obj: len(str(obj))).read()
    assert [type(item) for item in objects] == [int] * 3


META: dict[str, Any] = {"resourceVersion": "7"}
GARBAGE: list[Any] = [
    [],
    {"kind": "PodList", "metadata": META, "items": []},
    {"kind": "NodeList", "metadata": 7, "items": []},
    {"kind": "NodeList", "items": []},
    {"kind": "NodeList", "metadata": META, "items": {}},
    {"kind": "NodeList", "metadata": META, "items": [node("a"), {"metadata": {}}]},
    {"kind": "NodeList", "metadata": {}, "items": []},
    {"kind": "NodeList", "metadata": {"resourceVersion": ""}, "items": []},
    {"kind": "NodeList", "metadata": {"resourceVersion": 7}, "items": []},
    {"kind": "NodeList", "metadata": META | {"continue": 7}, "items": []},
]


@pytest.mark.parametrize("answer", GARBAGE)
def test_an_answer_that_no_api_server_gives_is_not_used(answer: Any) -> None:
    """Not even in part: a list with one bad item could otherwise remove the others."""
    with pytest.raises(ApiGarbageError) as refused:
        Lister(Pages(answer=json.dumps(answer).encode()), Kind.NODE, PATH).read()
    assert str(refused.value) == f"{SERVER}: GET {PATH}: the answer is no NodeList"


def test_an_answer_that_is_not_json() -> None:
    """The error names server and path."""
    with pytest.raises(ApiGarbageError) as refused:
        Lister(Pages(answer=b"<html>"), Kind.NODE, PATH).read()
    assert str(refused.value) == f"{SERVER}: GET {PATH}: the answer is not JSON"


@pytest.mark.parametrize("extra", [{}, {"items": None}, {"items": [], "metadata": META | {"continue": None}}])
def test_how_go_writes_an_empty_list(extra: dict[str, Any]) -> None:
    """Without items, or with null."""
    answer = {"kind": "NodeList", "metadata": META} | extra
    assert Lister(Pages(answer=json.dumps(answer).encode()), Kind.NODE, PATH).read() == ([], "7")
