"""Room in LX for operands that are loaded before the step they are for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from openspyre.compiler.axes import step_ops
from openspyre.compiler.packing import Span, best_fit, highest_fit
from openspyre.compiler.residency import ALWAYS, SLACKS, below_weights, offsets_of
from openspyre.compiler.tiles import Content, Tile
from openspyre.ir.kernel import Kernel, Residency, Space
from openspyre.spec import CardSpec


class Room:
    """What lies in LX during every step: kept tensors, and tiles."""

    def __init__(self, kernel: Kernel, card: CardSpec) -> None:
        self.kernel, self.card = kernel, card
        self.end = below_weights(kernel, card)
        self.rows = dict(kernel.residency)
        self.live: list[dict[str, Residency]] = [{} for _ in kernel.steps]
        self._enter(self.rows)
        self.tiles = [frozenset(n for n in live if n not in kernel.tensors) for live in self.live]

    def replace_tiles(self, number: int, rows: Mapping[str, Residency]) -> None:
        """Gives a step other tiles."""
        for name in self.tiles[number]:
            row = self.rows.pop(name)
            for step in range(row.first, row.last + 1):
                del self.live[step][name]
        self.tiles[number] = frozenset(rows)
        self.rows |= rows
        self._enter(rows)

    def _enter(self, rows: Mapping[str, Residency]) -> None:
        for name, row in rows.items():
            if row.space is Space.LX:
                for step in range(row.first, row.last + 1):
                    self.live[step][name] = row

    def with_early(
        self, number: int, tiles: Sequence[Tile], early: Mapping[str, int]
    ) -> dict[str, Residency] | None:
        """The rows of a step's tiles if some of its operands are loaded early.

        None if they do not fit, or only if tiles share bytes that need not without.

        Args:
            early: tensors, and the steps during which they are loaded.
        """
        return self._rows(number, tiles, early, high=False) or self._rows(
            number, tiles, early, high=True
        )

    def _rows(
        self, number: int, tiles: Sequence[Tile], early: Mapping[str, int], *, high: bool
    ) -> dict[str, Residency] | None:
        """The same, with what is loaded early as low as possible, or as high."""
        granule, end = self.card.lx_granule, self.end
        pinned: dict[str, Residency] = {}
        new = [t for t in tiles if t.content is Content.OPERAND and t.tensor in early]
        for tile in sorted(new, key=lambda t: -t.bytes):
            during = early[tile.tensor]
            spans = self._taken(during, number)
            spans += (Span(r.offset, r.bytes, 0, ALWAYS) for r in pinned.values())
            offset = (
                highest_fit(tile.bytes, spans, end, granule)
                if high
                else best_fit(tile.bytes, 0, ALWAYS, spans, granule)
            )
            if offset is None or offset + tile.bytes > end:
                return None
            pinned[tile.name] = Residency(Space.LX, offset, tile.bytes, during, number)
        rest = [t for t in tiles if t.name not in pinned]
        offsets = self._packed(number, tiles, rest, pinned)
        if offsets is None:
            return None
        found = {
            tile.name: Residency(Space.LX, offset, tile.bytes * tile.slots, number, number)
            for tile, offset in zip(rest, offsets, strict=True)
        }
        return found | pinned

    def _taken(self, first: int, last: int) -> list[Span]:
        """What lies in LX in one of some steps, but for tiles of the last."""
        rows = {n: r for step in range(first, last + 1) for n, r in self.live[step].items()}
        own = self.tiles[last]
        return [Span(r.offset, r.bytes, 0, ALWAYS) for n, r in rows.items() if n not in own]

    def _packed(
        self,
        number: int,
        tiles: Sequence[Tile],
        rest: Sequence[Tile],
        pinned: Mapping[str, Residency],
    ) -> list[int] | None:
        """Offsets for the rest of a step's tiles, with as much slack as without what is pinned."""
        last = {t.name: t.last for t in tiles}
        taken = self._taken(number, number)
        ops = step_ops(self.kernel, self.kernel.steps[number])
        for slack in SLACKS:
            beside = [
                Span(r.offset, r.bytes, 0, ALWAYS if slack is None else last[name])
                for name, r in pinned.items()
            ]
            found = offsets_of(rest, ops, [*taken, *beside], slack, self.end, self.card)
            if found is not None:
                return found
            if offsets_of(tiles, ops, taken, slack, self.end, self.card) is not None:
                break
        return None
