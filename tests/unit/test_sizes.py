"""Classes of sizes: how wide they are, and that they part all sizes."""

from __future__ import annotations

from itertools import product

from openspyre.ir.kernel import Kernel
from openspyre.ir.text import parse_kernel
from openspyre.runtime.sizes import classes_within, limits_of


def added(dims: int) -> Kernel:
    names = [f"s{n}" for n in range(dims)]
    shape, at = ", ".join(names), ", ".join(f"i{n}" for n in range(dims))
    walked = " ".join(f"i{n}:{name}" for n, name in enumerate(names))
    return parse_kernel(
        f"kernel added\nsymbols {' '.join(names)} p\narguments x y\n"
        f"input x: f32[{shape}] strides [p{', 1' * (dims - 1)}]\noutput y: f32[{shape}]\n"
        f"op y map {walked}\n  y[{at}] <- x[{at}] + 1.0\n"
    )


def test_classes_are_wide_where_there_are_many_sizes() -> None:
    assert limits_of(added(3), (9, 9, 9, 1))["s0"] == (9, 16)
    assert limits_of(added(4), (9, 9, 9, 9, 1))["s0"] == (9, 64)


def test_no_class_is_so_wide_that_its_largest_sizes_do_not_fit() -> None:
    """9 x 600 x 601 x 9 elements are 117 MB; the wide class of them would go up to 275 GB."""
    limits = limits_of(added(4), (9, 600, 601, 9, 1))
    assert limits == {"s0": (9, 16), "s1": (513, 1024), "s2": (513, 1024), "s3": (9, 16)} | {
        "p": limits["p"]
    }


def test_classes_part_the_sizes() -> None:
    """Every size is in the class that it falls into itself, and classes do not overlap."""
    kernel = added(4)
    ranges = {"s0": (0, 9), "s1": (500, 520), "s2": (4000, 5000), "s3": (60, 70), "p": (1, 1)}
    found = [tuple(limits_of(kernel, s).values())[:4] for s in classes_within(kernel, ranges)]
    assert len(set(found)) == len(found)
    assert len({high - low for _, *of in found for low, high in of}) > 3  # wide ones and others
    for sizes in product((0, 1, 2, 5, 9), (500, 512, 513, 520), (4000, 4096, 4097), (60, 64, 70)):
        inside = [
            of for of in found if all(a <= n <= b for n, (a, b) in zip(sizes, of, strict=True))
        ]
        assert inside == [tuple(limits_of(kernel, (*sizes, 1)).values())[:4]]
