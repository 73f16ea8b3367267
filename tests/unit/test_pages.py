"""How a page's commands are found, run and compared: a page that says something else than is printed fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.pages import Command, File, Reader, same, steps

PAGE = """
```yaml
# a.yaml
kind: A
```

```sh
not run
```

```console
$ read line; cat a.yaml | grep kind \\
    && sleep 0.1 &
$ wait
kind: …
$ echo "took 12 s"; echo more; echo end
took 3.5 s
…
end
```
"""


def test_steps_are_found_in_order() -> None:
    """Files to save and commands with their places; a command may go on in the next line."""
    all_steps = list(steps(PAGE + "```console\n(east-gw1)$ ip link\n```\n"))
    assert [type(step) for step in all_steps] == [File, Command, Command, Command, Command]
    assert all_steps[-1] == Command(where="east-gw1", text="ip link", output=())


def test_a_page_is_run_and_compared(tmp_path: Path) -> None:
    """`…`, spaces and durations may differ, nothing else; no command takes what is typed next."""
    reader = Reader(tmp_path, tmp_path / "clone", dict(os.environ))
    try:
        reader.follow(PAGE, patience=5)
        with pytest.raises(AssertionError, match="echo one"):
            reader.follow("```console\n$ echo one\ntwo\n```\n", patience=0)
    finally:
        reader.close()
    assert same(("a  b", "…", "c"), "a b\nc\n")
    assert not same(("a",), "a\nb\n")
    assert not same((), "a\n")
