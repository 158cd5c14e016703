#include "formats.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace spyre {
namespace {

constexpr Format kTable[kFormats] = {
    {Format::OneSpecial, 6, 9, 31}, {Format::Finite, 4, 3, 7},  {Format::Ieee, 5, 2, 15},
    {Format::Ieee, 5, 3, 15},       {Format::Ieee, 8, 15, 127}, {Format::Integer, 0, 2, 0},
    {Format::Integer, 0, 4, 0},     {Format::Integer, 0, 8, 0}, {Format::Integer, 0, 16, 0},
    {Format::Integer, 0, 24, 0},
};

uint32_t ones(int bits) { return (uint32_t{1} << bits) - 1; }

// A whole number of steps from a magnitude of steps.
double whole(double steps, FormatRound round) {
  switch (round) {
    case FormatRound::NearestUp: {
      const double below = std::floor(steps);
      return steps - below >= 0.5 ? below + 1 : below;
    }
    case FormatRound::NearestEven:
      return std::nearbyint(steps);
    default:
      return std::floor(steps);
  }
}

int64_t integer(const Format& format, double value, FormatRound round) {
  if (std::isnan(value)) return 0;
  const double most = std::ldexp(1.0, format.fraction - 1);
  const double size = whole(std::min(std::fabs(value), 2 * most), round);
  return static_cast<int64_t>(std::clamp(std::copysign(size, value), -most, most - 1));
}

// The code of infinity (of Finite: of NaN), without the sign.
uint32_t special(const Format& format) {
  const uint32_t top = ones(format.exponent) << format.fraction;
  return format.kind == Format::Ieee ? top : top | ones(format.fraction);
}

}  // namespace

Format format_of(FormatId id, int bias) {
  Format format = kTable[static_cast<int>(id)];
  if (bias != 0 && format.exponent != 0) format.bias = bias;
  return format;
}

double decoded(const Format& format, uint32_t code) {
  if (format.kind == Format::Integer) {
    const auto raw = static_cast<int64_t>(code & ones(format.fraction));
    const bool negative = raw >> (format.fraction - 1);
    return static_cast<double>(negative ? raw - (int64_t{1} << format.fraction) : raw);
  }
  const double sign = code >> (format.exponent + format.fraction) & 1 ? -1.0 : 1.0;
  const uint32_t rest = code & ones(format.exponent + format.fraction);
  const int e = static_cast<int>(rest >> format.fraction);
  const double m = static_cast<double>(rest & ones(format.fraction));
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (rest == special(format)) {
    return format.kind == Format::Finite ? std::copysign(std::nan(""), sign) : sign * infinity;
  }
  if (rest > special(format)) return std::copysign(std::nan(""), sign);
  if (rest == 0) return sign * 0.0;
  const bool subnormal = e == 0 && format.kind != Format::OneSpecial;
  const double unit = std::ldexp(1.0, format.fraction);
  return sign *
         std::ldexp(subnormal ? m : m + unit, (subnormal ? 1 : e) - format.bias - format.fraction);
}

uint32_t encoded(const Format& format, double value, FormatRound round) {
  if (format.kind == Format::Integer) {
    return static_cast<uint32_t>(integer(format, value, round)) & ones(format.fraction);
  }
  const uint32_t sign = uint32_t{std::signbit(value)} << (format.exponent + format.fraction);
  if (std::isnan(value)) {
    return sign | special(format) | (format.kind == Format::Ieee ? ones(format.fraction) : 0);
  }
  const double size = std::fabs(value);
  if (size == 0) return sign;
  if (std::isinf(size)) return sign | special(format);
  // The step of size's binade, or of the lowest one.
  const int lowest = (format.kind == Format::OneSpecial ? 0 : 1) - format.bias;
  const int exponent = std::max(std::ilogb(size), lowest);
  const double steps = whole(std::ldexp(size, format.fraction - exponent), round);
  // Codes of a binade follow those of the one before: a carry moves on by itself.
  const double first =
      static_cast<double>(exponent + format.bias) * std::ldexp(1.0, format.fraction);
  const double code = first + steps - std::ldexp(1.0, format.fraction);
  const double last = static_cast<double>(special(format));
  if (format.kind == Format::OneSpecial && code <= 0) return sign;
  return sign | static_cast<uint32_t>(std::min(code, last));
}

}  // namespace spyre
