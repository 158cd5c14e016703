"""Ways to go on from a kernel with layouts to a whole plan, for a clock to choose between.

What the ring moves hides behind other work or does not, which an average over its links cannot
tell. So a plan that takes it for free stands beside plans that take it to cost time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from openspyre.compiler.beside import least_beside
from openspyre.compiler.division import Divided, divide, divided
from openspyre.compiler.near_inputs import with_inputs_near
from openspyre.compiler.tiling import Look, looks, soonest_look
from openspyre.compiler.work import Works
from openspyre.ir.kernel import Kernel
from openspyre.spec import CardSpec


@dataclass(frozen=True, slots=True)
class Way:
    """A way to form steps and to divide and tile them.

    Attributes:
        formed: the kernel in steps.
        ring: whether moves on the ring are taken to cost time.
        free: estimated cycles if they cost none, which no plan of these steps should undercut.
        works: of the ops, with what is known of their costs.
        beside: whether steps are divided again by what stays in LX beside them.
    """

    name: str
    formed: Kernel
    ring: bool
    free: float
    works: Works
    beside: bool = False


def ways(kernel: Kernel, card: CardSpec) -> Iterator[Way]:
    """The way of `form_steps`, `divide` and `fit_tiles`; then others, by what they take at best.

    One alone where no step fetches anything from other cores, and no matmul its rows. Others are
    made up when they are asked for.
    """
    works = Works(kernel, card)
    found = list(looks(kernel, works, ring=True))
    known = {look.name: divided(look.kernel, works) for look in found}
    taken = soonest_look([look for look in found if not look.ring], known)
    yield _way(taken, known, works, ring=False)
    others = [_way(look, known, works, ring=True) for look in found if known[look.name].fetches]
    others += _with_inputs_near(taken, card)
    yield from sorted(others, key=lambda way: way.free)


def _with_inputs_near(look: Look, card: CardSpec) -> Iterator[Way]:
    """The steps of a look, with inputs that matmuls fetch on the ring."""
    formed = with_inputs_near(look.kernel, card)
    if formed is not None:
        works = Works(formed, card)
        free = least_beside(divide(formed, card, works=works, beside=True), works)
        yield Way(f"{look.name}, inputs are fetched", formed, False, free, works, beside=True)


def _way(look: Look, known: dict[str, Divided], works: Works, *, ring: bool) -> Way:
    name = f"{look.name}, the ring {'takes time' if ring else 'is free'}"
    return Way(name, look.kernel, ring, known[look.name].cycles, works)
