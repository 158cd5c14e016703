"""A device base for `instantiate_device_type_tests` without the gaps of the native hooks.

A file named by TORCH_TEST_DEVICES runs while PyTorch's module of device types is still being
imported: nothing here imports that module at the top.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ClassVar

import torch

from .expected import expecting
from .hooks import Drop, Expect, Hooks, Keep, Override, Tolerance
from .identity import Identity, identity_of

_EMPTY = "An empty op_list was passed to @ops"
_INEXACT = (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128,
)  # fmt: skip


def device_base(native: type, hooks: Hooks) -> type:
    """A base for the tests of the backend that is registered in this process.

    Args:
        native: PyTorch's own base for it, `PrivateUse1TestBase`.
        hooks: what the backend asks.
    """
    name = torch._C._get_privateuse1_backend_name()
    members: dict[str, Any] = {
        "device_type": name, "device_mod": getattr(torch, name, None), "hooks": hooks,
        "identities": {}, "primary_device": f"{name}:0",
    }  # fmt: skip
    made: Any = type("DeviceBase", (DeviceBase, native), members)
    made.base = made
    made.set_test_configs(
        op_allowlist=hooks.op_allowlist, test_exclusions=_lists(hooks.test_exclusions)
    )
    return made  # type: ignore[no-any-return]


def _lists(exclusions: Mapping[str, Any]) -> dict[str, Any] | None:
    """Native exclusions: "*", or a list, since a method is searched for in what is given."""
    listed = {c: [n] if isinstance(n, str) else sorted(n) for c, n in exclusions.items()}
    return {c: "*" if "*" in names else names for c, names in listed.items()} or None


class DeviceBase:
    """Mixed into the native base: see README.md for each gap and its number.

    Attributes:
        device_type: the backend's name from the start, where the native base calls itself
            "privateuse1" until the first class is set up (gaps 3, 4 and 9). So are its module
            and primary device: tests for several devices ask for them as they are generated.
        identities: by class and name of every generated test, which.
    """

    base: ClassVar[Any]
    device_type: ClassVar[str]
    hooks: ClassVar[Hooks]
    identities: ClassVar[dict[tuple[str, str], Identity]]
    op_overrides: ClassVar[dict[str, list[Any]] | None]
    _narrowed: ClassVar[list[tuple[Any, list[Any]]]]

    # PyTorch looks at the number of parameters (gap 8).
    @classmethod
    def instantiate_test(
        cls, name: str, test: Callable[..., Any], *, generic_cls: type | None = None
    ) -> None:
        generic = generic_cls.__name__ if generic_cls else cls.__name__
        cls._prepare(generic)
        before = set(vars(cls))
        try:
            super().instantiate_test(name, test, generic_cls=generic_cls)  # type: ignore[misc]
        except ValueError as error:
            # Only where it was the allowlist that left nothing (gap 1).
            if _EMPTY not in str(error) or not any(w and not o.op_list for o, w in cls._narrowed):
                raise
        finally:
            for ops, whole in cls._narrowed:
                ops.op_list = whole  # the decorator is shared by all device types (gap 2)
        for generated in [n for n in vars(cls) if n not in before]:
            cls._finish(generated, identity_of(generic, name, vars(cls)[generated]))

    @classmethod
    def _prepare(cls, generic: str) -> None:
        if cls.hooks.op_overrides and cls.base.op_overrides is None:
            cls.base.op_overrides = _decorators(cls.hooks.op_overrides)
        if generic in cls.hooks.bypass:
            cls.bypass_device_restrictions = True  # type: ignore[attr-defined]
        cls._narrowed = []

    @classmethod
    def _apply_op_allowlist(cls, ops: Any) -> None:
        cls._narrowed.append((ops, ops.op_list))
        super()._apply_op_allowlist(ops)  # type: ignore[misc]
        for op in ops.op_list:
            if (names := cls.hooks.op_dtypes.get(op.full_name)) is not None:
                op.dtypesIf[cls.device_type] = {getattr(torch, name) for name in names}

    @classmethod
    def _finish(cls, generated: str, test: Identity) -> None:
        """What no native hook can ask of one generated test (gaps 5 and 14)."""
        case = next((case for case in cls.hooks.cases if case.matches(test)), None)
        action = case.action if case else Keep()
        if isinstance(action, Drop) or cls._beyond(test):
            delattr(cls, generated)
            return
        cls.identities[cls.__name__, generated] = test
        match action:
            case Expect():
                rule = case.rule if case else ""
                setattr(cls, generated, expecting(vars(cls)[generated], action, rule))
            case Tolerance():
                setattr(cls, generated, _within(vars(cls)[generated], action))
            case Keep():
                pass

    @classmethod
    def _beyond(cls, test: Identity) -> bool:
        """Whether a dtype is none of the op's, however the test came by it."""
        dtypes, dtype = cls.hooks.op_dtypes.get(test.value("op")), test.value("dtype")
        return dtypes is not None and dtype != "" and dtype not in dtypes

    def _should_stop_test_suite(self) -> bool:
        return False  # whoever runs the tests restarts what has died


def _within(test: Callable[..., Any], within: Tolerance) -> Callable[..., Any]:
    @wraps(test)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept = self.precision, self.rel_tol
        self.precision, self.rel_tol = wanted = within.atol, within.rtol
        # What the test itself asks for a dtype would win over the two.
        self._get_tolerance_override = lambda *_: wanted
        try:
            return test(self, *args, **kwargs)
        finally:
            del self._get_tolerance_override
            self.precision, self.rel_tol = kept

    return run


def _decorators(overrides: Mapping[str, tuple[Override, ...]]) -> dict[str, list[Any]]:
    from torch.testing._internal.opinfo.core import DecorateInfo

    return {
        op: [
            DecorateInfo(
                _decorator(o), o.cls, None if o.method == "*" else o.method,
                dtypes=[getattr(torch, d) for d in o.dtypes] or None,
            )
            for o in listed
        ]
        for op, listed in overrides.items()
    }  # fmt: skip


def _decorator(override: Override) -> Any:
    from torch.testing._internal.common_device_type import tol, toleranceOverride

    match override.action:
        case Drop():
            return unittest.skip(f"{override.rule}: {override.reason}")
        case Tolerance(atol, rtol):
            dtypes = [getattr(torch, d) for d in override.dtypes] or _INEXACT
            return toleranceOverride({dtype: tol(atol=atol, rtol=rtol) for dtype in dtypes})
