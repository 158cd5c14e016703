"""Rewrites by rule: replacements that are known for some functions, tried before any agent.

Each is the text of a file that defines `replacement`, like an agent's answer, and goes through the
same proof: a rule may be wrong for a call, but nothing that is wrong is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from openspyre.hf.gaps import Call


@dataclass(frozen=True, slots=True)
class Rewrite:
    """`functions`: the last part of the names of the functions that it is for."""

    name: str
    functions: frozenset[str]
    code: str


_POWER = '''\
"""A whole power as products."""


def replacement(input, exponent):
    if not isinstance(exponent, int) or not 2 <= exponent <= 16:
        raise NotImplementedError(f"the exponent {exponent}")
    result = input
    for _ in range(exponent - 1):
        result = result * input
    return result
'''
_PAIRS = '''\
"""Every place looks at all places up to its own: n * n numbers for n."""

import torch


def replacement(input, dim):
    x = input.movedim(dim, -1)
    n = x.shape[-1]
    later = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
    pairs = x.unsqueeze(-2).masked_fill(later, -float("inf"))
    return pairs.logsumexp(-1).movedim(-1, dim)
'''
_HALVES = '''\
"""Substitution by halves: one half is solved, put into the other, and that solved."""

import torch


def replacement(A, B, *, upper, left=True, unitriangular=False):
    if not left:
        turned = replacement(A.mT, B.mT, upper=not upper, unitriangular=unitriangular)
        return turned.mT
    batch = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    A, B = A.expand(*batch, *A.shape[-2:]), B.expand(*batch, *B.shape[-2:])
    return solved(A, B, upper, unitriangular)


def solved(A, B, upper, unitriangular):
    n = A.shape[-1]
    if n == 0:
        return B.clone()
    if n == 1:
        return B.clone() if unitriangular else B / A
    half = n // 2
    top, bottom = B[..., :half, :], B[..., half:, :]
    ahead, behind = A[..., :half, :half], A[..., half:, half:]
    if upper:
        bottom = solved(behind, bottom, upper, unitriangular)
        top = solved(ahead, top - A[..., :half, half:] @ bottom, upper, unitriangular)
    else:
        top = solved(ahead, top, upper, unitriangular)
        bottom = solved(behind, bottom - A[..., half:, :half] @ top, upper, unitriangular)
    return torch.cat([top, bottom], -2)
'''
REWRITES = (
    Rewrite("whole powers as products", frozenset({"pow", "__pow__", "float_power"}), _POWER),
    Rewrite("pairs of places", frozenset({"logcumsumexp"}), _PAIRS),
    Rewrite("substitution by halves", frozenset({"solve_triangular"}), _HALVES),
)


def rewrites_for(calls: tuple[Call, ...]) -> tuple[Rewrite, ...]:
    """The rules that know the functions of these calls."""
    names = {call.name.replace(":", ".").rpartition(".")[2] for call in calls}
    return tuple(rule for rule in REWRITES if names <= rule.functions)
