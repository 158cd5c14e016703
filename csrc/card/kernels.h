// The inner loops of `execute`, one table per instruction set, chosen once per process.
//
// Every table gives the same bits for the same call (docs/decisions/0001.md): one accumulator per
// matmul output with ascending k and fused multiply-add; 64 lane partials and one fixed tree for
// row reductions; the same polynomials with the same order of operations. (Only which NaN comes
// out may differ: sign and payload.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "numerics.h"

namespace spyre {

// Element types, numbered as in src/openspyre/ir/binary.py.
enum class DType : uint8_t { F16, BF16, F32, I64, I32, I16, I8, U8, B1, F8E4, F8E5 };
constexpr int kDTypes = 11;

constexpr int kStickBytes = 128;
constexpr int kLanes = 64;       // lanes of one stick of f16
constexpr int kMaxLanes = 1024;  // longest register of the vector interpreter: 16 sticks

// A register of the vector interpreter: kMaxLanes values of its class. Floats are f32, i64, i32
// and bool are int64 (i32 sign-extended after every op, bool 0 or 1).
union alignas(64) Register {
  float f[kMaxLanes];
  int64_t i[kMaxLanes];
};

// One op over `lanes` lanes (1..kMaxLanes, any value). Unused operands are null. An operand may be
// the destination. Functions for i32 and i64 differ only in the wrap. Lanes up to the next multiple
// of 16 are computed too and hold rubbish. Nothing traps: an integer divided by zero gives 0 (so
// does its remainder), the smallest integer divided by -1 wraps, a shift by a count outside the
// type gives 0 (shr: the sign), an integer to a negative power is truncated (as torch does).
using VecFn = void (*)(Register* d, const Register* a, const Register* b, const Register* c,
                       int lanes);

// Loads and stores of `lanes` elements, `stride` bytes apart (0: splat; the element size:
// contiguous; anything else: strided), any alignment. Loads widen; stores round to nearest even
// (floats) or wrap (integers).
using LoadFn = void (*)(Register* d, const void* from, ptrdiff_t stride, int lanes);
using StoreFn = void (*)(const Register* a, void* to, ptrdiff_t stride, int lanes);

// Adds `lanes` values to the 64 partials of a row reduction (lane x goes to partial x % 64, in
// ascending order), and folds the partials with one fixed tree. `op` numbers: REDUCTIONS.
enum class Reduce : uint8_t { None, Sum, Max, Min, Prod, Any };
struct alignas(64) Partials {
  union {
    float f[kLanes];
    int64_t i[kLanes];
  };
};
using AccumulateFn = void (*)(Partials* p, const Register* a, int lanes);
using FoldFn = void (*)(const Partials* p, Register* scalar);  // result in lane 0

// --- float ops that take their operands where they lie -----------------------------------------

// Rows of a block: lanes side by side (f16, bf16, f32), or one f32 for all lanes of a row; any
// alignment. Nothing past the lanes of a row is read or written.
enum RowKind : int64_t { kF16Rows, kBf16Rows, kF32Rows, kScalarRows };  // the first as DType
constexpr int kRowKinds = 4;
struct Rows {
  const char* at;
  ptrdiff_t stride;  // bytes from row to row, any
  RowKind kind;
};
struct RowsOut {  // f32
  char* at;
  ptrdiff_t stride;
};
// As the VecFn of the same op, over rows x lanes. `d` may be an operand of f32 rows.
using RowsFn = void (*)(const RowsOut& d, const Rows& a, const Rows& b, int rows, int lanes);
struct RowsFns {
  RowsFn of[kRowKinds][kRowKinds];  // by kind of a and b; ops of one operand: [a][0]
};
struct RowReduction {
  // Every row by itself, as AccumulateFn from `neutral` and FoldFn: out[row].
  void (*fold)(float* out, const Rows& a, float neutral, int rows, int lanes);
  void (*accumulate)(Partials* p, const Rows& a, int lanes);  // one row, as AccumulateFn
  // sum[x] = op(sum[x], a[row][x]) for ascending rows. `sum` up to the next multiple of 16 lanes
  // is written.
  void (*combine)(float* sum, const Rows& a, int rows, int lanes);
};

// One matmul block row: c[rows][columns] (+)= a[rows][k] * panel[k][columns].
//   a: f32, row stride `a_stride` floats; its values are values of `b_type` (the portable kernel
//      relies on exact products of f16). rows 0..any (the kernel blocks by 6).
//   panel: columns <= 64, of `b_type` (f16, bf16 or f32), k rows `b_stride` elements apart,
//          columns contiguous; reads columns rounded up to 16 (the caller pads).
//   c: rows `c_stride` elements apart, of `c_type`; `accumulate` starts from c (f32 only). Only
//      `columns` columns are written. k may be 0.
struct PtBlock {
  int rows, columns, k;
  const float* a;
  ptrdiff_t a_stride;
  const void* panel;
  ptrdiff_t b_stride;
  DType b_type;
  void* c;
  ptrdiff_t c_stride;
  DType c_type;
  bool accumulate;
};

// Elements of a panel: fp8 is exact in f16.
constexpr bool is_fp8(DType type) { return type == DType::F8E4 || type == DType::F8E5; }
constexpr DType panel_type(DType type) { return is_fp8(type) ? DType::F16 : type; }

struct PanelRange {
  alignas(64) float least[kLanes];  // by k: the least magnitude that is not zero, infinite if none
  float most;                       // magnitude
};

// One chunk of k of a matmul block under numerics `card`: for every row and column the sum of the
// k products is added to `total` in DL16; with `continues` it goes on from the total instead.
//   a: DL16 values as f32 (any f32 for sums in f32), row stride `a_stride` floats.
//   panel: [k][64] f32; b_range: of its columns, for sums in DL16 (k is at most 64 for them).
//   total: [rows][64] f32; columns past `columns` may hold rubbish afterwards.
struct ChunkBlock {
  int rows, columns, k;
  const float* a;
  ptrdiff_t a_stride;
  const float* panel;
  const PanelRange* b_range;
  float* total;
  SumFormat sum;
  bool continues;
};

struct Chains;

struct Kernels {
  const char* isa;
  void (*pt)(const PtBlock& block);
  // Packs b[k][n] (element strides, any) into panel[k][64] of `panel_type`, columns padded with 0.
  void (*pack)(const void* b, ptrdiff_t k_stride, ptrdiff_t n_stride, DType type, int k, int n,
               void* panel);
  // Widens a[rows][k] (element strides, any float) to f32 rows `out_stride` floats apart.
  void (*widen)(const void* a, ptrdiff_t row_stride, ptrdiff_t k_stride, DType type, int rows,
                int k, float* out, ptrdiff_t out_stride);
  // By op code (src/openspyre/ir/ops.py) and class 0: f32, 1: i64, 2: i32, 3: bool; the class is
  // that of the arguments (for `where`: of the last two). Null where the op has no such class.
  VecFn vec[128][4];
  // By target dtype and class of the argument: value rounded or wrapped, kept in its register
  // class (float <-> integer conversion included; float to integer truncates, NaN and
  // out-of-range values as x86 cvttss2si gives them).
  VecFn cast[kDTypes][4];
  LoadFn load[kDTypes];
  StoreFn store[kDTypes];
  void (*neutral)(Partials* p, Reduce op, int value_class);
  AccumulateFn accumulate[6][4];
  FoldFn fold[6][4];
  // Combines two registers lane by lane with a reduction's op (for reductions over outer axes).
  VecFn combine[6][4];
  // By op code and by reduction, null where there is none: then operands are loaded into registers.
  // (f16 and bf16 as such, not as DL16 codes.)
  const RowsFns* rows[128];
  RowReduction row_reductions[6][kRowKinds];
  // Ops without registers between them (chain.h); null where there are none, as for `rows`.
  const Chains* chains;

  // --- numerics `card` ---
  StoreFn store_bf16_truncated;
  PanelRange (*panel_range)(const float* panel, int k, int columns);
  // The table of a rounding and a bias of 1-4-3, in which f16 and bf16 elements are DL16 codes and
  // fp8 elements what the card reads: loads, stores, casts, `widen`. Only they have the functions
  // below.
  const Kernels* (*dl16)(Dl16Round round, int fp8_bias);
  // The values of 1-4-3 (of 1-5-2) codes as fp9: of its bias, NaN being DL16's NaN/infinity.
  VecFn fp9_e4m3, fp9_e5m2;
  VecFn add_dl16;  // a + b, rounded
  void (*sum_chunks)(float* sum, const Register* a, int lanes, const Numerics& numerics);
  void (*chunk)(const ChunkBlock& block);
};

const Kernels& kernels();                       // best table this CPU supports
const Kernels* kernels_named(const char* isa);  // "avx512", "avx2", "portable"; null if unusable

}  // namespace spyre
