"""How far values are from what they should be, beyond what rounding explains. Needs no torch.

The yardstick is the kernel itself: evaluated again with every result off by as much as a unit of
the card may be (`reference.Noisy`), it shows how much of a difference no unit can be blamed for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openspyre.ir.kernel import DType
from openspyre.ir.ops import Array

# Half a unit in the last place, relative; float32: what sums in another order may be off.
_HALF = {
    DType.F16: 2.0**-11, DType.BF16: 2.0**-8, DType.F32: 2.0**-22,
    DType.F8E4M3: 2.0**-4, DType.F8E5M2: 2.0**-3,
}  # fmt: skip
_TIMES = 4.0  # of the difference that noise makes; two samples of it do not show its most


@dataclass(frozen=True, slots=True)
class Difference:
    """One tensor beside what it should be.

    Attributes:
        wrong: elements beyond what rounding explains; 0 where only the norm is.
        at: the worst of them.
        error: norm of the difference over that of what it should be.
        allowed: the largest error that rounding explains.
    """

    tensor: str
    wrong: int
    count: int
    at: tuple[int, ...]
    got: float
    expected: float
    error: float
    allowed: float

    @property
    def bad(self) -> bool:
        """Whether rounding does not explain it."""
        return self.wrong > 0 or self.error > self.allowed

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.at))}]"
        return (
            f"{self.tensor}: {self.wrong} of {self.count} elements, error {self.error:.2g} where"
            f" rounding explains {self.allowed:.2g}; {self.tensor}{place} is {self.got:.6g} instead"
            f" of {self.expected:.6g}"
        )


def differences(
    got: Mapping[str, Array], expected: Mapping[str, Array], noisy: Sequence[Mapping[str, Array]],
    dtypes: Mapping[str, DType],
) -> tuple[Difference, ...]:  # fmt: skip
    """Every tensor of `got`, in its order."""
    return tuple(
        difference(name, values, expected[name], [one[name] for one in noisy], dtypes[name])
        for name, values in got.items()
    )


def difference(
    tensor: str, got: Array, expected: Array, noisy: Sequence[Array], dtype: DType
) -> Difference:
    """One tensor.

    Args:
        noisy: what it is with noise.
    """
    if not expected.size:
        return Difference(tensor, 0, 0, (), 0.0, 0.0, 0.0, 0.0)
    if not dtype.is_float:
        return _of_integers(tensor, got, expected, noisy)
    x, y = expected.astype(np.float64), got.astype(np.float64)
    others = [one.astype(np.float64) for one in noisy]
    finite = np.isfinite(x)
    with np.errstate(all="ignore"):
        scale = np.abs(x) + _usual(x[finite])
        off = np.where(finite, np.abs(y - x) / scale, 0.0)
        shaken = [np.where(finite, np.abs(o - x) / scale, 0.0) for o in others]
        stable = np.all([np.isfinite(o) == finite for o in others], axis=0)
    noise = max((float(s[np.isfinite(s)].max(initial=0.0)) for s in shaken), default=0.0)
    half = _HALF[dtype]
    special = ~finite & (y != x) & ~(np.isnan(x) & np.isnan(y)) & stable
    wrong = ~(off <= _TIMES * noise + 2 * half) & stable | special
    worst = int(np.argmax(np.where(wrong, np.nan_to_num(off, nan=np.inf), -1.0)))
    both = finite & np.isfinite(y)
    error = _relative(y, x, both)
    allowed = _TIMES * max((_relative(o, x, finite & np.isfinite(o)) for o in others), default=0.0)
    at = tuple(int(i) for i in np.unravel_index(worst, x.shape))
    return Difference(
        tensor, int(wrong.sum()), x.size, at, float(y[at]), float(x[at]), error, allowed + half
    )  # fmt: skip


def _usual(values: Array) -> float:
    """The size that values usually have: a few huge ones (the lowest number as a mask) or many
    zeros say nothing of the others.
    """
    sizes = np.abs(values[values != 0])
    return float(np.median(sizes)) if sizes.size else 1.0


def _of_integers(tensor: str, got: Array, expected: Array, noisy: Sequence[Array]) -> Difference:
    """Integers and bools are equal, but for as many as noise flips."""
    wrong = np.asarray(got.astype(np.int64) != expected.astype(np.int64))
    flips = max((int((one != expected).sum()) for one in noisy), default=0)
    count = int(wrong.sum())
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    excused = count <= _TIMES * flips
    error, allowed = count / wrong.size, _TIMES * flips / wrong.size
    return Difference(
        tensor, 0 if excused else count, wrong.size, at, float(got[at]), float(expected[at]),
        error, allowed,
    )  # fmt: skip


def _relative(y: Array, x: Array, where: Array) -> float:
    size = float(np.linalg.norm(x[where]))
    return float(np.linalg.norm((y - x)[where])) / (size or 1.0)


def relative_error(got: Array, exact: Array) -> float:
    """Norm of the difference over that of what is exact; inf where one is finite alone."""
    y, x = got.astype(np.float64), exact.astype(np.float64)
    if not x.size:
        return 0.0
    if bool(np.any(np.isfinite(y) != np.isfinite(x))):
        return float("inf")
    with np.errstate(all="ignore"):
        return _relative(y, x, np.isfinite(x))
