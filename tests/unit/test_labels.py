"""Label identities as text: the forms of Antrea, and strict reading of what others wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.model.errors import InputError
from mcagent.model.parsing import labels
from mcagent.model.parsing.field import Field

KEYS = st.from_regex(r"([a-z0-9][-a-z0-9.]{0,8}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,6}[A-Za-z0-9])?", fullmatch=True)
VALUES = st.from_regex(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,6}[A-Za-z0-9])?)?", fullmatch=True)
SETS = st.dictionaries(KEYS, VALUES, max_size=5)


@pytest.mark.parametrize(
    ("space", "pod", "text"),
    [
        ({}, {"purpose": "test"}, "ns:kubernetes.io/metadata.name=shop&pod:purpose=test"),
        ({"region": "west"}, {"a": "1"}, "ns:kubernetes.io/metadata.name=shop,region=west&pod:a=1"),
        ({"kubernetes.io/metadata.name": "shop"}, {}, "ns:kubernetes.io/metadata.name=shop&pod:"),
        ({}, {"a": "1", "a-b": "2"}, "ns:kubernetes.io/metadata.name=shop&pod:a-b=2,a=1"),
    ],
)
def test_text_is_antreas(space: dict[str, str], pod: dict[str, str], text: str) -> None:
    """The Namespace's name is always there, whole entries are sorted, no labels are nothing after the colon."""
    assert labels.normalised("shop", space, pod) == text


def test_hash_is_antreas() -> None:
    """The first 16 hexadecimal digits of SHA-1 name exports, imports and LabelIdentities."""
    assert labels.label_hash("") == "da39a3ee5e6b4b0d"


@pytest.mark.costly
@given(SETS, SETS)
def test_what_is_written_is_read(space: dict[str, str], pod: dict[str, str]) -> None:
    """Any labels that Kubernetes takes come back as they were."""
    text = labels.normalised("shop", space, pod)
    parsed = labels.parsed(text)
    assert parsed is not None
    assert parsed.pod == pod
    assert parsed.namespace == {labels.NAMESPACE_NAME: "shop", **space}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "is missing"),
        ("", "must be ns:"),
        ("pod:a=b", "must be ns:"),
        ("ns:a=b&pod:a=b", "has no kubernetes.io/metadata.name"),
        ("ns:kubernetes.io/metadata.name=x&pod:<none>", "no label"),
        ("ns:kubernetes.io/metadata.name=x&pod:b=1,a=2", "sorted"),
        ("ns:kubernetes.io/metadata.name=x&pod:a=1,a=2", "sorted, each once"),
        ("ns:kubernetes.io/metadata.name=x&pod:a=\n", "no label"),
        ("ns:kubernetes.io/metadata.name=x&pod:a=1&pod:b=2", "must be ns:"),
        ("ns:kubernetes.io/metadata.name=x&pod:a=" + "v" * 64, "no label"),
        ("ns:kubernetes.io/metadata.name=x&pod:" + ",".join(f"a{i:05}=1" for i in range(2000)), "at most 8192"),
    ],
)
def test_what_nobody_can_have_written_is_refused(text: object, why: str) -> None:
    """The message says what is wrong, and never repeats a foreign text."""
    with pytest.raises(InputError, match=why):
        labels.read_labels(Field("x", text))


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but InputError is raised, and what is read is normalised."""
    parsed = labels.parsed(text)
    if parsed is not None:
        space = dict(parsed.namespace)
        assert labels.normalised(space[labels.NAMESPACE_NAME], space, parsed.pod) == text
