#!/usr/bin/env python3
"""Write a software bill of materials (SPDX 2.3, JSON) to standard output.

    sbom.py ROOT NAME                  of an image: Debian packages that collect.py noted in
                                       ROOT/var/lib/dpkg/status.d, Python packages that are installed in ROOT/opt
    sbom.py --lock FILE NAME VERSION   of a Python package with its locked dependencies on Linux

Same content, same bytes: the time is SOURCE_DATE_EPOCH, and the namespace a digest of the list.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path


def main() -> int:
    """Print the document; return the exit code."""
    if sys.argv[1] == "--lock":
        lock, name, version = sys.argv[2:]
        packages = [_pypi(name, version, None), *_locked(Path(lock).read_text(encoding="utf-8"))]
    else:
        root, name = Path(sys.argv[1]), sys.argv[2]
        packages = [*_debian(root), *_python(root)]
    json.dump(document(packages, name), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def document(packages: Iterable[dict[str, object]], name: str) -> dict[str, object]:
    """Return the SPDX document of packages."""
    packages = sorted(packages, key=lambda item: str(item["SPDXID"]))
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
        yield _pypi(entry["Name"], entry["Version"], entry.get("License-Expression"))


def _locked(lock: str) -> Iterator[dict[str, object]]:
    """Yield the packages of a lock, NAME==VERSION [; MARKER] \\, but those of Windows."""
    for name, version, marker in re.findall(r"^([\w.-]+)==([^\s;]+)(.*)$", lock, flags=re.MULTILINE):
        if "win32" not in marker:
            yield _pypi(name, version, None)


def _pypi(name: str, version: str, licence: str | None) -> dict[str, object]:
    where = f"pkg:pypi/{name.lower().replace('_', '-')}@{version.replace('+', '%2B')}"
    return _package("pypi", name, version, where, licence or "NOASSERTION")


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
