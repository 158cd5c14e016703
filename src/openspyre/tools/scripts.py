"""Running a user's program inside a command, as `python FILE` or `python -m MODULE` would."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

import openspyre
from openspyre.errors import SpyreError

if TYPE_CHECKING:  # needs torch
    from openspyre.runtime.saved import Run

# Options of the command stand before the script; what comes after it is the script's.
SCRIPT = {"allow_interspersed_args": False}
Target = Annotated[
    str, typer.Argument(metavar="SCRIPT", help="A Python file, or with -m a module.")
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

    Raises:
        SpyreError: there is no such file.
    """
    if not module and not os.path.isfile(target):
        raise SpyreError(f"there is no file {target}", hint="-m runs a module")
    with _as_main(target, arguments, module=module):
        try:
            if module:
                runpy.run_module(target, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(target, run_name="__main__")
        except SystemExit as exit_:
            return _exited(exit_)
        except KeyboardInterrupt:
            return Ended(130, "interrupted")
        except BaseException as error:  # a process edge: the script is the user's
            traceback.print_exc()
            return Ended(1, "".join(traceback.format_exception_only(error)).strip())
    return Ended()


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
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(os.path.abspath(target)))
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
    inputs: int = 0, wanted: str = "",
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
        redirect_stdout(sys.stderr) if quiet else nullcontext(),
        recorded(command, inputs, wanted) as recorder,
    ):
        ended = run_script(target, arguments or (), module=module)
        recorder.error = ended.error
    return Recorded(recorder.run, ended)


@contextmanager
def told(command: str) -> Iterator[None]:
    """Inside, what a user can do something about becomes a line on stderr and exit code 2."""
    try:
        yield
    except (SpyreError, OSError) as error:
        print(f"spyre {command}: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
