"""A run as data, and the file it is kept in: what `spyre report` and `spyre replay` read.

Needs no torch. The file is checksummed as a whole, so whatever is read was written:

    magic       8 bytes
    version     4 bytes, little-endian like all numbers
    lengths     8 bytes each: of the header, of the blobs
    digest      32 bytes: SHA-256 of everything else
    header      JSON that names every field
    blobs       zlib, one after another, at the places that the header says
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from openspyre.errors import SpyreError
from openspyre.runtime.whole_file import write_whole

MAGIC = b"SPYRERUN"
VERSION = 2
_HEAD = struct.Struct("<8sIQQ32s")
_LARGEST = 1 << 40  # bytes of one blob: more is nonsense


class InvalidRun(SpyreError, ValueError):
    """A file that is not a run that this version can read."""


@dataclass(frozen=True, slots=True)
class Block:
    """A range of device memory that arguments of a launch lie in.

    Attributes:
        phase: its address modulo a stick.
        before, after: its bytes around the launch.
    """

    phase: int
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel with everything it read.

    Attributes:
        arguments: for every tensor the number of its block and where in it element zero lies.
        why_not: why the blocks are not here; empty where they are.
        numerics: what it ran under, as `openspyre.numerics.parse_numerics` reads it.
    """

    variant: int
    sizes: tuple[int, ...]
    scalars: tuple[float, ...]
    arguments: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]
    why_not: str = ""
    numerics: str = "ieee"


@dataclass(frozen=True, slots=True)
class Variant:
    """The program for a class of sizes: lowest and highest of each."""

    program: bytes
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Use:
    """All launches of a kernel with the same sizes.

    Attributes:
        number: what spans call it.
        report: what one launch cost the card, by field of `card.native.Report`.
        places: how many of the launches came from which line of the user's.
    """

    variant: int
    sizes: tuple[int, ...]
    launches: int
    host_seconds: float
    number: int
    report: Mapping[str, int]
    places: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavedKernel:
    """A kernel: its text, programs, what was launched, and sizes for which it did not compile."""

    name: str
    text: str
    variants: tuple[Variant, ...]
    uses: tuple[Use, ...]
    launches: tuple[Launch, ...] = ()
    refused: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """What one engine of a card did. Picoseconds of card time from the run's start.

    Attributes:
        engine: compute, to card or to host.
        use: the `number` of a kernel's use; 0 for a copy.
        host_start, host_end: nanoseconds of the host since 1970.
    """

    name: str
    device: int
    engine: str
    stream: int
    use: int
    start: int
    end: int
    host_start: int
    host_end: int


@dataclass(frozen=True, slots=True)
class Fallback:
    """An op that ran on the CPU instead of the card."""

    op: str
    calls: int
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """What a process ran on its cards.

    Attributes:
        card: every number of the card's spec.
        error: what ended the run, where something did.
    """

    command: str
    versions: Mapping[str, str]
    settings: Mapping[str, Any]
    card: Mapping[str, float]
    host_seconds: float
    kernels: tuple[SavedKernel, ...]
    spans: tuple[Span, ...]
    fallbacks: tuple[Fallback, ...]
    error: str = ""


# --- writing ----------------------------------------------------------------------------------


def write_run(run: Run, path: Path) -> int:
    """Writes a run beside its place and renames it there. Returns the file's bytes.

    Raises:
        OSError: it cannot be written.
    """
    blobs = _Blobs()
    header = json.dumps(_plain(asdict(run), blobs)).encode()
    packed = b"".join(blobs.packed)
    lengths = len(header), len(packed)
    data = _HEAD.pack(MAGIC, VERSION, *lengths, _digest(*lengths, header + packed))
    data += header + packed
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, data)
    return len(data)


def _digest(header: int, blobs: int, rest: bytes) -> bytes:
    return hashlib.sha256(struct.pack("<IQQ", VERSION, header, blobs) + rest).digest()


class _Blobs:
    """Bytes on their way to the file; equal ones are kept once."""

    def __init__(self) -> None:
        self.packed: list[bytes] = []
        self._places: dict[bytes, tuple[int, int, int]] = {}
        self._end = 0

    def place(self, data: bytes) -> tuple[int, int, int]:
        """Offset among the blobs, bytes there, bytes unpacked."""
        if data not in self._places:
            packed = zlib.compress(data, 1)
            self._places[data] = (self._end, len(packed), len(data))
            self.packed.append(packed)
            self._end += len(packed)
        return self._places[data]


def _plain(value: Any, blobs: _Blobs) -> Any:
    match value:
        case bytes():
            return {"blob": blobs.place(value)}
        case Mapping():
            return {key: _plain(item, blobs) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, blobs) for item in value]
        case _:
            return value


# --- reading ----------------------------------------------------------------------------------


def is_run(path: Path) -> bool:
    """Whether a file begins like a run.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_run(path: Path) -> Run:
    """The run in a file.

    Raises:
        InvalidRun: it holds none, is damaged, or is of another version.
        OSError: it cannot be read.
    """
    data = path.read_bytes()
    header, blobs = _checked(data, path)
    try:
        return _run(_restored(json.loads(header), blobs))
    except (KeyError, TypeError, ValueError, zlib.error) as error:  # right checksum, wrong content
        raise InvalidRun(f"{path} is not a run", why=f"its header does not fit: {error}") from None


def _checked(data: bytes, path: Path) -> tuple[bytes, bytes]:
    again = "copy it again from where it was made"
    if not data.startswith(MAGIC):
        hint = "`spyre capture` and `spyre report --save` write such files"
        raise InvalidRun(f"{path} is not a run of the card", why="it begins otherwise", hint=hint)
    if len(data) < _HEAD.size:
        raise InvalidRun(f"{path} is cut short", why=f"it has {len(data)} bytes", hint=again)
    _, version, header, blobs, digest = _HEAD.unpack_from(data)
    if version != VERSION:
        raise InvalidRun(
            f"{path} has format {version}, this version of openspyre reads {VERSION}",
            hint="use the version of openspyre that wrote it, or capture the run again",
        )
    expected = _HEAD.size + header + blobs
    if len(data) < expected:
        why = f"it has {len(data)} bytes of {expected}"
        raise InvalidRun(f"{path} is cut short", why=why, hint=again)
    rest = data[_HEAD.size :]
    if _digest(header, blobs, rest) != digest:
        raise InvalidRun(f"{path} is damaged", why="its checksum does not fit", hint=again)
    return rest[:header], rest[header:]


def _restored(value: Any, blobs: bytes) -> Any:
    match value:
        case {"blob": [int(at), int(packed), int(size)], **rest} if not rest:
            return _unpacked(blobs[at : at + packed], size)
        case dict():
            return {key: _restored(item, blobs) for key, item in value.items()}
        case list():
            return tuple(_restored(item, blobs) for item in value)
        case _:
            return value


def _unpacked(packed: bytes, size: int) -> bytes:
    if not 0 <= size < _LARGEST:
        raise ValueError(f"a blob of {size} bytes")
    data = zlib.decompressobj().decompress(packed, size + 1)
    if len(data) != size:
        raise ValueError(f"a blob has {len(data)} bytes instead of {size}")
    return data


T = TypeVar("T")


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if set(values) != names:
        raise ValueError(f"{kind.__name__} has fields {sorted(values)}")
    return kind(**values)


def _run(values: Mapping[str, Any]) -> Run:
    run = _made(Run, values)
    return replace(
        run,
        kernels=tuple(_kernel(k) for k in values["kernels"]),
        spans=tuple(_made(Span, s) for s in values["spans"]),
        fallbacks=tuple(_made(Fallback, f) for f in values["fallbacks"]),
    )


def _kernel(values: Mapping[str, Any]) -> SavedKernel:
    kernel = _made(SavedKernel, values)
    return replace(
        kernel,
        variants=tuple(_made(Variant, v) for v in values["variants"]),
        uses=tuple(_made(Use, u) for u in values["uses"]),
        launches=tuple(_launch(launch) for launch in values["launches"]),
    )


def _launch(values: Mapping[str, Any]) -> Launch:
    launch = _made(Launch, values)
    return replace(launch, blocks=tuple(_made(Block, b) for b in values["blocks"]))
