"""Stage 1, one file: a record for each of its tests, with hashes of all that it depends on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .canonical import Piece, digest
from .linking import LIFECYCLE, ClassAt, Links, Node, Reach
from .records import Test
from .shape import MODULE, Instantiation, Method, is_test


@dataclass(frozen=True, slots=True)
class _Around:
    """What a class gives to each of its tests."""

    of_class: str
    infra: str
    instantiation: str
    made: tuple[Instantiation, ...]
    guards: tuple[str, ...]
    module: Reach


def tests_of(links: Links, path: str) -> Iterator[Test]:
    """The tests of a file, inherited ones included."""
    shape = links.shapes[path]
    file = links.layout.name(path)
    module = _module_reach(links, path)
    for name in shape.classes:
        at = path, name
        methods = _tests_in(links, at)
        generators = [(w, p) for w in _ours(links, at) for p in links.shape(w).generators]
        if not methods and not generators:
            continue
        around = _around(links, at, module)
        for method, (where, found) in methods.items():
            yield _test(links, at, f"{file}::{name}::{method}", found, where, around)
        if generators:
            yield _computed(links, at, f"{file}::{name}::*", generators, around)
    for name, imported in _imported(links, path):
        made = tuple(
            m for m in shape.instantiations if name in (*m.classes, *map(_last, m.classes))
        )
        text, calls = _how_made(links, path, made)
        there = _around(links, imported, module)
        infra = digest([there.infra, calls])
        around = replace(there, instantiation=text, made=made, infra=infra)
        for method, (where, found) in _tests_in(links, imported).items():
            yield _test(links, imported, f"{file}::{name}::{method}", found, where, around)
    alone = _Around("", "", "", (), (), module)
    for name, function in shape.functions.items():
        yield _test(links, (path, ""), f"{file}::{MODULE}::{name}", function, (path, ""), alone)
    if shape.generators:
        pieces = [((path, ""), piece) for piece in shape.generators]
        yield _computed(links, (path, ""), f"{file}::{MODULE}::*", pieces, alone)


def _imported(links: Links, path: str) -> Iterator[tuple[str, ClassAt]]:
    """Classes of other files that this one makes classes per device type of."""
    shape = links.shapes[path]
    names = {n for m in shape.instantiations for n in m.classes if n not in shape.classes}
    for name in sorted(names):
        if (found := links.class_named((path, ""), name)) is not None:
            yield name.rpartition(".")[2], found


def _tests_in(links: Links, at: ClassAt) -> dict[str, tuple[ClassAt, Method]]:
    """Test methods of a class and of its bases; what a class sets to None is none."""
    found: dict[str, tuple[ClassAt, Method]] = {}
    for where in links.lineage(at):
        for name, method in links.shape(where).methods.items():
            if is_test(name):
                found.setdefault(name, (where, method))
    return {name: (where, method) for name, (where, method) in found.items() if not method.is_none}


def _ours(links: Links, at: ClassAt) -> list[ClassAt]:
    return [where for where in links.lineage(at) if not links.layout.is_infra(where[0])]


def _module_reach(links: Links, path: str) -> Reach:
    """What happens in the file before any of its tests."""
    shape = links.shapes[path]
    pieces = [*shape.effects]
    for name in ("setUpModule", "tearDownModule", "load_tests"):
        pieces += shape.bindings.get(name, ())
    found = links.joined(path, pieces)
    said = digest([*(piece.hash for piece in pieces), found.helpers]) if pieces else ""
    return Reach(said, found.infra)


def _around(links: Links, at: ClassAt, module: Reach) -> _Around:
    ours = _ours(links, at)
    asked = links.asked(at)
    said: list[str] = []
    infra: set[str] = set()
    guards: list[str] = []
    for where in ours:
        shape = links.shape(where)
        held = [
            method for name, method in sorted(shape.methods.items())
            if not is_test(name) and (name in LIFECYCLE or _is_special(name) or name not in asked)
        ]  # fmt: skip
        pieces = [_apart(links, where), *(p for m in held for p in m.pieces)]
        found = links.joined(where[0], pieces, "")
        members = links.joined(at[0], [p for m in held for p in m.pieces], at[1])
        said += [*(piece.hash for piece in pieces), found.helpers, members.helpers]
        infra |= {found.infra, members.infra}
        guards += [d.text for d in shape.decorators]
    for where in links.lineage(at):
        if links.layout.is_infra(where[0]):
            infra.add(_base_reach(links, where))
    made = _made(links, at)
    text, calls = _how_made(links, at[0], made)
    infra.add(calls)
    infra.discard("")
    return _Around(
        digest(said), digest(sorted(infra)) if infra else "", text, made, tuple(guards), module
    )


def _how_made(links: Links, path: str, made: Iterable[Instantiation]) -> tuple[str, str]:
    """Hashes of the statements that make classes of a class, and of the machinery behind them."""
    made = list(made)
    calls = links.joined(path, [_without(m.piece, m.classes) for m in made])
    return digest([*(m.piece.hash for m in made), calls.helpers]) if made else "", calls.infra


def _base_reach(links: Links, where: ClassAt) -> str:
    """What every test of a class of the machinery goes through."""
    shape = links.shape(where)
    held = sorted(shape.methods.items())
    methods = [m for name, m in held if name in LIFECYCLE or _is_special(name)]
    pieces = [_apart(links, where), *(p for m in methods for p in m.pieces)]
    found = links.joined(where[0], pieces, where[1])
    return digest([*(piece.hash for piece in pieces), found.infra])


def _made(links: Links, at: ClassAt) -> tuple[Instantiation, ...]:
    return tuple(m for m in links.shapes[at[0]].instantiations if at[1] in m.classes)


def _apart(links: Links, where: ClassAt) -> Piece:
    """What a class says, without its bases where these are compared as classes of their own."""
    shape = links.shape(where)
    known = [base for base in shape.bases if base in links.shapes[where[0]].classes]
    for base in shape.bases:
        node = links.resolve(where[0], base)
        if node is not None and node.name in links.shapes[node.path].classes:
            known.append(base)
    return _without(shape.own, known)


def _without(piece: Piece, names: Iterable[str]) -> Piece:
    return replace(piece, names=tuple(n for n in piece.names if n not in names))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _test(
    links: Links, at: ClassAt, id: str, method: Method, where: ClassAt, around: _Around
) -> Test:
    plain = [d for d in method.decorators if not d.generates]
    making = [d for d in method.decorators if d.generates]
    own = [method.body, method.signature, *(d.piece for d in plain)]
    helpers, infra = _named(links, at, where, own)
    imports: dict[str, str] = {}
    for piece in method.pieces:
        imports |= links.foreign(where[0], piece)
    made, made_infra = _named(links, at, where, [d.piece for d in making])
    generation = [*(d.piece.hash for d in making), *(f"{k}={v}" for k, v in sorted(made.items()))]
    infra = {**infra, **made_infra}
    if around.module.helpers:
        helpers["<module>"] = around.module.helpers
    for name, text in (("<class>", around.infra), ("<module>", around.module.infra)):
        if text:
            infra[name] = text
    devices = [m for m in around.made if m.for_devices]
    return Test(
        id=id, at=where[0], line=method.line, end=method.end,
        body=method.body.hash, signature=method.signature.hash,
        decorators=digest(d.piece.hash for d in plain), of_class=around.of_class,
        generation=digest(generation) if making else "", instantiation=around.instantiation,
        helpers=helpers, infra=infra, imports=imports,
        guards=(*(d.text for d in plain), *around.guards),
        generated_by=tuple(d.text for d in making),
        generic=bool(devices), inherited=where != at,
        only_for=_common(m.only_for for m in devices),
        except_for=tuple(sorted({t for m in devices for t in m.except_for})),
        tables=_tables_of(links, where, method),
        calls=_calls(links, where[0], method.body), called=method.body.called,
    )  # fmt: skip


def _computed(
    links: Links, at: ClassAt, id: str, pieces: Iterable[tuple[ClassAt, Piece]], around: _Around
) -> Test:
    """The tests whose names are not in the source: one record for all that a class has."""
    pieces = list(pieces)
    said: list[str] = []
    infra: dict[str, str] = {}
    tables: set[str] = set()
    for where, piece in pieces:
        owner = at[1] if where == at else ""
        found = links.joined(where[0], [piece], owner)
        said += [piece.hash, found.helpers]
        infra |= {f"<generated:{piece.hash}>": found.infra} if found.infra else {}
        tables |= set(_tables(links, where[0], piece))
    line, end = min(p.line for _, p in pieces), max(p.end for _, p in pieces)
    devices = [m for m in around.made if m.for_devices]
    text = digest(said)
    return Test(
        id=id, at=pieces[0][0][0], line=line, end=end, body="", signature="", decorators="",
        of_class=around.of_class, generation=text, instantiation=around.instantiation,
        helpers={"<module>": around.module.helpers} if around.module.helpers else {}, infra=infra,
        guards=around.guards, generic=bool(devices), only_for=_common(m.only_for for m in devices),
        except_for=tuple(sorted({t for m in devices for t in m.except_for})),
        tables=tuple(sorted(tables)),
        called=tuple(sorted({name for _, p in pieces for name in p.called})),
    )  # fmt: skip


def _named(
    links: Links, at: ClassAt, where: ClassAt, pieces: Iterable[Piece]
) -> tuple[dict[str, str], dict[str, str]]:
    """By name, what the pieces of a method reach."""
    helpers, infra = {}, {}
    for piece in pieces:
        for name in piece.names:
            member = name.startswith(("self.", "cls.", "super."))
            path, owner = at if member else where
            node = links.node(path, name, owner)
            if node is None or _is_class_of(node, links, at):
                continue
            found = links.reach(node)
            if found.helpers:
                helpers[name] = found.helpers
            if found.infra:
                infra[name] = found.infra
    return helpers, infra


def _is_class_of(node: Node, links: Links, at: ClassAt) -> bool:
    """`super(TestX, self)`: the class itself is compared as the class."""
    if node.owner or not at[1]:
        return False
    return (node.path, node.name) in links.lineage(at)


def _common(lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Device types that some instantiation asks for; none where one asks for all."""
    found = list(lists)
    return tuple(sorted({t for one in found for t in one})) if all(found) else ()


def _tables_of(links: Links, where: ClassAt, method: Method) -> tuple[str, ...]:
    """Tables behind a method; a list that a decorator names may be its class's own."""
    found = {t for piece in method.pieces for t in _tables(links, where[0], piece)}
    if not found and where[1] and any(d.generates for d in method.decorators):
        found = set(_tables(links, where[0], links.shape(where).own))
    return tuple(sorted(found))


def _tables(links: Links, path: str, piece: Piece) -> Iterator[str]:
    """The tables of ops behind names, with the class that a list on the way asks for."""
    seen: set[Node] = set()
    todo = [(node, "") for node in links.nodes(path, piece).values()]
    while todo:
        node, asked = todo.pop()
        if node in seen or node.owner:
            continue
        seen.add(node)
        shape = links.shapes[node.path]
        if node.name in shape.tables:
            yield f"{node.path}::{node.name}" + (f"/{asked}" if asked else "")
        asked = shape.filters.get(node.name, asked)
        if node.name not in shape.classes and node.name in shape.bindings:
            todo += [(there, asked) for there in links.successors(node).values()]


def _calls(links: Links, path: str, piece: Piece) -> tuple[str, ...]:
    """Names out of modules that are not ours, with the module written out."""
    imports = links.shapes[path].imports
    found = set()
    for name in piece.names:
        root, _, rest = name.partition(".")
        text = name if ":" in name else f"{imports[root][0]}.{rest}" if root in imports else ""
        module, _, tail = text.partition(":")
        if text and (tail := tail.strip(".")):
            found.add(f"{module}.{tail}")
    return tuple(sorted(found))
