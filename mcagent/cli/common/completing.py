"""What may come next on a command line: the answers to the shells' scripts, and to kubectl.

Follows from the parsers that the commands declare, so there is no list to keep. Knows no shell.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence

Candidate = tuple[str, str]  # a word, and what it means


def answer(words: Sequence[str]) -> int:
    """Print what the last of the words (those after `mcagent`) may be: a line each, its meaning after a tab."""
    for word, meaning in candidates(words):
        print(f"{word}\t{meaning}" if meaning else word)
    return 0


def kubectl() -> int:
    """Do so as kubectl asks it of a plugin: a last line says whether files are to be offered (0) or not (4)."""
    words = sys.argv[1:]
    answer(words)
    print(":4" if any(True for _ in candidates(words)) else ":0")
    return 0


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Return what the last word may be; none where a file, or anything, may come."""
    from mcagent.cli.main import COMMANDS, command_of, parser_of

    *before, last = words or [""]
    if not before:
        return _fitting(last, {**COMMANDS, "--help": "explain", "--version": "print the version"})
    if before[0] not in COMMANDS:
        return []
    parser = parser_of(command_of(before[0]), f"mcagent {before[0]}")
    # bash takes `--output=json` for three words, and replaces the last one.
    if last == "=":
        before, last = [*before, last], ""
    if len(before) > 1 and before[-1] == "=":
        chosen = _option(parser, before[-2])
        return _fitting(last, _choices(chosen)) if chosen is not None else []
    return list(_next(parser, before[1:], last))


def _next(parser: argparse.ArgumentParser, before: Sequence[str], last: str) -> Iterator[Candidate]:
    """Yield the candidates after the words before."""
    wanting: argparse.Action | None = None  # the option whose value comes next
    place = 0  # of the next positional argument
    for word in before:
        positional = _positional(parser, place)
        if wanting is not None:
            wanting = None
        elif word.startswith("-") and word != "-":
            found = _option(parser, word)
            wanting = found if found is not None and _takes_one(found) and "=" not in word else None
        elif isinstance(positional, argparse._SubParsersAction):
            inner = positional.choices.get(word)
            if inner is None:
                return
            parser, place = inner, 0
        else:
            place += 1
    if wanting is not None:
        yield from _fitting(last, _choices(wanting))
    elif last.startswith("-") and "=" in last:
        name, _, value = last.partition("=")
        option = _option(parser, name)
        values = _fitting(value, _choices(option)) if option is not None else []
        yield from ((f"{name}={one}", meaning) for one, meaning in values)
    elif last.startswith("-"):
        yield from _fitting(last, _options(parser))
    else:
        positional = _positional(parser, place)
        yield from _fitting(last, _choices(positional) if positional is not None else {})


def _options(parser: argparse.ArgumentParser) -> dict[str, str]:
    shown = (action for action in parser._actions if action.help != argparse.SUPPRESS)
    return {name: _meaning(action) for action in shown for name in action.option_strings}


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    name = word.partition("=")[0]
    return next((action for action in parser._actions if name in action.option_strings), None)


def _positional(parser: argparse.ArgumentParser, place: int) -> argparse.Action | None:
    found = [action for action in parser._actions if not action.option_strings]
    if place < len(found):
        return found[place]
    return found[-1] if found and found[-1].nargs in ("*", "+") else None


def _takes_one(action: argparse.Action) -> bool:
    return action.nargs is None or action.nargs == 1


def _choices(action: argparse.Action) -> Mapping[str, str]:
    if isinstance(action, argparse._SubParsersAction):
        meanings = {one.dest: one.help or "" for one in action._choices_actions}
        return {name: meanings.get(name, "") for name in action.choices}
    return {str(one): "" for one in action.choices or ()}


def _meaning(action: argparse.Action) -> str:
    return " ".join((action.help or "").replace("%%", "%").split()).partition(" [%(")[0]


def _fitting(begun: str, words: Mapping[str, str]) -> list[Candidate]:
    return [(word, meaning) for word, meaning in words.items() if word.startswith(begun)]
