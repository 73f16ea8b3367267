"""The documentation as a site: it builds without a warning, and its pages ask no other machine for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself; a link is followed by the reader only.
_FETCHED = re.compile(
    r"""(<(script|img|iframe|source)[^>]*\ssrc=|<link[^>]*\shref=|url\(|@import\s+)["']?(https?:)?//"""
)


def test_the_site_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    """Every link and anchor leads somewhere, every page is in the navigation; nothing is loaded from elsewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [path for kind in ("*.html", "*.css") for path in tmp_path.rglob(kind)]
    assert tmp_path / "tutorials/quick-start/index.html" in pages
    assert [str(path) for path in pages if _FETCHED.search(path.read_text(encoding="utf-8"))] == []
