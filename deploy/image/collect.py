#!/usr/bin/env python3
"""Copy programs, with all that they need and nothing else, into a root for an image without a distribution.

Runs while the image is built, in the stage that has the Debian packages:

    collect.py OUT [--program nft]... [--tree /opt/mcagent]... [--file PATH]... [--above ROOT]

Programs and trees bring the libraries that their ELF files load. For each Debian package that gave a file, its
licence and its entry of dpkg's list (/var/lib/dpkg/status.d, which scanners read) come along; sbom.py makes the
list of it all. With --above OUT is a layer over another root: it gets what is not in there.
"""

import argparse
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

LEFT_OUT = {
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "turtledemo",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
}
_LIBRARY = re.compile(r"(?:=>\s*)?(/\S+) \(0x[0-9a-f]+\)")
_USERS = "root:x:0:0:root:/:/sbin/nologin\nmcagent:x:65532:65532:mcagent:/tmp:/sbin/nologin\n"
_GROUPS = "root:x:0:\nmcagent:x:65532:\n"


def main() -> int:
    """Collect into OUT; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--program", action="append", default=[], help="its name in PATH")
    parser.add_argument("--tree", action="append", type=Path, default=[], help="a directory, with all below it")
    parser.add_argument("--standard-library", type=Path, help="of Python: without tests, editors and tools")
    parser.add_argument("--file", action="append", type=Path, default=[])
    parser.add_argument("--above", type=Path, help="a root that the image has already: what it has is left out")
    args = parser.parse_args()
    files = [_found(name) for name in args.program] + args.file
    for tree in args.tree:
        files += _below(tree, leave=frozenset())
    if args.standard_library:
        files += _below(args.standard_library, leave=frozenset(LEFT_OUT))
    wanted = sorted({*files, *_libraries(files)})
    if args.above:
        wanted = [file for file in wanted if not _is_in(file, args.above)]
    else:
        _skeleton(args.out)
    for file in wanted:
        _copy(file, args.out)
    packages = sorted(_owners(wanted))
    for package in packages:
        _describe(package, args.out)
    sys.stdout.write(f"{len(wanted)} files of {len(packages)} Debian packages in {args.out}\n")
    return 0


def _found(program: str) -> Path:
    path = shutil.which(program)
    if path is None:
        sys.exit(f"collect: no program {program} in PATH: install its package in this stage of the Dockerfile")
    return Path(path)


def _below(tree: Path, leave: frozenset[str]) -> Iterator[Path]:
    for path in sorted(tree.iterdir()):
        if path.name in leave or path.name.startswith("config-"):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _below(path, leave)
        else:
            yield path


def _libraries(files: Iterable[Path]) -> set[Path]:
    """Return what the dynamic loader would load for the files."""
    found: set[Path] = set()
    for file in files:
        real = file.resolve()
        if not real.is_file() or real.open("rb").read(4) != b"\x7fELF":
            continue
        listed = subprocess.run(["ldd", str(real)], capture_output=True, text=True, check=False).stdout
        if "not found" in listed:
            sys.exit(f"collect: {file} needs a library that is not here:\n{listed}")
        found.update(Path(match) for match in _LIBRARY.findall(listed))
    return found


def _is_in(file: Path, root: Path) -> bool:
    place = file.parent.resolve() / file.name  # /lib is a link, and a root's are relative
    return (root / place.relative_to("/")).exists()


def _skeleton(out: Path) -> None:
    """Lay the directories of a merged /usr, and the users."""
    for name in (
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        "etc",
        "run",
        "var/lib/dpkg/status.d",
        "proc",
        "sys",
        "dev",
    ):
        (out / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (out / name).symlink_to(f"usr/{name}")
    (out / "var/run").symlink_to("../run")  # sockets of Open vSwitch and wireguard-go go by that name
    (out / "tmp").mkdir()
    (out / "tmp").chmod(0o1777)
    (out / "etc/passwd").write_text(_USERS, encoding="utf-8")
    (out / "etc/group").write_text(_GROUPS, encoding="utf-8")
    (out / "etc/nsswitch.conf").write_text("hosts: files dns\n", encoding="utf-8")
    shutil.copy("/etc/os-release", out / "etc/os-release")


def _copy(file: Path, out: Path) -> None:
    """Copy a file; of a symbolic link, every step on the way to its end."""
    while True:
        file = file.parent.resolve() / file.name
        target = out / file.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_symlink():
            break
        if not target.is_symlink():
            target.symlink_to(file.readlink())
        file = file.parent / file.readlink()
    if file.is_dir():
        shutil.copytree(file, target, symlinks=True, dirs_exist_ok=True)
    elif not target.exists():
        shutil.copyfile(file, target)
        target.chmod(stat.S_IMODE(file.stat().st_mode) & 0o755)


def _owners(files: Iterable[Path]) -> set[str]:
    """Return the Debian packages that the files are of, as NAME or NAME:ARCHITECTURE."""
    names = {str(path) for file in files for path in (file, file.resolve())}
    # of before the merge of /usr, as some packages still list them
    names |= {name.removeprefix("/usr") for name in names}
    listed = subprocess.run(
        ["dpkg-query", "-S", *sorted(names)], capture_output=True, text=True, check=False
    ).stdout
    lines = (line.rpartition(": ") for line in listed.splitlines() if not line.startswith("diversion"))
    return {owner for owners, _, path in lines if path in names for owner in owners.split(", ")}


def _describe(package: str, out: Path) -> None:
    """Copy a package's licence and its entry in dpkg's list."""
    name = package.partition(":")[0]
    (out / "var/lib/dpkg/status.d").mkdir(parents=True, exist_ok=True)
    entry = subprocess.run(["dpkg-query", "-s", package], capture_output=True, text=True, check=True).stdout
    (out / "var/lib/dpkg/status.d" / name).write_text(entry, encoding="utf-8")
    licence = Path("/usr/share/doc") / name / "copyright"
    if licence.exists():
        target = out / licence.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(licence, target)


if __name__ == "__main__":
    sys.exit(main())
