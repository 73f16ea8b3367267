"""The table of the agent's keys: `python -m mcagent.agent.config_doc FILE` makes it, `--check` checks it."""

from __future__ import annotations

import sys

from mcagent.agent.config_keys import KEYS
from mcagent.config.doc import Page

PAGE = Page(keys=KEYS, module="mcagent.agent.config_doc")

if __name__ == "__main__":
    sys.exit(PAGE.main())
