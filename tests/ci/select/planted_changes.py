"""The repository *up*: one planted change a file, and what stage 1 must say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import dedent

Text = str | bytes | None
HEAD = """\
import torch
from torch.testing._internal.common_device_type import (
    dtypes, instantiate_device_type_tests, onlyCPU, ops, skipMeta)
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests
from torch.testing._internal.common_methods_invocations import op_db, unary_ops
"""
INFRA = {
    "torch/testing/_internal/common_utils.py": """\
import unittest

def parametrize(names, values):
    return lambda fn: fn

class TestCase(unittest.TestCase):
    precision = 0

    def setUp(self):
        self.seed = 1

    def assertEqual(self, a, b):
        assert self._close(a, b)

    def _close(self, a, b):
        return a == b

    def assertWarns(self, text):
        return text

def freeze_rng():
    return 1

def run_tests():
    unittest.main()
""",
    "torch/testing/_internal/common_device_type.py": """\
def instantiate_device_type_tests(cls, scope, except_for=None, only_for=None):
    pass

def dtypes(*a):
    return lambda fn: fn

def ops(listed, dtypes=None):
    return lambda fn: fn

def onlyCPU(fn):
    return fn

def skipMeta(fn):
    return fn
""",
    "torch/testing/_internal/common_methods_invocations.py": """\
from torch.testing._internal.opinfo.core import OpInfo, UnaryUfuncInfo

def sample_add(op):
    return [1]

def sample_sin(op):
    return [2]

op_db = [
    OpInfo("add", dtypes=(1, 2), sample_inputs_func=sample_add),
    OpInfo("div", variant_test_name="floor", dtypes=(1,)),
    UnaryUfuncInfo("sin", dtypes=(1,), sample_inputs_func=sample_sin),
]
unary_ops = [op for op in op_db if isinstance(op, UnaryUfuncInfo)]
""",
    "torch/testing/_internal/opinfo/core.py": """\
class OpInfo:
    def __init__(self, name, **kw):
        self.name = name

class UnaryUfuncInfo(OpInfo):
    pass
""",
    "torch/testing/_internal/common_nn.py": "def module_input():\n    return 3\n",
}


@dataclass(frozen=True)
class Planted:
    """A change of some files; `kinds` are the first kinds, by id without the file."""

    base: Mapping[str, Text]
    head: Mapping[str, Text]
    kinds: Mapping[str, str] = field(default_factory=dict)


def suite(body: str, *, name: str = "TestA", generic: bool = True, top: str = "") -> str:
    """A file of tests around the methods of one class."""
    methods = "\n".join("    " + line if line else "" for line in dedent(body).splitlines())
    made = f"\ninstantiate_device_type_tests({name}, globals())\n" if generic else "\n"
    return f"{HEAD}\n{dedent(top)}\nclass {name}(TestCase):\n{methods}\n{made}"


ONE = "def test_x(self, device):\n    self.assertEqual(1, 1)\n"
TWO = ONE + "\ndef test_y(self, device):\n    self.assertEqual(torch.sin(2), 2)\n"


def _edit(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def one(name: str, before: str, after: str, **kinds: str) -> tuple[str, Planted]:
    """A change of one file; kinds by method of TestA."""
    path = f"test/test_{name}.py"
    named = {f"test_{name}.py::TestA::{method}": kind for method, kind in kinds.items()}
    return name, Planted({path: before}, {path: after}, named)


_HELPER = suite(
    "def test_x(self):\n    self.assertEqual(shared(), 1)\ndef test_y(self):\n    pass",
    top="def shared():\n    return inner()\n\ndef inner():\n    return 1\n",
)
_MEMBER = suite("def _check(self):\n    return 1\ndef test_x(self):\n    self._check()\n"
                "def test_y(self):\n    self.assertEqual(2, 2)")  # fmt: skip
_SETUP = suite("limit = 3\ndef setUp(self):\n    super().setUp()\n" + ONE)
_PARAMETERS = suite(
    "@parametrize('a', VALUES)\ndef test_x(self, a):\n    pass\n"
    "@dtypes(torch.float)\ndef test_y(self):\n    pass\n", top="VALUES = [1, 2]",
)  # fmt: skip
_OPS = suite("@ops(CHOSEN)\ndef test_x(self, op):\n    pass\ndef test_y(self):\n    pass",
             top="CHOSEN = [op for op in op_db if op.name != 'div']")  # fmt: skip
_NESTED = (
    f"{HEAD}\nclass Outer:\n    class TestIn(TestCase):\n"
    "        def test_x(self):\n            pass\n"
)
_LOCAL = (
    "def make(base):\n    class TestIn(base):\n        def test_x(self):\n            pass\n"
    "    return TestIn\n"
)
_AID = "def test_x(self):\n    {}()\n"
_LOOP = f"""{HEAD}
def make(n):
    def test(self):
        return n
    return test

class TestA(TestCase):
    def test_x(self):
        pass

for n in (1, 2):
    setattr(TestA, f"test_made_{{n}}", make(n))
"""
_EXEC = f"{HEAD}\nfor n in range(3):\n    exec(f'def test_{{n}}(): pass')\n"
_LOCALS = suite("for n in (1, 2):\n    locals()[f'test_{n}'] = lambda self: n\n" + ONE)
_TWO_CLASSES = suite(ONE) + "\nclass TestB(TestCase):\n    def test_x(self):\n        pass\n"
_MIXIN = """
class Mixin:
    def hook(self):
        return 1
    def test_shared(self):
        self.hook()
"""
_DERIVED = (
    f"{HEAD}\nfrom mixins import Mixin\n\nclass TestA(Mixin, TestCase):\n"
    "    def test_x(self):\n        pass\n"
)
_CONDITION = (
    f"{HEAD}\nHAS = True\n\nclass TestA(TestCase):\n    def test_x(self):\n        pass\n\n"
)
_INSTANTIATE = "instantiate_device_type_tests(TestA, globals())\n"
_LATE = suite("def test_x(self):\n    from late_helper import late\n    late()\n" + TWO[len(ONE) :])
_ALIASED = suite(
    "def test_x(self):\n    common_nn.module_input()\n" + TWO[len(ONE):],
    top="from torch.testing._internal import common_nn",
)  # fmt: skip
_STAR = "from star_helper import *\n"
_SKIPS = suite("@SKIP\ndef test_x(self):\n    pass\n", top="SKIP = skipMeta")
_LISTED = (
    suite(ONE, generic=False)
    + "for c in (TestA,):\n    instantiate_device_type_tests(c, globals())\n"
)
_UPDATED = suite(
    "@parametrize('a', VALUES)\ndef test_x(self, a):\n    pass\n" + TWO[len(ONE):],
    top="VALUES = {}\nVALUES['k'] = 1",
)  # fmt: skip
_GETTER = suite("@property\ndef world(self):\n    return 2\n" + TWO)

_HOOKED = _edit(_DERIVED, ("mixins", "mixins2")) + "    def hook(self):\n        "

CASES: dict[str, Planted] = dict([
    one("added", suite(ONE), suite(TWO), test_y="added"),
    one("removed", suite(TWO), suite(ONE), test_y="removed"),
    one("body", suite(TWO), suite(_edit(TWO, ("sin(2)", "sin(3)"))), test_y="body"),
    one("constant", suite(ONE), suite(_edit(ONE, ("(1, 1)", "(1, True)"))), test_x="body"),
    one("signature", suite(ONE), suite(_edit(ONE, ("device)", "device=None)"))), test_x="body"),
    one("renamed", suite(TWO), suite(_edit(TWO, ("test_y", "test_z"))), test_z="moved"),
    one("decorator", suite(TWO), suite("@skipMeta\n" + TWO), test_x="decorators"),
    one("decorators_swapped", suite("@skipMeta\n@onlyCPU\n" + ONE),
        suite("@onlyCPU\n@skipMeta\n" + ONE), test_x="decorators"),
    one("decorator_list_elsewhere", _SKIPS, _edit(_SKIPS, ("SKIP = skipMeta", "SKIP = onlyCPU")),
        test_x="helpers"),
    one("helper", _HELPER, _edit(_HELPER, ("return 1", "return 2")), test_x="helpers"),
    one("helper_renamed", _HELPER, _edit(_HELPER, ("inner", "within")), test_x="helpers"),
    one("member", _MEMBER, _edit(_MEMBER, ("return 1", "return 2")), test_x="helpers"),
    one("set_up", _SETUP, _edit(_SETUP, ("super().setUp()", "pass")), test_x="class"),
    one("attribute", _SETUP, _edit(_SETUP, ("limit = 3", "limit = 4")), test_x="class"),
    one("property", _GETTER, _edit(_GETTER, ("return 2", "return 3")),
        test_x="class", test_y="class"),
    one("parametrize", _PARAMETERS, _edit(_PARAMETERS, ("'a'", "'b'")), test_x="generation"),
    one("parametrize_values", _PARAMETERS, _edit(_PARAMETERS, ("[1, 2]", "[1, 3]")),
        test_x="generation"),
    one("dtypes", _PARAMETERS, _edit(_PARAMETERS, ("torch.float", "torch.half")),
        test_y="generation"),
    one("updated_values", _UPDATED, _edit(_UPDATED, ("['k'] = 1", "['k'] = 2")),
        test_x="generation"),
    one("op_list", _OPS, _edit(_OPS, ("!= 'div'", "!= 'add'")), test_x="generation"),
    one("op_list_name", _OPS, _edit(_OPS, ("@ops(CHOSEN)", "@ops(op_db)")), test_x="generation"),
    one("only_for", suite(ONE), _edit(suite(ONE), ("globals())", "globals(), only_for='cpu')")),
        test_x="instantiation"),
    one("became_generic", suite(ONE, generic=False), suite(ONE), test_x="instantiation"),
    one("listed", _LISTED, _edit(_LISTED, ("globals()", "globals(), except_for='cpu'")),
        test_x="instantiation"),
    one("conditional", _CONDITION + _INSTANTIATE, f"{_CONDITION}if HAS:\n    {_INSTANTIATE}",
        test_x="instantiation"),
    one("condition", f"{_CONDITION}if HAS:\n    {_INSTANTIATE}",
        f"{_edit(_CONDITION, ('True', 'False'))}if HAS:\n    {_INSTANTIATE}",
        test_x="instantiation"),
    one("deleted_class", suite(ONE), suite(ONE) + "del TestA\n", test_x="instantiation"),
    one("deleted_test", suite(TWO), suite(TWO) + "del TestA.test_y\n", test_y="removed"),
    one("test_set_to_none", suite(TWO), suite(TWO + "\ntest_y = None\n"), test_y="removed"),
    one("comment", suite(TWO),
        _edit(suite(TWO), ("    self.assert", "    # why\n        self.assert"))),
    one("formatting", suite(TWO), _edit(suite(TWO), ("(1, 1)", "(\n  1,\n  1 )"))),
    one("docstring", suite(ONE), suite(_edit(ONE, ("device):\n", 'device):\n    """Says."""\n')))),
    one("tabs", suite(TWO), suite(TWO).replace("    ", "\t")),
    one("line_ends", suite(TWO), suite(TWO).replace("\n", "\r\n")),
    one("main", suite(ONE), suite(ONE) + "\nif __name__ == '__main__':\n    run_tests()\n"),
    one("unused", suite(ONE), suite(ONE, top="import os\n\ndef unused():\n    return os\n")),
    one("prefix", suite("def test_x(self):\n    return u'a'\n"),
        suite("def test_x(self):\n    return 'a'\n")),
    one("two_classes", _TWO_CLASSES, _edit(_TWO_CLASSES, ("(1, 1)", "(1, 2)")), test_x="body"),
    one("loop_body", _LOOP, _edit(_LOOP, ("return n\n", "return n + 1\n")), **{"*": "generation"}),
    one("loop_values", _LOOP, _edit(_LOOP, ("(1, 2)", "(1, 3)")), **{"*": "generation"}),
    one("locals", _LOCALS, _edit(_LOCALS, ("(1, 2)", "(1, 3)")), **{"*": "generation"}),
    one("alias", suite(ONE + "test_z = test_x\n"),
        suite(ONE + "test_z = skipMeta(test_x)\n"),
        test_z="body"),
    one("module_state", suite(ONE), suite(ONE, top="torch.set_default_dtype(torch.double)"),
        test_x="helpers"),
    one("guarded_test", suite(ONE), suite("if torch.has:\n    def test_x(self, device):\n"
                                          "        self.assertEqual(1, 1)\n"), test_x="decorators"),
    one("class_decorator", suite(ONE), _edit(suite(ONE), ("class TestA", "@skipMeta\nclass TestA")),
        test_x="class"),
    one("base_removed", suite(ONE), _edit(suite(ONE), ("(TestCase)", "(object)")), test_x="class"),
])  # fmt: skip

CASES["encoding"] = Planted(
    {"test/test_encoding.py": suite(ONE + "\nname = 'é'\n").encode()},
    {
        "test/test_encoding.py": b"# -*- coding: latin-1 -*-\n"
        + suite(ONE + "\nname = 'é'\n").encode("latin-1")
    },
)
CASES["byte_order_mark"] = Planted(
    {"test/test_bom.py": suite(ONE)}, {"test/test_bom.py": b"\xef\xbb\xbf" + suite(ONE).encode()}
)
CASES["nested"] = Planted(
    {"test/test_nested.py": _NESTED},
    {"test/test_nested.py": _edit(_NESTED, ("            pass", "            return 1"))},
    {"test_nested.py::Outer.TestIn::test_x": "body"},
)
CASES["in_function"] = Planted(
    {"test/test_local.py": _LOCAL},
    {"test/test_local.py": _edit(_LOCAL, ("pass", "return 1"))},
    {"test_local.py::make.<locals>.TestIn::test_x": "body"},
)  # fmt: skip
CASES["function"] = Planted(
    {"test/test_function.py": "def test_f():\n    pass\n"},
    {"test/test_function.py": "def test_f():\n    assert 1\n"},
    {"test_function.py::<module>::test_f": "body"},
)
CASES["exec"] = Planted(
    {"test/test_exec.py": _EXEC},
    {"test/test_exec.py": _edit(_EXEC, ("range(3)", "range(4)"))},
    {"test_exec.py::<module>::*": "generation"},
)
CASES["imported_helper"] = Planted(
    {"test/test_imports.py": suite(_AID.format("aid"), top="from aids import aid"),
     "test/aids.py": "def aid():\n    return 1\n"},
    {"test/aids.py": "def aid():\n    return 2\n"},
    {"test_imports.py::TestA::test_x": "helpers"},
)  # fmt: skip
CASES["helper_moved"] = Planted(
    {"test/test_moved_helper.py": suite(_AID.format("aid3"), top="from aid_a import aid3"),
     "test/aid_a.py": "def aid3():\n    return 1\n"},
    {"test/test_moved_helper.py": suite(_AID.format("aid3"), top="from aid_b import aid3"),
     "test/aid_a.py": None, "test/aid_b.py": "def aid3():\n    return 1\n"},
)  # fmt: skip
CASES["reexported_helper"] = Planted(
    {"test/sub/test_deep.py": suite("def test_x(self):\n    pkg.deep()\n", top="import pkg"),
     "test/sub/pkg/__init__.py": "from .inner import deep\n",
     "test/sub/pkg/inner.py": "def deep():\n    return 1\n"},
    {"test/sub/pkg/inner.py": "def deep():\n    return 2\n"},
    {"sub/test_deep.py::TestA::test_x": "helpers"},
)  # fmt: skip
CASES["late_import"] = Planted(
    {"test/test_late.py": _LATE, "test/late_helper.py": "def late():\n    return 1\n"},
    {"test/late_helper.py": "def late():\n    return 2\n"},
    {"test_late.py::TestA::test_x": "helpers"},
)
CASES["star_import"] = Planted(
    {"test/test_star.py": _STAR + suite("def test_x(self):\n    starred()\n"),
     "test/star_helper.py": "def starred():\n    return 1\n"},
    {"test/star_helper.py": "def starred():\n    return 2\n"},
    {"test_star.py::TestA::test_x": "helpers"},
)  # fmt: skip
CASES["helper_module"] = Planted(
    {"test/test_module_alias.py": _ALIASED},
    {"torch/testing/_internal/common_nn.py": "def module_input():\n    return 4\n"},
    {"test_module_alias.py::TestA::test_x": "helpers"},
)
CASES["inherited"] = Planted(
    {"test/test_derived.py": _DERIVED, "test/mixins.py": _MIXIN},
    {"test/mixins.py": _edit(_MIXIN, ("self.hook()", "self.hook() or 1"))},
    {"test_derived.py::TestA::test_shared": "body"},
)
_OVER = _edit(_DERIVED, ("mixins", "mixins4")) + (
    "    def test_shared(self):\n        super().test_shared()\n"
    "    def test_calls(self):\n        self.test_shared()\n"
)
CASES["test_that_calls_a_test"] = Planted(
    {"test/test_over.py": _OVER, "test/mixins4.py": _MIXIN},
    {"test/mixins4.py": _edit(_MIXIN, ("self.hook()", "self.hook() or 1"))},
    {f"test_over.py::TestA::test_{name}": "helpers" for name in ("shared", "calls")},
)
_ALIAS = (
    f"{HEAD}\nclass Sparse(TestCase):\n    pass\n\nBase = TestCase\n\n"
    "class TestA(Base):\n    def test_x(self):\n        pass\n"
)
CASES["base_by_another_name"] = Planted(
    {"test/test_alias_of_base.py": _ALIAS},
    {"test/test_alias_of_base.py": _edit(_ALIAS, ("Base = TestCase", "Base = Sparse"))},
    {"test_alias_of_base.py::TestA::test_x": "class"},
)
_EITHER = {
    "try": "try:\n    from {0}_one import either\nexcept ImportError:\n    either = None\n",
    "if": "if torch.has:\n    from {0}_two import either\nelse:\n    from {0}_one import either\n",
    "module": "try:\n    import {0}_two as m\nexcept ImportError:\n    import {0}_one as m\n"
              "def either():\n    return m.either()\n",
}  # fmt: skip
for _name, _text in _EITHER.items():
    CASES[f"either_{_name}"] = Planted(
        {
            f"test/test_either_{_name}.py": suite(
                _AID.format("either") + TWO[len(ONE) :], top=_text.format(f"either_{_name}")
            ),
            f"test/either_{_name}_one.py": "def either():\n    return 1\n",
            f"test/either_{_name}_two.py": "def either():\n    return 5\n",
        },
        {f"test/either_{_name}_one.py": "def either():\n    return 2\n"},
        {f"test_either_{_name}.py::TestA::test_x": "helpers"},
    )
CASES["overridden_hook"] = Planted(
    {"test/test_hooked.py": _HOOKED + "return 2\n",
     "test/mixins2.py": _MIXIN},
    {"test/test_hooked.py": _HOOKED + "return 3\n"},
    {"test_hooked.py::TestA::test_shared": "helpers"},
)  # fmt: skip
CASES["base_class"] = Planted(
    {"test/test_based.py": _edit(_DERIVED, ("mixins", "mixins3")), "test/mixins3.py": _MIXIN},
    {"test/mixins3.py": _edit(_MIXIN, ("class Mixin:\n", "class Mixin:\n    limit = 2\n"))},
    {"test_based.py::TestA::test_shared": "class", "test_based.py::TestA::test_x": "class"},
)
CASES["moved"] = Planted(
    {"test/test_from.py": suite(TWO, name="TestM"), "test/test_to.py": suite(ONE, name="TestN")},
    {"test/test_from.py": suite(ONE, name="TestM"),
     "test/test_to.py": suite(ONE, name="TestN") + suite(TWO[len(ONE):], name="TestM")},
    {"test_to.py::TestM::test_y": "moved"},
)  # fmt: skip
CASES["renamed_file"] = Planted(
    {"test/test_old_name.py": suite(TWO, name="TestR")},
    {"test/test_old_name.py": None, "test/deep/test_new_name.py": suite(TWO, name="TestR")},
    {f"deep/test_new_name.py::TestR::test_{m}": "moved" for m in "xy"},
)
CASES["renamed_class"] = Planted(
    {"test/test_class_name.py": suite(TWO, name="TestOld")},
    {"test/test_class_name.py": suite(TWO, name="TestNew")},
    {f"test_class_name.py::TestNew::test_{m}": "moved" for m in "xy"},
)
CASES["new_file"] = Planted(
    {}, {"test/test_new.py": suite(TWO)},
    {f"test_new.py::TestA::test_{m}": "added" for m in "xy"},
)  # fmt: skip
CASES["deleted_file"] = Planted(
    {"test/test_gone.py": suite("def test_gone(self):\n    return 77\n", name="TestGone")},
    {"test/test_gone.py": None},
    {"test_gone.py::TestGone::test_gone": "removed"},
)
CASES["syntax_error"] = Planted(
    {"test/test_broken.py": suite(TWO)},
    {"test/test_broken.py": suite(TWO) + "def (:\n"},
    {"test_broken.py::*": "body"},
)
CASES["still_broken"] = Planted(
    {"test/test_still.py": "def (:\n"}, {"test/test_still.py": "def (:\n"}
)
CASES["set_from_outside"] = Planted(
    {"test/test_outside.py": suite(ONE) + "TestA.limit = 1\nTestA.test_q = lambda self: 1\n"},
    {"test/test_outside.py": suite(ONE) + "TestA.limit = 2\nTestA.test_q = lambda self: 2\n"},
    {"test_outside.py::TestA::test_q": "body", "test_outside.py::TestA::test_x": "class"},
)
CASES["wrapped_class"] = Planted(
    {"test/test_wrapped.py": suite(ONE) + "TestA = skipMeta(TestA)\n"},
    {"test/test_wrapped.py": suite(ONE) + "TestA = onlyCPU(TestA)\n"},
    {"test_wrapped.py::TestA::test_x": "class"},
)
CASES["class_of_a_call"] = Planted(
    {"test/test_called.py": suite(ONE) + "TestB = make(TestA)\n"},
    {"test/test_called.py": suite(_edit(ONE, ("(1, 1)", "(1, 2)"))) + "TestB = make(TestA)\n"},
    {f"test_called.py::Test{letter}::test_x": "body" for letter in "AB"},
)
CASES["imported_class"] = Planted(
    {"test/test_elsewhere.py": f"{HEAD}\nfrom cases import Cases\n"
     "instantiate_device_type_tests(Cases, globals())\n",
     "test/cases.py": "class Cases:\n    def test_q(self):\n        pass\n"},
    {"test/cases.py": "class Cases:\n    def test_q(self):\n        return 1\n"},
    {"test_elsewhere.py::Cases::test_q": "body"},
)  # fmt: skip
_FOREIGN = suite("def test_x(self):\n    far()\n" + TWO[len(ONE) :], top="from numpy import far")
CASES["import_from_elsewhere"] = Planted(
    {"test/test_foreign.py": _FOREIGN},
    {"test/test_foreign.py": _edit(_FOREIGN, ("numpy", "scipy"))},
    {"test_foreign.py::TestA::test_x": "helpers"},
)
_PARTIAL = suite(
    "@_listed_ops(op_db)\ndef test_x(self, op):\n    pass\n" + TWO[len(ONE):],
    top="from functools import partial\n_listed_ops = partial(ops, dtypes=1)",
)  # fmt: skip
_APPENDED = suite(
    "@parametrize('a', VALUES)\ndef test_x(self, a):\n    pass\n" + TWO[len(ONE):],
    top="VALUES = []\nfor n in (1, 2):\n    VALUES.append(n)",
)  # fmt: skip
CASES["appended_values"] = Planted(
    {"test/test_appended.py": _APPENDED},
    {"test/test_appended.py": _edit(_APPENDED, ("(1, 2)", "(1, 3)"))},
    {"test_appended.py::TestA::test_x": "generation"},
)
CASES["partial_ops"] = Planted(
    {"test/test_partial.py": _PARTIAL},
    {"test/test_partial.py": _edit(_PARTIAL, ("dtypes=1", "dtypes=2"))},
    {"test_partial.py::TestA::test_x": "generation"},
)
_READS = suite("def test_x(self):\n    open('test/assets/reads.json')\n")
CASES["data_that_a_test_names"] = Planted(
    {"test/test_reads.py": _READS, "test/assets/reads.json": "1"},
    {"test/assets/reads.json": "2"},
    {"test_reads.py::TestA::test_x": "helpers", "data::test/assets/reads.json": "data"},
)
CASES["expected_text"] = Planted(
    {"test/test_expects.py": suite(TWO, name="TestE"), "test/expect/TestE.test_y.expect": "1"},
    {"test/expect/TestE.test_y.expect": "2"},
    {"test_expects.py::TestE::test_y": "helpers", "data::test/expect/TestE.test_y.expect": "data"},
)
CASES["data"] = Planted(
    {"test/expect/numbers.txt": "1"}, {"test/expect/numbers.txt": "2"},
    {"data::test/expect/numbers.txt": "data"},
)  # fmt: skip
CASES["product"] = Planted(
    {"aten/src/ops.cpp": "int add() { return 1; }\n"},
    {"aten/src/ops.cpp": "int add() { return 2; }\n"},
    {"product::aten/src/ops.cpp": "product"},
)


def trees() -> tuple[dict[str, str | bytes], dict[str, str | bytes]]:
    """The files of both tags of *up*."""
    base: dict[str, Text] = dict(INFRA)
    for planted in CASES.values():
        base |= planted.base
    head = dict(base)
    for planted in CASES.values():
        head |= planted.head
    return (
        {path: text for path, text in base.items() if text is not None},
        {path: text for path, text in head.items() if text is not None},
    )
