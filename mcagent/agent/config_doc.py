"""The table of configuration keys as Markdown, made from `mcagent.agent.config_keys.KEYS`.

`python -m mcagent.agent.config_doc FILE` puts it between the two marker comments of FILE; `--check` only tells
whether FILE is current (exit code 1 when it is not).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mcagent.agent.config_keys import KEYS

BEGIN = "<!-- configuration table: made by python -m mcagent.agent.config_doc -->"
END = "<!-- end of configuration table -->"


def table() -> str:
    """Return the table; keys that Antrea has too come first and are marked."""
    lines = ["| key | default | what is right | meaning |", "| --- | --- | --- | --- |"]
    for key in sorted(KEYS, key=lambda key: not key.antrea):
        default = "(required)" if key.default is None else f"`{key.value.show(key.default)}`"
        mark = " ᴬ" if key.antrea else ""
        lines.append(f"| `{key.path}`{mark} | {default} | {key.value.expects} | {key.meaning} |")
    return "\n".join(lines)


def filled(text: str) -> str:
    """Return `text` with the table between its markers made current; ValueError when a marker is missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the table: the file needs the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def main(argv: list[str] | None = None) -> int:
    """Write or check the table; return the exit code."""
    parser = argparse.ArgumentParser(description="Put the table of configuration keys into a Markdown file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the table is not current")
    args = parser.parse_args(argv)
    before = args.file.read_text(encoding="utf-8")
    after = filled(before)
    if args.check:
        if before != after:
            sys.stderr.write(f"{args.file}: the configuration table is not current\n")
        return int(before != after)
    args.file.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
