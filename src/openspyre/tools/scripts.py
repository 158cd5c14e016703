"""Running a user's program inside a command, as `python FILE`, `-` or `-m MODULE` would."""

from __future__ import annotations

import os
import runpy
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import thread as pool
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

import openspyre
from openspyre.errors import SpyreError

if TYPE_CHECKING:  # needs torch
    from openspyre.runtime.saved import Run

# Options of the command stand before the script; what comes after it is the script's.
SCRIPT = {"allow_interspersed_args": False}
Target = Annotated[
    str, typer.Argument(metavar="SCRIPT", help="A Python file, - for stdin, or with -m a module.")
]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGS]...", help="What the script gets.")
]
AsModule = Annotated[bool, typer.Option("-m", "--module", help="SCRIPT names a module.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print a JSON object; the script's output goes to stderr.")
]


@dataclass
class Ended:
    """How a script ended: its exit code, and what it raised."""

    code: int = 0
    error: str = ""


def run_script(target: str, arguments: Sequence[str], *, module: bool) -> Ended:
    """Runs a program of the user's in this process. What it raises is printed, not raised.

    It has ended when the threads it started have, daemons apart. As at Python's own exit, the
    workers of a pool that nobody closed count as ended when there is nothing left for them to do.

    Raises:
        SpyreError: there is no such file or module.
    """
    with _as_main(target, arguments, module=module):
        _check_there(target, module=module)
        earlier = set(threading.enumerate())
        try:
            _run(target, module=module)
        except SystemExit as exit_:
            return _exited(exit_)
        except KeyboardInterrupt:
            return Ended(130, "interrupted")
        except BaseException as error:  # a process edge: the script is the user's
            traceback.print_exception(error.with_traceback(_users_part(error.__traceback__)))
            return Ended(1, "".join(traceback.format_exception_only(error)).strip())
        finally:
            _join_threads(earlier)
    return Ended()


def _run(target: str, *, module: bool) -> None:
    if module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    elif target == "-" or not (os.path.isfile(target) or os.path.isdir(target)):
        # A stream, which runpy would read twice.
        name = "<stdin>" if target == "-" else target
        text = sys.stdin.read() if target == "-" else Path(target).read_text(encoding="utf-8")
        exec(compile(text, name, "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        runpy.run_path(target, run_name="__main__")


def _check_there(target: str, *, module: bool) -> None:
    if module:
        with suppress(ImportError, ValueError):  # of a package around it
            if find_spec(target) is not None:
                return
        raise SpyreError(f"there is no module {target}", hint="without -m, SCRIPT is a file")
    if target != "-" and not os.path.exists(target):
        raise SpyreError(f"there is no file {target}", hint="-m runs a module")
    if os.path.isdir(target) and not os.path.exists(os.path.join(target, "__main__.py")):
        raise SpyreError(f"{target} is a folder", why="it has no __main__.py to run")


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that brought us to the script; none if it was never reached."""
    inside = trace
    while inside is not None and _is_ours(inside.tb_frame.f_code.co_filename):
        inside = inside.tb_next
    return inside


def _is_ours(file: str) -> bool:
    return file == __file__ or file == runpy.__file__ or file.startswith("<frozen")


def _join_threads(earlier: set[threading.Thread]) -> None:
    """Waits for all threads but the earlier ones and those that wait for work."""
    looks = 0  # in a row that saw no work: a worker just woken still seems to wait
    while looks < 3:
        started = [it for it in threading.enumerate() if it not in earlier and not it.daemon]
        if not started:
            return
        looks = looks + 1 if all(map(_waits_for_work, started)) else 0
        time.sleep(0.005)


def _waits_for_work(thread: threading.Thread) -> bool:
    """Whether this is a worker of a `ThreadPoolExecutor` that has nothing to do."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:  # not begun
        return False
    code = frame.f_code
    return (code.co_filename, code.co_name) == (pool.__file__, "_worker")


def _exited(exit_: SystemExit) -> Ended:
    if exit_.code is None or isinstance(exit_.code, int):
        code = exit_.code or 0
        return Ended(code, f"exit code {code}" if code else "")
    print(exit_.code, file=sys.stderr)
    return Ended(1, str(exit_.code))


@contextmanager
def _as_main(target: str, arguments: Sequence[str], *, module: bool) -> Iterator[None]:
    kept = sys.argv, sys.path[:]
    sys.argv = [target, *arguments]
    here = module or target == "-" or os.path.isdir(target)
    sys.path.insert(0, os.getcwd() if here else os.path.dirname(os.path.abspath(target)))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = kept


@dataclass
class Recorded:
    """A script's run and how it ended."""

    run: Run
    ended: Ended


def record_script(
    target: str, arguments: Sequence[str] | None, *, module: bool, quiet: bool,
    inputs: int = 0, wanted: str = "", launches: int = 1,
) -> Recorded:  # fmt: skip
    """Runs a script and records what it does on the cards.

    Args:
        quiet: send what it prints to stderr.
        inputs, wanted: see `recording.recorded`.

    Raises:
        SpyreError: the device cannot be registered, or there is no such script.
    """
    openspyre.require()
    from openspyre.runtime.recording import recorded  # needs torch, which replay must not

    command = " ".join([*(["-m"] if module else []), target, *(arguments or ())])
    with (
        on_stderr() if quiet else nullcontext(),
        recorded(command, inputs, wanted, launches) as recorder,
    ):
        ended = run_script(target, arguments or (), module=module)
        recorder.error = ended.error
    return Recorded(recorder.run, ended)


@contextmanager
def on_stderr() -> Iterator[None]:
    """Inside, stdout is stderr: for Python, for C, and for processes that are started."""
    with ExitStack() as undo:
        with suppress(OSError, ValueError):  # no such descriptors: a test, an embedded Python
            sys.stdout.flush()
            kept = os.dup(1)
            undo.callback(os.close, kept)
            undo.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
        undo.enter_context(redirect_stdout(sys.stderr))
        yield


def check_writable(*files: Path | None) -> None:
    """Before a long run: whether its files can be written.

    Raises:
        SpyreError: one of them cannot.
    """
    for file in files:
        if file is None:
            continue
        folder = file.absolute().parent
        why = f"{folder} is no folder that can be written to"
        if file.is_dir():
            why = "it is a folder"
        elif os.access(file if file.exists() and not file.is_file() else folder, os.W_OK):
            continue
        raise SpyreError(f"cannot write {file}", why=why)


@contextmanager
def told(command: str) -> Iterator[None]:
    """Inside, what a user can do something about becomes a line on stderr and exit code 2."""
    try:
        yield
    except (SpyreError, OSError) as error:
        print(f"spyre {command}: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
