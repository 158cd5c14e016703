"""What code written for any device expects: names, attributes, hooks, conversions, errors."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import types
from multiprocessing.reduction import ForkingPickler
from unittest import mock

import numpy as np
import pytest
import torch
import torch.multiprocessing  # teaches ForkingPickler about tensors
from torch.utils import backend_registration
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

# --- the device as a citizen of torch ------------------------------------------------------------


def test_names() -> None:
    assert torch._C._get_privateuse1_backend_name() == "spyre"
    assert torch.profiler.ProfilerActivity.PrivateUse1 == torch.profiler.ProfilerActivity.SPYRE
    assert torch._C._autograd.DeviceType.SPYRE.name == "SPYRE"
    assert torch.get_device_module("spyre:0") is torch.spyre
    torch.utils.rename_privateuse1_backend("spyre")
    with pytest.raises(RuntimeError, match="has already been set"):
        torch.utils.rename_privateuse1_backend("other")
    with pytest.raises(RuntimeError, match="has already been registered"):
        torch._register_device_module("spyre", types.ModuleType("other"))
    with pytest.raises(RuntimeError, match="has already been registered"):
        torch.utils.generate_methods_for_privateuse1_backend()


def test_functions_of_the_module() -> None:
    assert backend_registration._get_custom_mod_func("device_count")() == torch.spyre.device_count()
    with pytest.raises(RuntimeError, match=r"Try to call torch\.spyre\.nothing"):
        backend_registration._get_custom_mod_func("nothing")


def test_generated_methods() -> None:
    x = torch.ones(2)
    assert x.spyre().is_spyre
    assert x.spyre(0).device == torch.device("spyre", 0)
    assert x.spyre(torch.device("spyre:0")).is_spyre
    assert x.untyped_storage().spyre().is_spyre
    assert torch.nn.Linear(2, 2).spyre().weight.is_spyre
    packed = torch.nn.utils.rnn.PackedSequence(torch.rand(5, 3), torch.ones(5, dtype=torch.long))
    assert not packed.is_spyre
    assert packed.spyre().data.is_spyre


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.bool, "Bool"), (torch.float16, "Half"), (torch.bfloat16, "BFloat16"),
        (torch.float32, "Float"), (torch.int8, "Char"), (torch.uint8, "Byte"),
        (torch.int16, "Short"), (torch.int32, "Int"), (torch.int64, "Long"),
    ],
)  # fmt: skip
def test_types(dtype: torch.dtype, name: str) -> None:
    assert torch.empty(1, dtype=dtype, device="spyre").type() == f"torch.spyre.{name}Tensor"


def test_the_accelerator() -> None:
    accelerator = torch.accelerator
    assert accelerator.is_available()
    assert accelerator.current_accelerator(check_available=True) == torch.device("spyre")
    assert accelerator.current_device_index() == 0
    for index in (None, 0):
        with accelerator.device_index(index):
            assert accelerator.current_device_index() == 0
    with pytest.raises(RuntimeError, match="there is no device 63"):
        accelerator.set_device_index(63)
    stream = torch.Stream(device="spyre")
    before = accelerator.current_stream()
    accelerator.set_stream(stream)
    assert accelerator.current_stream() == stream
    accelerator.set_stream(before)
    free, total = accelerator.get_memory_info()
    assert 0 < free <= total
    accelerator.synchronize("spyre:0")
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == accelerator.memory_allocated()
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.memory_stats()["allocated_bytes.all.allocated"] == 0


def test_streams_by_number() -> None:
    stream = torch.Stream(device="spyre")
    again = torch.Stream(
        stream_id=stream.stream_id,
        device_type=stream.device_type,
        device_index=stream.device_index,
    )
    assert again == stream
    assert hash(again) == hash(stream)
    assert torch.Stream(0).device == torch.device("spyre", 0)
    assert "device_type=spyre, device_index=0" in repr(stream)
    assert stream != torch.spyre.current_stream()


def test_defaults_of_the_device() -> None:
    with torch.device("spyre"):
        assert torch.ones(2).is_spyre
        assert torch.nn.Linear(2, 2).weight.is_spyre
    assert not torch.ones(2).is_spyre
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert (torch.empty(3, device="spyre") + torch.empty(3, device="spyre:0")).is_spyre


# --- bytes and other libraries -------------------------------------------------------------------


def test_numpy() -> None:
    x = torch.arange(3.0, device="spyre")
    for convert in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match=r"can't convert spyre:0 device type tensor to numpy"):
            convert()
    assert x.numpy(force=True).tolist() == [0, 1, 2]
    assert torch.asarray(np.ones(2, np.float32), device="spyre").tolist() == [1, 1]


def test_memory_is_not_shared_with_other_processes() -> None:
    x = torch.arange(3.0, device="spyre")
    assert x.share_memory_() is x  # says PyTorch, of every device
    with pytest.raises(RuntimeError, match="only available on CPU"):
        ForkingPickler.dumps(x)


def test_dlpack_capsules() -> None:
    x = torch.arange(4, device="spyre")[1:]
    y = torch.utils.dlpack.from_dlpack(x.__dlpack__())
    assert y.data_ptr() == x.data_ptr()
    assert y.device == x.device
    y[0] = 9
    assert x.tolist() == [9, 2, 3]


def test_storages_as_bytes() -> None:
    x = torch.arange(3, dtype=torch.int16, device="spyre")
    storage = x.untyped_storage()
    assert storage.tolist() == [0, 0, 1, 0, 2, 0]
    storage[2] = 5
    assert x.tolist() == [0, 5, 2]
    assert storage.cpu().tolist() == storage.tolist()
    assert copy.deepcopy(storage).data_ptr() != storage.data_ptr()
    assert torch.UntypedStorage(6, device="spyre").copy_(storage).tolist() == storage.tolist()
    assert torch.serialization.location_tag(storage) == "spyre:0"
    host = torch.ones(2).untyped_storage()
    assert torch.serialization.default_restore_location(host, "spyre:0").is_spyre


def test_pinned_memory_of_storages_and_loaders() -> None:
    x = torch.arange(20.0).view(10, 2)
    storage = x.untyped_storage()
    assert not storage.is_pinned()
    pinned = storage.pin_memory()
    assert pinned.is_pinned()
    rest = torch.tensor(()).set_(pinned[8:], 0, (5,), (1,))
    assert rest.is_pinned()
    assert rest.tolist() == [2, 3, 4, 5, 6]
    batches = list(DataLoader(TensorDataset(x), batch_size=4, pin_memory=True))
    assert all(batch.is_pinned() for (batch,) in batches)
    moved = torch.cat([batch.to("spyre", non_blocking=True) for (batch,) in batches])
    assert torch.equal(moved.cpu(), x)
    with pytest.raises(RuntimeError, match="can be pinned"):
        moved.pin_memory()


def test_pickles_and_files(tmp_path: pytest.TempPathFactory) -> None:
    model = torch.nn.Linear(3, 4).to("spyre")
    state = model.state_dict()
    for zipped in (True, False):
        path = f"{tmp_path}/state-{zipped}.pt"
        torch.save(state, path, _use_new_zipfile_serialization=zipped)
        loaded = torch.load(path, weights_only=True)
        assert loaded["weight"].is_spyre
        assert torch.equal(loaded["weight"], state["weight"])
    mapped = torch.load(f"{tmp_path}/state-True.pt", map_location="cpu", mmap=True)
    assert mapped["bias"].device.type == "cpu"
    chosen = torch.load(f"{tmp_path}/state-True.pt", map_location=lambda s, _: s.spyre(0))
    assert chosen["bias"].is_spyre
    assert pickle.loads(pickle.dumps(model)).weight.is_spyre
    assert copy.deepcopy(model).weight.is_spyre


def test_files_that_name_a_card_that_is_not_there() -> None:
    buffer = io.BytesIO()
    torch.save(torch.arange(3.0, device="spyre"), buffer)
    other = io.BytesIO(buffer.getvalue().replace(b"spyre:0", b"spyre:9"))
    with pytest.raises(RuntimeError, match=r"device 9 but torch\.spyre\.device_count\(\) is"):
        torch.load(other)


def test_tensors_saved_as_if_they_had_no_storage() -> None:
    buffer = io.BytesIO()
    with mock.patch.object(torch._C, "_has_storage", return_value=False):
        torch.save({"x": torch.ones(2, device="spyre")}, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True)["x"].is_spyre


def worker(pipe: multiprocessing.connection.Connection) -> None:
    import openspyre

    openspyre.require()
    pipe.send((torch.ones(3, 3, device="spyre") @ torch.ones(3, 3, device="spyre")).sum().item())


def test_a_spawned_process_has_its_own_card() -> None:
    ours, theirs = multiprocessing.Pipe()
    torch.ones(1, device="spyre")
    process = multiprocessing.get_context("spawn").Process(target=worker, args=(theirs,))
    process.start()
    assert ours.recv() == 27
    process.join()
    assert process.exitcode == 0


# --- data, inference mode, resized storages, repeated random numbers ------------------------------


def test_data_is_the_same_memory_without_history() -> None:
    x = torch.zeros(3, device="spyre", requires_grad=True)
    x.data.add_(1)
    assert x.tolist() == [1, 1, 1]
    assert x._version == 0
    x.data = torch.arange(5.0, device="spyre")
    assert x.shape == (5,)
    assert x.requires_grad
    x.data = torch.zeros(2)  # as module.cpu() moves a parameter
    assert x.device.type == "cpu"
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        x.data = torch.zeros(2).to_sparse()


def test_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.ones(4, device="spyre") * 2
        x[1:].add_(1)
        assert x.is_inference()
        assert x.tolist() == [2, 3, 3, 3]
    assert (x + 1).tolist() == [3, 4, 4, 4]
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        x.add_(1)


def test_storages_resized_under_a_view() -> None:
    x = torch.arange(8.0, device="spyre")
    view = x.view(2, 4).t()
    storage = x.untyped_storage()
    storage.resize_(64)
    x.add_(1)
    assert view.tolist() == [[1, 5], [2, 6], [3, 7], [4, 8]]
    storage.resize_(0)
    assert view.shape == (4, 2)
    storage.resize_(32)
    x.copy_(torch.arange(8.0))
    assert torch.compile(lambda v: v * 2)(view).tolist() == [[0, 8], [2, 10], [4, 12], [6, 14]]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_draw_the_same_numbers_again(reentrant: bool) -> None:
    x = torch.ones(64, device="spyre", requires_grad=True)
    torch.spyre.manual_seed(5)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t * 2), x, use_reentrant=reentrant)
    torch.rand(3, device="spyre")
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal((x.grad != 0).cpu(), (y != 0).cpu())
    assert 0 < int((y != 0).sum()) < 64


def test_fork_rng_of_every_card() -> None:
    states = torch.spyre.get_rng_state_all()
    host = torch.get_rng_state()
    with torch.random.fork_rng(device_type="spyre"):
        torch.rand(3, device="spyre"), torch.rand(2)
    for before, after in zip(states, torch.spyre.get_rng_state_all(), strict=True):
        assert torch.equal(before, after)
    assert torch.equal(torch.get_rng_state(), host)


def test_generators() -> None:
    one = torch.Generator("spyre").manual_seed(3)
    two = one.clone_state()
    three = pickle.loads(pickle.dumps(one))
    draws = [torch.rand(3, generator=g, device="spyre").cpu() for g in (one, two, three)]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
    assert one.seed() == one.initial_seed()
    with pytest.raises(RuntimeError, match="device type for generator"):
        torch.rand(3, generator=torch.Generator(), device="spyre")
    with pytest.raises(RuntimeError, match="state is wrong size"):
        one.set_state(torch.zeros(3, dtype=torch.uint8))
