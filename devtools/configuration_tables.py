"""The tables of docs/configuration.md: `python -m devtools.configuration_tables FILE` puts them into the page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcagent.agent.config import KEYS as AGENT_KEYS
from mcagent.controller.config import KEYS as CONTROLLER_KEYS
from mcagent.model.keys.key import Key

TABLES: Mapping[str, Sequence[Key]] = {"agent": AGENT_KEYS, "controller": CONTROLLER_KEYS}
_END = "<!-- end of configuration table -->"


def table(keys: Sequence[Key]) -> str:
    """Return a table in Markdown; keys of Antrea come first, with a mark (ᴬ), as have reloadable keys (ᴿ)."""
    lines = ["| key | default | allowed values | meaning |", "| --- | --- | --- | --- |"]
    for key in sorted(keys, key=lambda key: not key.antrea):
        default = "(required)" if key.required else f"`{key.value.show(key.default)}`"
        mark = "".join(f" {mark}" for mark, marked in (("ᴬ", key.antrea), ("ᴿ", key.reloadable)) if marked)
        lines.append(f"| `{key.path}`{mark} | {default} | {key.value.allowed} | {key.meaning} |")
    return "\n".join(lines)


def filled(page: str) -> str:
    """Return the page with its tables made anew. ValueError when it has no place for one."""
    for name, keys in TABLES.items():
        begin = f"<!-- configuration table of the {name}: made by python -m devtools.configuration_tables -->"
        head, mark, after = page.partition(begin)
        _, end, tail = after.partition(_END)
        if not mark or not end:
            raise ValueError(f"no place for the table: the file needs the lines {begin} and {_END}")
        page = f"{head}{begin}\n\n{table(keys)}\n\n{_END}{tail}"
    return page


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
