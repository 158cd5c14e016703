"""Copies: every pair of dtypes, strides, offsets, directions, sizes."""

from __future__ import annotations

import itertools

import pytest
import torch

DTYPES = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip
PAIRS = [
    p for p in itertools.product(DTYPES, DTYPES) if not (p[0].is_complex and not p[1].is_complex)
]


def same(left: torch.Tensor, right: torch.Tensor) -> None:
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    widened = (
        t.cpu().float() if t.dtype == torch.float8_e4m3fn else t.cpu() for t in (left, right)
    )
    torch.testing.assert_close(*widened, rtol=0, atol=0, equal_nan=True)


def values(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor([0.0, 1, 2.5, 3, 100, 7, 0.125, 1]).reshape(2, 4).to(dtype)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda d: str(d).removeprefix("torch."))
def test_converts_like_the_cpu(source: torch.dtype, target: torch.dtype) -> None:
    x = values(source)
    wanted = x.to(target)
    same(x.to("spyre").to(target), wanted)  # on the card
    same(torch.empty(2, 4, dtype=target, device="spyre").copy_(x), wanted)  # on the way there
    same(torch.empty(2, 4, dtype=target).copy_(x.to("spyre")), wanted)  # on the way back


LAYOUTS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "stepped": lambda x: x[:, ::2, 1::3],
    "offset": lambda x: x[1:, 2:],
    "repeated": lambda x: x[:, :1].expand(4, 5, 6),
    "permuted": lambda x: x.permute(2, 0, 1),
    "one": lambda x: x[2, 3, 4],
    "nothing": lambda x: x[:, 3:3],
    "strided": lambda x: x.as_strided((3, 2), (7, 50), 5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_any_layout_arrives_and_returns(layout: str, dtype: torch.dtype) -> None:
    base = torch.arange(120).reshape(4, 5, 6).to(dtype)
    view = LAYOUTS[layout]
    same(view(base).to("spyre"), view(base))
    same(view(base.to("spyre")).cpu(), view(base))
    same(view(base.to("spyre")).clone(), view(base))
    same(view(base.to("spyre")).contiguous(), view(base))
    same(view(base.to("spyre")).to(torch.float32), view(base).to(torch.float32))


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "repeated"])
@pytest.mark.parametrize("from_host", [True, False])
def test_any_layout_can_be_written(layout: str, from_host: bool) -> None:
    view = LAYOUTS[layout]
    wanted, got = torch.zeros(4, 5, 6), torch.zeros(4, 5, 6, device="spyre")
    new = torch.arange(view(wanted).numel(), dtype=torch.int16).reshape(view(wanted).shape)
    view(wanted).copy_(new)
    view(got).copy_(new if from_host else new.to("spyre"))
    same(got, wanted)  # and nothing beside it


def test_a_smaller_source_is_broadcast() -> None:
    got = torch.zeros(3, 4, device="spyre")
    got.copy_(torch.arange(4.0))
    same(got, torch.arange(4.0).expand(3, 4))
    got.copy_(torch.arange(3, device="spyre").unsqueeze(1))
    same(got, torch.arange(3.0).unsqueeze(1).expand(3, 4))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(RuntimeError, match="expand"):
        torch.zeros(3, device="spyre").copy_(torch.zeros(4))


def test_overlap_is_refused_as_on_the_cpu() -> None:
    for x in (torch.arange(6), torch.arange(6, device="spyre")):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            x[1:].copy_(x[:-1])
        with pytest.raises(RuntimeError, match="refers to a single memory location"):
            x[:1].expand(3).copy_(torch.arange(3))
    x = torch.arange(6, device="spyre")
    x.copy_(x)
    same(x, torch.arange(6))


def test_interleaved_halves_of_one_storage() -> None:
    x = torch.arange(8, device="spyre")
    x[::2].copy_(x[1::2])
    same(x, torch.tensor([1, 1, 3, 3, 5, 5, 7, 7]))


def test_large_copies() -> None:
    x = torch.randn(1030, 1031)
    same(x.to("spyre").t().contiguous(), x.t())
    same(x.to("spyre").half(), x.half())


def test_special_values_survive() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    back = x.to("spyre").cpu()
    assert torch.equal(back.view(torch.int32), x.view(torch.int32))


def test_conjugate_and_negative_bits() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j])
    same(x.to("spyre").conj().clone().resolve_conj(), x.conj().resolve_conj())
    same(x.to("spyre").conj().cpu(), x.conj())
    same(x.conj().to("spyre"), x.conj())
    same(x.conj().imag.to("spyre"), x.conj().imag)


def test_pinned_memory() -> None:
    x = torch.arange(10.0).pin_memory()
    assert x.is_pinned()
    assert not torch.arange(10.0).is_pinned()
    assert x[3:].is_pinned()
    same(x.to("spyre", non_blocking=True), torch.arange(10.0))


def test_numpy_and_lists() -> None:
    assert torch.arange(3, device="spyre").tolist() == [0, 1, 2]
    same(torch.tensor([[1.5, 2], [3, 4]], device="spyre"), torch.tensor([[1.5, 2], [3, 4]]))
    with pytest.raises(TypeError, match="convert"):
        torch.arange(3, device="spyre").numpy()


def test_to_and_from_other_devices_is_an_error() -> None:
    with pytest.raises(NotImplementedError):
        torch.empty(3, device="meta").to("spyre")
