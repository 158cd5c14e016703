"""Which downstream repositories the relay knows, and how far it trusts each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import yaml

from openspyre.ci.relay.message import InvalidMessage
from openspyre.ci.relay.wire import LABEL_PREFIXES, REPOSITORY, Level

_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Allowlist:
    """Repositories (owner/name) with their level; those of L3 may have a device."""

    levels: Mapping[str, Level]
    devices: Mapping[str, str]
    oncalls: Mapping[str, tuple[str, ...]]

    def level(self, repository: str) -> Level | None:
        """None for a repository that is not listed."""
        return self.levels.get(repository)

    def of_device(self, device: str) -> tuple[str, ...]:
        """The repositories of L3 for a device."""
        return tuple(sorted(repo for repo, name in self.devices.items() if name == device))

    def checks(self, repository: str, labels: frozenset[str]) -> bool:
        """Whether a run of the repository shows on a pull request with these labels."""
        match self.level(repository):
            case Level.L4:
                return True
            case Level.L3:
                device = self.devices.get(repository, "")
                return bool(labels & {prefix + device for prefix in LABEL_PREFIXES})
            case _:
                return False


def read_allowlist(text: str) -> Allowlist:
    """The allowlist that YAML text holds; keys that it does not know are passed over.

    Raises:
        InvalidMessage: the text is no YAML, a container has the wrong type, a repository is not
            owner/name or is listed twice.
    """
    if len(text) > _LIMIT:
        _wrong(f"it has {len(text)} characters, more than {_LIMIT}")
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidMessage("the allowlist is not YAML", why=str(error)[:300]) from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        _wrong("it is no map of levels")
    levels: dict[str, Level] = {}
    devices: dict[str, str] = {}
    oncalls: dict[str, tuple[str, ...]] = {}
    for level in Level:
        for repository, device, people in _entries(level, content.get(level.name)):
            if not REPOSITORY.fullmatch(repository):
                _wrong(f"{level.name} lists {repository!r:.120}, which is not owner/name")
            if repository in levels:
                _wrong(f"{repository} is listed twice")
            levels[repository] = level
            oncalls[repository] = people
            if device:
                devices[repository] = device
    return Allowlist(levels, devices, oncalls)


class _Loader(yaml.SafeLoader):
    """YAML's plain types; a key that stands twice in a map is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        found: dict[object, object] = super().construct_mapping(node, deep)
        if len(found) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key twice", node.start_mark)
        return found


Listed = tuple[str, str, tuple[str, ...]]  # repository, device, who is on call


def _entries(level: Level, content: object) -> Iterator[Listed]:
    match content:
        case None:
            return
        case list():
            yield from (_listed(level, entry) for entry in content)
        case dict() if level is Level.L3:
            for device, repositories in content.items():
                if not isinstance(device, str) or not isinstance(repositories, dict):
                    _wrong("L3 is no map from devices to maps of repositories")
                for repository, people in repositories.items():
                    yield str(repository), device, _people(level, people)
        case _:
            _wrong(f"{level.name} is no list")


def _listed(level: Level, entry: object) -> Listed:
    match entry:
        case str():
            return entry, "", ()
        case dict() if len(entry) == 1:
            ((repository, people),) = entry.items()
            return str(repository), "", _people(level, people)
        case dict():
            _wrong(f"{level.name} has a map with {len(entry)} keys where one is allowed")
        case _:
            _wrong(f"{level.name} lists something that is neither a repository nor a map")


def _people(level: Level, content: object) -> tuple[str, ...]:
    match content:
        case None:
            return ()
        case str():
            names = content.split(",")
        case list() if all(isinstance(name, str) for name in content):
            names = content
        case dict():  # newer keys, such as one that restricts an entry to nightly runs
            return ()
        case _:
            _wrong(f"{level.name} names people on call neither in a list nor in a string")
    return tuple(name.strip() for name in names if name.strip())


def _wrong(why: str) -> NoReturn:
    raise InvalidMessage("the allowlist is not as published", why=why)
