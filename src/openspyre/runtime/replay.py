"""Saved launches again: on a card of its own, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from openspyre.card.native import NO_DEBUG, DebugMode, LoadedProgram, Report, SoftwareCard
from openspyre.compiler.pipeline import compile_kernel
from openspyre.errors import BrokenInvariant, SpyreError
from openspyre.ir.binary import decode, encode
from openspyre.ir.kernel import Kernel, Role
from openspyre.ir.text import parse_kernel
from openspyre.numerics import parse_numerics
from openspyre.runtime.check import argument_spans, check_program
from openspyre.runtime.clock import card_timer
from openspyre.runtime.host_memory import HOST_SHARE, available_host_memory
from openspyre.runtime.saved import InvalidRun, Launch, SavedKernel, Use
from openspyre.runtime.sizes import limits_of
from openspyre.spec import CardSpec

_ROOM = 1 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the launches of a kernel with some sizes.

    Attributes:
        problem: what is wrong with the program, its compilation or its run; empty if nothing.
        cycles, recorded_cycles: of one launch now and then; None where there is no program.
        ran: whether values were computed and compared.
        differing: bytes of the results that are not what they were.
        first: where the first of them is.
        why_not: why it could not run; empty where it ran.
    """

    kernel: str
    sizes: tuple[int, ...]
    problem: str = ""
    cycles: int | None = None
    recorded_cycles: int | None = None
    ran: bool = False
    differing: int = 0
    first: str = ""
    why_not: str = ""

    @property
    def ok(self) -> bool:
        """Whether the program is right and gives what it gave; another time is no failure."""
        return not self.problem and not self.differing


def replayed(
    kernel: SavedKernel, card: CardSpec, *, again: bool = False, debug: DebugMode = NO_DEBUG
) -> Iterator[Outcome]:
    """What becomes of everything that was kept of a kernel.

    Args:
        again: compile it with this version's compiler instead of using the saved program.
        debug: modes of the card for the runs.
    """
    region = parse_kernel(kernel.text)
    if any(len(one) != len(region.symbols) for one in _all_sizes(kernel)):
        raise InvalidRun(f"{kernel.name} was launched with other sizes than its text has")
    if any(len(b.before) != len(b.after) for one in kernel.launches for b in one.blocks):
        raise InvalidRun(f"a block of {kernel.name} has another size after the launch")
    for sizes in kernel.refused:
        yield _refused(kernel, region, sizes, card)
    launches = {(one.variant, one.sizes): one for one in reversed(kernel.launches)}
    for use in kernel.uses:
        found = launches.get((use.variant, use.sizes))
        yield _replayed(kernel, region, use, found, card, again=again, debug=debug)


def _all_sizes(kernel: SavedKernel) -> list[tuple[int, ...]]:
    return [*(use.sizes for use in kernel.uses), *kernel.refused]


def _refused(
    kernel: SavedKernel, region: Kernel, sizes: tuple[int, ...], card: CardSpec
) -> Outcome:
    outcome = Outcome(kernel.name, sizes, why_not="it did not compile when it was recorded")
    try:
        _compiled(region, sizes, card)
    except (SpyreError, BrokenInvariant) as error:
        return replace(outcome, problem=str(error))
    return replace(outcome, why_not="it did not compile when it was recorded; now it does")


def _compiled(region: Kernel, sizes: tuple[int, ...], card: CardSpec) -> bytes:
    limited = replace(region, limits=limits_of(region, sizes))
    return encode(compile_kernel(limited, card, timer=card_timer(card)))


def _replayed(
    kernel: SavedKernel, region: Kernel, use: Use, launch: Launch | None, card: CardSpec, *,
    again: bool, debug: DebugMode,
) -> Outcome:  # fmt: skip
    outcome = Outcome(kernel.name, use.sizes, recorded_cycles=use.report.get("cycles"))
    sizes = dict(zip(region.symbols, use.sizes, strict=True))
    why_not = "its memory was not kept" if launch is None else launch.why_not
    try:
        saved = kernel.variants[use.variant].program
        data = _compiled(region, use.sizes, card) if again else saved
        check_program(decode(data), region, [sizes], card)
        with machine_with(memory_for(launch, data), card, debug, data) as (machine, loaded):
            report = _timed(machine, loaded, decode(data).arguments, use.sizes)
            outcome = replace(outcome, cycles=report.cycles, why_not=why_not)
            if launch is None or why_not:
                return outcome
            return _compared(outcome, blocks_after(machine, loaded, launch), launch, region, sizes)
    except (SpyreError, BrokenInvariant, MemoryError) as error:
        return replace(outcome, problem=str(error), why_not=why_not)


@contextmanager
def machine_with(
    memory: int, card: CardSpec, debug: DebugMode, data: bytes
) -> Iterator[tuple[SoftwareCard, LoadedProgram]]:
    """A card of its own with so much memory, and a program in it.

    Raises:
        MemoryError: this host has not that much left.
    """
    if memory > HOST_SHARE * available_host_memory():
        raise MemoryError(
            f"the launch takes {memory} bytes of memory, which this host has not left"
        )
    with SoftwareCard(memory=memory, spec=card, debug=debug) as machine:
        loaded = machine.load(machine.store(data), len(data))
        try:
            yield machine, loaded
        finally:
            machine.unload(loaded)


def memory_for(launch: Launch | None, data: bytes) -> int:
    """Bytes of device memory that a program and its launch need, and room for slots."""
    blocks = () if launch is None else launch.blocks
    needed = sum(len(b.before) for b in blocks) + 256 * len(blocks)
    return needed + len(data) + decode(data).pool_bytes + _ROOM


def _timed(
    machine: SoftwareCard, loaded: LoadedProgram, counts: tuple[int, int, int],
    sizes: tuple[int, ...],
) -> Report:  # fmt: skip
    base = machine.memory_base
    addresses, scalars = [base] * counts[0], [0.0] * counts[2]
    return machine.time(loaded, machine.fill(loaded, addresses, sizes, scalars, base))


def blocks_after(machine: SoftwareCard, loaded: LoadedProgram, launch: Launch) -> list[bytes]:
    """The blocks after the launch. They lie as they lay, modulo a stick."""
    stick = machine.spec.stick_bytes
    places = []
    for block in launch.blocks:
        address = machine.allocate(len(block.before) + block.phase, stick) + block.phase
        machine.write(address, block.before)
        places.append(address)
    addresses = [
        places[number] + offset if number >= 0 else machine.memory_base
        for number, offset in launch.arguments
    ]
    pool = machine.allocate(loaded.pool_bytes, stick)
    numerics = parse_numerics(launch.numerics)
    arguments = loaded, addresses, launch.sizes, launch.scalars, pool, numerics
    run_interruptibly(machine, lambda: machine.launch(*arguments))
    blocks = zip(places, launch.blocks, strict=True)
    return [machine.read(address, len(block.after)) for address, block in blocks]


def run_interruptibly(machine: SoftwareCard, launch: Callable[[], None]) -> None:
    """A launch on a thread of its own, so that Ctrl-C ends it."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(launch)
        try:
            running.result()
        except KeyboardInterrupt:
            while not running.done():
                machine.interrupt()
                wait([running], 0.01)
            raise


def _compared(
    outcome: Outcome, after: list[bytes], launch: Launch, region: Kernel, sizes: Mapping[str, int]
) -> Outcome:
    differing, first = 0, ""
    for number, (now, block) in enumerate(zip(after, launch.blocks, strict=True)):
        if now == block.after:
            continue
        places = [n for n, (a, b) in enumerate(zip(now, block.after, strict=True)) if a != b]
        differing += len(places)
        first = first or _place(number, places[0], launch, region, sizes)
    return replace(outcome, ran=True, differing=differing, first=first)


def _place(
    block: int, offset: int, launch: Launch, region: Kernel, sizes: Mapping[str, int]
) -> str:
    """A byte of a block in words: the arguments whose elements it may belong to."""
    tensors = [region.tensors[a] for a in region.arguments]
    tensors = [tensor for tensor in tensors if tensor.role is not Role.SCALAR]
    spans = argument_spans(region, sizes)
    names = [
        f"byte {offset - origin} of {tensor.name}"
        for tensor, (number, origin), (low, high) in zip(
            tensors, launch.arguments, spans, strict=True
        )
        if number == block and low <= offset - origin < high
    ]
    return " = ".join(names)


def as_dict(outcome: Outcome) -> dict[str, object]:
    """Every field and `ok`, for JSON."""
    return asdict(outcome) | {"ok": outcome.ok}
