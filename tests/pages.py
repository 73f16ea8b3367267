"""Runs a documentation page as its reader would: types each command, and compares what it prints with the page.

A page's fenced blocks count by their language:
- `console`: run. `$ command` in a clone of the repository, `(NAME)$ command` in that of a cluster, Node or Pod.
  What follows up to the next prompt is the output. `…` stands for any text, alone in a line for any lines. Spaces
  and durations (`12s`, `0.4 s`) may differ. A command that prints something else is typed again for a while.
- `yaml` with a first line `# NAME.yaml`: a file to save. `sh` and all others: not run.

Cram, prysk and byexample were looked at: they want their own marks beside the output, or cannot wait for it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^(?:\(([\w-]+)\))?\$ (.*)")
_FILE = re.compile(r"# ([\w-]+\.yaml)\n")
_DURATION = re.compile(r"\b\d+(\.\d+)? ?(h|m|s|ms)(\d+s)?\b")
_END = "--- end of output ---"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that the page tells to save."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command, where it is typed ("" for the clone), and what the page says that it prints."""

    where: str
    text: str
    output: tuple[str, ...]


def steps(page: str) -> Iterator[File | Command]:
    """Yield what the page tells its reader to do, in its order."""
    for language, block in _FENCE.findall(page):
        named = _FILE.match(block)
        if language == "yaml" and named:
            yield File(name=named[1], text=block)
        elif language == "console":
            yield from _commands(block)


def _commands(block: str) -> Iterator[Command]:
    where, text, output = "", "", list[str]()
    for line in [*block.splitlines(), "$ "]:
        if prompt := _PROMPT.match(line):
            if text:
                yield Command(where=where, text=text, output=tuple(output))
            where, text, output = prompt[1] or "", prompt[2], []
        elif text.endswith("\\"):
            text = f"{text[:-1].rstrip()} {line.strip()}"
        else:
            output.append(line)


def same(expected: tuple[str, ...], printed: str) -> bool:
    """Tell whether what was printed is what the page says."""
    pattern = ""
    for line in expected:
        if line.strip() == "…":
            pattern += r"(.*\n)*?"
        elif line.strip():
            pattern += ".*?".join(re.escape(part) for part in _plain(line).split("…")) + "\n"
    lines = "".join(f"{_plain(one)}\n" for one in printed.splitlines() if one.strip())
    return re.fullmatch(pattern, lines) is not None


def _plain(line: str) -> str:
    return " ".join(_DURATION.sub("TIME", line).split())


class Shell:
    """A bash that runs commands one after the other."""

    def __init__(self, argv: list[str], directory: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            argv,
            cwd=directory,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def type(self, command: str) -> str:
        """Run a command, and return what it printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{ {command}\n}} </dev/null\necho; echo '{_END}'\n")
        self._process.stdin.flush()
        printed = ""
        while (line := self._process.stdout.readline()).strip() != _END:
            assert line, f"the shell ended: {printed}"
            printed += line
        return printed

    def close(self) -> None:
        """End it, and what it is doing."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Reader:
    """Somebody who follows pages, with a shell open in every place, in a directory that looks like a clone."""

    def __init__(self, directory: Path, root: Path, environment: dict[str, str]) -> None:
        self._directory, self._environment = directory, environment
        self._shells = {"": Shell(["bash"], directory, environment)}
        for name in ("devtools", "deploy"):
            (directory / name).symlink_to(root / name)

    def follow(self, page: str, *, patience: float = 40.0) -> None:
        """Do what a page says. Raises AssertionError with the first command that prints something else."""
        for step in steps(page):
            if isinstance(step, File):
                (self._directory / step.name).write_text(step.text)
                continue
            deadline = time.monotonic() + patience
            while not same(step.output, printed := self.type(step)):
                expected = "\n".join(step.output)
                assert time.monotonic() < deadline, f"{step.text}\n--- page:\n{expected}\n--- printed:\n{printed}"
                time.sleep(0.2)  # between two tries of a command, up to the deadline

    def type(self, command: Command) -> str:
        """Type a command where it belongs, and return what it printed."""
        if command.where not in self._shells:
            opened = ["devtools/mclab", "exec", command.where, "bash"]
            self._shells[command.where] = Shell(opened, self._directory, self._environment)
        return self._shells[command.where].type(command.text)

    def close(self) -> None:
        """End all shells."""
        for shell in self._shells.values():
            shell.close()
