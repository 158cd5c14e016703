"""Prints what PyTorch's native test hooks do, on the plain base or on ours: one answer a gap."""

from __future__ import annotations

import inspect
import json
import os
import sys
import unittest
from collections.abc import Callable
from typing import Any

PLAIN = sys.argv[1] == "plain"

if PLAIN:  # what happens where a backend is registered late (gap 11)
    import torch.testing._internal.common_utils as common_utils

from tests.ci import openreg_device  # noqa: E402

openreg_device.register()

import torch  # noqa: E402
import torch.testing._internal.common_device_type as native  # noqa: E402
import torch.testing._internal.common_utils as common_utils  # noqa: E402
from torch.testing._internal.common_dtype import floating_types  # noqa: E402
from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo  # noqa: E402

from openspyre.ci.native.device_base import device_base  # noqa: E402
from openspyre.ci.native.expected import expecting  # noqa: E402
from openspyre.ci.native.hooks import Case, Drop, Expect, Hooks, Override  # noqa: E402

found: dict[str, object] = {}


def use(hooks: Hooks, **plain: Any) -> None:
    """Makes the device's tests follow these hooks, natively or by our base."""
    if PLAIN:
        native.PrivateUse1TestBase.set_test_configs(**plain)
        native.device_type_test_bases[:] = [native.PrivateUse1TestBase]
    else:
        native.PrivateUse1TestBase.set_test_configs()
        native.device_type_test_bases[:] = [device_base(native.PrivateUse1TestBase, hooks)]


def generated(name: str, members: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The classes made of a generic one."""
    for member, function in members.items():
        if callable(function):
            function.__name__ = member
            function.__qualname__ = f"{name}.{member}"
    made = type(name, (common_utils.TestCase,), {"__module__": __name__, **members})
    scope: dict[str, Any] = {name: made}
    native.instantiate_device_type_tests(made, scope, **options)
    return scope


def tests_of(scope: dict[str, Any]) -> list[str]:
    loader = unittest.TestLoader()
    return sorted(name for cls in scope.values() for name in loader.getTestCaseNames(cls))


def info(name: str) -> OpInfo:
    return OpInfo(name, op=getattr(torch, name), dtypes=floating_types())


def op_test(listed: Any, **options: Any) -> Callable[..., None]:
    def test(self: Any, device: str, dtype: Any, op: Any) -> None: ...

    decorate: Any = listed if isinstance(listed, native.ops) else native.ops(listed, **options)
    return decorate(test)  # type: ignore[no-any-return]


def said(act: Callable[[], object]) -> object:
    try:
        return act()
    except Exception as error:  # an answer too
        return f"{type(error).__name__}: {error}"[:60]


def plain_test() -> Callable[..., None]:
    def test(self: Any, device: str) -> None: ...

    return test


# 3 and 4 first: they are about the first classes of a process.
use(
    Hooks(op_overrides={"add": (Override("R", "TestOne", "test_a", Drop(), reason="r"),)}),
    op_overrides={"add": [DecorateInfo(unittest.skip("r"), "TestOne", "test_a")]},
)
one = generated("TestOne", {"test_a": op_test([info("add")])})
two = generated("TestTwo", {"test_a": plain_test()})
(first,) = one.values()
skipped = [hasattr(getattr(first, name), "__unittest_skip__") for name in tests_of(one)]
found["3: skipped of the first op's tests"] = f"{sum(skipped)} of {len(skipped)}"
found["4: classes"] = [*one, *two]

use(Hooks(op_allowlist=("mul",)), op_allowlist=["mul"])
members = {"test_a": op_test([info("add")]), "test_b": plain_test()}
found["1: no op is left"] = said(lambda: tests_of(generated("TestThree", members)))
found["1: an empty list"] = said(lambda: generated("TestThreeToo", {"test_a": op_test([])}))

shared = native.ops([info("add"), info("mul")])
generated("TestFour", {"test_a": op_test(shared)})
found["2: ops left in the decorator"] = len(shared.op_list)

use(
    Hooks(op_dtypes={"add": ("float32",)}),
)
add = info("add")
add.dtypesIf["openreg"] = {torch.float32}
five = generated(
    "TestFive",
    {"test_a": op_test([add], dtypes=[torch.float64]), "test_b": op_test([add])},
)
found["5: tests"] = tests_of(five)

use(Hooks(test_exclusions={"TestSix": "test_ab"}), test_exclusions={"TestSix": "test_ab"})
members = {"test_a": plain_test(), "test_ab": plain_test(), "test_c": plain_test()}
six = generated("TestSix", members)
found["6: tests"] = tests_of(six)

base: Any = native.device_type_test_bases[0]


class AnyArguments(base):  # type: ignore[misc]
    """A base whose `instantiate_test` does not show its parameters."""

    @classmethod
    def instantiate_test(cls, *args: Any, **kwargs: Any) -> None:
        super().instantiate_test(*args, **kwargs)


use(Hooks())
base = native.device_type_test_bases[0]
found["8: parameters"] = len(inspect.signature(base.instantiate_test).parameters)
native.device_type_test_bases[:] = [AnyArguments]
found["8: with any arguments"] = said(lambda: generated("TestEight", {"test_a": op_test([add])}))

use(Hooks())
native.PrivateUse1TestBase.device_type = "privateuse1"  # as at the start of a process
for name in ("openreg", "privateuse1"):
    os.environ["PYTORCH_TESTING_DEVICE_FOR_CUSTOM"] = name
    nine = generated("TestNine", {"test_a": plain_test()}, only_for="cuda")
    found[f"9: classes for {name}"] = len(nine)
del os.environ["PYTORCH_TESTING_DEVICE_FOR_CUSTOM"]
use(Hooks())

found["11: native devices"] = "openreg" in common_utils.NATIVE_DEVICES


def raises(error: BaseException) -> Callable[..., None]:
    def test(self: Any, device: str = "") -> None:
        raise error

    return test


def outcome_of(test: Callable[..., Any]) -> str:
    case = type("Case", (unittest.TestCase,), {"test": test, "device_type": "openreg"})("test")
    result = unittest.TestResult()
    case.run(result)
    lists = ("errors", "failures", "skipped", "expectedFailures", "unexpectedSuccesses")
    return next((name for name in lists if getattr(result, name)), "passed")


expected = Expect("RuntimeError", "no kernel")
mark: Any = unittest.expectedFailure if PLAIN else lambda t: expecting(t, expected, "R")
found["13: as expected"] = outcome_of(mark(raises(NotImplementedError("no kernel: x"))))
found["13: another failure"] = outcome_of(mark(raises(OSError("disk full"))))
found["13: another text"] = outcome_of(mark(raises(RuntimeError("disk full"))))
found["13: a pass"] = outcome_of(mark(lambda self: None))
mark = native.expectedFailure("openreg") if PLAIN else mark
found["13: a skip"] = outcome_of(mark(raises(unittest.SkipTest("today"))))

use(Hooks(cases=(Case("R", "TestTen", "test_a", Drop(), dtypes=("float64",)),)))
typed: Any = native.dtypes(torch.float32, torch.float64)(lambda self, device, dtype: None)
found["14: tests"] = tests_of(generated("TestTen", {"test_a": typed}))
found["12: a large test"] = said(lambda: native._has_sufficient_memory("openreg:0", 1 << 10))

print(json.dumps(found))
