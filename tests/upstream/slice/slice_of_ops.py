"""A slice of what PyTorch's own suites ask, in their style: it runs in minutes, theirs in hours."""

import itertools
from zlib import crc32

import torch
from torch.testing._internal.common_device_type import (
    OpDTypes,
    dtypes,
    instantiate_device_type_tests,
    ops,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, parametrize
from torch.utils._pytree import tree_map

SAMPLES = 2
EVERY = 40  # ops, and one of each family that the others miss
ALWAYS = ("add", "matmul", "nn.functional.softmax", "sum", "index_put", "cat", "gather")
# What draws, or is free in what it returns: two devices may differ.
FREE = (
    "bernoulli", "multinomial", "normal", "rand", "uniform", "dropout", "exponential", "empty",
    "geometric", "sort", "topk", "partial_views",
)  # fmt: skip
CHOSEN = [
    op
    for op in op_db
    if (crc32(op.full_name.encode()) % EVERY == 0 or op.full_name in ALWAYS)
    and not any(word in op.full_name for word in FREE)
]


def moved(value, device):
    return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, value)


class TestOps(TestCase):
    @ops(CHOSEN)
    def test_results(self, device, dtype, op):
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
            expected = op(sample.input, *sample.args, **sample.kwargs)
            given = moved((sample.input, sample.args, sample.kwargs), device)
            actual = op(given[0], *given[1], **given[2])
            self.assertEqual(actual, expected, exact_device=False)

    @ops(CHOSEN[::4], dtypes=OpDTypes.any_one)
    def test_noncontiguous(self, device, dtype, op):
        for sample in itertools.islice(op.sample_inputs(device, dtype), 1):
            apart = sample.noncontiguous()
            plain = op(sample.input, *sample.args, **sample.kwargs)
            self.assertEqual(op(apart.input, *apart.args, **apart.kwargs), plain)

    @ops([op for op in CHOSEN if op.supports_autograd][::3], allowed_dtypes=(torch.float32,))
    def test_gradients(self, device, dtype, op):
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), 1):
            if not isinstance(sample.input, torch.Tensor):
                continue
            results = []
            for place in ("cpu", device):
                first, args, kwargs = moved(
                    (sample.input.detach(), sample.args, sample.kwargs), place
                )
                first.requires_grad_()
                result = sample.output_process_fn_grad(op(first, *args, **kwargs))
                result = result[0] if isinstance(result, (tuple, list)) else result
                result = result.abs() if result.is_complex() else result
                results.append(torch.autograd.grad(result.sum(), first)[0])
            self.assertEqual(results[1], results[0], exact_device=False)


class TestViews(TestCase):
    @dtypes(torch.float16, torch.float32, torch.int64, torch.bool, torch.complex64)
    @parametrize("view", ["t", "narrow", "select", "unsqueeze", "as_strided", "diagonal", "unfold"])
    def test_writes_show(self, device, dtype, view):
        act = {
            "t": lambda x: x.t(), "narrow": lambda x: x.narrow(1, 1, 2),
            "select": lambda x: x.select(0, 1), "unsqueeze": lambda x: x.unsqueeze(1),
            "as_strided": lambda x: x.as_strided((2, 2), (1, 3), 2),
            "diagonal": lambda x: x.diagonal(), "unfold": lambda x: x.unfold(1, 2, 2),
        }[view]  # fmt: skip
        x = torch.zeros(4, 5, dtype=dtype, device=device)
        y = torch.zeros(4, 5, dtype=dtype)
        act(x).fill_(1)
        act(y).fill_(1)
        self.assertEqual(x, y, exact_device=False)
        self.assertTrue(act(x)._is_view() and act(x)._base is x)


class TestIndexing(TestCase):
    @dtypes(torch.float32, torch.int64, torch.bool)
    def test_index_and_put(self, device, dtype):
        x = torch.arange(20).reshape(4, 5).to(dtype)
        rows, mask = torch.tensor([3, 0, 3]), torch.arange(4) % 2 == 0
        for index in (rows, mask, (slice(None), rows), (rows, rows), (..., 1), (None, 2)):
            there = moved(index, device)
            self.assertEqual(x.to(device)[there], x[index], exact_device=False)
            a, b = x.to(device), x.clone()
            a[there], b[index] = 1, 1
            self.assertEqual(a, b, exact_device=False)

    def test_out_of_range_is_an_error(self, device):
        with self.assertRaisesRegex(IndexError, "out of range"):
            torch.ones(3, device=device)[torch.tensor([7], device=device)].cpu()

    @parametrize("accumulate", [True, False])
    def test_many_values_for_one_element(self, device, accumulate):
        x, rows = torch.ones(1), torch.zeros(6, dtype=torch.int64)
        expected = x.index_put((rows,), torch.arange(6.0), accumulate=accumulate)
        rows, given = rows.to(device), torch.arange(6.0, device=device)
        actual = x.to(device).index_put((rows,), given, accumulate=accumulate)
        self.assertEqual(actual, expected, exact_device=False)


class TestPromotion(TestCase):
    @dtypes(*itertools.product((torch.bool, torch.int32, torch.float16, torch.float32), repeat=2))
    def test_of_two(self, device, dtypes):
        one, two = dtypes
        a, b = torch.ones(3, dtype=one, device=device), torch.ones(3, dtype=two, device=device)
        for op in (torch.add, torch.mul, torch.maximum, torch.true_divide):
            self.assertEqual(op(a, b), op(a.cpu(), b.cpu()), exact_device=False)
        self.assertEqual((a + 1.5).dtype, torch.result_type(a, 1.5))

    @dtypes(torch.bool, torch.int64, torch.float16)
    def test_bounds_of_another_kind(self, device, dtype):
        x = torch.arange(-2, 4).to(dtype)
        for low, high in ((0.3, 0.7), (0.7, 0.3), (None, 0.7), (2, 0.3)):
            self.assertEqual(x.to(device).clamp(low, high), x.clamp(low, high), exact_device=False)


class TestCreation(TestCase):
    @dtypes(torch.float16, torch.float32, torch.int32, torch.int64)
    def test_ranges(self, device, dtype):
        for act in (
            lambda d: torch.arange(2, 9, 3, dtype=dtype, device=d),
            lambda d: torch.full((2, 3), 7, dtype=dtype, device=d),
            lambda d: torch.eye(3, 4, dtype=dtype, device=d),
            lambda d: torch.linspace(0, 6, 4, dtype=dtype, device=d),
            lambda d: torch.tril_indices(3, 3, device=d).to(dtype),
        ):
            self.assertEqual(act(device), act("cpu"), exact_device=False)


class TestReductions(TestCase):
    @dtypes(torch.float32, torch.float16, torch.int64, torch.bool)
    @parametrize("dim", [None, 0, -1, (0, 2)])
    @parametrize("size", [0, 1, 5])
    def test_sums(self, device, dtype, dim, size):
        x = (torch.arange(6 * size).reshape(2, size, 3) % 2).to(dtype)
        for keep in (True, False):
            expected = x.sum(dim, keep) if dim is not None else x.sum()
            actual = x.to(device).sum(dim, keep) if dim is not None else x.to(device).sum()
            self.assertEqual(actual, expected, exact_device=False)


for generic in (TestOps, TestViews, TestIndexing, TestPromotion, TestCreation, TestReductions):
    instantiate_device_type_tests(generic, globals())
del generic
