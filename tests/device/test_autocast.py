"""torch.autocast("spyre") and gradient scaling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

HALF, FLOAT = torch.float16, torch.float32
OPS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype, torch.dtype]] = {
    "mm": (lambda x: x @ x, FLOAT, HALF),
    "linear": (lambda x: F.linear(x, x), FLOAT, HALF),
    "attention": (lambda x: F.scaled_dot_product_attention(*[x[None, None]] * 3), FLOAT, HALF),
    "softmax": (lambda x: x.softmax(-1), HALF, FLOAT),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), HALF, FLOAT),
    "exp": (lambda x: x.exp(), HALF, FLOAT),
    "sum": (lambda x: x.sum(), HALF, FLOAT),
    "cat": (lambda x: torch.cat([x, x.half()]), FLOAT, FLOAT),
    "add": (lambda x: x + x, HALF, HALF),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", OPS)
def test_dtypes_of_results(name: str, compiled: bool) -> None:
    function, given, expected = OPS[name]
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).to("spyre", given)
    torch._dynamo.reset()
    with torch.autocast("spyre", dtype=HALF):
        result = (torch.compile(function) if compiled else function)(x)
    assert result.dtype == expected
    with torch.autocast("cpu", dtype=HALF):
        torch.testing.assert_close(
            result.cpu().float(), function(x.cpu()).float(), rtol=5e-3, atol=5e-3
        )


def test_the_region() -> None:
    x = torch.ones(2, 2, device="spyre")
    assert torch.get_autocast_dtype("spyre") == HALF
    with torch.autocast("spyre", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("spyre")
        assert (x @ x).dtype == torch.bfloat16
        assert (x.cpu() @ x.cpu()).dtype == FLOAT
        with torch.autocast("spyre", enabled=False):
            assert (x @ x).dtype == FLOAT
    assert not torch.is_autocast_enabled("spyre")
    with pytest.warns(
        UserWarning, match="In spyre autocast, but the target dtype is not supported"
    ):
        torch.autocast("spyre", dtype=torch.float32)


def test_a_scaled_step() -> None:
    weight = torch.ones(3, 3, device="spyre", requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.5)
    scaler = torch.amp.GradScaler("spyre", init_scale=1024.0)
    for factor, moved in ((1.0, True), (1e30, False)):
        before = weight.detach().clone()
        with torch.autocast("spyre", dtype=HALF):
            loss = (torch.ones(2, 3, device="spyre") @ weight).float().sum() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert bool((weight != before).any()) == moved
    torch.testing.assert_close(weight.detach().cpu(), torch.zeros(3, 3))
    assert scaler.get_scale() == 512
