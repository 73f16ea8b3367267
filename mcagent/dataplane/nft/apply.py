"""Carries out steps by one script of nft(8), which is one transaction of the kernel.

Owns the script, and finds the step that nft refuses. Syntax of nft 1.0.6 (Debian 12) to 1.1; no `destroy`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcagent.dataplane.nft.observe import NftTable, nft_errors, set_kind
from mcagent.model.dataplane.resources import NftChain, NftSet, Resource
from mcagent.model.errors import BackendError
from mcagent.model.plan import Op, Step

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_WORD = re.compile(r"[a-z]+")
_LOCATED = re.compile(r"^[^\s:]+:(?P<line>\d+):\d+-\d+: Error: (?P<words>.*)$")


@dataclass(frozen=True, slots=True)
class ScriptLine:
    """One line of a script. `about` names its object in errors."""

    text: str
    about: str


def apply_steps(table: NftTable, steps: Mapping[int, Step]) -> dict[int, BackendError]:
    """Carry out the steps, given by place, and return the errors of those that failed, by place.

    A chain with a refused rule is not changed. Raises BackendError when nft cannot be run at all.
    """
    failed: dict[int, BackendError] = {}
    for place, step in steps.items():
        reason = objection(step, table)
        if reason:
            failed[place] = table.error(step.op, _about(step), reason, retryable=False)
    return {**failed, **_transact(table, {place: step for place, step in steps.items() if place not in failed})}


def objection(step: Step, table: NftTable) -> str:
    """Return why a step cannot be written as a script; "": it can."""
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
        if any(address.version != version for address in (*step.new.elements, *addresses)):
            return f"an element is not of the table's family {table.family}"
    if isinstance(step.new, NftChain):
        if _hook(step.new) and not (_WORD.fullmatch(step.new.type) and _WORD.fullmatch(step.new.hook)):
            return "neither a base chain, whose type and hook are words of nft(8), nor one without them"
        for place, rule in enumerate(step.new.rules, start=1):
            if re.search(r"[\n\r;#\\]|\bcomment\b", rule):
                return f"rule {place} is not one rule without a comment: {rule!r}"
    return ""


# --- scripts --------------------------------------------------------------------------------------------


def script(table: NftTable, steps: Iterable[Step]) -> list[ScriptLine]:
    """Make the lines of one transaction that carries out the steps.

    Sets and chains are added if they are missing, flushed and filled again. A base chain is never deleted and
    added again, because packets would pass meanwhile, except when its type, hook or priority changes.
    """
    additions = [ScriptLine(f"add table {table}", f"table {table}")]
    contents: list[ScriptLine] = []
    rules: list[ScriptLine] = []
    deleted_chains: list[ScriptLine] = []
    deleted_sets: list[ScriptLine] = []
    for step in steps:
        new, old = step.new, step.old
        about = _about(step)
        name = _name(table, new or old)
        if isinstance(new, NftSet):
            if isinstance(old, NftSet) and (not old.intact or set_kind(old) != set_kind(new)):
                additions.append(ScriptLine(f"delete set {name}", about))
            additions.append(ScriptLine(_add_set(table, new), about))
            contents.append(ScriptLine(f"flush set {name}", about))
            elements = ", ".join([*map(str, new.elements), *(f"{a} . {port}" for a, port in new.sockets or ())])
            if elements:
                contents.append(ScriptLine(f"add element {name} {{ {elements} }}", about))
        elif isinstance(new, NftChain):
            if step.op is Op.REPLACE and isinstance(old, NftChain) and _hook(old) != _hook(new):
                additions += [ScriptLine(f"{verb} chain {name}", about) for verb in ("flush", "delete")]
            base = f" {{ {_hook(new)}; policy accept; }}" if _hook(new) else ""
            additions.append(ScriptLine(f"add chain {name}{base}", about))
            contents.append(ScriptLine(f"flush chain {name}", about))
            for number, rule in enumerate(new.rules, start=1):
                rules.append(ScriptLine(f"add rule {name} {rule}", f"{about} rule {number} ({rule})"))
        elif isinstance(old, NftSet):
            if old.intact:  # so that the deletion also works without it
                additions.append(ScriptLine(_add_set(table, old), about))
            deleted_sets.append(ScriptLine(f"delete set {name}", about))
        else:
            additions.append(ScriptLine(f"add chain {name}", about))  # so that the deletion also works without it
            contents.append(ScriptLine(f"flush chain {name}", about))
            deleted_chains.append(ScriptLine(f"delete chain {name}", about))
    return [*additions, *contents, *rules, *deleted_chains, *deleted_sets]


def _about(step: Step) -> str:
    """Return the name of a step's object for messages."""
    match step.resource:
        case NftChain(name=name):
            return f"chain {name}"
        case NftSet(name=name):
            return f"set {name}"
        case other:
            return repr(other)


def _name(table: NftTable, resource: Resource | None) -> str:
    assert isinstance(resource, NftChain | NftSet)
    return f"{table} {resource.name}"


def _add_set(table: NftTable, nft_set: NftSet) -> str:
    kind, flags = set_kind(nft_set)
    return f"add set {table} {nft_set.name} {{ typeof {kind};{f' flags {flags};' if flags else ''} }}"


def _hook(chain: NftChain) -> str:
    """Return type, hook and priority of a base chain; "" for a chain that others jump to."""
    is_base = chain.type or chain.hook or chain.priority
    return f"type {chain.type} hook {chain.hook} priority {chain.priority}" if is_base else ""


# --- transactions ---------------------------------------------------------------------------------------


def _transact(table: NftTable, steps: Mapping[int, Step]) -> dict[int, BackendError]:
    """Apply the steps in one transaction or, if nft refuses it, each in its own; return errors by place.

    For a rule that does not fit its chain the kernel reports every rule of the transaction, and nft sometimes
    names no line: only a transaction of one step identifies the refused step.
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
    """Return the position of a step: objects are added before their users, and deleted after them.

    Chains use sets, and base chains jump to those without a hook.
    """
    resource = step.resource
    is_base_chain = isinstance(resource, NftChain) and bool(resource.hook)
    turn = 0 if isinstance(resource, NftSet) else 2 if is_base_chain else 1
    return turn if step.new is not None else 4 - turn


def _error(table: NftTable, step: Step, lines: Sequence[ScriptLine], stderr: str) -> BackendError:
    """Make the error of a step that was refused alone; about the rule that nft names, if any."""
    for error in filter(None, map(_LOCATED.match, stderr.splitlines())):
        if 1 <= int(error["line"]) <= len(lines):
            return table.error(step.op, lines[int(error["line"]) - 1].about, error["words"])
    return table.error(step.op, _about(step), nft_errors(stderr))
