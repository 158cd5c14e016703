"""Stage 1, two refs: what changed for which test, and in which way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .errors import SelectionError
from .layout import Layout
from .records import SCHEMA, Broken, Entry, Enumeration, Test, record_of, to_json

KINDS = (
    "added", "removed", "moved", "body", "decorators", "helpers", "class", "generation",
    "instantiation", "opinfo", "infra", "data", "product",
)  # fmt: skip
"""In the order in which they are named; the last two are files that are no Python of the tests."""
_IMPLIED = ("<module>", "<class>", "<data:")  # what a test has without naming it
_ALL = "every test beside and below it"


@dataclass(frozen=True, slots=True)
class Change:
    """One line of `diff.jsonl`.

    Attributes:
        id: of a test; else `infra::path::name`, `opinfo::table::name`, `product::path`,
            `data::path`.
        kinds: all ways in which it changed, first the weightiest.
        was: its id in the base ref, where that is another.
        ops: full names of the entries of tables that changed under a test, where that is all.
        why: one line for each kind: what differs, where.
        hashes: before and after, by what they are of; empty on a side where there is none.
    """

    id: str
    kinds: tuple[str, ...]
    was: str = ""
    ops: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    hashes: Mapping[str, tuple[str, str]] | None = None

    @property
    def is_test(self) -> bool:
        return self.id.split("::")[0] not in ("infra", "opinfo", "product", "data")

    @property
    def kind(self) -> str:
        return self.kinds[0]


@dataclass(frozen=True, slots=True)
class Diff:
    """All changes between two enumerations, in order of ids."""

    base: str
    head: str
    changes: tuple[Change, ...]

    def counts(self) -> dict[str, int]:
        """How many changes there are by kind; one with several kinds counts for each."""
        found = Counter(kind for change in self.changes for kind in change.kinds)
        return {kind: found[kind] for kind in KINDS if found[kind]}


def diff_of(base: Enumeration, head: Enumeration, layout: Layout) -> Diff:
    """What changed from one ref to another."""
    broken = {b.path for e in (base, head) for b in e.broken if b.test_file}
    names = {layout.name(path) for path in broken}
    before = {t.id: t for t in base.tests if t.file not in names}
    after = {t.id: t for t in head.tests if t.file not in names}
    machinery = list(_machinery_changes(base, head))
    entries = list(_entry_changes(base, head))
    ops = _changed_ops(base, head)
    everywhere = _everywhere(machinery, base, head, layout)
    moved = dict(_moves(before, after))
    changes: list[Change] = [*machinery, *entries, *_file_changes(base, head, layout)]
    changes += _broken_changes(base, head, layout)
    for id, test in after.items():
        old = before.get(id) or before.get(moved.get(id, ""))
        changes += _test_changes(old, test, ops, everywhere, layout.prefix)
    gone = set(before) - set(after) - set(moved.values())
    changes += [_alone(before[id], "removed") for id in gone]
    return Diff(base.commit, head.commit, tuple(sorted(changes, key=lambda c: c.id)))


def _test_changes(
    old: Test | None,
    new: Test,
    ops: Mapping[str, frozenset[str]],
    everywhere: Mapping[str, str],
    prefix: str,
) -> Iterator[Change]:
    if old is None:
        yield _alone(new, "added")
        return
    kinds: dict[str, str] = {}
    hashes: dict[str, tuple[str, str]] = {}

    def compare(kind: str, what: str, one: str, other: str) -> None:
        if one != other:
            hashes[what] = one, other
            kinds.setdefault(kind, f"{kind}: {what} differs, {new.at}:{new.line}")

    if old.id != new.id:
        kinds["moved"] = f"moved: from {old.id}"
    compare("body", "body", old.body, new.body)
    compare("body", "signature", old.signature, new.signature)
    compare("decorators", "decorators", old.decorators, new.decorators)
    compare("class", "class", old.of_class, new.of_class)
    compare("generation", "generation", old.generation, new.generation)
    compare("instantiation", "instantiation", old.instantiation, new.instantiation)
    same_text = _same_text(old, new)
    changed_helpers = _differing(old.helpers, new.helpers, same_text=same_text)
    for name in changed_helpers:
        compare("helpers", name, old.helpers.get(name, ""), new.helpers.get(name, ""))
    for name in sorted(old.imports.keys() & new.imports.keys()):
        compare("helpers", f"import of {name}", old.imports[name], new.imports[name])
    touched = tuple(sorted({
        op for table in {*old.tables, *new.tables} for op in ops.get(table, ())
    }))  # fmt: skip
    if touched:
        kinds["opinfo"] = f"opinfo: {len(touched)} entries of {', '.join(new.tables)}"
    for name in _differing(old.infra, new.infra, same_text=same_text):
        if name in changed_helpers and not (name in old.infra and name in new.infra):
            continue  # the helper, which changed, uses other machinery
        compare("infra", name, old.infra.get(name, ""), new.infra.get(name, ""))
    for folder, reason in everywhere.items():
        if (prefix + new.file).startswith(folder):
            kinds.setdefault("infra", f"infra: {reason} concerns {_ALL}")
    if kinds:
        ordered = tuple(kind for kind in KINDS if kind in kinds)
        yield Change(
            new.id, ordered, old.id if old.id != new.id else "",
            touched if ordered == ("opinfo",) else (), tuple(kinds[k] for k in ordered), hashes,
        )  # fmt: skip


def _same_text(old: Test, new: Test) -> bool:
    """Whether both say the same, and so use the same names."""
    one, other = (
        (test.body, test.signature, test.decorators, test.generation) for test in (old, new)
    )
    return one == other


def _differing(old: Mapping[str, str], new: Mapping[str, str], *, same_text: bool) -> list[str]:
    """Names that mean something else.

    A name that only one side has means nothing on the other one if the text is the same; else
    the text no longer uses it, and that is a change of the text alone.
    """
    return sorted(
        name
        for name in old.keys() | new.keys()
        if old.get(name) != new.get(name)
        and (same_text or (name in old and name in new) or name.startswith(_IMPLIED))
    )


def _alone(test: Test, kind: str) -> Change:
    hashes = {"body": ("", test.body) if kind == "added" else (test.body, "")}
    return Change(test.id, (kind,), why=(f"{kind}: {test.at}:{test.line}",), hashes=hashes)


# --- moves ----------------------------------------------------------------------------------


def _moves(before: Mapping[str, Test], after: Mapping[str, Test]) -> Iterator[tuple[str, str]]:
    """Pairs of a new id and the old one: the same test under another file, class or name.

    The first rules pair what shares more; the same pairs come out with the refs swapped.
    """
    old = {id: test for id, test in before.items() if id not in after}
    new = {id: test for id, test in after.items() if id not in before}
    rules: tuple[Callable[[Test], Hashable], ...] = (
        lambda t: (t.cls, t.method, t.body, t.signature),
        lambda t: (t.file, t.method, t.body, t.signature),
        lambda t: (t.method, t.body, t.signature),
        lambda t: (t.file, t.cls, t.body, t.signature, t.generation),
    )
    for rule in rules:
        ones, others = _grouped(old.values(), rule), _grouped(new.values(), rule)
        for key in sorted(ones.keys() & others.keys(), key=str):
            if len(ones[key]) == 1 == len(others[key]):
                one, other = ones[key][0], others[key][0]
                del old[one.id], new[other.id]
                yield other.id, one.id


def _grouped(tests: Iterable[Test], rule: Callable[[Test], Hashable]) -> dict[Hashable, list[Test]]:
    found: dict[Hashable, list[Test]] = {}
    for test in tests:
        if test.body:
            found.setdefault(rule(test), []).append(test)
    return found


# --- what is no test ------------------------------------------------------------------------


def _machinery_changes(base: Enumeration, head: Enumeration) -> Iterator[Change]:
    old = {m.key: m for m in base.machinery}
    new = {m.key: m for m in head.machinery}
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key), new.get(key)
        before, after = one.hash if one else "", other.hash if other else ""
        if before != after:
            how = "differs" if one and other else "is new" if other else "is gone"
            line = (other or one or new[key]).line
            path, _, name = key.partition("::")
            yield Change(
                f"infra::{key}", ("infra",), why=(f"infra: {name} {how}, {path}:{line}",),
                hashes={"definition": (before, after)},
            )  # fmt: skip


def _by_key(found: Enumeration) -> dict[str, list[Entry]]:
    """Entries by table, name and variant: two of one name are compared together."""
    entries: dict[str, list[Entry]] = {}
    for entry in found.entries:
        entries.setdefault(f"{entry.table}::{entry.full_name}", []).append(entry)
    return entries


def _entry_pairs(base: Enumeration, head: Enumeration) -> Iterator[tuple[str, list[Entry], bool]]:
    """Entries that differ, with whether the table's text differs, not only what it names."""
    old, new = _by_key(base), _by_key(head)
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key, []), new.get(key, [])
        text = [e.hash for e in one] != [e.hash for e in other]
        if text or [e.reached for e in one] != [e.reached for e in other]:
            yield key, other or one, text


def _entry_changes(base: Enumeration, head: Enumeration) -> Iterator[Change]:
    for key, entries, text in _entry_pairs(base, head):
        at = f"{entries[0].table.partition('::')[0]}:{entries[0].line}"
        what = "the entry" if text else "what the entry names"
        yield Change(f"opinfo::{key}", ("opinfo",), why=(f"opinfo: {what} differs, {at}",))


def _changed_ops(base: Enumeration, head: Enumeration) -> dict[str, frozenset[str]]:
    """Full names of changed entries by table, also by table and class as tests name them."""
    found: dict[str, set[str]] = {}
    for _, entries, _ in _entry_pairs(base, head):
        for entry in entries:
            found.setdefault(entry.table, set()).add(entry.full_name)
            found.setdefault(f"{entry.table}/{entry.maker}", set()).add(entry.full_name)
    return {table: frozenset(names) for table, names in found.items()}


def _everywhere(
    machinery: Iterable[Change], base: Enumeration, head: Enumeration, layout: Layout
) -> dict[str, str]:
    """What changed that no test names and yet concerns every test of a folder, by folder."""
    found: dict[str, str] = {}
    for change in machinery:
        _, path, name = change.id.split("::")
        if path.endswith(("conftest.py", "run_test.py")) or name == "<module>":
            found.setdefault(_folder(path), f"{path}::{name}")
    for one, other in ((base, head), (head, base)):
        known = {b.path: b.hash for b in other.broken}
        for broken in one.broken:
            if layout.is_infra(broken.path) and known.get(broken.path) != broken.hash:
                found.setdefault(_folder(broken.path), f"{broken.path} (does not parse)")
    return found


def _folder(path: str) -> str:
    """Where the tests lie that a file of the machinery concerns: a conftest.py's own folder."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/" if folder and name == "conftest.py" else ""


def _broken_changes(base: Enumeration, head: Enumeration, layout: Layout) -> Iterator[Change]:
    """One change for a file that does not parse on either side, where it differs at all."""
    old = {b.path: b for b in base.broken if b.test_file}
    new = {b.path: b for b in head.broken if b.test_file}
    for path in sorted(old.keys() | new.keys()):
        one, other = old.get(path), new.get(path)
        if one and other and one.hash == other.hash:
            continue
        id = f"{layout.name(path)}::*"
        yield Change(id, ("body",), why=tuple(_broken_lines(one, other)))


def _broken_lines(one: Broken | None, other: Broken | None) -> Iterator[str]:
    for which, broken in (("base", one), ("head", other)):
        if broken is not None:
            yield f"body: does not parse in {which}, {broken.path}:{broken.line}: {broken.error}"


def _file_changes(base: Enumeration, head: Enumeration, layout: Layout) -> Iterator[Change]:
    """Files that are no Python of the tests: product source, and data beside tests."""
    for path in sorted(base.other.keys() | head.other.keys()):
        before, after = base.other.get(path, ""), head.other.get(path, "")
        if before != after:
            kind = "data" if layout.is_ours(path) else "product"
            how = "differs" if before and after else "is new" if after else "is gone"
            yield Change(
                f"{kind}::{path}", (kind,), why=(f"{kind}: {path} {how}",),
                hashes={"file": (before, after)},
            )  # fmt: skip


# --- text -----------------------------------------------------------------------------------


def diff_text(diff: Diff) -> str:
    """The lines of `diff.jsonl`."""
    head = to_json({"schema": SCHEMA, "base": diff.base, "head": diff.head})
    return "\n".join([head, *(to_json(asdict(change)) for change in diff.changes)]) + "\n"


def diff_from(text: str, name: str = "diff") -> Diff:
    """Reads `diff.jsonl`.

    Raises:
        SelectionError: it is none.
    """
    try:
        head, *lines = map(json.loads, text.splitlines())
        if head["schema"] != SCHEMA:
            raise ValueError(f"its schema is {head['schema']}")
        return Diff(head["base"], head["head"], tuple(map(_change, lines)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SelectionError(f"{name} is no diff", why=repr(error), hint="diff again") from None


def _change(line: Mapping[str, Any]) -> Change:
    change = record_of(Change, line)
    hashes = {name: (one, other) for name, (one, other) in (change.hashes or {}).items()}
    return replace(change, hashes=hashes if change.hashes is not None else None)
