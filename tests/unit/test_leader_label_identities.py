"""Label identities on the leader: numbers that stay, bounds on members, and what is refused."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.contract import names
from mcagent.controller.leader import label_identities
from mcagent.controller.leader.label_identities import GRACE, numbers
from mcagent.controller.settings import LeaderSettings
from mcagent.kube.source import RawObject
from mcagent.model.objects import Kind
from mcagent.model.parsing import labels
from tests.worlds.control_view import Controller, MemoryView
from tests.worlds.leader_world import AREA, SET, Leader, account, announce, export

ON = LeaderSettings(namespace="", stretched_network_policy=True)


def text_of(app: str, namespace: str = "shop") -> str:
    """Return the identity of Pods with one label."""
    return labels.normalised(namespace, {}, {"app": app})


def label(cluster: str, text: str, **meta: Any) -> RawObject:
    """Return a LabelIdentity export as Antrea's members write it."""
    name = names.label_export(cluster, labels.label_hash(text))
    raw = export(cluster, "LabelIdentity", name, {"labelIdentity": {"normalizedLabel": text}})
    raw["metadata"] = {"name": name, "namespace": AREA, **meta}
    return raw


def leader(*members: str, **changes: Any) -> Leader:
    """Return a leader that numbers label identities."""
    return Leader(*members, settings=LeaderSettings(namespace="", stretched_network_policy=True, **changes))


def number(world: Leader, text: str) -> Any:
    """Return the number of an identity, None if it has none."""
    spec = world.imported(labels.label_hash(text))
    return spec["labelIdentity"]["id"] if spec else None


def exporters(world: Leader, text: str) -> str | None:
    """Return whose identity it is, as members read it."""
    resource_import = world.api.get(Kind.RESOURCE_IMPORT, AREA, labels.label_hash(text))
    notes: dict[str, str] = resource_import["metadata"]["annotations"] if resource_import else {}
    return notes.get(names.EXPORTERS_ANNOTATION)


def test_one_import_for_all_clusters_with_the_same_labels() -> None:
    """The import is what Antrea's members read, and says who exports the labels."""
    world = leader("east", "west")
    web = text_of("web")
    world.put(label("east", web), label("west", web))
    spec = world.imported(labels.label_hash(web))
    assert (spec["kind"], spec["labelIdentity"]["label"]) == ("LabelIdentity", web)
    assert labels.FIRST <= spec["labelIdentity"]["id"] <= labels.LAST
    assert exporters(world, web) == "east,west"
    assert world.verdict(names.label_export("west", labels.label_hash(web)))["type"] == "Succeeded"


def test_ten_exports_are_ten_numbers_and_a_second_look_writes_nothing() -> None:
    """Numbers differ; nothing is written where nothing changed."""
    world = leader("east")
    texts = [text_of(f"app-{i}") for i in range(10)]
    world.put(*(label("east", text) for text in texts))
    assert len({number(world, text) for text in texts}) == 10
    before = list(world.api.writes)
    world.settle()
    assert world.api.writes == before


def test_one_more_label_writes_one_import_and_one_status() -> None:
    """The cost of a change does not grow with what is there."""
    world = leader("east")
    world.put(*(label("east", text_of(f"app-{i}")) for i in range(30)))
    world.api.writes.clear()
    world.put(label("east", text_of("web")))
    assert len(world.api.writes) == 2, world.api.writes


def test_the_number_is_the_same_after_everything_was_lost() -> None:
    """It follows from the labels: also when the imports are gone, and the leader is a new one."""
    world, again = leader("east"), leader("east")
    world.put(label("east", text_of("web")))
    again.put(label("east", text_of("other")), label("east", text_of("web")))
    assert number(world, text_of("web")) == number(again, text_of("web"))


def test_labels_that_nobody_has_keep_their_number_for_a_while() -> None:
    """Nobody owns it meanwhile; who comes back in time finds all as it was, later the import goes."""
    world = leader("east")
    raw = label("east", text_of("web"))
    world.put(raw)
    before = number(world, text_of("web"))
    world.api.remove(Kind.RESOURCE_EXPORT, AREA, raw["metadata"]["name"])
    world.controller.run()
    assert (number(world, text_of("web")), exporters(world, text_of("web"))) == (before, "")
    world.forward(GRACE / 2, "east")
    world.put(raw)
    assert (number(world, text_of("web")), exporters(world, text_of("web"))) == (before, "east")
    world.forward(2 * GRACE, "east")
    assert number(world, text_of("web")) == before
    world.api.remove(Kind.RESOURCE_EXPORT, AREA, raw["metadata"]["name"])
    world.controller.run()
    world.start()  # the time is in the object: another leader keeps to it
    world.settle()
    world.forward(GRACE + 10, "east")
    assert number(world, text_of("web")) is None


def test_numbers_without_exports_end_with_the_cluster_set() -> None:
    """Antrea's guide expects no ResourceImports when the ClusterSet is gone. Labels with exports stay."""
    world = leader("east")
    for app in ("web", "shop"):
        world.put(label("east", text_of(app)))
    world.api.remove(Kind.RESOURCE_EXPORT, AREA, label("east", text_of("web"))["metadata"]["name"])
    world.controller.run()
    assert number(world, text_of("web")) is not None
    world.api.remove(Kind.CLUSTER_SET, AREA, SET)
    world.controller.run()
    assert number(world, text_of("web")) is None
    assert number(world, text_of("shop")) is not None
    world.api.remove(Kind.RESOURCE_EXPORT, AREA, label("east", text_of("shop"))["metadata"]["name"])
    world.controller.run()
    assert number(world, text_of("shop")) is None


def test_a_number_that_two_have_stays_with_the_older() -> None:
    """Two leaders in turn may give one twice: the younger import is made anew, with another number."""
    world = leader("east")
    world.put(label("east", text_of("old")))
    world.forward(10, "east")
    world.put(label("east", text_of("new")))
    old_number = number(world, text_of("old"))
    patch = {"spec": {"labelIdentity": {"id": old_number}}}
    world.api.change(Kind.RESOURCE_IMPORT, AREA, labels.label_hash(text_of("new")), patch)
    world.controller.run()
    assert number(world, text_of("old")) == old_number
    assert number(world, text_of("new")) not in (old_number, None)


@pytest.mark.parametrize("bad", [0, -1, 0xFFFFFF, "7", True, None])
def test_a_number_that_is_none_is_replaced(bad: object) -> None:
    """Whoever wrote it: 0 and 0xffffff mean something else in a packet."""
    world = leader("east")
    world.put(label("east", text_of("web")))
    before = number(world, text_of("web"))
    patch = {"spec": {"labelIdentity": {"id": bad}}}
    world.api.change(Kind.RESOURCE_IMPORT, AREA, labels.label_hash(text_of("web")), patch)
    world.controller.run()
    assert number(world, text_of("web")) == before


def test_numbers_end_and_repeat_nothing_after_the_first_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few numbers left each of them is found."""
    monkeypatch.setattr(labels, "LAST", 200)
    assert set(numbers("0123456789abcdef")) == set(range(1, 201))
    assert all(1 <= n <= 200 for n in islice(numbers("f"), 100))


@pytest.mark.parametrize(
    ("text", "why"),
    [("nonsense", "must be ns:"), ("ns:a=b&pod:c=d", "has no kubernetes.io/metadata.name"), ("", "must be ns:")],
)
def test_bad_labels_are_refused_with_a_reason(text: str, why: str) -> None:
    """They get no number, and the export says why."""
    world = leader("east")
    world.put(label("east", text))
    assert number(world, text) is None
    assert why in world.verdict(names.label_export("east", labels.label_hash(text)))["message"]


def test_a_name_that_does_not_follow_and_strangers_are_refused() -> None:
    """A member can neither export under a second name nor without being one."""
    world = leader("east")
    other = label("east", text_of("web"))
    other["metadata"]["name"] = "east-other"
    world.put(other, label("mallory", text_of("db")))
    assert number(world, text_of("web")) is None
    assert number(world, text_of("db")) is None
    assert "follows from its spec" in world.verdict("east-other")["message"]
    world.put(announce("mallory", world.clock.now))
    assert exporters(world, text_of("db")) == "mallory"


def test_more_than_a_member_may_have_are_refused_the_oldest_stay() -> None:
    """The limit is that of exports; what is given back lets the next one in."""
    world = leader("east")
    world.put(account("east", max_exports="2"))
    texts = [text_of(f"app-{i}") for i in range(3)]
    for text in texts:
        world.put(label("east", text))
        world.forward(10, "east")
    assert [number(world, text) is not None for text in texts] == [True, True, False]
    assert "may export 2" in world.verdict(names.label_export("east", labels.label_hash(texts[2])))["message"]
    world.api.remove(Kind.RESOURCE_EXPORT, AREA, names.label_export("east", labels.label_hash(texts[0])))
    world.controller.run()
    assert number(world, texts[2]) is not None


def test_a_namespace_that_is_reserved_is_nobody_elses() -> None:
    """Another member cannot pass its Pods off as those of the Namespace."""
    world = leader("east", "west")
    world.put(account("east", allowed_namespaces="shop"), account("west"))
    world.put(label("east", text_of("web")), label("west", text_of("web")), label("west", text_of("a", "own")))
    assert exporters(world, text_of("web")) == "east"
    assert exporters(world, text_of("a", "own")) == "west"
    verdict = world.verdict(names.label_export("west", labels.label_hash(text_of("web"))))
    assert "may not export label identities of namespace shop" in verdict["message"]


def test_off_refuses_and_takes_back() -> None:
    """Without enableStretchedNetworkPolicy exports say so, and earlier numbers go."""
    world = leader("east")
    world.put(label("east", text_of("web")))
    world.settings = LeaderSettings(namespace="")
    world.controller.closed = True
    world.start()
    world.settle()
    assert number(world, text_of("web")) is None
    name = names.label_export("east", labels.label_hash(text_of("web")))
    assert label_identities.OFF in world.verdict(name)["message"]


@pytest.mark.costly
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 5)), max_size=30), st.randoms())
def test_numbers_under_interleavings(changes: list[tuple[int, bool, int]], chance: Any) -> None:
    """With few numbers, keys in any order and leaders in turn: at the end each label has one, and its own."""
    world = leader("east")
    first, last = labels.FIRST, labels.LAST
    try:
        labels.LAST = 12
        given: set[int] = set()
        for app, app_name, steps in changes:
            raw = label("east", text_of(f"app-{app}"))
            (given.add if app_name else given.discard)(app)
            if app_name and world.api.get(Kind.RESOURCE_EXPORT, AREA, raw["metadata"]["name"]) is None:
                world.api.put(raw)
            elif not app_name:
                world.api.remove(Kind.RESOURCE_EXPORT, AREA, raw["metadata"]["name"])
            for _ in range(steps):
                world.controller.step(chance.randrange(8))
            if chance.random() < 0.1:
                world.controller.closed = True
                world.view = MemoryView(world.api, namespace=AREA)
                world.controller = Controller(world.view, world.controller.reconcilers)
                world.controller.enqueue_all()
        world.settle()
        numbers = {app: number(world, text_of(f"app-{app}")) for app in given}
        assert len(set(numbers.values())) == len(given)
        assert all(type(n) is int and first <= n <= 12 for n in numbers.values())
    finally:
        labels.LAST = last
