// The card's number formats, one value at a time: what each code means and how a value becomes a
// code. The kernels (dl16.inc) have their own vector forms of DL16. Sources: card.md 2.1.
#pragma once

#include <cstdint>

namespace spyre {

// Numbered as in openspyre/card/formats.py.
enum class FormatId : int { Dl16, Fp8_143, Fp8_152, Fp9_153, Fp24, Int2, Int4, Int8, Int16, Int24 };
constexpr int kFormats = 10;
enum class FormatRound : int { NearestUp, NearestEven, Truncate };

struct Format {
  enum Kind : uint8_t {
    OneSpecial,  // no subnormals; code 0 is zero, the last code the one NaN/infinity
    Finite,      // subnormals; the last code NaN, no infinity
    Ieee,        // subnormals, infinities, NaN
    Integer,     // two's complement of `fraction` bits
  };
  Kind kind;
  int exponent, fraction, bias;
};

// `bias` replaces that of a format with exponent bits (the programmable one of 1-4-3); 0 keeps it.
Format format_of(FormatId id, int bias = 0);

// Exact. A NaN/infinity of OneSpecial is an infinity of its sign.
double decoded(const Format& format, uint32_t code);

// Rounds once. Too large: the special code (of Finite: NaN), too small: zero, both with the sign;
// integers saturate, and NaN becomes 0.
uint32_t encoded(const Format& format, double value, FormatRound round);

}  // namespace spyre
