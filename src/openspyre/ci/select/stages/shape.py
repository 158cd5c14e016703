"""What stage 1 knows of one file: definitions, classes, tests, and what makes tests of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .canonical import Piece

MODULE = "<module>"
"""The class of tests that are functions of a module."""


@dataclass(frozen=True, slots=True)
class Decorator:
    """One decorator.

    Attributes:
        name: last part of the name of what decorates.
        text: as written, in one line.
        generates: it says for which ops, dtypes or parameters there is a test.
    """

    name: str
    text: str
    piece: Piece
    generates: bool


@dataclass(frozen=True, slots=True)
class Method:
    """A function of a class or module, or a name that stands for one."""

    name: str
    body: Piece
    signature: Piece
    decorators: tuple[Decorator, ...]
    line: int
    end: int

    @property
    def is_none(self) -> bool:
        """Whether the name stands for nothing: an inherited test that is set to None."""
        return not self.body.hash

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return (self.body, self.signature, *(d.piece for d in self.decorators))


@dataclass(frozen=True, slots=True)
class ClassShape:
    """A class.

    Attributes:
        name: dotted for a class in a class, `f.<locals>.C` for one in a function.
        bases: names as written.
        own: bases, keywords, decorators, attributes and the conditions it stands under.
        generators: statements that make tests in it whose names are computed.
    """

    name: str
    bases: tuple[str, ...]
    own: Piece
    decorators: tuple[Decorator, ...]
    methods: Mapping[str, Method]
    generators: tuple[Piece, ...]
    line: int
    end: int

    @property
    def tests(self) -> tuple[str, ...]:
        return tuple(n for n, m in self.methods.items() if is_test(n) and not m.is_none)


@dataclass(frozen=True, slots=True)
class Instantiation:
    """A statement that makes classes or tests out of a class.

    Attributes:
        function: last part of what is called; `del` where the class is taken out.
        classes: names of classes, some of which may be imported.
        for_devices: it makes a class per device type.
        only_for, except_for: device types, where they are written out.
    """

    function: str
    classes: tuple[str, ...]
    piece: Piece
    text: str
    for_devices: bool
    only_for: tuple[str, ...] = ()
    except_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpEntry:
    """One entry of a table of ops: its name, its variant, and what the entry says."""

    name: str
    variant: str
    maker: str
    piece: Piece


@dataclass(frozen=True, slots=True)
class FileShape:
    """One file. Where it does not parse, `error` says why, and the rest is empty.

    Attributes:
        imports: what a name may stand for, as `module:name`; several where imports are tried.
        bindings: top-level names and the pieces that make them.
        effects: statements that run with the file and bind nothing.
        generators: those that make tests in no class that can be named.
        tables: names of lists of ops, and their entries.
        filters: names of lists that choose out of lists, with the class that they ask for.
        file_names: what is written in quotes and looks like the name of a file.
    """

    error: str = ""
    line: int = 0
    imports: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stars: tuple[str, ...] = ()
    bindings: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)
    classes: Mapping[str, ClassShape] = field(default_factory=dict)
    functions: Mapping[str, Method] = field(default_factory=dict)
    instantiations: tuple[Instantiation, ...] = ()
    effects: tuple[Piece, ...] = ()
    generators: tuple[Piece, ...] = ()
    tables: Mapping[str, tuple[OpEntry, ...]] = field(default_factory=dict)
    filters: Mapping[str, str] = field(default_factory=dict)
    file_names: frozenset[str] = frozenset()


def is_test(name: str) -> bool:
    """Whether unittest takes a method of this name for a test."""
    return name.startswith("test")
