#include "op_table.h"

#include <array>
#include <cstring>
#include <string_view>

namespace spyre {
namespace {

constexpr OpRow row(std::string_view name, const char* text, int code, int arity,
                    const char* classes, std::string_view result, std::string_view cost) {
  return {text,           code,           arity, classes, result == "b", cost == "transcendental",
          name == "cast", name == "where"};
}

constexpr OpRow kRows[] = {
#define SPYRE_OP(name, code, arity, classes, result, cost) \
  row(#name, #name, code, arity, classes, result, cost),
#include "ops.def"
#undef SPYRE_OP
};

}  // namespace

bool OpRow::takes(int value_class) const {
  return std::strchr(classes, "fiib"[value_class]) != nullptr;
}

const OpRow* op_row(int code) {
  static const std::array<const OpRow*, 128> by_code = [] {
    std::array<const OpRow*, 128> table{};
    for (const OpRow& found : kRows) table[found.code] = &found;
    return table;
  }();
  return code >= 0 && code < 128 ? by_code[code] : nullptr;
}

}  // namespace spyre
