"""Stage 1, one ref: names resolved across files, and one hash for all that a name reaches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .canonical import Piece, digest
from .layout import Layout
from .shape import ClassShape, FileShape, Method

LIFECYCLE = frozenset({
    "setUp", "tearDown", "setUpClass", "tearDownClass", "asyncSetUp", "asyncTearDown", "run",
    "setUpModule", "tearDownModule",
})  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """Something with a name in a file; `owner` is the class that a member is looked up in."""

    path: str
    name: str
    owner: str = ""

    def __str__(self) -> str:
        return (
            f"{self.path}::{self.owner}.{self.name}" if self.owner else f"{self.path}::{self.name}"
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """What a name reaches: a hash of helpers, and one of the test machinery; empty for none."""

    helpers: str
    infra: str


NOTHING = Reach("", "")
ClassAt = tuple[str, str]


@dataclass(slots=True)
class Links:
    """The files of one ref, linked on demand."""

    shapes: Mapping[str, FileShape]
    layout: Layout
    _reached: dict[Node, Reach] = field(default_factory=dict)
    _lineages: dict[ClassAt, tuple[ClassAt, ...]] = field(default_factory=dict)
    _resolved: dict[tuple[str, str], Node | None] = field(default_factory=dict)
    _asked: dict[ClassAt, frozenset[str]] = field(default_factory=dict)

    def shape(self, at: ClassAt) -> ClassShape:
        return self.shapes[at[0]].classes[at[1]]

    def module(self, path: str, module: str) -> str:
        """The file of a module that a file imports; empty where it is not among ours."""
        return next((p for p in self.layout.modules(path, module) if p in self.shapes), "")

    def resolve(self, path: str, name: str) -> Node | None:
        """What a dotted name of a file stands for, through imports; None for what is not ours."""
        key = path, name
        if key not in self._resolved:
            self._resolved[key] = None  # a name that imports itself
            self._resolved[key] = self._resolve(path, name)
        return self._resolved[key]

    def _resolve(self, path: str, name: str) -> Node | None:
        if ":" in name:
            module, _, rest = name.partition(":")
            return self._in_module(path, module, rest.strip("."))
        root, _, rest = name.partition(".")
        shape = self.shapes[path]
        if root in shape.classes and rest:
            member = rest.partition(".")[0]
            if self.member((path, root), member):
                return Node(path, member, root)
        targets = shape.imports.get(root, ())
        if root in shape.bindings or len(targets) > 1:
            return Node(path, name if targets else root)
        for target in targets:
            if node := self._imported(path, target, rest):
                return node
        for module in shape.stars:
            there = self.module(path, module)
            if there not in ("", path) and (node := self.resolve(there, name)):
                return node
        return None

    def _imported(self, path: str, target: str, rest: str) -> Node | None:
        module, _, taken = target.partition(":")
        return self._in_module(path, module, ".".join(filter(None, (taken, rest))))

    def _alternatives(self, node: Node) -> Iterator[tuple[str, Node]]:
        """What a name may also be that is imported in several ways, or imported and bound."""
        root, _, rest = node.name.partition(".")
        for target in () if node.owner else self.shapes[node.path].imports.get(root, ()):
            found = self._imported(node.path, target, rest)
            if found is not None and found != node:
                yield f"{target}.{rest}", found

    def _in_module(self, path: str, module: str, rest: str) -> Node | None:
        """The longest module that the dots may mean, then a name in it."""
        parts = rest.split(".") if rest else []
        for taken in range(max(len(parts) - 1, 0), -1, -1):
            dot = "." if module.strip(".") and parts[:taken] else ""
            joined = module + dot + ".".join(parts[:taken])
            there = self.module(path, joined)
            if there and parts[taken:] and there != path:
                return self.resolve(there, ".".join(parts[taken:]))
        return None

    def lineage(self, at: ClassAt) -> tuple[ClassAt, ...]:
        """A class and all its bases that are ours, nearest first."""
        if at not in self._lineages:
            self._lineages[at] = (at,)  # a class that derives from itself
            found = [at]
            for base in self.shape(at).bases:
                if (node := self.class_named(at, base)) is not None:
                    found += self.lineage(node)
            self._lineages[at] = tuple(dict.fromkeys(found))
        return self._lineages[at]

    def class_named(self, at: ClassAt, name: str) -> ClassAt | None:
        """The class that a name means inside a class or function."""
        path, inside = at
        outer = inside.rpartition(".")[0]
        while outer:
            if f"{outer}.{name}" in self.shapes[path].classes:
                return path, f"{outer}.{name}"
            outer = outer.rpartition(".")[0]
        if name in self.shapes[path].classes and name != inside:
            return path, name
        rest = name.partition(".")[2]
        node = self.resolve(path, name)
        return None if node is None else self._class_of(at, node, name, rest, frozenset())

    def _class_of(
        self, at: ClassAt, node: Node, name: str, rest: str, seen: frozenset[Node]
    ) -> ClassAt | None:
        """The class that a node is, or that it is another name of."""
        there = self.shapes[node.path].classes
        wanted = ".".join(filter(None, (node.owner, node.name)))
        tail = f"{node.name}.{rest}" if rest else node.name
        for candidate in (tail, wanted, node.name, name.rpartition(".")[2]):
            if candidate in there and (node.path, candidate) != at:
                return node.path, candidate
        if node in seen or node.owner:
            return None
        others = [there for _, there in self._alternatives(node)]
        for piece in self.shapes[node.path].bindings.get(node.name, ()):
            others += self.nodes(node.path, piece).values()
        for other in others:
            if found := self._class_of(at, other, other.name, "", seen | {node}):
                return found
        return None

    def member(self, at: ClassAt, name: str) -> tuple[ClassAt, Method] | None:
        """A method by its name, and the class that has it."""
        for where in self.lineage(at):
            if (method := self.shape(where).methods.get(name)) is not None:
                return where, method
        return None

    def asked(self, at: ClassAt) -> frozenset[str]:
        """Members that methods of a class or of its bases name with `self.` or `cls.`."""
        if at not in self._asked:
            names = {
                name.split(".")[1]
                for where in self.lineage(at) if not self.layout.is_infra(where[0])
                for method in self.shape(where).methods.values()
                for piece in method.pieces for name in piece.names
                if name.startswith(("self.", "cls.", "super."))
            }  # fmt: skip
            self._asked[at] = frozenset(names)
        return self._asked[at]

    def foreign(self, path: str, piece: Piece) -> dict[str, str]:
        """What names of a piece are imported as, where that is not one of our files."""
        imports, found = self.shapes[path].imports, {}
        for name in piece.names:
            root = name.partition(".")[0]
            if root in imports and root not in found and self.resolve(path, name) is None:
                found[root] = "|".join(imports[root])
        return dict(sorted(found.items()))

    # --- what a piece reaches --------------------------------------------------------------

    def nodes(self, path: str, piece: Piece, owner: str = "") -> dict[str, Node]:
        """The names of a piece that are ours, and what they stand for."""
        found = {}
        for name in piece.names:
            if (node := self.node(path, name, owner)) is not None:
                found[name] = node
        return found

    def node(self, path: str, name: str, owner: str = "") -> Node | None:
        root, _, rest = name.partition(".")
        if owner and root in ("self", "cls", "super"):
            member = rest.partition(".")[0]
            at = path, owner
            holders = [w for w in self.lineage(at) if member in self.shape(w).methods]
            if len(holders) <= (root == "super"):
                return None
            where, inside = holders[root == "super"]
            shared = root == "super" or self.layout.is_infra(where)
            return Node(where, member, inside) if shared else Node(path, member, owner)
        if owner and not rest and root in self._class_scope((path, owner)):
            return Node(path, root, owner)
        return self.resolve(path, name)

    def _class_scope(self, at: ClassAt) -> Mapping[str, Method]:
        return self.shape(at).methods

    def reach(self, node: Node) -> Reach:
        """The hashes of a node and of all behind it; equal parts of a cycle count once."""
        if node not in self._reached:
            self._components(node)
        return self._reached[node]

    def pieces(self, node: Node) -> tuple[tuple[str, Piece], ...]:
        """What a node is made of, each with the file that it stands in."""
        if node.owner:
            held = self.member((node.path, node.owner), node.name)
            return tuple((held[0][0], p) for p in held[1].pieces) if held else ()
        bindings = self.shapes[node.path].bindings
        return tuple((node.path, p) for p in bindings.get(node.name.partition(".")[0], ()))

    def _home(self, node: Node) -> str:
        if node.owner and (held := self.member((node.path, node.owner), node.name)):
            return held[0][0]
        return node.path

    def successors(self, node: Node) -> dict[str, Node]:
        found: dict[str, Node] = dict(self._alternatives(node))
        home = self._home(node)
        for path, piece in self.pieces(node):
            for name in piece.names:
                member = name.startswith(("self.", "cls.", "super.")) and node.owner
                at = node.path if member else path
                if (there := self.node(at, name, node.owner if member else "")) is not None:
                    found[name] = there
        shape = self.shapes[home].classes.get(node.name) if not node.owner else None
        if shape is not None:
            for base in shape.bases:
                if (there := self.resolve(home, base)) is not None:
                    found[base] = there
        return {name: there for name, there in found.items() if there != node}

    def _components(self, root: Node) -> None:
        """Tarjan's walk without recursion: components come out behind all that they reach."""
        index: dict[Node, int] = {}
        low: dict[Node, int] = {}
        stack: list[Node] = []
        on: set[Node] = set()
        edges: dict[Node, dict[str, Node]] = {}
        work: list[tuple[Node, Iterator[Node]]] = []

        def enter(node: Node) -> None:
            index[node] = low[node] = len(index)
            stack.append(node)
            on.add(node)
            edges[node] = self.successors(node)
            work.append((node, iter(edges[node].values())))

        enter(root)
        while work:
            node, rest = work[-1]
            for there in rest:
                if there in self._reached:
                    continue
                if there not in index:
                    enter(there)
                    break
                if there in on:
                    low[node] = min(low[node], index[there])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    self._finish(stack[cut:], edges)
                    on.difference_update(stack[cut:])
                    del stack[cut:]

    def _finish(self, members: list[Node], edges: Mapping[Node, Mapping[str, Node]]) -> None:
        inside = set(members)
        owns, out = {}, set()
        for node in members:
            owns[node] = digest(
                part for path, piece in self.pieces(node)
                for part in (piece.hash, *self.foreign(path, piece).values())
            )  # fmt: skip
            out |= {(name, t) for name, t in edges[node].items() if t not in inside}
        behind = {(name, self._reached[there]) for name, there in out}
        is_infra = {node: self.layout.is_infra(self._home(node)) for node in members}
        helpers = sorted(f"{name}={r.helpers}" for name, r in behind if r.helpers)
        infra = sorted({r.infra for _, r in behind if r.infra})
        infra += sorted(owns[node] for node in members if is_infra[node])
        if any(is_infra.values()):
            infra += helpers  # what the machinery uses is behind it
        ours = sorted(owns[node] for node in members if not is_infra[node])
        machine = digest(infra) if infra else ""
        for node in members:
            own = "" if is_infra[node] else digest([owns[node], *ours, *helpers])
            self._reached[node] = Reach(own, machine)

    def joined(self, path: str, pieces: Iterable[Piece], owner: str = "") -> Reach:
        """Hashes of all that some pieces reach."""
        helpers, infra = set(), set()
        for piece in pieces:
            for name, node in self.nodes(path, piece, owner).items():
                found = self.reach(node)
                helpers |= {f"{name}={found.helpers}"} if found.helpers else set()
                infra |= {found.infra} if found.infra else set()
        return Reach(
            digest(sorted(helpers)) if helpers else "", digest(sorted(infra)) if infra else ""
        )
