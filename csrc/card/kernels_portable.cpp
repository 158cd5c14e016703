// The table for any CPU: plain C++ and GNU vectors of four lanes.
#include "kernels.h"

namespace spyre {
namespace {

constexpr int kWidth = 4;
constexpr const char* kIsa = "portable";
constexpr int kMatmulRegisters = 8;  // accumulators of a matmul block
#include "vector.inc"

// a * b + c with one rounding. The product of two floats is exact in double; the sum is rounded
// to odd (the error of the addition decides), which makes the second rounding the only one.
SPYRE_INLINE FH fused(FH a, FH b, FH c) {
  D product = wide(a) * wide(b), addend = wide(c);
  D sum = product + addend;
  D back = sum - product;
  D error = (product - (sum - back)) + (addend - back);
  UL raw = bits(sum);
  L inexact = (error < 0.0) | (error > 0.0);
  L even = reinterpret_cast<L>((raw & 1u) == 0u);
  L away = (error > 0.0) == (sum > 0.0);
  UL odd = raw + reinterpret_cast<UL>(away ? L{} + 1 : L{} - 1);
  return narrow(from_bits((inexact & even) ? odd : raw));
}
SPYRE_INLINE F fma(F a, F b, F c) {
  FH part[2], *out = part;
  float x[kWidth], y[kWidth], z[kWidth];
  store(x, a), store(y, b), store(z, c);
  for (int half = 0; half < kWidth; half += kWide) {
    *out++ = fused(load<FH>(x + half), load<FH>(y + half), load<FH>(z + half));
  }
  return load<F>(part);
}

// The product of two values of `T` is exact in f32 where T is f16: a plain sum then rounds once.
constexpr bool kCheapFma = false;

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
  F small = __builtin_convertvector(reinterpret_cast<I>(rest), F) * 0x1p-24f;
  U normal = (rest << 13) + (112u << 23);
  U special = normal + (112u << 23);
  special = (rest > 0x7c00u) ? special | 0x400000u : special;
  U value = (rest < 0x400u) ? bits(small) : (rest < 0x7c00u) ? normal : special;
  return from_bits(value | sign);
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

#include "kernels.inc"

}  // namespace

const Kernels& portable_kernels() { return table(); }

}  // namespace spyre
