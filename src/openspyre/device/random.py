"""Random number generators of the devices."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from openspyre import _C
from openspyre.device.streams import Device, device_count, index_of, is_available


@cache
def default_generators() -> tuple[torch.Generator, ...]:
    """The default generator of every device."""
    return tuple(_C.default_generator(i) for i in range(device_count()))


def manual_seed(seed: int) -> None:
    """Seeds the current device; nothing where there is none."""
    if is_available():
        default_generators()[index_of(None)].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds every device."""
    for generator in default_generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device with a number that differs each time, where there is one."""
    if is_available():
        default_generators()[index_of(None)].seed()


def seed_all() -> None:
    """Seeds every device with one number that differs each time."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the current device."""
    return _C.default_generator(index_of(None)).initial_seed()


def get_rng_state(device: Device = "spyre") -> torch.Tensor:
    """The state of a device's generator, as bytes on the CPU."""
    return _C.default_generator(index_of(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "spyre") -> None:
    """Puts a device's generator into a state."""
    _C.default_generator(index_of(device)).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [generator.get_state() for generator in default_generators()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Puts all devices into the given states."""
    for generator, state in zip(default_generators(), new_states, strict=True):
        generator.set_state(state)
