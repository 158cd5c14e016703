"""What autoload does to a process: CPU users notice nothing, and trouble leaves the device off."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from openspyre.device.library import missing_bytes
from tests.device.conftest import SOURCES

FILES = ("_C.so", "lib/libspyre_card.so")
Run = Callable[..., CompletedProcess[str]]


def test_cpu_users_notice_nothing(run_python: Run) -> None:
    code = """
import sys, torch
if LOAD:
    import openspyre; openspyre._autoload()
    assert "torch._inductor" not in sys.modules and "openspyre.compiler" not in sys.modules
torch.manual_seed(3)
x = torch.randn(64, 64)
f = torch.compile(lambda x: torch.relu(x) + 1)
print(f(x).sum().item(), torch.rand(3).tolist(), torch.get_default_device(), torch.ones(1).device)
"""
    off, on = (run_python(code.replace("LOAD", load)) for load in ("False", "True"))
    assert off.returncode == on.returncode == 0, on.stderr
    assert on.stdout == off.stdout
    assert on.stderr == off.stderr


def test_loading_is_quick(run_python: Run) -> None:
    done = run_python(
        """
import time, torch
start = time.perf_counter()
import openspyre; openspyre._autoload()
print(time.perf_counter() - start)
"""
    )
    seconds = float(done.stdout)
    print(f"autoload takes {seconds:.3f} s (budget 0.3 s)")
    assert done.stderr == ""


def test_loading_twice_is_once(run_python: Run) -> None:
    done = run_python(
        "import torch, openspyre\n"
        "openspyre._autoload(); openspyre._autoload(); openspyre.require()\n"
        "print(torch.ones(2, device='spyre').tolist())"
    )
    assert (done.stdout, done.stderr) == ("[1.0, 1.0]\n", "")


def test_autoload_can_be_switched_off(run_python: Run) -> None:
    done = run_python(
        """
import torch, openspyre
openspyre._autoload()
assert not hasattr(torch, "spyre")
openspyre.require()
print(torch.ones(2, device="spyre").device)
""",
        OPENSPYRE_AUTOLOAD="0",
    )
    assert (done.stdout, done.stderr) == ("spyre:0\n", "")


OFF = """
import warnings, torch, openspyre
SETUP
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    openspyre._autoload()
print(len(caught), caught[0].message)
try:
    openspyre.require()
except openspyre.SpyreError as error:
    print("raised", type(error).__name__)
print(torch.ones(2).tolist())
"""


def check_off(done: CompletedProcess[str], reason: str) -> None:
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1 openspyre leaves the device off: ")
    assert reason in done.stdout
    assert lines[-2:] == ["raised DeviceOff", "[1.0, 1.0]"]


def test_off_when_the_backend_name_is_taken(run_python: Run) -> None:
    done = run_python(OFF.replace("SETUP", "torch.utils.rename_privateuse1_backend('npu')"))
    check_off(done, "the backend name of torch is already 'npu'")


def test_off_when_the_module_is_taken(run_python: Run) -> None:
    done = run_python(OFF.replace("SETUP", "import types; torch.spyre = types.ModuleType('spyre')"))
    check_off(done, "torch.spyre already exists")


def test_off_when_torch_is_another_version(run_python: Run) -> None:
    setup = "import openspyre._built; openspyre._built.TORCH_VERSION = '2.12.0'"
    done = run_python(OFF.replace("SETUP", setup))
    check_off(done, "openspyre was built against torch 2.12.0")


def test_off_when_the_extension_does_not_load(run_python: Run) -> None:
    setup = "import sys; sys.modules['openspyre._C'] = None"
    check_off(run_python(OFF.replace("SETUP", setup)), "the native extension does not load")


@pytest.mark.parametrize("file", FILES)
def test_off_when_a_file_is_cut_short(run_python: Run, tmp_path: Path, file: str) -> None:
    shutil.copytree(SOURCES / "openspyre", tmp_path / "openspyre")
    whole = (SOURCES / "openspyre" / file).read_bytes()
    (tmp_path / "openspyre" / file).write_bytes(whole[: len(whole) // 3])
    check_off(run_python(OFF.replace("SETUP", ""), path=(tmp_path,)), "is cut short")


@pytest.mark.parametrize("file", FILES)
def test_every_cut_shows(tmp_path: Path, file: str) -> None:
    whole = (SOURCES / "openspyre" / file).read_bytes()
    cut = tmp_path / "cut.so"
    for kept in (6, 63, 64, 100, 1000, 4096, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:kept])
        assert missing_bytes(cut) > 0, kept
    cut.write_bytes(whole)
    assert missing_bytes(cut) == 0


def test_off_when_nothing_is_built(run_python: Run) -> None:
    setup = "import sys; sys.modules['openspyre._built'] = None"
    check_off(run_python(OFF.replace("SETUP", setup)), "the native extension is not built")


def test_a_setting_that_means_nothing_leaves_it_off(run_python: Run) -> None:
    done = run_python(
        "import torch, openspyre; openspyre._autoload(); print(hasattr(torch, 'spyre'))",
        OPENSPYRE_DEVICES="many",
    )
    assert done.stdout == "False\n"
    assert "OPENSPYRE_DEVICES=many means nothing" in done.stderr


def entry_point(folder: Path) -> Path:
    """A folder in which torch finds openspyre as an installed backend."""
    about = folder / "site" / "openspyre-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: openspyre\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[torch.backends]\nopenspyre = openspyre:_autoload\n")
    return about.parent


def test_torch_loads_it_through_the_entry_point(run_python: Run, tmp_path: Path) -> None:
    folder = entry_point(tmp_path)
    done = run_python(
        "import torch; print(torch.arange(2, device='spyre').tolist())",
        path=(folder,),
        TORCH_DEVICE_BACKEND_AUTOLOAD="1",
    )
    assert (done.stdout, done.stderr) == ("[0, 1]\n", "")


@pytest.mark.parametrize("module", ["runtime.launch", "frontend", "device"])
@pytest.mark.parametrize("autoload", ["0", "1"])
def test_any_module_can_come_first(
    run_python: Run, tmp_path: Path, module: str, autoload: str
) -> None:
    folder = entry_point(tmp_path)
    done = run_python(
        f"import openspyre.{module}\n"
        "import torch; openspyre.require(); print(torch.arange(2, device='spyre').tolist())",
        path=(folder,),
        TORCH_DEVICE_BACKEND_AUTOLOAD=autoload,
    )
    assert (done.stdout, done.stderr) == ("[0, 1]\n", "")


def test_launching_without_the_extension_says_why(run_python: Run) -> None:
    done = run_python(
        "import sys; sys.modules['openspyre._C'] = None\nimport openspyre.runtime.launch"
    )
    assert "DeviceOff: the native extension does not load" in done.stderr


def test_importing_openspyre_does_not_import_torch(run_python: Run) -> None:
    done = run_python("import sys, openspyre; print('torch' in sys.modules)")
    assert done.stdout == "False\n"


def test_no_cards(run_python: Run) -> None:
    done = run_python(
        """
import torch, openspyre
openspyre._autoload()
assert torch.accelerator.is_available() is False
assert torch.accelerator.current_accelerator(check_available=True) is None
assert torch.accelerator.device_count() == torch.spyre.device_count() == 0
assert torch.spyre.is_available() is False and torch.spyre.is_initialized() is False
assert torch.spyre.memory_allocated() == 0
torch.manual_seed(3); torch.spyre.manual_seed_all(3); torch.spyre.manual_seed(3)
x = torch.randn(5, requires_grad=True)
torch.compile(lambda x: torch.relu(x) + 1)(x).sum().backward()
assert torch.equal(x.grad, (x > 0).float())
with torch.random.fork_rng():
    torch.rand(2)
for act in (
    lambda: torch.ones(2, device="spyre"), lambda: torch.ones(2).to("spyre:0"),
    lambda: torch.empty(0, device="spyre"), lambda: torch.spyre.synchronize(),
    lambda: torch.spyre.set_device(0), lambda: torch.spyre.get_rng_state(),
    lambda: torch.Stream("spyre"), lambda: torch.Event("spyre").record(),
    lambda: torch.nn.Linear(2, 2).to("spyre"),
):
    try:
        act()
        print("nothing raised")
    except RuntimeError as error:
        assert "has no card (OPENSPYRE_DEVICES=0)" in str(error), error
print("right")
""",
        OPENSPYRE_DEVICES="0",
    )
    assert (done.stdout, done.stderr) == ("right\n", "")


def test_a_compiler_that_does_not_load_leaves_cpu_users_alone(run_python: Run) -> None:
    done = run_python(
        """
import sys, warnings, torch, openspyre
openspyre.require()
sys.modules["openspyre.frontend.importer"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for size in (5, 6):
        x = torch.randn(size)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(lambda x: x * 2 + 1)(x), x * 2 + 1)
print([str(w.message) for w in caught if "openspyre" in str(w.message)])
try:
    torch.compile(lambda x: x * 2)(torch.ones(3, device="spyre"))
except Exception as error:
    print(type(error).__name__, "openspyre.frontend.importer" in str(error))
"""
    )
    lines = done.stdout.splitlines()
    assert lines[0].count("openspyre leaves torch.compile for the device off") == 1, done.stderr
    assert lines[1] == "BackendCompilerFailed True"


def test_an_error_that_nothing_waited_for_is_printed(run_python: Run) -> None:
    code = """
import time, torch, openspyre
openspyre.require()
from openspyre.runtime.launch import load_kernel
pick = load_kernel('''kernel pick
arguments table ids y
input table: f32[10]
input ids: i64[3]
output y: f32[3]
op pick gather i0:3
  at "model.py:3 embedding"
  lookup t = ids[i0] size 10 wrap
  y[i0] <- table[t]
''')
ids = torch.tensor([1, 10, 2]).to("spyre")
pick(torch.zeros(10).to("spyre"), ids, torch.empty(3, device="spyre"))
while not torch.accelerator.current_stream().query():
    time.sleep(0.001)
REPORT
"""
    done = run_python(code.replace("REPORT", ""))
    assert done.returncode == 0
    start = (
        "openspyre: the card failed, and nothing waited for it: pick: model.py:3 embedding: index"
    )
    assert done.stderr.startswith(start)
    assert done.stderr.count("\n") == 1
    seen = "try: torch.spyre.synchronize()\nexcept IndexError: pass"
    assert run_python(code.replace("REPORT", seen)).stderr == ""


def test_forked_children(run_python: Run) -> None:
    done = run_python(
        """
import os, torch, openspyre
openspyre.require()
def child(act):
    pid = os.fork()
    if pid == 0:
        try:
            act()
            os._exit(0)
        except RuntimeError as error:
            os._exit(7 if "spawn" in str(error) else 9)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert not torch.spyre.is_initialized()
assert child(lambda: torch.ones(3, device="spyre").cpu()) == 0      # no card was open yet
x = torch.ones(3, device="spyre")
assert torch.spyre.is_initialized()
assert child(lambda: torch.ones(3, device="spyre")) == 7
assert child(lambda: torch.manual_seed(3) and torch.ones(3).sum().item()) == 0
def bad(): assert torch.spyre._is_in_bad_fork()
assert child(bad) == 0 and not torch.spyre._is_in_bad_fork()
print(x.tolist())
"""
    )
    assert done.stdout == "[1.0, 1.0, 1.0]\n", done.stderr


def test_threads_share_the_device(run_python: Run) -> None:
    done = run_python(
        """
import threading, torch, openspyre
openspyre.require()
failures = []
def work(seed):
    for step in range(30):
        x = torch.full((257 + step,), seed, dtype=torch.int64)
        y = x.to("spyre").clone()[3:] + seed
        if not (y.cpu() == 2 * seed).all():
            failures.append(seed)
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
[t.start() for t in threads], [t.join() for t in threads]
print(failures, torch.spyre.memory_allocated())
"""
    )
    assert done.stdout == "[] 0\n", done.stderr


def test_the_process_ends_with_tensors_alive(run_python: Run) -> None:
    done = run_python(
        "import torch, openspyre; openspyre.require(); kept = torch.ones(5, device='spyre')"
    )
    assert (done.returncode, done.stderr) == (0, "")
