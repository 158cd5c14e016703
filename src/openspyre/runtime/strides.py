"""Symbols that are nothing but strides: they place elements, and decide nothing."""

from __future__ import annotations

from openspyre.compiler.rewrite import indices
from openspyre.ir.kernel import Kernel


def stride_symbols(kernel: Kernel) -> frozenset[str]:
    """Symbols that occur in strides of tensors and nowhere else."""
    strides = {n for t in kernel.tensors.values() for e in t.strides for n in e.names}
    others = {n for t in kernel.tensors.values() for e in t.shape for n in e.names}
    for op in kernel.ops:
        extents = [dim.extent for dim in (*op.dims, *op.rdims)]
        extents += [lookup.size for lookup in op.lookups]
        others |= {n for e in (*extents, *indices(op)) for n in e.names}
    return frozenset(strides - others)
