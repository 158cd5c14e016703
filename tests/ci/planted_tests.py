"""Test files in PyTorch's style with one case of everything that a run must survive and tell."""

from __future__ import annotations

from pathlib import Path

_HEAD = """
import os
import time
from torch.testing._internal.common_device_type import (
    dtypes, instantiate_device_type_tests, onlyCUDA, ops, OpDTypes)
from torch.testing._internal.common_utils import TestCase, parametrize, subtest
import torch
"""

OUTCOMES = """
class TestOutcomes(TestCase):
    def test_passes(self, device):
        self.assertEqual(torch.ones(3, device=device) + 1, torch.full((3,), 2.0))

    def test_fails(self, device):
        self.assertEqual(torch.ones(3, device=device), torch.zeros(3))

    def test_aborts(self, device):
        os.abort()

    def test_exits(self, device):
        os._exit(0)

    def test_loops(self, device):
        while True:
            pass

    def test_flaky(self, device):
        state = "flaky-was-here"
        if not os.path.exists(state):
            open(state, "w").close()
            self.fail("the first time")

    def test_passes_unexpectedly(self, device):
        pass

    def test_fails_as_expected(self, device):
        raise NotImplementedError("no such kernel: frobnicate")

    def test_fails_for_another_reason(self, device):
        raise RuntimeError("out of cheese")

    def test_skips_under_xfail(self, device):
        self.skipTest("not today")

    def test_skips_in_its_body(self, device):
        self.skipTest("not today")

    def test_fails_in_a_part(self, device):
        for part in range(3):
            with self.subTest(part=part):
                self.assertNotEqual(part, 1)

    def test_left_out(self, device):
        os.abort()

    def test_in_quarantine(self, device):
        pass

    @onlyCUDA
    def test_only_cuda(self, device):
        pass

    @onlyCUDA
    def test_only_cuda_too(self, device):
        pass

    @dtypes(torch.float32, torch.float64)
    @parametrize("k", [1, 2])
    def test_generated(self, device, dtype, k):
        self.assertFalse(dtype == torch.float64 and k == 2)

    def test_close(self, device):
        self.assertEqual(torch.ones(3, device=device), torch.full((3,), 1.01))


class TestSameNames(TestCase):
    def test_fails(self, device):
        pass


class TestBadSetUp(TestCase):
    @classmethod
    def setUpClass(cls):
        raise RuntimeError("no set-up")

    def test_never(self, device):
        pass


class TestBypassed(TestCase):
    @onlyCUDA
    def test_only_cuda(self, device):
        pass


class TestForCuda(TestCase):
    def test_passes(self, device):
        pass


class TestPlain(TestCase):
    def test_passes(self):
        pass


for generic in (TestOutcomes, TestSameNames, TestBadSetUp, TestBypassed):
    instantiate_device_type_tests(generic, globals())
instantiate_device_type_tests(TestForCuda, globals(), only_for="cuda")
del generic
"""

OPS = """
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo
from torch.testing._internal.common_dtype import all_types_and

def made(name, variant=""):
    dtypes = all_types_and(torch.half, torch.bfloat16)
    return OpInfo(name, variant_test_name=variant, op=getattr(torch, name), dtypes=dtypes)

LISTED = [made("add"), made("div"), made("div", "no_rounding_mode"), made("mul"), made("exp")]


class TestOps(TestCase):
    @ops(LISTED, allowed_dtypes=(torch.float32, torch.float16, torch.int64))
    def test_right(self, device, dtype, op):
        ones = torch.ones(3, dtype=dtype)
        given = (ones,) if op.name == "exp" else (ones, ones)
        self.assertEqual(op(*[g.to(device) for g in given]), op(*given))
        if op.full_name == "mul" and dtype == torch.float16:
            raise RuntimeError("no half of mul")

    @ops(LISTED[4:], allowed_dtypes=(torch.float32,))
    def test_only_exp(self, device, dtype, op):
        pass

    @ops(LISTED[:2], dtypes=OpDTypes.any_one)
    def test_any_one(self, device, dtype, op):
        pass

    @ops(LISTED[:1], dtypes=[torch.float32, torch.float64])
    def test_explicit(self, device, dtype, op):
        pass

    @ops(LISTED[:2], dtypes=OpDTypes.none)
    def test_none(self, device, op):
        self.assertEqual(torch.ones(2, device=device), torch.full((2,), 1.01))


instantiate_device_type_tests(TestOps, globals())
"""

EMPTY = """
class TestEmpty(TestCase):
    @ops([])
    def test_nothing(self, device, dtype, op):
        pass


instantiate_device_type_tests(TestEmpty, globals())
"""

CUSTOM = """
class TestForCuda(TestCase):
    def test_passes(self, device):
        self.assertEqual(torch.ones(3, device=device).device.type, device.partition(":")[0])


instantiate_device_type_tests(TestForCuda, globals(), only_for="cuda")
"""

NOTHING = "VALUE = 1\n"
SYNTAX = "def broken(:\n"
DIES = "import os\nos.abort()\n"


def write_tests(folder: Path) -> Path:
    """The files in a folder of their own."""
    (folder / "deep").mkdir(parents=True)
    for name, text in {
        "outcomes": _HEAD + OUTCOMES, "small_ops": _HEAD + OPS, "empty": _HEAD + EMPTY,
        "nothing": NOTHING, "syntax": SYNTAX, "dies": DIES,
    }.items():  # fmt: skip
        (folder / f"test_{name}.py").write_text(text)
    (folder / "deep" / "test_outcomes.py").write_text(_HEAD + CUSTOM)
    return folder


RULES = """
schema: openspyre.ci/1
torch: ">=2.13,<2.14"
device: openreg
bootstrap: openreg_device:register
capability: {file: capability.json, digest: "DIGEST"}
defaults: {unlisted: gate, timeout_s: 3}
files:
  - path: test_outcomes.py
    guards: {bypass: [TestBypassed]}
    rules:
      - {id: O-1, test: "TestOutcomes::test_aborts", verdict: observe, reason: dies, dates: DATES}
      - {id: O-2, test: "TestOutcomes::test_exits", verdict: observe, reason: dies, dates: DATES}
      - {id: O-3, test: "TestOutcomes::test_loops", verdict: observe, reason: loops, dates: DATES}
      - id: X-1
        test: TestOutcomes::test_passes_unexpectedly
        verdict: xfail
        reason: it did once
        issue: https://example.org/1
        dates: DATES
        raises: {type: RuntimeError, match: ^once$}
      - id: X-2
        test: TestOutcomes::test_fails_as_expected
        verdict: xfail
        reason: no kernel
        issue: https://example.org/2
        dates: DATES
        raises: {type: RuntimeError, match: "no such kernel: \\\\w+"}
      - id: X-3
        test: TestOutcomes::test_fails_for_another_reason
        verdict: xfail
        reason: no kernel
        issue: https://example.org/2
        dates: DATES
        raises: {type: RuntimeError, match: no such kernel}
      - id: X-4
        test: TestOutcomes::test_skips_under_xfail
        verdict: xfail
        reason: no kernel
        issue: https://example.org/2
        dates: DATES
        raises: {type: RuntimeError, match: no such kernel}
      - id: E-1
        test: TestOutcomes::test_left_out
        verdict: exclude
        cause: not-device
        reason: it is about the host
        issue: https://example.org/3
        dates: DATES
      - id: Q-1
        test: TestOutcomes::test_in_quarantine
        verdict: quarantine
        cause: crash
        reason: it crashed
        issue: https://example.org/4
        dates: DATES
      - id: O-4
        test: TestOutcomes::test_fails_in_a_part
        verdict: observe
        reason: a part fails
        dates: DATES
      - id: X-5
        test: TestOutcomes::test_generated
        dtypes: [float64]
        params: {k: 2}
        verdict: xfail
        reason: planted
        issue: https://example.org/5
        dates: DATES
        raises: {type: AssertionError, match: True is not false}
        hits: 1
      - id: T-1
        test: TestOutcomes::test_close
        reason: planted
        tolerance: {atol: 0.1, rtol: 0}
      - {id: O-5, test: "TestBadSetUp::*", verdict: observe, reason: planted, dates: DATES}
  - path: test_small_ops.py
    rules:
      - id: X-6
        test: TestOps::test_right
        ops: [mul]
        dtypes: [float16]
        verdict: xfail
        reason: planted
        issue: https://example.org/6
        dates: DATES
        raises: {type: RuntimeError, match: no half}
      - id: E-2
        test: TestOps::test_right
        ops: [div.no_rounding_mode]
        verdict: exclude
        cause: op
        reason: planted
        issue: https://example.org/7
        dates: DATES
      - id: T-2
        test: TestOps::test_none
        ops: [add, div]
        reason: planted
        tolerance: {atol: 0.1, rtol: 0}
  - path: deep/test_outcomes.py
    guards: {for_custom: true}
  - path: test_nothing.py
  - path: test_empty.py
  - path: test_syntax.py
  - path: test_dies.py
"""
