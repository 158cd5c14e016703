"""A kernel that another process has compiled runs here without the compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

CODE = '''
import torch, openspyre
openspyre.require()
from openspyre.runtime import programs
from openspyre.runtime.launch import load_kernel
calls, compiled = [], programs.compile_kernel
programs.compile_kernel = lambda *given, **more: (calls.append(1), compiled(*given, **more))[1]
pick = load_kernel("""kernel pick
symbols n
arguments table ids y
input table: f32[n]
input ids: i64[1]
output y: f32[1]
op pick gather i0:1
  at "LINE"
  lookup t = ids[i0] size n wrap
  y[i0] <- table[t]
""")
table, y = torch.tensor([0.0, 1.0, 2.0, 3.0], device="spyre"), torch.zeros(1, device="spyre")
pick(table, torch.tensor([-1], device="spyre"), y, 4)
print(len(calls), y.item())
try:
    pick(table, torch.tensor([4], device="spyre"), y, 4)
    torch.spyre.synchronize()
except IndexError as error:
    print("LINE" in str(error))
'''


def test_the_next_process_compiles_nothing(
    run_python: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    said = []
    for line in ("model.py:3 embedding", "other.py:99 embedding"):
        done = run_python(
            CODE.replace("LINE", line),
            OPENSPYRE_CACHE=str(tmp_path),
            OPENSPYRE_CACHE_PROGRAMS="on",
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.splitlines())
    assert said == [["1 3.0", "True"], ["0 3.0", "True"]]
