// The table for CPUs with AVX-512 F, BW, DQ and VL; compiled with their flags (build.py), called
// only after kernels.cpp has found them.
#include "chain.h"
#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
// GCC 12 warns about the deliberately undefined operand inside its own intrinsics (PR 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>

namespace spyre {
namespace {

constexpr int kWidth = 16;
constexpr const char* kIsa = "avx512";
constexpr int kMatmulRegisters = 24;
constexpr bool kCheapFma = true;
#define SPYRE_CHAINS  // a stick fits into the vector arguments of a function
#include "vector.inc"

SPYRE_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
// b unless a < b (a > b).
SPYRE_INLINE F lesser(F a, F b) { return _mm512_min_ps(a, b); }
SPYRE_INLINE F greater(F a, F b) { return _mm512_max_ps(a, b); }
SPYRE_INLINE F root(F x) { return _mm512_sqrt_ps(x); }
SPYRE_INLINE F scaled(F p, F n) { return _mm512_scalef_ps(p, n); }  // rounds once
SPYRE_INLINE F nearest(F x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SPYRE_INLINE F below(F x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}
SPYRE_INLINE F above(F x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
SPYRE_INLINE F toward_zero(F x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
}
// Immediate 0: to nearest even, whatever MXCSR says.
SPYRE_INLINE F widen_f16(H x) { return _mm512_cvtph_ps(reinterpret_cast<__m256i>(x)); }
SPYRE_INLINE H narrow_f16(F x) { return reinterpret_cast<H>(_mm512_cvtps_ph(x, 0)); }

// The first `lanes` lanes (1..15), the others 0; nothing else is read or written.
SPYRE_INLINE __mmask16 first_lanes(int lanes) { return static_cast<__mmask16>((1u << lanes) - 1); }
template <class V>
SPYRE_INLINE V load_lanes(const void* from, int lanes) {
  if constexpr (sizeof(V) == sizeof(F)) {
    return _mm512_maskz_loadu_ps(first_lanes(lanes), from);
  } else {
    return reinterpret_cast<H>(_mm256_maskz_loadu_epi16(first_lanes(lanes), from));
  }
}
SPYRE_INLINE void store_lanes(void* to, F x, int lanes) {
  _mm512_mask_storeu_ps(to, first_lanes(lanes), x);
}

#include "kernels.inc"

}  // namespace

const Kernels* avx512_kernels() { return &table(); }

}  // namespace spyre

#else
namespace spyre {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace spyre
#endif
