"""Kernels with plans written by hand, as texts without their first line."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

from openspyre.ir.kernel import Division, Kernel, Kind, Loop, Part, Step

MAPS = {
    "fp8 to fp8 of the other kind, transposed": """
        arguments x z
        input x: f8e4m3[130, 7] strides [1, 130]
        output z: f8e5m2[130, 7]
        op a map i0:130 i1:7
          z[i0, i1] <- f8e5m2(f8e4m3(x[i0, i1] * 1.7))
        step s0: a
          axes i0:130 i1:7
          bind a: i0=i0 i1=i1
          loops i0/40
        division s0: i0 parts 3 stride 1 granule 1
        """,
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
        division s0: i0 parts 2 stride 4 granule 1, i1 parts 4 stride 1 granule 1
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
          %0 = (x[i0, i1] // 2) + idx[3*i0 + i1]
          z[i0, i1] <- where((y[i1] & (x[i0, i1] > 0)), %0, neg(x[i0, i1]))
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
        division s0: i1 parts 2 stride 2 granule 64, i0 parts 2 stride 1 granule 1
        """,
    "fp8 of both kinds, a weight, narrow loops": """
        arguments x w z
        input x: f8e4m3[6, 200]
        input w: f8e5m2[150, 200]
        output z: f16[6, 150]
        op a contract i0:6 i1:150 | r0:200
          z[i0, i1] <- sum: x[i0, r0] * w[i1, r0]
        step s0: a
          axes i0:6 i1:150
          bind a: i0=i0 i1=i1
          inner a: r0/64
          loops i0/2
        division s0: i1 parts 2 stride 2 granule 64, i0 parts 2 stride 1 granule 1
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
        division s0: i0 parts 2 stride 2 granule 1, i1 parts 2 stride 1 granule 1
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
        division s0: i0 parts 2 stride 1 granule 1, i1 parts 2 stride 2 granule 1
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
          %0 = where((idx[r0] <= idx[i2]), (s[i0, i1, i2, r0] * 0.35), -inf)
          l[i0, i1, i2, 0] <- sum: exp((%0 - m[i0, i1, i2, 0]))
        op e map i0:2 i1:3 i2:7 i3:9
          %0 = where((idx[i3] <= idx[i2]), (s[i0, i1, i2, i3] * 0.35), -inf)
          p[i0, i1, i2, i3] <- f16(exp((%0 - m[i0, i1, i2, 0])) / l[i0, i1, i2, 0])
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
        division s0: b parts 2 stride 1 granule 1, s parts 2 stride 2 granule 1
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
        division s0: i0 parts 2 stride 1 granule 1
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
        division s0: i0 parts 2 stride 1 granule 1
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
        division s0: i0 parts 2 stride 1 granule 1
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
        division s0: i0 parts 2 stride 1 granule 1
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
        division s0: i0 parts 4 stride 1 granule 1
        division s1: i0 parts 2 stride 1 granule 1
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
        division s0: i1 parts 2 stride 1 granule 1
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
        division s0: i0 parts 4 stride 1 granule 1
        division s1: i0 parts 4 stride 1 granule 16
        """,
}
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
ALL = {
    **MAPS,
    **REDUCTIONS,
    **CONTRACTIONS,
    **FUSED,
    **CROSSING,
    "two steps": TWO_STEPS.format(granule=1),
}

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
SIZES = ((0, 5), (1, 1), (3, 0), (2, 16), (9, 17), (16, 40), (0, 0), (5, 32))  # of SYMBOLIC: n, k


def given(name: str) -> dict[str, Any]:
    """Inputs of a kernel of ALL that must not be random: indices."""
    if "embedding" in name:
        return {"ids": np.array([[0, -1, 49, 3], [-50, 7, 7, 8], [1, 2, 3, 4]])}
    if "scatter" in name:
        return {"j": np.array([2, 0, 2, 1, 0] if "adds" in name else [-2, 0, 4])}
    return {}


def replanned(kernel: Kernel, seed: int) -> Kernel:
    """The kernel with other tile loops and another division of every step, at random."""
    rng = random.Random(seed)
    steps = tuple(_relooped(kernel, step, rng) for step in kernel.steps)
    divisions = {step.name: _division(step, rng) for step in steps}
    return replace(kernel, steps=steps, divisions=divisions)


def _relooped(kernel: Kernel, step: Step, rng: random.Random) -> Step:
    axes = rng.sample([a.name for a in step.axes], rng.randint(0, len(step.axes)))
    inner = {}
    for op in kernel.ops:
        if op.name in step.ops:
            private = [d.name for d in op.dims if d.name not in step.binding.get(op.name, {})]
            if op.kind is not Kind.SCAN:
                private += [d.name for d in op.rdims]
            chosen = rng.sample(private, rng.randint(0, len(private)))
            inner[op.name] = tuple(Loop(d, rng.choice((1, 3, 16, 64))) for d in chosen)
    loops = tuple(Loop(axis, rng.randint(1, 4)) for axis in axes)
    return replace(step, loops=loops, inner={op: loops for op, loops in inner.items() if loops})


def _division(step: Step, rng: random.Random) -> Division:
    parts: list[Part] = []
    cores = 1
    for axis in rng.sample(step.axes, len(step.axes)):
        count = rng.choice([n for n in (1, 2, 3, 4, 7) if cores * n <= 32])
        if count > 1:
            parts.append(Part(axis.name, count, cores, rng.choice((1, 2, 5))))
            cores *= count
    return Division(tuple(parts))
