// The table for any CPU: plain C++ and GNU vectors of four lanes.
#include "kernels.h"

namespace spyre {
namespace {

constexpr int kWidth = 4;
constexpr const char* kIsa = "portable";
constexpr int kMatmulRegisters = 8;  // accumulators of a matmul block
constexpr bool kCheapFma = false;    // see multiply_add
#include "vector.inc"

// a * b + c with one rounding. The product of two floats is exact in double; the sum is rounded
// to odd (the error of the addition decides), which makes the second rounding the only one. Masks
// instead of 64-bit comparisons, which SSE2 lacks.
SPYRE_INLINE FH fused(FH a, FH b, FH c) {
  D product = wide(a) * wide(b), addend = wide(c);
  D sum = product + addend;
  D back = sum - product;
  D error = (product - (sum - back)) + (addend - back);
  UL raw = bits(sum), one = UL{} + 1u;
  L up = error > 0.0, inexact = up | (error < 0.0);
  L opposite = up ^ (sum > 0.0);  // of the signs: the exact sum is nearer to zero
  UL is_even = (raw & one) - one;
  UL step = one + 2u * reinterpret_cast<UL>(opposite);  // 1 or -1
  return narrow(from_bits(raw + (step & is_even & reinterpret_cast<UL>(inexact))));
}
SPYRE_INLINE FH low_half(F x) { return __builtin_shufflevector(x, x, 0, 1); }
SPYRE_INLINE FH high_half(F x) { return __builtin_shufflevector(x, x, 2, 3); }
SPYRE_INLINE F fma(F a, F b, F c) {
  FH low = fused(low_half(a), low_half(b), low_half(c));
  FH high = fused(high_half(a), high_half(b), high_half(c));
  return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}

// b unless a < b (a > b).
SPYRE_INLINE F lesser(F a, F b) { return (a < b) ? a : b; }
SPYRE_INLINE F greater(F a, F b) { return (a > b) ? a : b; }
SPYRE_INLINE F root(F x) {
  for (int lane = 0; lane < kWidth; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
}

// p * 2^n, n a whole number in [-300, 300]; two factors, so that only the last product rounds.
SPYRE_INLINE F scaled(F p, F n) {
  I whole = __builtin_convertvector(n, I), first = whole >> 1, second = whole - first;
  return p * from_bits(reinterpret_cast<U>(first + 127) << 23) *
         from_bits(reinterpret_cast<U>(second + 127) << 23);
}

// Nearest whole number, ties to even. Values of 2^23 and more are whole.
SPYRE_INLINE F nearest(F x) {
  F big = with_sign(splat(8388608.0f), x);
  return (magnitude(x) < 8388608.0f) ? with_sign((x + big) - big, x) : x;
}
SPYRE_INLINE F below(F x) {
  F near = nearest(x);
  return with_sign((near > x) ? near - 1.0f : near, x);
}
SPYRE_INLINE F above(F x) {
  F near = nearest(x);
  return with_sign((near < x) ? near + 1.0f : near, x);
}
SPYRE_INLINE F toward_zero(F x) { return with_sign(below(magnitude(x)), x); }

SPYRE_INLINE F widen_f16(H x) {
  U half = __builtin_convertvector(x, U), rest = half & 0x7fffu, sign = (half & 0x8000u) << 16;
  F value = from_bits(rest << 13) * 0x1p112f;  // exact, subnormals included
  I special = reinterpret_cast<I>(rest) > 0x7bff;
  return from_bits(bits(value) | (reinterpret_cast<U>(special) & 0x7f800000u) | sign);
}
SPYRE_INLINE H narrow_f16(F x) {
  U sign = bits(x) & kSign, rest = bits(x) ^ sign;
  U small = bits(from_bits(rest) + 0.5f) - (126u << 23);  // the addition rounds to 2^-24
  U normal = ((rest + 0xfffu + ((rest >> 13) & 1u)) >> 13) - (112u << 10);
  U nan = 0x7e00u | (rest >> 13 & 0x3ffu);
  U value = (rest < (113u << 23)) ? small : (rest < 0x477ff000u) ? normal : U{} + 0x7c00u;
  value = (rest > 0x7f800000u) ? nan : value;
  return __builtin_convertvector(value | (sign >> 16), H);
}

// The first `lanes` lanes, the others 0; nothing else is read or written.
template <class V>
SPYRE_INLINE V load_lanes(const void* from, int lanes) {
  return load_part<V>(from, lanes * static_cast<int>(sizeof(V)) / kWidth);
}
SPYRE_INLINE void store_lanes(void* to, F x, int lanes) { store_part(to, x, 4 * lanes); }

#include "kernels.inc"

}  // namespace

const Kernels& portable_kernels() { return table(); }

}  // namespace spyre
