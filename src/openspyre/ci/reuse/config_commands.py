"""`spyre-ci config`: look at rules, write them in one form, compile them, take over others'."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from openspyre.ci.reuse.compiling import compiled, hooks_file, native_only
from openspyre.ci.reuse.doctor import findings
from openspyre.ci.reuse.formatting import formatted
from openspyre.ci.reuse.importing import imported
from openspyre.ci.reuse.loading import drift, load
from openspyre.ci.reuse.located import InvalidRules, read_yaml
from openspyre.ci.reuse.reading import read_rules
from openspyre.ci.reuse.running import place_of, prepare
from openspyre.ci.telling import AS_JSON, shown_progress, told
from openspyre.errors import SpyreError
from openspyre.runtime.whole_file import write_whole

config_commands = typer.Typer(help="Rules about PyTorch's tests.", no_args_is_help=True)
Files = Annotated[list[Path], typer.Argument(help="YAML files of rules; they are one set.")]
Tests = Annotated[Path | None, typer.Option("--tests", help="PyTorch's folder test/.")]
Work = Annotated[Path, typer.Option("--work", help="Folder for hooks, logs and results.")]
Grace = Annotated[int, typer.Option(min=0, help="Days for which expired rules still hold.")]
AllowDrift = Annotated[
    bool, typer.Option("--allow-drift", help="With another PyTorch, observe everything.")
]


@config_commands.command()
def check(
    files: Files,
    tests: Tests = None,
    work: Work = Path(".spyre-ci"),
    grace: Grace = 0,
    allow_drift: AllowDrift = False,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Check rules; with --tests also against the tests that exist: names, owners, hits."""
    with told("config check"):
        loaded = load(files, grace=grace, allow_drift=allow_drift)
        warnings = list(loaded.warnings)
        problems: list[str] = []
        if tests is not None:
            place = place_of(loaded.rules, tests, work)
            with shown_progress() as tell:
                for number, file in enumerate(loaded.rules.files):
                    tell(file.path, number / len(loaded.rules.files))
                    found = prepare(loaded.rules, file, loaded.capability, place)
                    broken = [f"{file.at}: {found.broken.reason}"] if found.broken else []
                    problems += [*found.plan.problems, *found.problems, *broken]
                    warnings += drift(tests, file)
        count = len(loaded.rules.rules())
        if as_json:
            print(json.dumps({"rules": count, "problems": problems, "warnings": warnings}))
        else:
            print("".join(f"warning: {warning}\n" for warning in warnings), end="")
        if problems:
            raise InvalidRules(problems)
        if not as_json:
            print(f"{count} rules for {len(loaded.rules.files)} files hold")


@config_commands.command()
def fmt(
    files: Files,
    only_check: Annotated[
        bool, typer.Option("--check", help="Only say what would change.")
    ] = False,
) -> None:
    """Write each file in one form. Comments are not kept: reasons are fields."""
    changed = []
    with told("config fmt"):
        for path in files:
            text = formatted(read_rules([path], today=None))
            if text != path.read_text(encoding="utf-8"):
                changed.append(path)
                if not only_check:
                    write_whole(path, text.encode())
    for path in changed:
        print(f"{'would change' if only_check else 'changed'} {path}")
    raise typer.Exit(1 if only_check and changed else 0)


@config_commands.command("compile")
def compile_(
    files: Files,
    output: Annotated[Path | None, typer.Option(help="Folder; stdout without it.")] = None,
    only_native: Annotated[
        bool, typer.Option("--native-only", help="Plain set_test_configs, for any backend.")
    ] = False,
    grace: Grace = 0,
    allow_drift: AllowDrift = False,
) -> None:
    """Compile rules to PyTorch's hooks: a file for TORCH_TEST_DEVICES for each test file."""
    with told("config compile"):
        loaded = load(files, grace=grace, allow_drift=allow_drift)
        rules = loaded.rules
        if only_native:
            text, left = native_only(rules, loaded.capability)
            made = {f"{rules.device}_hooks.py": text}
            for line in left:
                typer.echo(f"not expressed: {line}", err=True)
        else:
            made = {
                f"{file.path.removesuffix('.py')}_hooks.py": hooks_file(
                    file.path, rules.device, compiled(file, loaded.capability)
                )
                for file in rules.files
            }
        for name, text in made.items():
            if output is None:
                print(text)
            else:
                (output / name).parent.mkdir(parents=True, exist_ok=True)
                write_whole(output / name, text.encode())
                print(output / name)


@config_commands.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A test_suite_config of torch-spyre's RFC 1287.")],
    device: Annotated[str, typer.Option(help="The device the rules are for.")],
    torch: Annotated[str, typer.Option(help="The versions of PyTorch they are for.")],
) -> None:
    """Print another schema's rules in ours. What it does not say is left for you to fill in."""
    with told("config import"):
        text, missing = imported(read_yaml(file), device, torch)
    print(text, end="")
    for line in missing:
        typer.echo(f"fill in: {line}", err=True)
    raise typer.Exit(1 if missing else 0)


@config_commands.command()
def doctor(as_json: Annotated[bool, AS_JSON] = False) -> None:
    """Say whether this PyTorch has the hooks that rules are compiled to."""
    try:
        here = version("torch")
    except PackageNotFoundError:
        here = ""
    with told("config doctor"):
        try:
            found = findings()
        except ImportError as error:
            raise SpyreError("PyTorch's test hooks are missing", why=str(error)) from None
    if as_json:
        print(json.dumps({"torch": here, "hooks": found}))
    else:
        print(f"torch {here}")
        for name, there in found.items():
            print(f"  {'yes' if there else 'NO ':4}{name}")
    raise typer.Exit(0 if all(found.values()) else 1)
