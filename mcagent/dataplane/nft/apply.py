"""Makes steps so: one script of nft(8) for all of them, which is one transaction of the kernel.

Owns what the script says, and who is to blame when nft refuses it. Syntax of nft 1.0.6 (Debian 12) to 1.1; no
`destroy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcagent.dataplane.nft.observe import Table, nft_words, set_kind
from mcagent.model.errors import BackendError
from mcagent.model.plan import Op, Step
from mcagent.model.resources import NftChain, NftSet, Resource

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORD = re.compile(r"[a-z]+")
_LOCATED = re.compile(r"^[^\s:]+:(?P<line>\d+):\d+-\d+: Error: (?P<words>.*)$")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a script, and what it is about if it is refused."""

    text: str
    about: str


def apply_steps(table: Table, steps: Mapping[int, Step]) -> dict[int, BackendError]:
    """Make the steps so, given by place, and return the errors of those that failed, by place.

    A chain with a refused rule stays as it was. Raises BackendError when nft cannot be run at all.
    """
    failed: dict[int, BackendError] = {}
    for place, step in steps.items():
        reason = objection(step, table)
        if reason:
            failed[place] = table.error(step.op, _about(step), reason, retryable=False)
    return {**failed, **_transact(table, {place: one for place, one in steps.items() if place not in failed})}


def objection(step: Step, table: Table) -> str:
    """Return why a step cannot be written as a script, or "" if it can."""
    resource = step.resource
    if not isinstance(resource, NftChain | NftSet):
        return f"{type(resource).__name__} is not an nft resource"
    if (resource.family, resource.table) != (table.family, table.name):
        return f"table {resource.family} {resource.table} is not ours"
    if not _NAME.fullmatch(resource.name):
        return "not a name: letters, digits and _ are"
    if isinstance(step.new, NftSet):
        version = 4 if table.family == "ip" else 6
        addresses = [address for address, _ in step.new.sockets or ()]
        if any(one.version != version for one in (*step.new.elements, *addresses)):
            return f"an element is not of the table's family {table.family}"
    if isinstance(step.new, NftChain):
        if _hook(step.new) and not (_WORD.fullmatch(step.new.type) and _WORD.fullmatch(step.new.hook)):
            return "neither a base chain, whose type and hook are words of nft(8), nor one without them"
        for place, rule in enumerate(step.new.rules, start=1):
            if re.search(r"[\n\r;#\\]|\bcomment\b", rule):
                return f"rule {place} is not one rule without a comment: {rule!r}"
    return ""


# --- scripts --------------------------------------------------------------------------------------------


def script(table: Table, steps: Iterable[Step]) -> list[Line]:
    """Return the lines of one transaction that makes the steps so.

    Sets and chains are made if they are missing, flushed and filled again: a base chain is never deleted
    to be made again (packets would pass without it), except when its type, hook or priority changes.
    """
    making = [Line(f"add table {table}", f"table {table}")]
    filling: list[Line] = []
    rules: list[Line] = []
    chains_gone: list[Line] = []
    sets_gone: list[Line] = []
    for step in steps:
        new, old = step.new, step.old
        about = _about(step)
        name = _name(table, new or old)
        if isinstance(new, NftSet):
            if isinstance(old, NftSet) and (not old.intact or set_kind(old) != set_kind(new)):
                making.append(Line(f"delete set {name}", about))
            making.append(Line(_add_set(table, new), about))
            filling.append(Line(f"flush set {name}", about))
            elements = ", ".join([*map(str, new.elements), *(f"{a} . {port}" for a, port in new.sockets or ())])
            if elements:
                filling.append(Line(f"add element {name} {{ {elements} }}", about))
        elif isinstance(new, NftChain):
            if step.op is Op.REPLACE and isinstance(old, NftChain) and _hook(old) != _hook(new):
                making += [Line(f"{verb} chain {name}", about) for verb in ("flush", "delete")]
            base = f" {{ {_hook(new)}; policy accept; }}" if _hook(new) else ""
            making.append(Line(f"add chain {name}{base}", about))
            filling.append(Line(f"flush chain {name}", about))
            for number, rule in enumerate(new.rules, start=1):
                rules.append(Line(f"add rule {name} {rule}", f"{about} rule {number} ({rule})"))
        elif isinstance(old, NftSet):
            if old.intact:  # so that it may be gone already
                making.append(Line(_add_set(table, old), about))
            sets_gone.append(Line(f"delete set {name}", about))
        else:
            making.append(Line(f"add chain {name}", about))  # so that it may be gone already
            filling.append(Line(f"flush chain {name}", about))
            chains_gone.append(Line(f"delete chain {name}", about))
    return [*making, *filling, *rules, *chains_gone, *sets_gone]


def _about(step: Step) -> str:
    """Return what a step is about, for people."""
    match step.resource:
        case NftChain(name=name):
            return f"chain {name}"
        case NftSet(name=name):
            return f"set {name}"
        case other:
            return repr(other)


def _name(table: Table, resource: Resource | None) -> str:
    assert isinstance(resource, NftChain | NftSet)
    return f"{table} {resource.name}"


def _add_set(table: Table, nft_set: NftSet) -> str:
    kind, flags = set_kind(nft_set)
    return f"add set {table} {nft_set.name} {{ typeof {kind};{f' flags {flags};' if flags else ''} }}"


def _hook(chain: NftChain) -> str:
    """Return what makes a base chain one, "" of a chain that others jump to."""
    known = chain.type or chain.hook or chain.priority
    return f"type {chain.type} hook {chain.hook} priority {chain.priority}" if known else ""


# --- transactions ---------------------------------------------------------------------------------------


def _transact(table: Table, steps: Mapping[int, Step]) -> dict[int, BackendError]:
    """Apply the steps in one transaction or, if nft refuses it, each in its own; return errors by place.

    The kernel blames every rule of a transaction for one that is not fit for its chain, and nft sometimes names
    no line at all: only alone does a step show who is to blame.
    """
    lines = script(table, steps.values())
    code, _, stderr = table.run(["-f", "-"], "".join(f"{line.text}\n" for line in lines)) if steps else (0, "", "")
    if code == 0:
        return {}
    if len(steps) == 1:
        place, step = next(iter(steps.items()))
        return {place: _error(table, step, lines, stderr)}
    failed: dict[int, BackendError] = {}
    for place in sorted(steps, key=lambda place: (_turn(steps[place]), place)):
        failed.update(_transact(table, {place: steps[place]}))
    return failed


def _turn(step: Step) -> int:
    """Return when a step has its turn: what others use before these, and the other way to delete it.

    Chains use sets, and base chains jump to those without a hook.
    """
    used = isinstance(step.resource, NftSet), isinstance(step.resource, NftChain) and not step.resource.hook
    turn = 0 if used[0] else 1 if used[1] else 2
    return turn if step.new is not None else 4 - turn


def _error(table: Table, step: Step, lines: Sequence[Line], stderr: str) -> BackendError:
    """Return the error of a step that was refused alone: of the rule that nft names, where it does."""
    for found in filter(None, map(_LOCATED.match, stderr.splitlines())):
        if 1 <= int(found["line"]) <= len(lines):
            return table.error(step.op, lines[int(found["line"]) - 1].about, found["words"])
    return table.error(step.op, _about(step), nft_words(stderr))
