"""Planned kernels written by hand: the Program, interpreted, gives what the reference gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from openspyre.errors import CardError
from openspyre.ir.binary import decode, encode
from openspyre.compiler.emit import emit
from openspyre.compiler.residency import place
from openspyre.ir.kernel import Space
from openspyre.ir.program import Copy, Pt, TileLoop, Vec
from openspyre.ir.text import parse_kernel
from openspyre.spec import SPYRE_CARD_V1
from tests.card_runner import check_interpreted

MAPS = {
    "broadcast, uneven parts, tiles with a tail": """
        arguments x y z
        input x: f16[7, 70]
        input y: f16[70]
        output z: f16[7, 70]
        op a map i0:7 i1:70
          z[i0, i1] <- f16(x[i0, i1] + y[i1])
        step s0: a
          axes i0:7
          bind a: i0=i0
          loops i0/2
        division s0: i0 parts 3 stride 1 granule 1
        """,
    "transposed, strided and expanded inputs": """
        arguments x y z w
        input x: f32[6, 9] strides [1, 6]
        input y: f32[6, 9] strides [40, 3]
        input z: f32[6, 9] strides [0, 1]
        output w: f32[6, 9] strides [11, 1]
        op a map i0:6 i1:9
          w[i0, i1] <- (x[i0, i1] * y[i0, i1]) + z[i0, i1]
        step s0: a
          axes i0:6
          bind a: i0=i0
        division s0: i0 parts 2 stride 1 granule 2
        """,
    "two split axes and inner loops": """
        arguments x z
        input x: f16[6, 5, 130]
        output z: f16[5, 6, 130]
        op a map i0:5 i1:6 i2:130
          z[i0, i1, i2] <- f16(exp(x[i1, i0, i2]))
        step s0: a
          axes i0:5 i1:6
          bind a: i0=i0 i1=i1
          loops i0/1
          inner a: i2/64
        division s0: i0 parts 2 stride 4 i1 parts 4 stride 1
        """,
    "no dims": """
        arguments x s z
        input x: f16[]
        scalar s: f32[]
        output z: f32[]
        op a map
          z[] <- (x[] * s[]) + 1.0
        step s0: a
          axes
          bind a:
        """,
    "integers, bool and index values": """
        arguments x y z
        input x: i64[4, 6]
        input y: b1[6]
        output z: i64[4, 6]
        op a map i0:4 i1:6
          z[i0, i1] <- where((y[i1] & (x[i0, i1] > 0)), ((x[i0, i1] // 2) + idx[3*i0 + i1]), -x[i0, i1])
        step s0: a
          axes i0:4
          bind a: i0=i0
        division s0: i0 parts 4 stride 1 granule 1
        """,
    "guarded loads of a shift": """
        arguments x z
        input x: f16[5, 8]
        output z: f16[5, 8]
        op a map i0:5 i1:8
          z[i0, i1] <- where((idx[i1] < 4), x?[i0, i1 - 4], x?[i0 - 1, i1])
        step s0: a
          axes i0:5
          bind a: i0=i0
        division s0: i0 parts 2 stride 1 granule 1
        """,
    "in place": """
        arguments x
        mutated x: i32[9] strides [2]
        op a map i0:9
          x[i0] <- x[i0] + 1:i32
        step s0: a
          axes i0:9
          bind a: i0=i0
        division s0: i0 parts 2 stride 1 granule 4
        """,
    "cat in three pieces": """
        arguments x y z
        input x: f16[3, 4]
        input y: f16[3, 2]
        output z: f16[3, 8]
        op a map i0:3 i1:4
          z[i0, i1] <- x[i0, i1]
        op b map i0:3 i1:2
          z[i0, i1 + 4] <- y[i0, i1]
        op c map i0:3 i1:2
          z[i0, i1 + 6] <- 0.5
        step s0: a b c
          axes i0:3
          bind a: i0=i0
          bind b: i0=i0
          bind c: i0=i0
        division s0: i0 parts 2 stride 1 granule 1
        """,
}
REDUCTIONS = {
    "rows": """
        arguments x z
        input x: f16[5, 133]
        output z: f16[5, 1]
        op a reduce i0:5 | r0:133
          z[i0, 0] <- sum: x[i0, r0]
        step s0: a
          axes i0:5
          bind a: i0=i0
        division s0: i0 parts 2 stride 1 granule 1
        """,
    "rows in tiles, narrow": """
        arguments x z
        input x: f16[5, 133]
        output z: f16[5]
        op a reduce i0:5 | r0:133
          z[i0] <- sum: x[i0, r0] * 3.0
        step s0: a
          axes i0:5
          bind a: i0=i0
          loops i0/2
          inner a: r0/64
        division s0: i0 parts 2 stride 1 granule 1
        """,
    "outer dim": """
        arguments x z
        input x: f32[40, 9]
        output z: f32[9]
        op a reduce i0:9 | r0:40
          z[i0] <- max: x[r0, i0]
        step s0: a
          axes i0:9
          bind a: i0=i0
          inner a: r0/16
        division s0: i0 parts 3 stride 1 granule 3
        """,
    "everything, several dims": """
        arguments x z y
        input x: f32[4, 3, 9]
        output z: f32[]
        output y: b1[3]
        op a reduce | r0:4 r1:3 r2:9
          z[] <- min: x[r0, r1, r2]
        op b reduce i0:3 | r0:4 r1:9
          y[i0] <- any: x[r0, i0, r1] > 1.5
        step s0: a
          axes
          bind a:
        step s1: b
          axes i0:3
          bind b: i0=i0
        """,
    "scan": """
        arguments x z
        input x: i64[3, 7]
        output z: i64[3, 7]
        op a scan i0:3 | r0:7
          z[i0, r0] <- sum: x[i0, r0]
        step s0: a
          axes i0:3
          bind a: i0=i0
        division s0: i0 parts 3 stride 1 granule 1
        """,
    "narrow integers": """
        arguments x z
        input x: i64[6, 20]
        output z: i64[6]
        op a reduce i0:6 | r0:20
          z[i0] <- prod: x[i0, r0]
        step s0: a
          axes i0:6
          bind a: i0=i0
          inner a: r0/7
        """,
}
CONTRACTIONS = {
    "linear, weights [n, k]": """
        arguments x w z
        input x: f16[6, 48]
        input w: f16[40, 48]
        output z: f16[6, 40]
        op a contract i0:6 i1:40 | r0:48
          z[i0, i1] <- sum: x[i0, r0] * w[i1, r0]
        step s0: a
          axes i0:6
          bind a: i0=i0
          loops i0/2
        division s0: i0 parts 2 stride 1 granule 1
        """,
    "inner loops over n and k, narrow": """
        arguments x w z
        input x: bf16[5, 200]
        input w: bf16[200, 150]
        output z: bf16[5, 150]
        op a contract i0:5 i1:150 | r0:200
          z[i0, i1] <- sum: x[i0, r0] * w[r0, i1]
        step s0: a
          axes i0:5 i1:150
          bind a: i0=i0 i1=i1
          inner a: r0/64
          loops i1/64
        division s0: i1 parts 2 stride 2 granule 64 i0 parts 2 stride 1
        """,
    "k outside of n": """
        arguments x w z
        input x: f16[5, 100]
        input w: f16[100, 70]
        output z: f16[5, 70]
        op a contract i0:5 i1:70 | r0:100
          z[i0, i1] <- sum: x[i0, r0] * w[r0, i1]
        step s0: a
          axes i0:5
          bind a: i0=i0
          inner a: r0/64 i1/64
        """,
    "f32 result, operands swapped, transposed output": """
        arguments x w z
        input x: f16[6, 20]
        input w: f16[9, 20]
        output z: f32[6, 9] strides [1, 6]
        op a contract i0:6 i1:9 | r0:20
          z[i0, i1] <- sum: w[i1, r0] * x[i0, r0]
        step s0: a
          axes i1:9
          bind a: i1=i1
        division s0: i1 parts 2 stride 1 granule 1
        """,
    "batch, heads inside of k": """
        arguments x w z
        input x: f32[2, 5, 3, 8]
        input w: f32[10, 24]
        output z: f32[2, 5, 10]
        op a contract i0:2 i1:5 i2:10 | r0:3 r1:8
          z[i0, i1, i2] <- sum: x[i0, i1, r0, r1] * w[i2, 8*r0 + r1]
        step s0: a
          axes i0:2 i1:5
          bind a: i0=i0 i1=i1
        division s0: i0 parts 2 stride 2 i1 parts 2 stride 1
        """,
    "matrix times vector, no m": """
        arguments x w z
        input x: f16[30]
        input w: f16[12, 30]
        output z: f16[12]
        op a contract i0:12 | r0:30
          z[i0] <- sum: x[r0] * w[i0, r0]
        step s0: a
          axes i0:12
          bind a: i0=i0
        division s0: i0 parts 3 stride 1 granule 4
        """,
    "dot product, no n": """
        arguments x w z
        input x: f16[4, 30]
        input w: f16[4, 30]
        output z: f16[4]
        op a contract i0:4 | r0:30
          z[i0] <- sum: x[i0, r0] * w[i0, r0]
        step s0: a
          axes i0:4
          bind a: i0=i0
        """,
    "a tensor with itself": """
        arguments x z
        input x: f16[4, 30]
        output z: f16[4, 4]
        op a contract i0:4 i1:4 | r0:30
          z[i0, i1] <- sum: x[i0, r0] * x[i1, r0]
        step s0: a
          axes i0:4
          bind a: i0=i0
        division s0: i0 parts 2 stride 1 granule 1
        """,
    "empty k": """
        arguments x w z
        input x: f16[4, 0]
        input w: f16[0, 5]
        output z: f16[4, 5]
        op a contract i0:4 i1:5 | r0:0
          z[i0, i1] <- sum: x[i0, r0] * w[r0, i1]
        step s0: a
          axes i0:4
          bind a: i0=i0
        """,
}
FUSED = {
    "softmax": """
        arguments x z
        input x: f16[9, 100]
        output z: f16[9, 100]
        local m: f32[9, 1]
        local s: f32[9, 1]
        op a reduce i0:9 | r0:100
          m[i0, 0] <- max: x[i0, r0]
        op b reduce i0:9 | r0:100
          s[i0, 0] <- sum: exp((x[i0, r0] - m[i0, 0]))
        op c map i0:9 i1:100
          z[i0, i1] <- f16(exp((x[i0, i1] - m[i0, 0])) / s[i0, 0])
        step s0: a b c
          axes i0:9
          bind a: i0=i0
          bind b: i0=i0
          bind c: i0=i0
          loops i0/2
        division s0: i0 parts 2 stride 1 granule 1
        """,
    "linear, bias, gelu; the matmul's result is rounded before it is read": """
        arguments x w b z
        input x: f16[10, 64]
        input w: f16[96, 64]
        input b: f16[96]
        output z: f16[10, 96]
        local t: f16[10, 96]
        op a contract i0:10 i1:96 | r0:64
          t[i0, i1] <- sum: x[i0, r0] * w[i1, r0]
        op g map i0:10 i1:96
          %0 = f16(t[i0, i1] + b[i1])
          z[i0, i1] <- f16((%0 * 0.5) * (erf((%0 * 0.70710678)) + 1.0))
        step s0: a g
          axes i0:10
          bind a: i0=i0
          bind g: i0=i0
          loops i0/4
          inner a: i1/64
        division s0: i0 parts 3 stride 1 granule 1
        """,
    "layer_norm": """
        arguments x w b z
        input x: f16[2, 5, 60]
        input w: f16[60]
        input b: f16[60]
        output z: f16[2, 5, 60]
        local s: f32[2, 5, 1]
        local m: f32[2, 5, 1]
        local q: f32[2, 5, 1]
        op a reduce i0:2 i1:5 | r0:60
          s[i0, i1, 0] <- sum: x[i0, i1, r0]
        op b map i0:2 i1:5
          m[i0, i1, 0] <- s[i0, i1, 0] * 0.016666667
        op c reduce i0:2 i1:5 | r0:60
          %0 = x[i0, i1, r0] - m[i0, i1, 0]
          q[i0, i1, 0] <- sum: %0 * %0
        op d map i0:2 i1:5 i2:60
          %0 = rsqrt(((q[i0, i1, 0] * 0.016666667) + 1e-12))
          z[i0, i1, i2] <- f16((((x[i0, i1, i2] - m[i0, i1, 0]) * %0) * w[i2]) + b[i2])
        step s0: a b c d
          axes i0:2 i1:5
          bind a: i0=i0 i1=i1
          bind b: i0=i0 i1=i1
          bind c: i0=i0 i1=i1
          bind d: i0=i0 i1=i1
          loops i1/2
        division s0: i0 parts 2 stride 1 i1 parts 2 stride 2
        """,
    "attention": """
        arguments q k v c
        input q: f16[2, 7, 24]
        input k: f16[2, 9, 24]
        input v: f16[2, 9, 24]
        output c: f16[2, 7, 3, 8]
        local s: f32[2, 3, 7, 9]
        local m: f32[2, 3, 7, 1]
        local l: f32[2, 3, 7, 1]
        local p: f16[2, 3, 7, 9]
        op a contract i0:2 i1:3 i2:7 i3:9 | r0:8
          s[i0, i1, i2, i3] <- sum: q[i0, i2, 8*i1 + r0] * k[i0, i3, 8*i1 + r0]
        op b reduce i0:2 i1:3 i2:7 | r0:9
          m[i0, i1, i2, 0] <- max: where((idx[r0] <= idx[i2]), (s[i0, i1, i2, r0] * 0.35), -inf)
        op d reduce i0:2 i1:3 i2:7 | r0:9
          l[i0, i1, i2, 0] <- sum: exp((where((idx[r0] <= idx[i2]), (s[i0, i1, i2, r0] * 0.35), -inf) - m[i0, i1, i2, 0]))
        op e map i0:2 i1:3 i2:7 i3:9
          p[i0, i1, i2, i3] <- f16(exp((where((idx[i3] <= idx[i2]), (s[i0, i1, i2, i3] * 0.35), -inf) - m[i0, i1, i2, 0])) / l[i0, i1, i2, 0])
        op f contract i0:2 i1:7 i2:3 i3:8 | r0:9
          c[i0, i1, i2, i3] <- sum: p[i0, i2, i1, r0] * v[i0, r0, 8*i2 + i3]
        step s0: a b d e f
          axes b:2 h:3 s:7
          bind a: i0=b i1=h i2=s
          bind b: i0=b i1=h i2=s
          bind d: i0=b i1=h i2=s
          bind e: i0=b i1=h i2=s
          bind f: i0=b i1=s i2=h
          loops h/1 s/3
        division s0: b parts 2 stride 1 s parts 2 stride 2
        """,
    "a matmul's operand in LX with the wrong stick dim": """
        arguments x y z
        input x: f16[4, 12, 8]
        input y: f16[4, 8, 10]
        output z: f16[4, 12, 10]
        local t: f16[4, 8, 12]
        local u: f16[4, 10, 8]
        op a map i0:4 i1:8 i2:12
          t[i0, i1, i2] <- f16(x[i0, i2, i1] * 2.0)
        op b map i0:4 i1:10 i2:8
          u[i0, i1, i2] <- f16(y[i0, i2, i1] + 1.0)
        op c contract i0:4 i1:12 i2:10 | r0:8
          z[i0, i1, i2] <- sum: t[i0, r0, i1] * u[i0, i2, r0]
        step s0: a b c
          axes i0:4
          bind a: i0=i0
          bind b: i0=i0
          bind c: i0=i0
          loops i0/1
        division s0: i0 parts 2 stride 1
        """,
    "a matmul's result in LX with m last": """
        arguments x y z
        input x: f16[4, 12, 8]
        input y: f16[4, 8, 10]
        output z: f16[4, 10, 12]
        local t: f16[4, 10, 12]
        op c contract i0:4 i1:12 i2:10 | r0:8
          t[i0, i2, i1] <- sum: x[i0, i1, r0] * y[i0, r0, i2]
        op d map i0:4 i1:10 i2:12
          z[i0, i1, i2] <- f16(t[i0, i1, i2] + 1.0)
        layout t: 0 2 1
        step s0: c d
          axes i0:4
          bind c: i0=i0
          bind d: i0=i0
        division s0: i0 parts 2 stride 1
        """,
    "an output that is read again": """
        arguments x y z
        input x: f32[6, 10]
        output y: f32[6, 10]
        output z: f32[6]
        op a map i0:6 i1:10
          y[i0, i1] <- x[i0, i1] * 2.0
        op b reduce i0:6 | r0:10
          z[i0] <- sum: y[i0, r0]
        step s0: a b
          axes i0:6
          bind a: i0=i0
          bind b: i0=i0
          loops i0/2
        division s0: i0 parts 2 stride 1
        """,
}
CROSSING = {
    "gather of an embedding": """
        arguments ids table z
        input ids: i64[3, 4]
        input table: f16[50, 70]
        output z: f16[3, 4, 70]
        op a gather i0:3 i1:4 i2:70
          lookup t = ids[i0, i1] size 50 wrap
          z[i0, i1, i2] <- table[t, i2]
        step s0: a
          axes i0:3
          bind a: i0=i0
          loops i0/1
        division s0: i0 parts 2 stride 1
        """,
    "gather through a computed index, from a local": """
        arguments x z
        input x: f16[20, 6]
        output z: f16[5, 6]
        local j: i64[5]
        local y: f16[20, 6]
        op i map i0:5
          j[i0] <- (idx[i0] * 3) + 1
        op y map i0:20 i1:6
          y[i0, i1] <- f16(x[i0, i1] * 2.0)
        op a gather i0:5 i1:6
          lookup t = j[i0] size 20
          z[i0, i1] <- y[t, i1]
        step s0: y
          axes i0:20
          bind y: i0=i0
        step s1: i a
          axes i0:5
          bind i: i0=i0
          bind a: i0=i0
          loops i0/2
        division s0: i0 parts 4 stride 1
        division s1: i0 parts 2 stride 1
        """,
    "scatter": """
        arguments j x y
        input j: i64[3]
        input x: f16[3, 6]
        mutated y: f16[9, 6]
        op a scatter i0:3 i1:6
          lookup t = j[i0] size 9 wrap
          y[t, i1] <- x[i0, i1]
        step s0: a
          axes i1:6
          bind a: i1=i1
        division s0: i1 parts 2 stride 1
        """,
    "scatter that adds, with repeated indices": """
        arguments j x y
        input j: i64[5]
        input x: f32[5, 6]
        mutated y: f32[3, 6]
        op a scatter i0:5 i1:6
          lookup t = j[i0] size 3
          y[t, i1] += x[i0, i1]
        step s0: a
          axes i1:6
          bind a: i1=i1
        """,
    "a local through the pool to another division": """
        arguments x z
        input x: f16[8, 40]
        output z: f16[40]
        local t: f16[8, 40]
        op a map i0:8 i1:40
          t[i0, i1] <- f16(x[i0, i1] * 0.5)
        op b reduce i0:40 | r0:8
          z[i0] <- sum: t[r0, i0]
        step s0: a
          axes i0:8
          bind a: i0=i0
          loops i0/1
        step s1: b
          axes i0:40
          bind b: i0=i0
        division s0: i0 parts 4 stride 1
        division s1: i0 parts 4 stride 1 granule 16
        """,
}
ALL = {**MAPS, **REDUCTIONS, **CONTRACTIONS, **FUSED, **CROSSING}


def kernel(text: str):
    return parse_kernel("kernel k\n" + text)


@pytest.mark.parametrize("name", ALL)
def test_the_program_means_what_the_kernel_means(name: str) -> None:
    given = {}
    if "table" in ALL[name]:
        given["ids"] = np.array([[0, -1, 49, 3], [-50, 7, 7, 8], [1, 2, 3, 4]])
    if "scatter" in name:
        given["j"] = np.array([2, 0, 2, 1, 0] if "adds" in name else [-2, 0, 4])
    check_interpreted(kernel(ALL[name]), **given)


@pytest.mark.parametrize("name", ALL)
def test_programs_survive_their_binary_form(name: str) -> None:
    program = emit(place(kernel(ALL[name]), SPYRE_CARD_V1), SPYRE_CARD_V1)
    assert decode(encode(program)) == program


SYMBOLIC = """
    symbols n k
    limits n:{n} k:{k}
    arguments x w z y
    input x: f16[n, k]
    input w: f16[2*k, k]
    output z: f16[n, 2*k]
    output y: f16[n]
    local t: f16[n, 2*k]
    op a contract i0:n i1:2*k | r0:k
      t[i0, i1] <- sum: x[i0, r0] * w[i1, r0]
    op b map i0:n i1:2*k
      z[i0, i1] <- f16(t[i0, i1] + 1.0)
    op c reduce i0:n | r0:2*k
      y[i0] <- max: t[i0, r0]
    step s0: a b c
      axes i0:n
      bind a: i0=i0
      bind b: i0=i0
      bind c: i0=i0
      loops i0/2
      inner a: r0/16
    division s0: i0 parts 4 stride 1 granule 1
    """


@pytest.mark.parametrize(
    ("n", "k"), [(0, 5), (1, 1), (3, 0), (2, 16), (9, 17), (16, 40), (0, 0), (5, 32)]
)
def test_one_program_serves_many_sizes(n: int, k: int) -> None:
    text = SYMBOLIC.format(n="0..16", k="0..40")
    check_interpreted(kernel(text), {"n": n, "k": k})


def test_an_index_out_of_range_names_the_users_line() -> None:
    bad = kernel(CROSSING["gather of an embedding"])
    bad = replace(bad, ops=(replace(bad.ops[0], source="model.py:7 embedding"),))
    with pytest.raises(CardError, match=r"model.py:7 embedding: index out of range"):
        check_interpreted(bad, ids=np.full((3, 4), 50))


TWO_STEPS = """
    arguments x w z
    input x: f16[8, 40]
    input w: f16[40]
    output z: f16[8, 40]
    local t: f16[8, 40]
    local m: f32[8]
    op a map i0:8 i1:40
      t[i0, i1] <- f16(x[i0, i1] * 0.5)
    op b reduce i0:8 | r0:40
      m[i0] <- max: t[i0, r0]
    op c map i0:8 i1:40
      z[i0, i1] <- f16((t[i0, i1] - m[i0]) * w[i1])
    step s0: a b
      axes i0:8
      bind a: i0=i0
      bind b: i0=i0
      loops i0/1
    step s1: c
      axes i0:8
      bind c: i0=i0
      loops i0/2
    division s0: i0 parts 4 stride 1 granule {granule}
    division s1: i0 parts 4 stride 1 granule 1
    """


@pytest.mark.parametrize(("granule", "space"), [(1, Space.LX), (2, Space.LX), (3, Space.DEVICE)])
def test_a_local_stays_in_lx_when_its_steps_divide_alike(granule: int, space: Space) -> None:
    planned = place(kernel(TWO_STEPS.format(granule=granule)), SPYRE_CARD_V1)
    expected = Space.LX if granule == 1 else Space.DEVICE
    assert planned.residency["t"].space is expected
    assert planned.residency["m"].space is expected
    check_interpreted(planned)
    traffic = [n for s in emit(planned, SPYRE_CARD_V1).sections for n in _instructions(s.body)]
    copies = sum(isinstance(n, Copy) for n in traffic)
    assert copies == (3 if expected is Space.LX else 7)


def test_a_small_lx_pushes_locals_out_and_pulls_loads_in() -> None:
    whole = kernel(TWO_STEPS.format(granule=1))
    card = replace(SPYRE_CARD_V1, lx_usable=1024)
    planned = place(whole, card)
    assert planned.residency["t"].space is Space.LX
    tight = place(whole, replace(SPYRE_CARD_V1, lx_usable=512))
    assert tight.residency["t"].space is Space.DEVICE
    for plan in (planned, tight):
        check_interpreted(plan, card=replace(card, lx_usable=512 if plan is tight else 1024))


def test_weights_are_loaded_outside_of_the_row_loop() -> None:
    planned = place(kernel(FUSED["linear, bias, gelu; the matmul's result is rounded before it is read"]), SPYRE_CARD_V1)
    (section,) = emit(planned, SPYRE_CARD_V1).sections
    outside = [n for n in section.body if isinstance(n, Copy)]
    assert len(outside) == 1  # the bias: the weights are streamed by the loop over n
    (loop,) = (n for n in section.body if isinstance(n, TileLoop))
    inner = next(n for n in loop.body if isinstance(n, TileLoop))
    assert [type(n) for n in inner.body] == [Copy, Pt]
    assert [type(n) for n in loop.body] == [Copy, TileLoop, Vec, Copy]


def _instructions(body):
    for node in body:
        if isinstance(node, TileLoop):
            yield from _instructions(node.body)
        else:
            yield node
