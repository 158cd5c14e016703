"""Two cards in one process: which one is meant, copies between them, errors, lifetimes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

BEFORE = """
import io, threading, torch, openspyre
openspyre.require()
A = torch.accelerator
def fails(act, text):
    try:
        act()
    except RuntimeError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error: {text}")
"""
PARTS = {
    "the current card": """
assert A.device_count() == torch.spyre.device_count() == 2
A.set_device_index(1)
assert torch.ones(1, device="spyre").device.index == torch.spyre.current_device() == 1
A.set_device_index(0)
for guard in (A.device_index(1), torch.spyre.device(1), torch.spyre.device("spyre:1")):
    with guard:
        assert torch.ones(1, device="spyre").device.index == 1
        x = torch.ones(2, device="spyre:0") * 2
        assert (x + 1).device.index == 0 and A.current_device_index() == 1
    assert A.current_device_index() == 0
try:
    with A.device_index(1), A.device_index(0):
        raise KeyError
except KeyError:
    pass
assert A.current_device_index() == 0
fails(lambda: A.set_device_index(2), "there is no device 2 (devices: 2)")
fails(lambda: torch.empty(1, device="spyre:2"), "there is no device 2")
assert A.get_device_capability(0) == A.get_device_capability(1)
with torch.device("spyre:1"):
    assert torch.ones(2).device.index == 1
found = []
def work(index):
    for _ in range(20):
        A.set_device_index(index)
        x = torch.randn(4, 4, device="spyre")
        found.append((x @ x).sum().device.index == index == A.current_device_index())
threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
[t.start() for t in threads], [t.join() for t in threads]
assert len(found) == 80 and all(found) and A.current_device_index() == 0
""",
    "streams and events": """
stream = torch.Stream(device="spyre:1")
assert torch.Stream(1).device.index == 1 and "device_index=1" in repr(stream)
with stream:
    assert A.current_stream() == stream and A.current_device_index() == 1
assert A.current_device_index() == 0
other = torch.Stream(device="spyre:0")
x = torch.arange(4.0, device="spyre:1")
with stream:
    y = x * 2
    event = stream.record_event()
other.wait_event(event), other.wait_stream(stream)
with other:
    z = y.to("spyre:0")
    z.record_stream(other)
other.synchronize()
assert z.tolist() == [0, 2, 4, 6] and event.query() and event.device.index == 1
fails(lambda: event.record(other), "does not match recording stream's device index 0")
fails(lambda: x.record_stream(other), "cannot be recorded on a stream")
""",
    "copies and errors": """
one, two = torch.arange(12.0, device="spyre:0"), torch.zeros(4, 6, device="spyre:1")
two[:, ::2].copy_(one.view(3, 4).t())
assert two[:, ::2].tolist() == one.view(3, 4).t().tolist() and two[:, 1].tolist() == [0] * 4
assert torch.zeros(12, dtype=torch.int64, device="spyre:1").copy_(one).tolist() == one.tolist()
mixed = "on the same device"
square = torch.ones(3, 3, device="spyre:0"), torch.ones(3, 3, device="spyre:1")
for op in (torch.add, torch.mm, lambda a, b: torch.cat([a, b]), lambda a, b: a * b.sum(),
           lambda a, b: a[b[0].long()], lambda a, b: a[b > 0], lambda a, b: a.cpu()[b > 0],
           lambda a, b: a.index_put_((b[0].long(),), a[0]), lambda a, b: torch.add(a, 1, out=b),
           lambda a, b: a.add_(b), lambda a, b: torch.nn.functional.linear(a, b),
           torch.compile(lambda a, b: a + b)):
    fails(lambda: op(*square), mixed)
x = torch.ones(2, device="spyre:1", requires_grad=True)
y = torch.ones(2, device="spyre:0", requires_grad=True)
(y.to("spyre:1") * x * 3).sum().backward()
assert x.grad.device.index == 1 and y.grad.device.index == 0 and y.grad.tolist() == [3, 3]
assert torch.spyre.memory_allocated(1) > 0
""",
    "compiled": """
def function(x):
    noise = torch.rand(3, device=x.device)
    return (x * 2).sum(-1) + torch.arange(3, device=x.device) + noise * 0
f = torch.compile(function)
for index in (1, 0, 1):
    result = f(torch.ones(3, 4, device=f"spyre:{index}"))
    assert result.tolist() == [8, 9, 10] and result.device.index == index
    assert A.current_device_index() == 0
g = torch.compile(lambda a, b: (a * 2).to(b.device) + b)
result = g(torch.ones(3, device="spyre:0"), torch.ones(3, device="spyre:1"))
assert result.tolist() == [3, 3, 3] and result.device.index == 1
""",
    "files and random numbers": """
buffer = io.BytesIO()
torch.save({"a": torch.arange(3.0, device="spyre:0"), "b": torch.ones(2, device="spyre:1")}, buffer)
def load(**options):
    buffer.seek(0)
    return {name: t.device.index for name, t in torch.load(buffer, **options).items()}
assert load() == {"a": 0, "b": 1}
assert load(map_location="spyre:1") == {"a": 1, "b": 1}
assert load(map_location={"spyre:1": "spyre:0"}) == {"a": 0, "b": 0}
assert torch.serialization.location_tag(torch.UntypedStorage(4, device="spyre:1")) == "spyre:1"
torch.spyre.manual_seed_all(4)
a, b = (torch.rand(3, device=f"spyre:{i}").cpu() for i in (0, 1))
assert torch.equal(a, b)
with torch.random.fork_rng(device_type="spyre"):
    c = torch.rand(3, device="spyre:1").cpu()
assert torch.equal(torch.rand(3, device="spyre:1").cpu(), c)
generator = torch.Generator("spyre:1").manual_seed(3)
assert torch.rand(3, generator=generator, device="spyre:1").device.index == 1
assert [g.device.index for g in torch.spyre.default_generators] == [0, 1]
""",
}


def test_two_cards(run_python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    parts = (f"{code}\nprint({name!r})" for name, code in PARTS.items())
    done = run_python(BEFORE + "\n".join(parts), OPENSPYRE_DEVICES="2")
    assert done.stdout.splitlines() == list(PARTS), done.stderr
