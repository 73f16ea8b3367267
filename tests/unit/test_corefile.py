"""Corefiles: names of the MCS API put in, and taken out again, whatever else is there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcagent.controller.admin.corefile import answers, configured, reloads, restored, version_of
from mcagent.model.errors import InputError

KUBEADM = """\
.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30
    loop
    reload
    loadbalance
}
"""


def test_what_kubeadm_installs_gets_a_zone_and_a_line() -> None:
    """And nothing else is changed."""
    made = configured(KUBEADM, "ConfigMap kube-system/coredns")
    changed = [line for line in made.splitlines() if line not in KUBEADM.splitlines()]
    assert changed == [
        "    kubernetes cluster.local in-addr.arpa ip6.arpa clusterset.local {",
        "        multicluster clusterset.local # by mcagent dns",
    ]
    assert len(made.splitlines()) == len(KUBEADM.splitlines()) + 1
    assert answers(made)
    assert not answers(KUBEADM)
    assert configured(made, "") == made
    assert restored(made) == KUBEADM
    assert restored(KUBEADM) == KUBEADM


def test_what_others_change_meanwhile_stays() -> None:
    """Only what was put in is taken out."""
    changed = configured(KUBEADM, "").replace("cache 30", "cache 60").replace("ttl 30", "ttl 5")
    assert restored(changed) == KUBEADM.replace("cache 30", "cache 60").replace("ttl 30", "ttl 5")


def test_a_line_of_the_administrators_own_stays() -> None:
    """Names that are answered already need nothing, and nothing is taken out."""
    own = configured(KUBEADM, "").replace(" # by mcagent dns", "")
    assert configured(own, "") == own
    assert restored(own) == own
    assert answers(own)


@pytest.mark.parametrize(
    "line", ["kubernetes cluster.local", "kubernetes cluster.local # names", "\tkubernetes cluster.local {\n\t}"]
)
def test_a_plugin_without_options_gets_a_block(line: str) -> None:
    """And loses it again."""
    changed = configured(f". {{\n    {line}\n}}\n", "")
    assert answers(changed)
    assert changed.count("{") == changed.count("}") == 2
    assert not answers(restored(changed))
    assert restored(changed).count("{") == 1
    assert answers(configured(restored(changed), ""))
    assert ("# names" in restored(changed)) == ("# names" in line)


@pytest.mark.parametrize(
    ("corefile", "message"),
    [
        ("", 'has no plugin "kubernetes"'),
        ("cluster.local:53 {\n kubernetes cluster.local\n}\n. {\n forward . 1.1.1.1\n}\n", "has no plugin"),
        ("tls://.:853 {\n kubernetes cluster.local\n}\n", "has no plugin"),
        (". {\n kubernetes {\n }\n}\n", "names no zones"),
        (". {\n kubernetes a clusterset.local {\n }\n}\n", "without"),
        (". {\n kubernetes a b {\n  multicluster b\n }\n}\n", 'has "multicluster b"'),
        (". {\n other {\n  kubernetes a\n }\n}\n", "has no plugin"),
    ],
)
def test_what_is_not_understood_is_refused(corefile: str, message: str) -> None:
    """With what is in the way, and left as it is."""
    with pytest.raises(InputError, match=r"^ConfigMap x/y: Corefile: ") as error:
        configured(corefile, "ConfigMap x/y")
    assert message in str(error.value)
    assert restored(corefile) == corefile


@pytest.mark.parametrize("address", [".", ".:53", "dns://.", "dns://.:53", "local:53", "clusterset.local", "a, ."])
def test_server_blocks_that_are_asked_for_such_names(address: str) -> None:
    """By their addresses, with scheme and port."""
    assert answers(configured(f"{address} {{\n  kubernetes cluster.local\n}}\n", ""))


WORDS = st.sampled_from(
    ["errors", "cache 30", 'log "{x}"', "# kubernetes a {", "ready", "", "  # }", "health {\n  x\n }"]
)


@given(
    before=st.lists(WORDS, max_size=4),
    options=st.lists(st.sampled_from(["ttl 5", "pods insecure", "# multicluster x", ""]), min_size=1, max_size=4),
    after=st.lists(WORDS, max_size=4),
    indent=st.sampled_from(["", "  ", "\t"]),
    comment=st.sampled_from(["", " # kubernetes"]),
)
def test_putting_in_and_taking_out_gives_the_same(
    before: list[str], options: list[str], after: list[str], indent: str, comment: str
) -> None:
    """For any Corefile with options; to put in twice is to put in once."""
    inner = "".join(f"{indent}{indent}{option}\n" for option in options)
    plugin = f"{indent}kubernetes cluster.local in-addr.arpa {{{comment}\n{inner}{indent}}}\n"
    lines = [f"{indent}{option}\n" for option in before]
    text = f".:53 {{\n{''.join(lines)}{plugin}{''.join(f'{indent}{option}' + chr(10) for option in after)}}}\n"
    changed = configured(text, "")
    assert answers(changed)
    assert configured(changed, "") == changed
    assert restored(changed) == text


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry.k8s.io/coredns/coredns:v1.12.2", (1, 12, 2)),
        ("602401143452.dkr.ecr.eu-west-1.amazonaws.com/eks/coredns:v1.11.4-eksbuild.2", (1, 11, 4)),
        ("localhost:5000/coredns:1.14.0@sha256:12", (1, 14, 0)),
        ("docker.io/mcagent-test/coredns:1", None),
        ("coredns", None),
        ("1.15.0", (1, 15, 0)),
    ],
)
def test_versions_are_read_of_images(image: str, version: tuple[int, int, int] | None) -> None:
    """None where the tag is no version."""
    assert version_of(image) == version


def test_whether_coredns_reloads_is_told() -> None:
    """By the plugin reload."""
    assert reloads(KUBEADM)
    assert not reloads(KUBEADM.replace("    reload\n", "    # reload\n"))
