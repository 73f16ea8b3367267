"""The nft backend: our one table, its base chains and its sets.

Owns the table it is given by name and everything in it; other tables are never read or written. Runs the
nft binary (`nft -f -`: one transaction of the kernel per call). What the texts look like is `nft_text`'s.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcagent.dataplane.nft.text import (
    ELEMENT_TYPES,
    Line,
    ListedRule,
    Listing,
    counted,
    digest,
    objection,
    parse_listing,
    script,
    set_kind,
    spellings,
)
from mcagent.model.errors import BackendError
from mcagent.model.plan import ApplyResult, Op, Step
from mcagent.model.resources import Backend, NftChain, NftSet, Resource, ResourceKey

TIMEOUT = 30.0  # seconds; 10,000 elements take 0.15 s
_LOCATED = re.compile(r"^[^\s:]+:(?P<line>\d+):\d+-\d+: Error: (?P<words>.*)$")
_NO_TABLE = ("No such file or directory", "Address family not supported")  # the second: a kernel without IPv6


class NftBackend:
    """Chains and sets of one table, in the calling thread's network namespace."""

    name = Backend.NFT

    def __init__(self, *, table: str, family: str = "ip", binary: str = "nft") -> None:
        """Remember what is ours; nothing is run before the first call.

        `family` is "ip" or "ip6". ValueError for another one: a set holds addresses of one family.
        """
        if family not in ELEMENT_TYPES:
            raise ValueError(f'family has to be one of {", ".join(ELEMENT_TYPES)}, not "{family}"')
        self._table = table
        self._family = family
        self._binary = binary
        self._there = True  # as far as known: an empty table is not asked for counters
        # Rules that this version of nft lists in a spelling we do not know: (digest, listed) -> asked for.
        self._learnt: dict[tuple[str, str], str] = {}

    def observe(self) -> Mapping[ResourceKey, Resource]:
        """Return the chains and sets of our table. Raises BackendError when nft cannot be run."""
        listing = self._list()
        found: dict[ResourceKey, Resource] = {}
        if listing is None:
            return found
        pairs = f"{ELEMENT_TYPES[self._family]} . inet_service"
        for name, listed_set in listing.sets.items():
            nft_set = NftSet(
                family=self._family,
                table=self._table,
                name=name,
                elements=listed_set.elements,
                sockets=listed_set.sockets if listed_set.kind[0] == pairs else None,
            )
            if listed_set.kind != set_kind(nft_set):
                nft_set = replace(nft_set, intact=False)
            found[nft_set.key] = nft_set
        for listed in listing.chains:
            rules = tuple(self._asked_for(rule) for rule in listed.rules)
            chain = NftChain(
                family=self._family,
                table=self._table,
                name=listed.name,
                type=listed.type,
                hook=listed.hook,
                priority=listed.priority,
                rules=rules,
                intact=listed.policy == "accept",
            )
            found[chain.key] = chain
        return found

    def apply(self, steps: Sequence[Step]) -> ApplyResult:
        """Make the steps so in one transaction; without those that nft refuses, if it refuses some.

        A chain with a refused rule stays as it was. Raises BackendError when nft cannot be run at all.
        """
        failed: dict[int, BackendError] = {}
        possible: dict[int, Step] = {}
        for place, step in enumerate(steps):
            reason = objection(step, self._family, self._table)
            if reason:
                failed[place] = self._error(step.op, _describe(step), reason, retryable=False)
            else:
                possible[place] = step
        failed.update(self._transact(possible))
        done = {place: step for place, step in possible.items() if place not in failed}
        self._look_back(list(done.values()))
        return ApplyResult(
            done=tuple(done.values()), failed=tuple((steps[place], failed[place]) for place in sorted(failed))
        )

    def counted(self) -> Mapping[str, int]:
        """Return how many packets the rules of each chain that counts have counted since it was last changed.

        From any thread. No elements of sets are read, so it costs the same with any number of peers: 5 ms.
        Raises BackendError when nft cannot be run.
        """
        if not self._there:
            return {}
        code, stdout, stderr = self._run(["-a", "-t", "-y", "list", "table", self._family, self._table])
        if code == 0:
            return counted(parse_listing(stdout))
        if any(words in stderr for words in _NO_TABLE):
            return {}
        raise self._error("list", "", _words(stderr))

    def close(self) -> None:
        """Nothing is held open; the table stays."""

    def _asked_for(self, rule: ListedRule) -> str:
        """Return the text that was asked for, or for an altered or foreign rule one that never is."""
        if rule.digest:
            for text in spellings(rule.text):
                if digest(text) == rule.digest:
                    return text
            if (rule.digest, rule.text) in self._learnt:
                return self._learnt[rule.digest, rule.text]
        return f'{rule.text} comment "{rule.comment}"'

    def _look_back(self, done: Sequence[Step]) -> None:
        """After a change: learn spellings that are new to us, and remove the table if it is empty now."""
        if not done:
            return
        listing = self._list()
        if listing is None:
            return
        chains = {chain.name: chain for chain in listing.chains}
        for step in done:
            if isinstance(step.new, NftChain) and step.new.name in chains:
                listed = chains[step.new.name].rules
                for text, rule in zip(step.new.rules, listed, strict=False):
                    if rule.digest == digest(text) and text not in spellings(rule.text):
                        self._learnt[rule.digest, rule.text] = text
        if any(step.op is Op.DELETE for step in done) and not (listing.chains or listing.sets or listing.others):
            self._run(["-f", "-"], f"delete table {self._family} {self._table}\n")

    def _transact(self, steps: Mapping[int, Step]) -> dict[int, BackendError]:
        """Apply all steps that nft takes, together; return the errors of the others by place."""
        if not steps:
            return {}
        lines = script(self._family, self._table, steps)
        code, _, stderr = self._run(["-f", "-"], "".join(f"{line.text}\n" for line in lines))
        if code == 0:
            return {}
        errors = self._blamed(stderr, lines, steps)
        if len(steps) == 1:
            place, step = next(iter(steps.items()))
            return {place: errors.get(place) or self._error(step.op, _describe(step), _words(stderr))}
        # The kernel blames every rule of the transaction for one that is not fit for its chain, and nft
        # sometimes names no line at all: so suspects are tried alone. Sets first, chains may use them.
        suspects = errors or steps
        sets = {place for place in suspects if isinstance(steps[place].new or steps[place].old, NftSet)}
        failed: dict[int, BackendError] = {}
        for place in sorted(sets):
            failed.update(self._transact({place: steps[place]}))
        failed.update(self._transact({place: step for place, step in steps.items() if place not in suspects}))
        for place in sorted(suspects.keys() - sets):
            failed.update(self._transact({place: steps[place]}))
        return failed

    def _blamed(self, stderr: str, lines: Sequence[Line], steps: Mapping[int, Step]) -> dict[int, BackendError]:
        blamed: dict[int, BackendError] = {}
        for message in stderr.splitlines():
            found = _LOCATED.match(message)
            if found is None or not 1 <= int(found["line"]) <= len(lines):
                continue
            line = lines[int(found["line"]) - 1]
            if line.step < 0:
                raise self._error("apply", "", found["words"])
            blamed.setdefault(line.step, self._error(steps[line.step].op, line.about, found["words"]))
        return blamed

    def _list(self) -> Listing | None:
        """Return what our table holds, or None if there is no such table."""
        code, stdout, stderr = self._run(["-a", "-s", "-y", "list", "table", self._family, self._table])
        self._there = code == 0
        if code == 0:
            return parse_listing(stdout)
        if any(words in stderr for words in _NO_TABLE):
            return None
        raise self._error("list", "", _words(stderr))

    def _run(self, arguments: Sequence[str], stdin: str = "") -> tuple[int, str, str]:
        try:
            code, stdout, stderr = run_nft(arguments, stdin, binary=self._binary)
        except OSError as error:
            raise self._error("run", "", str(error)) from None
        if code and "cache initialization failed" in stderr:
            raise self._error("run", "", _words(stderr))  # no permission, or a kernel without nf_tables
        return code, stdout, stderr

    def _error(self, operation: str, obj: str, reason: str, *, retryable: bool = True) -> BackendError:
        where = f"table {self._family} {self._table}"
        return BackendError(Backend.NFT, operation, f"{where} {obj}".rstrip(), reason, retryable=retryable)


def run_nft(arguments: Sequence[str], stdin: str = "", *, binary: str = "nft") -> tuple[int, str, str]:
    """Run nft in this thread's namespace; return status, output and errors. Raises OSError when it cannot."""
    try:
        done = subprocess.run(
            [binary, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise OSError(f"there is no {binary}: install nftables") from None
    except subprocess.TimeoutExpired as error:
        raise OSError(str(error)) from None
    return done.returncode, done.stdout, done.stderr


def _describe(step: Step) -> str:
    resource = step.new or step.old
    match resource:
        case NftChain(name=name):
            return f"chain {name}"
        case NftSet(name=name):
            return f"set {name}"
    return repr(resource)


def _words(stderr: str) -> str:
    """Return nft's own words, without the picture of the line it draws below them."""
    lines = [line for line in stderr.splitlines() if "Error:" in line]
    return "; ".join(lines) or stderr.strip() or "failed without a word"
