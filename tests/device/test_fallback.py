"""Eager ops without a kernel run on the CPU: rightly, counted, and refused where asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
import torch
from torch import nn

from openspyre import _C

pytestmark = pytest.mark.usefixtures("counted")


def test_calls_are_counted_by_name() -> None:
    x = torch.ones(3, device="spyre")
    torch.spyre.reset_fallbacks()
    for _ in range(3):
        torch.histc(x)
    torch.trace(x.view(3, 1)), x + 1
    assert torch.spyre.fallbacks() == {"aten::histc": 3, "aten::trace": 1}
    assert torch.spyre.fallback_reasons()["aten::histc"].endswith(
        "has no lowering for these arguments"
    )
    torch.spyre.reset_fallbacks()
    assert torch.spyre.fallbacks() == torch.spyre.fallback_reasons() == {}


def test_moving_bytes_is_no_fallback() -> None:
    x = torch.zeros(3, 4, device="spyre")
    x.t().contiguous().half().cpu()
    x.fill_(3).view(12)[2:].clone().resize_(3)
    torch.full((2,), 7, device="spyre")
    assert torch.spyre.fallbacks() == {}


def test_in_place_on_a_view_changes_the_base() -> None:
    x = torch.zeros(4, 4, device="spyre")
    x.t()[1:3].add_(2).mul_(3)
    wanted = torch.zeros(4, 4)
    wanted.t()[1:3].add_(2).mul_(3)
    assert torch.equal(x.cpu(), wanted)


def test_out_variants() -> None:
    a, b = torch.arange(6.0).view(2, 3), torch.ones(3, 2)
    out = torch.empty(0, device="spyre")
    assert torch.mm(a.to("spyre"), b.to("spyre"), out=out) is out
    assert torch.equal(out.cpu(), a @ b)
    base = torch.zeros(2, 4, device="spyre")
    torch.mm(a.to("spyre"), b.to("spyre"), out=base[:, ::2])
    assert torch.equal(base.cpu()[:, ::2], a @ b)
    assert not base.cpu()[:, 1::2].any()
    values, places = (
        torch.empty(0, device="spyre"),
        torch.empty(0, dtype=torch.long, device="spyre"),
    )
    torch.max(a.to("spyre"), 1, out=(values, places))
    assert values.tolist() == [2, 5]
    assert places.tolist() == [2, 2]


def test_scalars_of_the_cpu_do_not_pull_results_there() -> None:
    x = torch.arange(3.0, device="spyre")
    for result in (torch.tensor(2.0) * x, x * torch.tensor(2.0), torch.tensor(2.0) + x):
        assert result.device == x.device
    assert torch.where(x > 1, torch.tensor(1.0), torch.tensor(0.0)).device == x.device
    assert (torch.tensor(2.0) * x).tolist() == [0, 2, 4]


def test_lists_of_tensors() -> None:
    x = [torch.ones(2, device="spyre"), torch.zeros(3, device="spyre")]
    torch._foreach_add_(x, 5)
    assert [t.tolist() for t in x] == [[6, 6], [5, 5, 5]]
    assert [t.tolist() for t in torch._foreach_mul(x, 2)] == [[12, 12], [10, 10, 10]]
    assert torch.cat(x).tolist() == [6, 6, 5, 5, 5]
    assert torch.cat(x).is_spyre


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_that_the_cpu_lacks(dtype: torch.dtype) -> None:
    x = torch.arange(2 * 3 * 4 * 4).view(2, 3, 4, 4).mul(0.37).sin().add(2 * torch.eye(4)).to(dtype)
    with pytest.raises(NotImplementedError, match="not implemented for"):
        torch.cholesky_inverse(x)
    found = torch.cholesky_inverse(x.to("spyre"))
    assert (found.dtype, found.device.type) == (dtype, "spyre")
    assert torch.equal(found.cpu(), torch.cholesky_inverse(x.float()).to(dtype))
    # What is written in place of a result, too, and what neither dtype has stays an error.
    out = torch.empty(0, dtype=dtype, device="spyre")
    assert torch.cholesky_inverse(x.to("spyre"), out=out) is out
    assert torch.equal(out, found)
    q, r = torch.linalg.qr(x.to("spyre"))
    assert q.dtype == r.dtype == dtype
    with pytest.raises(RuntimeError, match="Expected a floating point"):
        torch.linalg.qr(torch.ones(2, 2, dtype=torch.int64, device="spyre"))


def test_indexing() -> None:
    x = torch.arange(12, device="spyre").view(3, 4)
    assert x[torch.tensor([2, 0], device="spyre")].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    x[x > 5] = -1
    x[:, torch.tensor([1])] = 7
    assert x.tolist() == [[0, 7, 2, 3], [4, 7, -1, -1], [-1, 7, -1, -1]]
    with pytest.raises(IndexError, match="index 3 is out of"):
        x[torch.tensor([3], device="spyre")].cpu()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolution_forward_and_backward(memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    reference = nn.Conv2d(3, 4, 3, padding=1)
    layer = nn.Conv2d(3, 4, 3, padding=1)
    layer.load_state_dict(reference.state_dict())
    layer.to("spyre")
    x = torch.randn(2, 3, 5, 5).to(memory_format=memory_format)
    y, wanted = layer(x.to("spyre")), reference(x)
    torch.testing.assert_close(y.cpu(), wanted)
    y.sum().backward(), wanted.sum().backward()
    torch.testing.assert_close(layer.weight.grad.cpu(), reference.weight.grad)
    torch.testing.assert_close(layer.bias.grad.cpu(), reference.bias.grad)


def test_counting_from_threads() -> None:
    x = torch.ones(3, device="spyre")
    torch.spyre.reset_fallbacks()

    def work() -> None:
        for _ in range(50):
            torch.histc(x)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert torch.spyre.fallbacks()["aten::histc"] == 200


def test_error_mode_names_the_op_and_a_way_out() -> None:
    x = torch.ones(3, device="spyre")
    _C.set_fallback_mode("error")
    try:
        with pytest.raises(NotImplementedError) as caught:
            x.histc()
        x.exp()
    finally:
        _C.set_fallback_mode("count")
    assert "the op aten::histc cannot run on the spyre device" in str(caught.value)
    assert "why: aten.histc.default has no lowering" in str(caught.value)
    assert "try: move its arguments to the CPU" in str(caught.value)
    assert x.histc().is_spyre


def test_warn_mode_warns_once_for_each_op() -> None:
    x = torch.ones(3, device="spyre")
    torch.spyre.reset_fallbacks()
    _C.set_fallback_mode("warn")
    try:
        with pytest.warns(UserWarning, match=r"aten::histc runs on the CPU") as caught:
            x.histc(), x.histc()
    finally:
        _C.set_fallback_mode("count")
    assert len(caught) == 1


def test_the_environment_chooses_the_mode(
    run_python: Callable[..., CompletedProcess[str]],
) -> None:
    done = run_python(
        "import torch, openspyre; openspyre.require(); torch.ones(3, device='spyre').histc()",
        OPENSPYRE_FALLBACK="error",
    )
    assert done.returncode == 1
    assert "NotImplementedError: the op aten::histc cannot run" in done.stderr


def test_autograd_through_fallbacks() -> None:
    x = torch.arange(1.0, 4.0, device="spyre", requires_grad=True)
    (x.log() * x).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), torch.arange(1.0, 4.0).log() + 1)


HOST = torch.ones(4, 4)
MIXED: dict[str, Callable[[torch.Tensor], object]] = {
    "matmul": lambda x: x @ HOST,
    "cat": lambda x: torch.cat([x, HOST]),
    "linear": lambda x: torch.nn.functional.linear(x, HOST),
    "add": lambda x: x + HOST,
    "scatter": lambda x: x.scatter(0, HOST.long(), x),
    "out": lambda x: torch.add(x, x, out=HOST),
    "out of no dims": lambda x: torch.sum(x, (0, 1), out=torch.empty(())),
    "integers": lambda x: torch.bincount(x.flatten().long(), HOST.flatten()),
    "values put": lambda x: x.index_put_((torch.tensor([0]),), HOST[:1]),
}


@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_different_devices_are_refused(name: str) -> None:
    x = torch.eye(4, device="spyre")
    with pytest.raises(RuntimeError, match=r"to be on the same device.*spyre:0.*cpu"):
        MIXED[name](x)


def test_what_may_be_on_the_host() -> None:
    x = torch.arange(12.0, device="spyre").view(3, 4)
    host = x.cpu()
    rows, mask = torch.tensor([2, -3]), torch.tensor([True, False, True])
    assert torch.equal(x[rows].cpu(), host[rows])
    assert torch.equal(x[mask].cpu(), host[mask])
    x[rows] = 7
    host[rows] = 7
    assert torch.equal(x.cpu(), host)
    assert torch.equal((x * torch.tensor(2.0)).cpu(), host * 2)
    assert torch.equal(
        torch.where(x > 3, x, torch.tensor(0.0)).cpu(), torch.where(host > 3, host, 0)
    )
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2, 1, 1]))
    assert packed.data.device == x.device
