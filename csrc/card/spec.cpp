#include "spec.h"

#include <cmath>
#include <cstring>
#include <string>

#include "card.h"
#include "failure.h"

namespace spyre {
namespace {

struct Field {
  const char* name;
  double Spec::* member;
};

constexpr Field kFields[] = {
#define SPYRE_SPEC_ROW(name) {#name, &Spec::name},
    SPYRE_SPEC_FIELDS(SPYRE_SPEC_ROW)
#undef SPYRE_SPEC_ROW
};

[[noreturn]] void refuse(const std::string& what) { throw Failure(SPYRE_BAD_ARGUMENT, what); }

void check_limits(const Spec& spec) {
  auto whole = [](double v, double most) { return v == std::floor(v) && v <= most; };
  if (!whole(spec.cores, 1024)) refuse("card number cores must be a whole number up to 1024");
  if (!whole(spec.lx_usable, 1 << 30)) refuse("card number lx_usable must be a whole number");
  if (!whole(spec.stick_bytes, 1 << 20)) refuse("card number stick_bytes must be a whole number");
  if (!whole(spec.lx_granule, 1 << 20)) refuse("card number lx_granule must be a whole number");
  if (!whole(spec.dram_burst, 1 << 30)) refuse("card number dram_burst must be a whole number");
}

}  // namespace

Spec spec_of(const char* const* names, const double* values, size_t count) {
  Spec spec;
  for (size_t i = 0; i < count; ++i) {
    const Field* found = nullptr;
    for (const Field& field : kFields) {
      if (std::strcmp(field.name, names[i]) == 0) found = &field;
    }
    if (!found) refuse(std::string("unknown card number ") + names[i]);
    if (spec.*found->member != 0) refuse(std::string("card number twice: ") + names[i]);
    if (!std::isfinite(values[i]) || values[i] <= 0) {
      refuse(std::string("card number is not positive: ") + names[i]);
    }
    spec.*found->member = values[i];
  }
  for (const Field& field : kFields) {
    if (spec.*field.member == 0) refuse(std::string("missing card number ") + field.name);
  }
  check_limits(spec);
  return spec;
}

}  // namespace spyre
