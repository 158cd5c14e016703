"""`./dev serve`: vLLM's server for a model on the card, with an OpenAI-compatible API.

    ./dev serve [MODEL] [options of `vllm serve`]

MODEL is the folder of a Hugging Face model, or the name of weights that `spyre weights` lists
(default smollm2, which is downloaded on first use). The server listens on port 8000 (`--port`) and
names the model MODEL (`--served-model-name`). What vLLM understands follows as it is:
`--max-model-len 2048`, `--enforce-eager`, `--max-num-seqs 16`, ...; `--help=all` lists it all.

    curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}]}'
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from openspyre.errors import SpyreError
from openspyre.hf.weights import WEIGHTS, fetch
from openspyre.settings import child_environment
from openspyre.tools.progress import late_bar

_DEFAULT = "smollm2"
# Of a software card, whose memory is the host's: vLLM would take nine tenths of it.
_CACHE_BYTES = 1 << 30
_SIZED_BY = ("--kv-cache-memory-bytes", "--gpu-memory-utilization")


def server_command(arguments: Sequence[str]) -> list[str]:
    """The command that serves what the arguments of `./dev serve` name.

    Raises:
        SpyreError: there is no such model.
    """
    name, options = _DEFAULT, list(arguments)
    if options and not options[0].startswith("-"):
        name = options.pop(0)
    given = {option.split("=")[0] for option in options}
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(_folder(name))]
    if "--served-model-name" not in given:
        command += ["--served-model-name", name]
    if not given & set(_SIZED_BY):
        command += ["--kv-cache-memory-bytes", str(_CACHE_BYTES)]
    return command + options


def _folder(name: str) -> Path:
    if name in WEIGHTS:
        with late_bar(Console(stderr=True)) as tell:
            return fetch(name, tell)
    if not (Path(name) / "config.json").is_file():
        raise SpyreError(
            f"there is no model {name!r} to serve",
            why="it is neither a folder with a config.json nor a name of weights",
            hint=f"./dev serve FOLDER, or one of {', '.join(WEIGHTS)}",
        )
    return Path(name)


def main(arguments: Sequence[str]) -> int:
    """Becomes the server; returns only where it cannot."""
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    try:
        command = server_command(arguments)
    except SpyreError as error:
        print(f"serve: {error}", file=sys.stderr)
        return 2
    sys.stdout.flush()
    os.execve(
        command[0],
        command,
        child_environment(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1"),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
