"""Importing and using the package where Linux's modules, flags and signals do not exist.

The interpreter of the test is changed before it imports the package: it looks like one on macOS or
on Windows to our modules. The libraries that we use were imported before, as they are here.
"""

import subprocess
import sys
import textwrap

import pytest

from clawmode.exceptions import UnsupportedPlatform

CORE = """
    anyio anyio._backends._asyncio asyncio concurrent.futures jsonschema_rs logging.handlers msgpack
    multiprocessing pathlib platformdirs pydantic rich.console selectors shutil socket sqlite3 ssl
    subprocess tempfile wasmtime wasmtime._bindings
""".split()

LIBRARIES = """
    cronsim getpass httpx2 jwt mcp.client.stdio mcp.server.stdio mcp.server.streamable_http_manager
    numpy prompt_toolkit.input.defaults prompt_toolkit.output.defaults prompt_toolkit.shortcuts
    pydantic_ai.direct pydantic_ai.models.anthropic pydantic_ai.models.openai pyjson5 rich.live
    rich.progress standardwebhooks starlette.applications typer uvicorn webbrowser
    websockets.asyncio.client yaml
""".split()

ADAPTERS = "clawmode.integrations."
"""Adapters import frameworks, which have their own ideas of operating systems."""

ABSENT = {
    "darwin": {"os": "O_PATH memfd_create pidfd_open pipe2 sched_getaffinity"},
    "win32": {
        # psutil is one of this machine's system, which refuses to be imported on another.
        "": "fcntl grp psutil pty pwd resource termios tty",
        "os": "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH fchmod fork getegid "
        "geteuid getpgid getuid killpg memfd_create pidfd_open pipe2 register_at_fork "
        "sched_getaffinity setsid statvfs",
        "signal": "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 "
        "SIGWINCH pthread_sigmask setitimer sigwait",
    },
}
"""What an operating system lacks: modules, functions and flags of `os`, and signals."""


def run(platform: str, program: str, *libraries: str) -> str:
    """Runs a program in an interpreter that looks like one of another operating system."""
    pretend = f"""
        import importlib, os, signal, sys, sysconfig
        sysconfig.get_config_vars()  # looks for a file of the platform
        for library in {[*CORE, *libraries]}:
            importlib.import_module(library)
        absent = {ABSENT[platform]}
        for name in absent.pop("", "").split():
            sys.modules[name] = None
        for module, names in absent.items():
            for name in names.split():
                if hasattr(sys.modules[module], name):
                    delattr(sys.modules[module], name)
        sys.platform = {platform!r}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(pretend) + textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.covers("PY-10")
@pytest.mark.parametrize("platform", ABSENT)
def test_every_module_can_be_imported(platform: str) -> None:
    program = """
        import pkgutil, clawmode
        for module in pkgutil.walk_packages(clawmode.__path__, "clawmode."):
            try:
                importlib.import_module(module.name)
            except ImportError as error:  # Google ADK has an environment of its own
                assert "pip install" in str(error), module.name
            print(module.name)
        for name in clawmode.__all__:
            getattr(clawmode, name)
    """
    assert len(run(platform, program, *LIBRARIES).split()) > 250


USE = """
    import asyncio
    from clawmode import ClawmodeError, CodeMode, Hooks, Policy, tool

    @tool
    def add(a: int, b: int) -> int:
        return a + b

    async def main():
        code_mode = CodeMode(tools=[add], policy=Policy(), hooks=Hooks())
        assert "add" in str(code_mode.definitions("anthropic"))
        try:
            async with code_mode:
                print((await code_mode.exec("return tools.add({a: 1, b: 2})")).unwrap())
        except ClawmodeError as error:
            print(error)

    asyncio.run(main())
"""


@pytest.mark.covers("PY-10")
def test_a_program_runs_on_macos() -> None:
    assert run("darwin", USE) == "3\n"


@pytest.mark.covers("PY-10")
def test_windows_has_definitions_and_says_in_one_line_that_it_has_no_sandbox() -> None:
    (line,) = run("win32", USE).splitlines()
    assert line.startswith("The sandbox cannot be used on win32: ")
    assert line.endswith("on Windows, use WSL.")


@pytest.mark.covers("PY-10")
def test_what_windows_lacks_is_refused_in_one_line() -> None:
    program = """
        import pathlib, tempfile
        from clawmode import SqliteStore, make_core_tools
        from clawmode.app.console import forget_keys
        from clawmode.config import file
        from clawmode.exceptions import UnsupportedPlatform
        from clawmode.files import is_locked, try_lock
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "c.json5").write_text("{}")
        for use in (
            lambda: make_core_tools(folder),
            lambda: try_lock(1),
            lambda: forget_keys(0),
        ):
            try:
                use()
            except UnsupportedPlatform as error:
                print(error)
    """
    lines = run("win32", program).splitlines()
    parts = ("A workspace", "The lock of a file", "A question at the terminal")
    assert lines == [str(UnsupportedPlatform(part)).replace("linux", "win32") for part in parts]
