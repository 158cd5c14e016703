"""Whether PyTorch has the hooks that we compile to: by their form, never by a version."""

from __future__ import annotations

import inspect


def findings() -> dict[str, bool]:
    """Each thing that is needed, and whether it is there."""
    from torch.testing._internal import common_device_type as native
    from torch.testing._internal.opinfo.core import DecorateInfo, OpInfo

    base = native.DeviceTypeTestBase
    parameters = inspect.signature(base.instantiate_test).parameters
    decorate = inspect.signature(DecorateInfo.__init__).parameters
    return {
        "set_test_configs(op_overrides, op_allowlist, test_exclusions)": _has(
            getattr(base, "set_test_configs", None),
            ("op_overrides", "op_allowlist", "test_exclusions"),
        ),
        "instantiate_test(name, test, *, generic_cls)": list(parameters)
        == ["name", "test", "generic_cls"],
        "_apply_op_allowlist(ops)": _has(getattr(base, "_apply_op_allowlist", None), ("ops",)),
        "bypass_device_restrictions": hasattr(base, "bypass_device_restrictions"),
        "DecorateInfo(decorators, cls_name, test_name, dtypes)": {
            "decorators", "cls_name", "test_name", "dtypes",
        } <= decorate.keys(),
        "OpInfo.dtypesIf": "dtypesIf" in OpInfo.__dataclass_fields__,
        "PrivateUse1TestBase": hasattr(native, "PrivateUse1TestBase"),
    }  # fmt: skip


def _has(function: object, names: tuple[str, ...]) -> bool:
    return callable(function) and {*names} <= inspect.signature(function).parameters.keys()
