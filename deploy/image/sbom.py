#!/usr/bin/env python3
"""Write the software bill of materials of an image: sbom.py ROOT NAME > FILE (SPDX 2.3, JSON).

Debian packages are those that collect.py noted in ROOT/var/lib/dpkg/status.d, Python's those that are installed
below ROOT/opt. Same content, same bytes: the time is SOURCE_DATE_EPOCH, and the namespace a digest of the list.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path


def main() -> int:
    """Print the document; return the exit code."""
    root, name = Path(sys.argv[1]), sys.argv[2]
    json.dump(document(root, name), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def document(root: Path, name: str) -> dict[str, object]:
    """Return the SPDX document of a root."""
    packages = sorted([*_debian(root), *_python(root)], key=lambda item: str(item["SPDXID"]))
    digest = hashlib.sha256(json.dumps(packages).encode()).hexdigest()
    created = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), UTC)
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:sha256:{digest}",
        "creationInfo": {"created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: mcagent-sbom"]},
        "packages": packages,
        "relationships": [
            {
                "spdxElementId": "SPDXRef-DOCUMENT",
                "relationshipType": "DESCRIBES",
                "relatedSpdxElement": package["SPDXID"],
            }
            for package in packages
        ],
    }


def _debian(root: Path) -> Iterator[dict[str, object]]:
    for file in (root / "var/lib/dpkg/status.d").iterdir():
        entry = HeaderParser().parsestr(file.read_text(encoding="utf-8"))
        name, version = entry["Package"], entry["Version"]
        where = (
            f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={entry['Architecture']}"
        )
        yield _package("deb", name, version, where, "NOASSERTION")


def _python(root: Path) -> Iterator[dict[str, object]]:
    for file in (root / "opt").glob("**/*.dist-info/METADATA"):
        entry = HeaderParser().parsestr(file.read_text(encoding="utf-8"))
        name, version = entry["Name"], entry["Version"]
        yield _package(
            "pypi",
            name,
            version,
            f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
            _licence(entry.get("License-Expression")),
        )


def _licence(expression: str | None) -> str:
    return expression or "NOASSERTION"


def _package(kind: str, name: str, version: str, where: str, licence: str) -> dict[str, object]:
    return {
        "SPDXID": f"SPDXRef-{kind}-{re.sub('[^A-Za-z0-9.-]', '-', name)}",
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseDeclared": licence,
        "externalRefs": [
            {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": where}
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
