"""`mcagent mc`: command lines of `antctl mc`, translated into command lines of mcagent.

Owns the differences in names and flags. The command that a line becomes parses its arguments and runs.
Source: Antrea 1.7 to 2.8, pkg/antctl/raw/multicluster and docs/multicluster/antctl.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mcagent.model.errors import InputError

_EPILOG = """\
examples:
  mcagent mc init -n antrea-multicluster --clusterset blue --clusterid north -j join.yaml
  mcagent mc create membertoken member-east -n antrea-multicluster --cluster-id east -o east.yaml
  mcagent mc join -f join.yaml --clusterid east --token-secret-file east.yaml
  mcagent mc get clusterset -A

commands:
  init, join, leave, destroy                           mcagent clusterset
  create|delete membertoken                            mcagent membertoken
  get clusterset|resourceexport|resourceimport|membertoken|joinconfig
                                                       mcagent get
  deploy leadercluster|membercluster                   mcagent deploy --apply

`deploy membercluster` installs the agents, too, and needs --clusterid ID for them. Arguments are those of antctl
and of the mcagent command. `mcagent mc COMMAND --help` shows the latter. Flags of
antctl that have no effect are reported on stderr.
"""
_NOT_SHARED = (
    "a token stands for one cluster: for each, run `mcagent mc create membertoken NAME -n NAMESPACE "
    "--cluster-id ID -o FILE` and join with --token-secret-file FILE"
)
_NOT_PRINTED = "tokens are written to files only: `mcagent membertoken get NAME -n NAMESPACE --secret-file FILE`"
_OWN_VERSION = "mcagent deploys its own version; --image chooses another"
_MANIFEST = "applies a manifest of Antrea's: use kubectl apply, or leave the flag out to deploy mcagent"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Translation:
    """A command of mcagent, and the flags of antctl that it has under another name or not at all."""

    words: tuple[str, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)  # with the reason
    refused: Mapping[str, str] = field(default_factory=dict)  # with the reason


_KUBECONFIG = {"-k": "--kubeconfig"}  # of all commands of antctl
_SWITCHES = frozenset({"--create-token"})  # ignored flags without a value
_VERSION_FLAG = {"--antrea-version": _OWN_VERSION}
_MANIFEST_FLAGS = {"-f": _MANIFEST, "--manifest-file": _MANIFEST}
_COMMANDS: Mapping[str, _Translation] = {
    "init": _Translation(
        words=("clusterset", "init"),
        renamed={"-o": "--join-config-file", "--output-file": "--join-config-file"},  # of Antrea 1.8
        ignored={"--create-token": _NOT_SHARED},  # until Antrea 2.7
    ),
    "join": _Translation(words=("clusterset", "join")),
    "leave": _Translation(words=("clusterset", "leave")),
    "destroy": _Translation(words=("clusterset", "destroy")),
    # antctl's tokens do not expire, and its members do not renew theirs
    "create membertoken": _Translation(words=("membertoken", "create", "--expires", "never")),
    "delete membertoken": _Translation(words=("membertoken", "delete")),
    "get": _Translation(
        words=("get",),
        renamed={"--cluster-id": "--clusterid", "-clusterid": "--clusterid"},  # the second as Antrea's page has it
        ignored={"--member-token": _NOT_PRINTED},
    ),
    "deploy leadercluster": _Translation(
        words=("deploy", "--role", "leader", "--apply"),
        renamed={"-n": "--leader-namespace", "--namespace": "--leader-namespace"},
        ignored=_VERSION_FLAG,
        refused=_MANIFEST_FLAGS,
    ),
    "deploy membercluster": _Translation(
        words=("deploy", "--role", "member", "--apply"), ignored=_VERSION_FLAG, refused=_MANIFEST_FLAGS
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line of antctl, which is passed on."""
    parser.description = "Run a command line of `antctl mc` with mcagent."
    parser.epilog = _EPILOG
    parser.add_argument(
        "line", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="what follows `antctl mc`: see below"
    )


def run(args: argparse.Namespace) -> int:
    """Translate the line, and run the command that it becomes."""
    from mcagent.cli.main import command_of, run_command

    words, remarks = translate(args.line)
    for remark in remarks:
        print(f"mcagent mc: {remark}", file=sys.stderr)
    name, *arguments = words
    return run_command(command_of(name), f"mcagent {name}", arguments)


def translate(line: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments of `mcagent` for those of `antctl mc`, and the remarks about ignored flags.

    Raises InputError for an unknown command and for a flag that cannot be ignored.
    """
    for count in (1, 2):
        name = " ".join(line[:count])
        if len(line) >= count and name in _COMMANDS:
            remarks: list[str] = []
            translation = _COMMANDS[name]
            words = [*translation.words, *_arguments(line[count:], translation, remarks)]
            return words, remarks
    raise InputError("mc", " ".join(line[:2]), f"no such command of antctl mc; known are {', '.join(_COMMANDS)}")


def _arguments(words: Sequence[str], translation: _Translation, remarks: list[str]) -> Iterator[str]:
    """Yield translated arguments, and add a remark for each ignored flag."""
    renamed = {**_KUBECONFIG, **translation.renamed}
    remaining = iter(words)
    for word in remaining:
        flag, equals, value = word.partition("=")
        if flag in translation.refused:
            raise InputError("mc", flag, translation.refused[flag])
        if flag in translation.ignored:
            remarks.append(f"{flag} is ignored: {translation.ignored[flag]}")
            if not equals and flag not in _SWITCHES:
                next(remaining, None)
            continue
        yield renamed.get(flag, flag) + equals + value
