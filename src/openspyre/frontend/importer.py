"""Scheduler nodes of one flush -> one Kernel. The only reader of Inductor's loop bodies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V

from openspyre.errors import SpyreError, Unsupported
from openspyre.frontend.addresses import Placement
from openspyre.frontend.inlined import inlined
from openspyre.frontend.nest import Nest
from openspyre.frontend.recorder import Recorder
from openspyre.frontend.regions import Region, Site
from openspyre.frontend.sizes import Symbols, size
from openspyre.frontend.sources import source_of
from openspyre.frontend.values import stored
from openspyre.ir.index import Expr
from openspyre.ir.kernel import Dim, DType, Kernel, Role, Tensor


def imported(
    nodes: Sequence[BaseSchedulerNode],
    *,
    local: Collection[str],
    name: str,
    source: Callable[[Any], str] | None = None,
) -> Kernel:
    """The kernel that computes `nodes` in order.

    Args:
        local: buffers that nobody outside these nodes reads.
        source: where a buffer comes from, in words; the user's line if it is not given.

    Raises:
        Unsupported: a dtype or an operation the card does not have, with the user's line.
    """
    return inlined(_Import(nodes, frozenset(local), source or source_of).kernel(name))


class _Import:
    def __init__(
        self,
        nodes: Sequence[BaseSchedulerNode],
        local: frozenset[str],
        source: Callable[[Any], str],
    ) -> None:
        self.nodes, self.local, self.source = nodes, local, source
        self.region = Region()
        self.sites: dict[str, Site] = {}
        self.renames: Mapping[str, str] = V.graph.scheduler.mutation_real_name
        self.born = {b.get_name() for n in nodes for b in n.get_outputs()}
        self.order: list[str] = []
        self.written = self._written()
        self.whole = self._assembled()

    def kernel(self, name: str) -> Kernel:
        for node in self.nodes:
            self._add(node)
        return self.region.finished(name, self.order)

    # --- buffers ---

    def _written(self) -> frozenset[str]:
        """Tensors that a node of this region stores to."""
        names = {b.get_name() for n in self.nodes for b in n.get_outputs()}
        return frozenset(self._base(n)[0] for n in names)

    def _assembled(self) -> frozenset[str]:
        """Buffers written only through views, all of whose pieces are written here."""
        pieces: dict[str, list[str]] = {}
        for name, buffer in V.graph.name_to_buffer.items():
            if isinstance(buffer.layout, ir.NonOwningLayout):
                pieces.setdefault(self._base(name)[0], []).append(name)
        return frozenset(b for b, parts in pieces.items() if set(parts) <= self.born)

    def _base(self, name: str) -> tuple[str, Expr]:
        """The buffer that owns the memory of `name`, and what to add to an address of `name`."""
        name = self.renames.get(name, name)
        layout = V.graph.get_buffer(name).get_output_spec()
        shift = Expr.of(0)
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            return self._base(layout.get_buffer().get_name())
        if isinstance(layout, ir.NonOwningLayout):
            view = layout.view
            inner = view.unwrap_view() if isinstance(view, ir.BaseView) else view
            owner, more = self._base(inner.get_name())
            shift = size(view.get_layout().offset) - size(layout.offset) + more
            return owner, shift
        return name, shift

    def site(self, name: str) -> Site:
        """Where addresses of a buffer lead; makes the tensor on first use."""
        if name not in self.sites:
            if V.graph.try_get_buffer(name) is None:
                self.sites[name] = self._number(name)
                return self.sites[name]
            base, shift = self._base(name)
            if base == name:
                self.sites[name] = self._tensor(name)
            else:
                owner = self.site(base)
                self.sites[name] = Site(
                    owner.tensor, owner.dtype, owner.placement, owner.shift + shift
                )
        return self.sites[name]

    def _number(self, symbol: str) -> Site:
        """A float that a launch passes; its name is the graph's symbol for it."""
        self.region.tensors[symbol] = Tensor(symbol, DType.F32, (), Role.SCALAR)
        self.order.append(symbol)
        return Site(symbol, torch.float32, Placement((), ()), Expr.of(0))

    def _tensor(self, name: str) -> Site:
        buffer = V.graph.get_buffer(name)
        dtype, device = buffer.get_dtype(), buffer.get_device()
        shape = tuple(map(size, buffer.get_size()))
        at = self.region.source
        if device is not None and device.type == "cpu":
            tensor = _host_scalar(name, dtype, shape, at)
            placement, offset = Placement((), ()), Expr.of(0)
        else:
            layout = buffer.get_layout()
            placement = Placement(shape, tuple(map(size, layout.stride)))
            placement, offset = placement.flat(self._noted(placement)), size(layout.offset)
            role = self._role(name)
            kept = () if role is Role.LOCAL else placement.strides
            kind = stored(dtype, f"the tensor {name}", at)
            tensor = Tensor(name, kind, placement.shape, role, kept)
        self.region.tensors[name] = tensor
        self.order.append(name)
        return Site(name, dtype, placement, -offset)

    def _noted(self, placement: Placement) -> Symbols:
        """What is known of the region's symbols, those of a placement included."""
        for expr in (*placement.shape, *placement.strides):
            self.region.symbols.note(expr)
        return self.region.symbols

    def _role(self, name: str) -> Role:
        if name in self.local:
            return Role.LOCAL
        if name not in self.written:
            return Role.INPUT
        return Role.OUTPUT if name in self.born or name in self.whole else Role.MUTATED

    # --- nodes ---

    def _add(self, node: BaseSchedulerNode) -> None:
        computed = node.node
        if not isinstance(computed, ir.ComputedBuffer):
            raise Unsupported(f"a node of type {type(computed).__name__} in a region")
        self.region.source = self.source(computed)
        (extents, reduced), body, _ = computed.get_default_sizes_body()
        iteration = [_symbol("i", k) for k in range(len(extents))]
        reduction = [_symbol("r", k) for k in range(len(reduced))]
        dims = tuple(Dim(s.name, size(e)) for s, e in zip(iteration, extents, strict=True))
        rdims = tuple(Dim(s.name, size(e)) for s, e in zip(reduction, reduced, strict=True))
        recorder = Recorder(Nest(self.region, dims, rdims, node.get_name()), self.site)
        try:
            with V.set_ops_handler(recorder):
                body(iteration, reduction) if computed.get_reduction_type() else body(iteration)
        except SpyreError as error:
            if error.at or not self.region.source:
                raise
            raise type(error)(
                error.what, why=error.why, hint=error.hint, at=self.region.source
            ) from None


def _symbol(prefix: str, number: int) -> sympy.Symbol:
    return sympy.Symbol(f"{prefix}{number}", integer=True, nonnegative=True)


def _host_scalar(name: str, dtype: torch.dtype, shape: tuple[Expr, ...], at: str) -> Tensor:
    """A 0-dim CPU tensor, passed by value at launch."""
    if any(extent.constant != 1 for extent in shape):
        raise Unsupported(
            f"the CPU tensor {name} of shape {list(map(str, shape))} in a computation on the card",
            why="only 0-dim CPU tensors mix with tensors of the card",
            hint='move it first: .to("spyre")',
            at=at,
        )
    passed = DType.F32 if dtype == torch.float64 else stored(dtype, f"the CPU scalar {name}", at)
    return Tensor(name, passed, (), Role.SCALAR)
