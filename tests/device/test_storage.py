"""Views, resizing, storages, serialisation: what a tensor of the device is made of."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch


def test_views_share_memory() -> None:
    x = torch.arange(24.0, device="spyre")
    views = (
        x.view(4, 6), x.reshape(2, 12), x[3:9], x.view(4, 6).t(), x.unfold(0, 3, 2),
        x.view(torch.int32), x.as_strided((2, 2), (3, 4), 1), x.unsqueeze(0), x.detach(),
        x.view(4, 6).diagonal(), x.view(2, 3, 4).permute(2, 0, 1), x.view(12, 2)[:, 1],
        torch.view_as_complex(x.view(12, 2)), *x.chunk(3), *x.split(5), x.narrow(0, 2, 3),
    )  # fmt: skip
    for view in views:
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    x.view(4, 6)[1, 2] = 100
    assert x[8].item() == 100
    x.unfold(0, 3, 3)[2].zero_()
    assert x[6:9].tolist() == [0, 0, 0]


def test_view_of_another_dtype() -> None:
    x = torch.tensor([1.0, -2.0])
    assert torch.equal(x.to("spyre").view(torch.uint8).cpu(), x.view(torch.uint8))


def test_impossible_view() -> None:
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        torch.zeros(3, 4, device="spyre").t().view(12)


def test_resize_keeps_elements() -> None:
    x = torch.arange(4.0, device="spyre")
    x.resize_(2, 3)
    assert x.shape == (2, 3)
    assert x.flatten()[:4].tolist() == [0, 1, 2, 3]
    storage = x.untyped_storage().data_ptr()
    x.resize_(2)
    assert x.untyped_storage().data_ptr() == storage
    assert x.tolist() == [0, 1]


def test_resize_of_a_view_grows_the_shared_storage() -> None:
    x = torch.arange(4.0, device="spyre")
    y = x[2:]
    y.resize_(6)
    assert y[:2].tolist() == [2, 3]
    assert x.tolist() == [0, 1, 2, 3]
    assert x.untyped_storage().nbytes() == 8 * 4


def test_resize_to_channels_last_and_to_nothing() -> None:
    x = torch.empty(0, device="spyre").resize_(1, 2, 3, 4, memory_format=torch.channels_last)
    assert x.stride() == (24, 1, 8, 2)
    x.resize_(0)
    assert x.numel() == 0
    with pytest.raises(RuntimeError, match="negative"):
        x.resize_(-1)


def test_storage_resize() -> None:
    x = torch.arange(4, dtype=torch.int32, device="spyre")
    storage = x.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)
    x.fill_(7)
    assert x.tolist() == [7, 7, 7, 7]


def test_set() -> None:
    x, y = torch.arange(6.0, device="spyre"), torch.zeros(2, device="spyre")
    y.set_(x)
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
    y.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert y.tolist() == [[2, 3], [4, 5]]
    y.set_(x.untyped_storage())
    assert y.shape == (6,)
    y.set_()
    assert y.shape == (0,)
    assert y.device == x.device
    with pytest.raises(RuntimeError, match="different device"):
        y.set_(torch.zeros(3).untyped_storage())


def test_item_and_truth() -> None:
    assert torch.tensor(2.5, device="spyre").item() == 2.5
    assert torch.tensor([[7]], device="spyre").item() == 7
    assert bool(torch.tensor([True], device="spyre"))
    assert int(torch.tensor(3, device="spyre")) == 3
    with pytest.raises(RuntimeError, match="2 elements cannot be converted"):
        torch.zeros(2, device="spyre").item()


def test_repr() -> None:
    x = torch.tensor([[1.0, 2.0]], device="spyre")
    assert repr(x) == "tensor([[1., 2.]], device='spyre:0')"
    assert repr(torch.empty(0, device="spyre")) == "tensor([], device='spyre:0')"
    assert "requires_grad=True" in repr(x.requires_grad_())


def test_deepcopy_keeps_sharing() -> None:
    x = torch.arange(4.0, device="spyre")
    a, b = copy.deepcopy([x, x[1:]])
    a[1] = 50
    assert b.tolist() == [50, 2, 3]
    assert x.tolist() == [0, 1, 2, 3]


def round_trip(value: Any, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


def test_save_and_load() -> None:
    x = torch.arange(4.0, device="spyre")
    loaded = round_trip({"x": x, "tail": x[2:]})
    assert loaded["x"].device == x.device
    assert loaded["x"].tolist() == [0, 1, 2, 3]
    assert loaded["tail"].untyped_storage().data_ptr() == loaded["x"].untyped_storage().data_ptr()
    assert round_trip(x, map_location="cpu").device.type == "cpu"
    assert round_trip(torch.arange(3), map_location="spyre").device.type == "spyre"
    assert round_trip(torch.arange(3), map_location=torch.device("spyre", 0)).tolist() == [0, 1, 2]
    assert pickle.loads(pickle.dumps(x)).tolist() == [0, 1, 2, 3]


def test_what_tensors_say_of_themselves() -> None:
    x = torch.zeros(2, device="spyre")
    assert x.is_spyre
    assert not torch.zeros(2).is_spyre
    assert torch.zeros(2).spyre().is_spyre
    assert x.untyped_storage().is_spyre
    assert x.device.type == "spyre"
    assert torch.device("spyre:0") == x.device
    assert torch.zeros_like(x).is_spyre
    assert x.new_empty(3).is_spyre
    assert x.layout == torch.strided


def test_dlpack_round_trip() -> None:
    x = torch.arange(4, device="spyre")
    y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert y.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3)])
def test_factories(shape: tuple[int, ...]) -> None:
    for make in (torch.zeros, torch.ones, torch.empty):
        assert make(shape, device="spyre").shape == shape
    assert torch.equal(torch.full(shape, 3, device="spyre").cpu(), torch.full(shape, 3))
    assert torch.empty(shape, dtype=torch.bfloat16, device="spyre").dtype == torch.bfloat16


def test_sparse_is_refused() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.empty(3, layout=torch.sparse_coo, device="spyre")


def test_is_set_to() -> None:
    x = torch.arange(6.0, device="spyre")
    assert x.is_set_to(x[:])
    assert not x.is_set_to(x[1:])
    assert not x.is_set_to(x.view(2, 3))
    assert not x.is_set_to(x.clone())


def test_filling_needs_no_order() -> None:
    x = torch.zeros(3, 1, device="spyre")
    x.expand(3, 4).fill_(2)
    assert x.tolist() == [[2], [2], [2]]
    x[1:].expand(2, 5).zero_()
    assert x.tolist() == [[2], [0], [0]]
