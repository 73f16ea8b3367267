"""The table of the controller's keys: `python -m mcagent.controller.config_doc FILE` makes or checks it."""

from __future__ import annotations

import sys

from mcagent.config.doc import Page
from mcagent.controller.config import KEYS

PAGE = Page(keys=KEYS, module="mcagent.controller.config_doc")

if __name__ == "__main__":
    sys.exit(PAGE.main())
