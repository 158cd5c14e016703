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
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from openspyre.errors import SpyreError
from openspyre.runtime.host_memory import HOST_SHARE, available_host_memory
from openspyre.runtime.whole_file import write_whole

MAGIC = b"SPYRERUN"
VERSION = 4
_HEAD = struct.Struct("<8sIQQ32s")
_OF_HEADER = 40  # bytes of objects that one of the header's may become
_LARGEST_PHASE = 1 << 20
_WORD = 1 << 63


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
        number: its place among the launches of the run that were kept.
    """

    variant: int
    sizes: tuple[int, ...]
    scalars: tuple[float, ...]
    arguments: tuple[tuple[int, int], ...]
    blocks: tuple[Block, ...]
    why_not: str = ""
    numerics: str = "ieee"
    number: int = 0


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
        report: what one launch cost the card, by field of `card.native.Report`; where weights stay
            in LX, one that loads them.
        places: how many of the launches came from which line of the user's.
        kept: how many of the launches found their weights in LX.
    """

    variant: int
    sizes: tuple[int, ...]
    launches: int
    host_seconds: float
    number: int
    report: Mapping[str, int]
    places: Mapping[str, int] = field(default_factory=dict)
    kept: int = 0


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
    """The run in a file. Whatever the file says, it takes no more memory than the host has.

    Raises:
        InvalidRun: it holds none, is damaged, is too large, or is of another version.
        OSError: it cannot be read.
    """
    header, blobs = _checked(path)
    try:
        run: Run = built(Run, _Restorer(blobs, path).restored(json.loads(header)))
        for kernel in run.kernels:
            _check(kernel)
    except InvalidRun:
        raise
    except (ValueError, RecursionError, zlib.error) as error:
        why = f"its header does not fit: {error}"  # right checksum, wrong content
        raise InvalidRun(f"{path} is not a run", why=why) from None
    return run


def _checked(path: Path) -> tuple[bytes, bytes]:
    again = "copy it again from where it was made"
    with open(path, "rb") as file:
        head = file.read(_HEAD.size)
        if not head.startswith(MAGIC):
            hint = "`spyre capture` and `spyre report --save` write such files"
            raise InvalidRun(
                f"{path} is not a run of the card", why="it begins otherwise", hint=hint
            )
        if len(head) < _HEAD.size:
            raise InvalidRun(f"{path} is cut short", why=f"it has {len(head)} bytes", hint=again)
        _, version, header, blobs, digest = _HEAD.unpack(head)
        if version != VERSION:
            raise InvalidRun(
                f"{path} has format {version}, this version of openspyre reads {VERSION}",
                hint="use the version of openspyre that wrote it, or capture the run again",
            )
        size, expected = os.fstat(file.fileno()).st_size, _HEAD.size + header + blobs
        if size != expected:
            what = "is cut short" if size < expected else "is damaged"
            raise InvalidRun(f"{path} {what}", why=f"it has {size} bytes of {expected}", hint=again)
        _require_memory(path, _OF_HEADER * header + blobs)
        rest = file.read(header + blobs)
    if len(rest) < header + blobs:
        raise InvalidRun(f"{path} is cut short", why="it shrinks while it is read", hint=again)
    if _digest(header, blobs, rest) != digest:
        raise InvalidRun(f"{path} is damaged", why="its checksum does not fit", hint=again)
    return rest[:header], rest[header:]


def _require_memory(path: Path, needed: int) -> None:
    if needed > HOST_SHARE * available_host_memory():
        why = f"{needed / (1 << 30):.1f} GiB of memory would be needed"
        raise InvalidRun(f"{path} is too large for this host", why=why)


class _Restorer:
    """Puts the blobs where the header names them; one that is named twice is unpacked once."""

    def __init__(self, blobs: bytes, path: Path) -> None:
        self._blobs, self._path = blobs, path
        self._known: dict[tuple[int, int, int], bytes] = {}
        self._bytes = 0

    def restored(self, value: Any) -> Any:
        match value:
            case {"blob": [int(at), int(packed), int(size)], **rest} if not rest:
                return self._unpacked(at, packed, size)
            case dict():
                return {key: self.restored(item) for key, item in value.items()}
            case list():
                return tuple(map(self.restored, value))
            case _:
                return value

    def _unpacked(self, at: int, packed: int, size: int) -> bytes:
        place = at, packed, size
        if place not in self._known:
            if min(place) < 0:
                raise ValueError(f"a blob at {at} of {packed} bytes, unpacked {size}")
            self._bytes += size
            _require_memory(self._path, self._bytes)
            data = zlib.decompressobj().decompress(self._blobs[at : at + packed], size + 1)
            if len(data) != size:
                raise ValueError(f"a blob has {len(data)} bytes instead of {size}")
            self._known[place] = data
        return self._known[place]


def _check(kernel: SavedKernel) -> None:
    """What types do not say: numbers that name other things, and sizes."""
    variants = range(len(kernel.variants))
    if any(use.variant not in variants for use in kernel.uses):
        raise ValueError(f"a use of {kernel.name} names a variant that is not there")
    for launch in kernel.launches:
        if launch.variant not in variants:
            raise ValueError(f"a launch of {kernel.name} names a variant that is not there")
        if any(not -1 <= block < len(launch.blocks) for block, _ in launch.arguments):
            raise ValueError(f"a launch of {kernel.name} names a block that is not there")
        if any(not 0 <= block.phase < _LARGEST_PHASE for block in launch.blocks):
            raise ValueError(f"a block of {kernel.name} has no place")


# --- types ------------------------------------------------------------------------------------


def built(kind: Any, value: Any) -> Any:
    """A value read from JSON (lists as tuples) as the type that an annotation names.

    Raises:
        ValueError: it is another one.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or set(value) != set(hints):
            raise ValueError(f"{_word(kind)} has other fields")
        return kind(**{name: built(hints[name], value[name]) for name in hints})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, tuple):
        each = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(each) == len(value):
            return tuple(map(built, each, value))
    elif origin is Mapping and isinstance(value, dict):
        return {name: built(arguments[1], item) for name, item in value.items()}
    elif kind is Any or _is_plain(kind, value):
        return value
    raise ValueError(f"{repr(value)[:40]} where {_word(kind)} belongs")


def _is_plain(kind: Any, value: Any) -> bool:
    if kind is float and isinstance(value, float):
        return True
    if kind is int or kind is float:
        is_int = isinstance(value, int) and not isinstance(value, bool)
        return is_int and -_WORD <= value < _WORD
    return isinstance(kind, type) and isinstance(value, kind)


def _word(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
