"""What LX keeps between launches: a launch finds it there, and never what is not right any more."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from openspyre.card.native import NO_DEBUG, DebugMode, LoadedProgram, SoftwareCard
from openspyre.errors import CardError, InvalidProgram
from openspyre.ir.binary import decode, encode
from openspyre.ir.program import Copy, Program, Slot
from openspyre.ir.text_program import parse_program, print_program
from openspyre.numerics import IEEE, parse_numerics
from tests.card.hand_programs import buffers, copies, device, kept_copies, local

ROWS, COLUMNS, CORES = 16, 64, 4
BYTES = ROWS * COLUMNS * 2
STEPS = ((0, COLUMNS * 2), (1, 2))
MODES = (NO_DEBUG, DebugMode.LATE | DebugMode.POISON)


def keeping(offset: int = 0) -> Program:
    """The prologue loads argument 0, the rest stores it to argument 1."""
    return replace(kept_copies(ROWS, COLUMNS, CORES, offset=offset), name=f"at {offset}")


class Bench:
    """A card with weights `a` and `b`, results, and programs that keep and do not."""

    def __init__(self, debug: DebugMode = NO_DEBUG) -> None:
        self.card = SoftwareCard(memory=1 << 24, threads=2, debug=debug)
        self.card.allocate(BYTES)  # so that there are bytes before `a`
        self.a, self.b, self.out, self.spare = (self.card.allocate(BYTES) for _ in range(4))
        self.values = 0.0
        for address in (self.a, self.b, self.spare):
            self.write(address)
        self.kept = self.card.load_program(keeping())
        self.apart = self.card.load_program(keeping(offset=4096))
        self.wide = self.card.load_program(copies(ROWS, COLUMNS, CORES, tile=4, slots=2))

    def close(self) -> None:
        for loaded in (self.kept, self.apart, self.wide):
            self.card.unload(loaded)
        self.card.close()

    def write(self, address: int, count: int = BYTES, start: int = 0) -> None:
        self.values += 1.0
        data = np.full(count // 2, self.values, np.float16).tobytes()
        self.card.write(address + start, data)

    def right(self, loaded: LoadedProgram, source: int, numerics: str = "") -> None:
        """Launches, and sees that what was stored is what the source holds now."""
        wanted = self.card.read(source, BYTES)
        chosen = parse_numerics(numerics) if numerics else IEEE
        self.card.launch(loaded, [source, self.out], numerics=chosen)
        assert self.card.read(self.out, BYTES) == wanted

    def counts(self, name: str = "at 0") -> tuple[int, int]:
        """(loads, hits) of a program for which LX holds something."""
        found = [one for one in self.card.kept() if one.name == name]
        return (found[0].loads, found[0].hits) if found else (0, 0)


@pytest.fixture(params=MODES, ids=["plain", "debug"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    made.close()


def test_a_later_launch_leaves_the_prologue_out(bench: Bench) -> None:
    assert not bench.card.kept()
    for hits in range(3):
        bench.right(bench.kept, bench.a)
        assert bench.counts() == (1, hits)
    (one,) = bench.card.kept()
    assert one.bytes == BYTES


def test_the_values_come_from_lx(bench: Bench) -> None:
    """What nobody has told the card of is not seen: the prologue was really left out."""
    bench.right(bench.kept, bench.a)
    before = bench.card.read(bench.a, BYTES)
    ctypes.memset(bench.a, 0x3C, BYTES)
    bench.card.launch(bench.kept, [bench.a, bench.out])
    assert bench.card.read(bench.out, BYTES) == before != bench.card.read(bench.a, BYTES)


FORGETS: dict[str, Callable[[Bench], object]] = {
    "written": lambda b: b.write(b.a),
    "first byte written": lambda b: b.write(b.a, 2),
    "last byte written": lambda b: b.write(b.a, 2, BYTES - 2),
    "released": lambda b: b.card.release(b.a, BYTES),
    "stored by a launch": lambda b: b.card.launch(b.wide, [b.spare, b.a]),
    "LX used": lambda b: b.card.launch(b.wide, [b.spare, b.out]),
    "kept from elsewhere": lambda b: b.right(b.kept, b.b),
    "evicted": lambda b: b.card.evict(),
    "other numerics": lambda b: b.right(b.kept, b.a, "card"),
}
KEEPS: dict[str, Callable[[Bench], object]] = {
    "another range written": lambda b: b.write(b.b),
    "the bytes before": lambda b: b.card.write(b.a - 2, b"\0\0"),
    "the bytes behind": lambda b: b.card.write(b.a + BYTES, b"\0\0"),
    "its result written": lambda b: b.write(b.out),
    "other LX used": lambda b: b.right(b.apart, b.b),
    "the program timed": lambda b: b.card.time(b.kept, bytes(16)),
}


@pytest.mark.parametrize("event", FORGETS)
def test_what_is_not_right_any_more_is_loaded_again(bench: Bench, event: str) -> None:
    bench.right(bench.kept, bench.a)
    bench.right(bench.kept, bench.a)
    loads, hits = bench.counts()
    FORGETS[event](bench)
    extra = event in ("kept from elsewhere", "other numerics")
    bench.right(bench.kept, bench.a)
    assert bench.counts() == (loads + 1 + extra, hits)


@pytest.mark.parametrize("event", KEEPS)
def test_what_stays_right_is_kept(bench: Bench, event: str) -> None:
    bench.right(bench.kept, bench.a)
    KEEPS[event](bench)
    bench.right(bench.kept, bench.a)
    assert bench.counts() == (1, 1)


def test_two_programs_apart_in_lx_keep_both(bench: Bench) -> None:
    for _ in range(3):
        bench.right(bench.kept, bench.a)
        bench.right(bench.apart, bench.b)
    assert bench.counts("at 0") == bench.counts("at 4096") == (1, 2)


def test_a_launch_that_fails_keeps_nothing(bench: Bench) -> None:
    bench.right(bench.kept, bench.a)
    with pytest.raises(CardError):
        bench.card.launch(bench.kept, [bench.a, 16])  # no device memory
    bench.right(bench.kept, bench.a)
    assert bench.counts() == (2, 1)  # it had found what it keeps


def test_an_unloaded_program_keeps_nothing() -> None:
    with SoftwareCard(memory=1 << 24) as card:
        source, out = card.store(bytes(BYTES)), card.allocate(BYTES)
        loaded = card.load_program(keeping())
        card.launch(loaded, [source, out])
        assert len(card.kept()) == 1
        card.unload(loaded)
        assert not card.kept()


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_launches_and_writes(seed: int) -> None:
    """Random steps: every launch stores what its source holds at that moment."""
    draw = random.Random(seed)
    bench = Bench(draw.choice(MODES))
    steps: list[Callable[[], object]] = [
        lambda: bench.right(bench.kept, draw.choice((bench.a, bench.b))),
        lambda: bench.right(bench.apart, draw.choice((bench.a, bench.b))),
        lambda: bench.right(bench.wide, bench.spare),
        lambda: bench.card.launch(bench.wide, [bench.spare, draw.choice((bench.a, bench.b))]),
        lambda: bench.write(draw.choice((bench.a, bench.b)), 2, 2 * draw.randrange(BYTES // 2)),
        lambda: bench.card.evict(),
    ]
    for _ in range(60):
        draw.choices(steps, (6, 6, 1, 1, 2, 1))[0]()
    assert any(one.hits for one in bench.card.kept()) or bench.counts() == (0, 0)
    bench.close()


# --- forms ---------------------------------------------------------------------------------------


def test_a_program_with_a_prologue_is_written_and_read() -> None:
    made = keeping()
    assert decode(encode(made)) == made
    assert parse_program(print_program(made)) == made
    assert print_program(made).splitlines()[0].endswith("prologue 1")


def test_a_later_launch_is_timed_without_the_prologue(bench: Bench) -> None:
    block = bench.card.fill(bench.kept, [bench.a, bench.out])
    whole, kept = bench.card.time(bench.kept, block), bench.card.time(bench.kept, block, kept=True)
    rest = replace(keeping(), sections=keeping().sections[1:], prologue=0)
    alone = bench.card.load_program(rest)
    assert kept == bench.card.time(alone, block)
    bench.card.unload(alone)
    assert (whole.device_read_bytes, kept.device_read_bytes) == (BYTES, 0)
    assert kept.cycles < whole.cycles


def wrong(change: str) -> Program:
    """A program whose prologue cannot be left out."""
    made = keeping()
    keep, use = made.sections
    kept = local(0, STEPS)
    first, second = buffers((made.buffers[0].bytes, 1), (made.buffers[0].bytes, 1))
    match change:
        case "longer than its program":
            return replace(made, prologue=3)
        case "something else than load":
            return replace(made, prologue=2)
        case "double buffer":
            return replace(made, buffers=(replace(made.buffers[0], slots=2),))
        case "is written":
            return replace(made, sections=(keep, replace(use, body=(*keep.body, *use.body))))
        case "another buffer shares bytes":
            return replace(made, buffers=(first, replace(first, name="other")))
        case "buffers of a prologue share bytes":
            again = Copy((0, 1), device(0, STEPS), local(1, STEPS))
            body = (*keep.body, again)
            shifted = replace(second, offset=first.offset + 128)
            return replace(made, buffers=(first, shifted), sections=(replace(keep, body=body), use))
        case _:  # it loads from the pool
            pool = Copy((0, 1), replace(device(0, STEPS), argument=-1, base=Slot(0)), kept)
            return replace(made, sections=(replace(keep, body=(pool,)), use))


@pytest.mark.parametrize(
    "why",
    [
        "longer than its program", "something else than load", "double buffer", "is written",
        "another buffer shares bytes", "buffers of a prologue share bytes", "load from arguments",
    ],
)  # fmt: skip
def test_a_prologue_that_cannot_be_left_out_is_refused(why: str) -> None:
    with SoftwareCard(memory=1 << 24) as card, pytest.raises(InvalidProgram, match=why):
        card.load_program(wrong(why))
