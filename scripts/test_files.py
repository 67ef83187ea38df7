"""Third-party programs that only the tests need: the TypeScript compiler, fetched and pinned.

`test_files.lock.json` next to this file says which npm package has it for which machine, pinned by
the integrity of its tarball. It goes to a folder under `build/` that is named after the pin, so
what lies there is what the lock says. Nothing of it is committed or shipped.

    python scripts/test_files.py        fetch what is missing; does nothing where nothing is pinned

Moving on: write the new version and `npm view NAME@VERSION dist.integrity` into the lock.
"""

import hashlib
import io
import json
import platform
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

import guest_files

LOCK = Path(__file__).resolve().with_name("test_files.lock.json")
FOLDER = Path(__file__).resolve().parents[1] / "build" / "test-files"
MACHINE = f"{platform.system()} {platform.machine()}"


def compiler_package(machine: str = MACHINE) -> guest_files.Package | None:
    """Return the npm package that has the compiler for a machine, if one is pinned."""
    row = json.loads(LOCK.read_text(encoding="utf-8"))["compilers"].get(machine)
    return guest_files.Package(**row) if row else None


def compiler_path(package: guest_files.Package, folder: Path = FOLDER) -> Path:
    """Return where the compiler of a package is, or will be."""
    pin = hashlib.sha256(f"{package.spec} {package.integrity}".encode()).hexdigest()
    return folder / f"typescript-{package.version}-{pin[:12]}" / "lib" / "tsc"


def fetch(package: guest_files.Package, folder: Path = FOLDER) -> bool:
    """Put the compiler in place unless it is there; return whether it had to be fetched.

    Raises:
        guest_files.GuestFilesError: As for `guest_files.get_tarball`.
    """
    target = compiler_path(package, folder).parents[1]
    if target.exists():
        return False
    accept = f"write its integrity into {LOCK.name}"
    tarball = guest_files.get_tarball(package, accept=accept, may_install_npm=True)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder))
    try:
        _unpack(tarball, temporary)
        temporary.chmod(0o755)
        temporary.rename(target)  # whole or not at all
    except OSError:
        if not target.exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _unpack(tarball: bytes, folder: Path) -> None:
    """Write the compiler, and the declarations of the language that it reads, to `lib/`."""
    (folder / "lib").mkdir()
    with tarfile.open(fileobj=io.BytesIO(tarball), mode="r:gz") as archive:
        for member in archive:
            path = PurePosixPath(member.name)
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None and path.parent == PurePosixPath("package/lib"):
                made = folder / "lib" / path.name
                made.write_bytes(content.read())
                made.chmod(0o755 if path.name == "tsc" else 0o644)


def main() -> int:
    """Fetch what is missing; return the exit code."""
    package = compiler_package()
    if package is None:
        print(f"test files: no TypeScript compiler is pinned for {MACHINE}", file=sys.stderr)
        return 0
    try:
        if fetch(package):
            print(f"test files: fetched {package.spec}", file=sys.stderr)
    except (guest_files.GuestFilesError, OSError) as error:
        print(f"test files: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
