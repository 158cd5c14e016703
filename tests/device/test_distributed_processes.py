"""spyreccl between processes: torch.distributed as users call it, compiled, a killed rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "several_cards.py"
BEFORE = """
import os, signal, sys, time, warnings
from datetime import timedelta
import torch, openspyre
openspyre.require()
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
rank, folder = int(sys.argv[1]), sys.argv[2]
card = torch.device("spyre", rank)
torch.accelerator.set_device_index(rank)
made = 0
def start(backend, seconds=60, **options):
    global made
    made += 1
    dist.init_process_group(backend, init_method=f"file://{folder}/{made}", rank=rank, world_size=2,
                            timeout=timedelta(seconds=seconds), **options)
def ones(*shape):
    return torch.full(shape, rank + 1.0, device=card)
"""
PARTS = {
    "the public calls": """
start("cpu:gloo,spyre:spyreccl", device_id=card)
both, alone = dist.new_group([0, 1]), [dist.new_group([0]), dist.new_group([1])][rank]
mesh = init_device_mesh("spyre", (1, 2), mesh_dim_names=("outer", "inner"))  # splits the group
x, y = ones(2), ones(2)
dist.all_reduce(x, group=mesh.get_group("outer"))
assert x.tolist() == [rank + 1] * 2
dist.all_reduce(x, group=mesh.get_group("inner"))
assert x.tolist() == [3, 3]
x = ones(2)
dist.all_reduce(x, group=both), dist.all_reduce(y, group=alone)
assert x.tolist() == [3, 3] and y.tolist() == [rank + 1] * 2
out = torch.empty(4, device=card)
dist.all_gather_into_tensor(out, y)
assert out.tolist() == [1, 1, 2, 2]
dist.reduce_scatter_tensor(y, out, op=dist.ReduceOp.MAX)
assert y.tolist() == [rank + 1] * 2
outs = [torch.empty(2, device=card) for _ in range(2)]
dist.all_to_all(outs, list(out.chunk(2)))
assert [o.tolist() for o in outs] == [[rank + 1] * 2] * 2
dist.gather(y, outs if rank == 1 else None, dst=1)
dist.scatter(y, outs if rank == 1 else None, src=1)
dist.broadcast(y, src=1), dist.reduce(y, dst=0)
assert y.tolist() == ([4, 4] if rank == 0 else [2, 2]), y
big = torch.arange(300_000, device=card) + rank
other = torch.empty_like(big)
for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, big, 1 - rank),
                                    dist.P2POp(dist.irecv, other, 1 - rank)]):
    work.wait()
assert torch.equal(other, torch.arange(300_000, device=card) + 1 - rank)
with dist._coalescing_manager(async_ops=True) as together:
    dist.all_reduce(x), dist.all_reduce(y)
together.wait()
assert x.tolist() == [6, 6] and y.tolist() == [6, 6]
""",
    "functional and compiled": """
def function(x):
    y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
    z = funcol.all_gather_single(y + rank, 0, dist.group.WORLD)
    return z.sum(), funcol.reduce_scatter_single(z, "avg", 0, dist.group.WORLD) + 1
def in_place(x):
    x = x + 1
    dist.all_reduce(x)
    return x * 2
x = torch.arange(6.0, device=card) + rank
torch.spyre.reset_fallbacks()
for f in (function, in_place):
    eager = f(x)
    compiled = torch.compile(f, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), eager, rtol=0, atol=0)
assert eager.tolist() == [2 * (2 * v + 3) for v in range(6)] and not torch.spyre.fallbacks()
""",
    "cards of one process": """
from tests.device.ranks import on_ranks
def act(one):
    torch.accelerator.set_device_index(one.number)
    x = torch.full((5,), one.number + 1.0, device="spyre")
    assert x.device.index == one.number
    one.group.allreduce([x]).wait()
    return x.tolist()
assert on_ranks(2, act) == [[3.0] * 5] * 2
""",
    "ways to begin": """
dist.destroy_process_group()
assert dist.get_default_backend_for_device("spyre") == "spyreccl"
assert dist.get_default_backend_for_device(card) == "spyreccl"
store = dist.FileStore(f"{folder}/store", 2)  # as torchrun has one for a process
for _ in range(3):
    dist.init_process_group("spyreccl", store=store, rank=rank, world_size=2,
                            timeout=timedelta(seconds=20))
    x = ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [3] * 3
    dist.destroy_process_group()
for backend, options in ((None, {}), ("spyreccl", {"device_id": card}),
                         ("cpu:gloo,spyre:spyreccl", {"device_id": card})):
    start(backend, **options)
    x = ones(3)
    dist.all_reduce(x)
    assert x.tolist() == [3] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of barrier, without a device_id
        dist.barrier()
    found = [None, None]
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": 0}, {"rank": 1}]
    if backend and "gloo" in backend:
        host = torch.ones(2)
        dist.all_reduce(host)
        assert host.tolist() == [2, 2]
    else:
        try:
            dist.all_reduce(torch.ones(2))
            raise AssertionError("a tensor of the CPU was taken")
        except RuntimeError as error:
            assert "No backend type associated with device type cpu" in str(error)
    dist.destroy_process_group()
""",
    "a rank that is killed": """
start("spyreccl", seconds=60)
group = dist.new_group([0, 1])  # its timeout is the default one, half an hour
dist.all_reduce(x, group=group)
began = time.monotonic()
if rank == 1:
    print(name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(x, group=group)
    raise AssertionError("nobody is there")
except dist.DistBackendError as error:
    assert "all_reduce: another rank has ended, or has left" in str(error), error
assert time.monotonic() - began < 50
""",
}


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OPENSPYRE_")}
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    fixed = {"PYTHONPATH": paths, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OPENSPYRE_DEVICES": "2"}
    return {**kept, **fixed, **more}


def test_two_processes(tmp_path: Path) -> None:
    parts = (f"name = {name!r}{code}print(name, flush=True)" for name, code in PARTS.items())
    code = BEFORE + "\n".join(parts)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(tmp_path)],
            env=environment(OPENSPYRE_CACHE=str(tmp_path / "cache")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    for number, process in enumerate(ranks):
        shown, told = process.communicate(timeout=200)
        assert shown.splitlines() == list(PARTS), f"rank {number}: {told}"


def test_the_example_trains_as_one_card_does(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", str(EXAMPLE)],
        env=environment(OPENSPYRE_CACHE=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    ways = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert ways == ["DDP", "FSDP2", "tensor parallel"], done.stderr[-4000:]
