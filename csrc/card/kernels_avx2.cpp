// The table for CPUs with AVX2, FMA and F16C; compiled with their flags (build.py), called only
// after kernels.cpp has found them.
#include "chain.h"
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace spyre {
namespace {

constexpr int kWidth = 8;
constexpr const char* kIsa = "avx2";
constexpr int kMatmulRegisters = 12;
constexpr bool kCheapFma = true;
#define SPYRE_CHAINS  // a stick fits into the vector arguments of a function
#include "vector.inc"

SPYRE_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
// b unless a < b (a > b).
SPYRE_INLINE F lesser(F a, F b) { return _mm256_min_ps(a, b); }
SPYRE_INLINE F greater(F a, F b) { return _mm256_max_ps(a, b); }
SPYRE_INLINE F root(F x) { return _mm256_sqrt_ps(x); }

// p * 2^n, n a whole number in [-300, 300]; two factors, so that only the last product rounds.
SPYRE_INLINE F scaled(F p, F n) {
  I whole = __builtin_convertvector(n, I), first = whole >> 1, second = whole - first;
  return p * from_bits(reinterpret_cast<U>(first + 127) << 23) *
         from_bits(reinterpret_cast<U>(second + 127) << 23);
}
SPYRE_INLINE F nearest(F x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SPYRE_INLINE F below(F x) { return _mm256_floor_ps(x); }
SPYRE_INLINE F above(F x) { return _mm256_ceil_ps(x); }
SPYRE_INLINE F toward_zero(F x) {
  return _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
// Immediate 0: to nearest even, whatever MXCSR says.
SPYRE_INLINE F widen_f16(H x) { return _mm256_cvtph_ps(reinterpret_cast<__m128i>(x)); }
SPYRE_INLINE H narrow_f16(F x) { return reinterpret_cast<H>(_mm256_cvtps_ph(x, 0)); }

// The first `lanes` lanes, the others 0; nothing else is read or written.
template <class V>
SPYRE_INLINE V load_lanes(const void* from, int lanes) {
  return load_part<V>(from, lanes * static_cast<int>(sizeof(V)) / kWidth);
}
SPYRE_INLINE void store_lanes(void* to, F x, int lanes) { store_part(to, x, 4 * lanes); }

#include "kernels.inc"

}  // namespace

const Kernels* avx2_kernels() { return &table(); }

}  // namespace spyre

#else
namespace spyre {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace spyre
#endif
