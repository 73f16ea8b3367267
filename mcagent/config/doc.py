"""A table of configuration keys as Markdown, put between two marker comments of a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mcagent.config.keys import Key

END = "<!-- end of configuration table -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The table of some keys. `module` is what makes it, as the marker says."""

    keys: Sequence[Key]
    module: str

    @property
    def begin(self) -> str:
        """Return the line before the table."""
        return f"<!-- configuration table: made by python -m {self.module} -->"

    def table(self) -> str:
        """Return the table; keys that Antrea has too come first and are marked."""
        lines = ["| key | default | allowed values | meaning |", "| --- | --- | --- | --- |"]
        for key in sorted(self.keys, key=lambda key: not key.antrea):
            default = "(required)" if key.default is None else f"`{key.value.show(key.default)}`"
            mark = " ᴬ" if key.antrea else ""
            lines.append(f"| `{key.path}`{mark} | {default} | {key.value.allowed} | {key.meaning} |")
        return "\n".join(lines)

    def filled(self, text: str) -> str:
        """Return `text` with the table between its markers made current; ValueError when a marker is missing."""
        head, begin, rest = text.partition(self.begin)
        _, end, tail = rest.partition(END)
        if not begin or not end:
            raise ValueError(f"no place for the table: the file needs the lines {self.begin} and {END}")
        return f"{head}{begin}\n\n{self.table()}\n\n{END}{tail}"

    def main(self, argv: list[str] | None = None) -> int:
        """Write or check the table; return the exit code."""
        parser = argparse.ArgumentParser(description="Put the table of configuration keys into a Markdown file.")
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--check", action="store_true", help="change nothing; fail when the table is not current"
        )
        args = parser.parse_args(argv)
        before = args.file.read_text(encoding="utf-8")
        after = self.filled(before)
        if args.check:
            if before != after:
                sys.stderr.write(f"{args.file}: the configuration table is not current\n")
            return int(before != after)
        args.file.write_text(after, encoding="utf-8")
        return 0
