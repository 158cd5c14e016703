"""The sizes that an engine's steps can have, in boxes: one program of a kernel serves a box.

A box spans a factor of four in each size that a plan follows: classes of two would be several times
as many programs, for launches that mostly take as long (`docs/decisions/0048.md`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from openspyre.runtime.sizes import Range, size_class
from openspyre.vllm.one_graph import Box

_FACTOR = 4
_MANY = 64  # columns: with more, a plan for twice the rows would leave half of the cores idle


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine's steps are limited to.

    Attributes:
        requests: in a step.
        tokens: new ones in a step.
        context: tokens of a request.
        block: tokens of a page.
    """

    requests: int
    tokens: int
    context: int
    block: int

    @property
    def pages(self) -> int:
        """The most pages of a request."""
        return -(-self.context // self.block)


def spans(most: int, factor: int = _FACTOR) -> list[Range]:
    """Ranges from 1 to `most`, the end of each so many times that of the one before.

    >>> spans(40)
    [(1, 1), (2, 4), (5, 16), (17, 40)]
    """
    found: list[Range] = [(1, 1)]
    while (end := found[-1][1]) < most:
        found.append((end + 1, min(factor * end, most)))
    return found


def attend_boxes(limits: Limits, blocks: int) -> Iterator[Box]:
    """Those of `paged.write_and_attend`: rectangles of at least two columns.

    Args:
        blocks: pages of the cache.
    """
    cells, requests = max(limits.tokens, 2), min(limits.requests, limits.tokens)
    widest = max(min(limits.tokens, limits.context), 2)
    for column, page in product(spans(widest)[1:], spans(limits.pages)):
        for row in spans(requests, 2 if column[0] > _MANY else _FACTOR):
            if row[0] * column[0] <= cells and column[0] <= page[1] * limits.block:
                yield {"rows": row, "columns": column, "pages": page, **_of_step(limits, blocks)}


def decode_boxes(limits: Limits, blocks: int) -> Iterator[Box]:
    """Those of `paged.write_and_decode`: its tokens are as many as the requests."""
    rows = spans(min(limits.requests, limits.tokens))
    for row, page in product(rows, spans(limits.pages)):
        yield {**_of_step(limits, blocks), "tokens": row, "pages": page}


def whole_boxes(limits: Limits) -> Iterator[Box]:
    """Those of `encoder.attend_whole`: rectangles of whole requests."""
    requests = min(limits.requests, limits.tokens)
    for column in spans(min(limits.context, limits.tokens)):
        for row in spans(requests, 2 if column[0] > _MANY else _FACTOR):
            if row[0] * column[0] <= limits.tokens:
                yield {"rows": row, "columns": column, "tokens": (1, limits.tokens)}


def slot_boxes(tokens: int, requests: int) -> Iterator[Box]:
    """Those of `kernels.slots`, of at most so many tokens and requests."""
    for some in spans(tokens):
        yield {"tokens": some, "rows": (1, requests), "requests": size_class(requests)}


def _of_step(limits: Limits, blocks: int) -> Box:
    # No plan follows these: tokens only place what the rectangle has, and writing is little.
    every = (1, limits.tokens)
    return {"tokens": every, "written": every, "blocks": size_class(blocks)}
