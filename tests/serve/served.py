"""A server of vLLM as its users start it: ready, asked, ended with all its processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai

from openspyre.tools.serve import server_command
from tests.serve.running import ROOT, environment, with_entry_points

START_SECONDS = 1000
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Attributes:
        address: where it is, without a path.
        log: what it prints.
    """

    address: str
    process: subprocess.Popen[bytes]
    log: Path

    def client(self, seconds: float = 300) -> openai.OpenAI:
        """The client of OpenAI, which asks once."""
        return openai.OpenAI(
            base_url=f"{self.address}/v1", api_key="none", timeout=seconds, max_retries=0
        )

    def metric(self, name: str) -> float:
        """A metric of vLLM's with one value."""
        text = httpx.get(f"{self.address}/metrics", timeout=60).text
        return float(next(x for x in text.splitlines() if x.startswith(f"{name}{{")).split()[-1])

    def settled(self, seconds: float = 300) -> dict[str, float]:
        """What is held when no request is left, after waiting for those that end: all zeros."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        end = time.monotonic() + seconds
        held = dict.fromkeys(names, 1.0)
        while any(held.values()) and time.monotonic() < end:
            time.sleep(0.1)
            held = {name: self.metric(f"vllm:{name}") for name in names}
        return held

    def end(self) -> str:
        """Asks it to end; what it printed last if it does not end well."""
        self.process.send_signal(signal.SIGTERM)
        return "" if self.process.wait(120) == 0 else self.log.read_text()[-3000:]


@contextmanager
def started(folder: Path, *options: str, **variables: str) -> Iterator[Server]:
    """A server of the model in a folder, ready; none of its processes is left behind."""
    port, log = free_port(), folder / "log"
    words = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL, *options]
    own = Path(tempfile.mkdtemp(dir=folder))
    variables_of = environment(HF_HUB_OFFLINE="1", PYTHONPATH=with_entry_points(own), **variables)
    with open(log, "w") as out:
        process = subprocess.Popen(
            server_command([str(folder), *words]), cwd=ROOT, stdout=out, stderr=out,
            env=variables_of, start_new_session=True,
        )  # fmt: skip
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        wait_until_ready(server)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def wait_until_ready(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    with httpx.Client(timeout=5) as client:  # one: to make one takes longer than to ask
        while time.monotonic() < end:
            assert server.process.poll() is None, server.log.read_text()[-3000:]
            with suppress(httpx.TransportError):
                if client.get(f"{server.address}/health").status_code == 200:
                    return
            time.sleep(0.2)
    raise AssertionError(server.log.read_text()[-3000:])


def completed(client: openai.OpenAI, prompt: str, tokens: int = 8) -> str:
    """So many greedy tokens behind a prompt, as text."""
    options = {"ignore_eos": True}
    made = client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=tokens, temperature=0, extra_body=options
    )
    assert made.usage is not None
    assert made.usage.completion_tokens == tokens
    return made.choices[0].text
