// Step 1 of a launch: the symbol block.
#include <cstring>

#include "decode.h"

namespace spyre {
namespace {

[[noreturn]] void stop(const SlotDef& slot, const char* why) {
  throw Failure(SPYRE_BAD_ARGUMENT, "the size formula of slot " + slot.name + " " + why);
}

int64_t floor_quotient(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

int64_t combined(const SlotDef& slot, Calc calc, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (calc) {
    case Calc::Add:
      if (__builtin_add_overflow(a, b, &result)) stop(slot, "does not fit in 64 bits");
      return result;
    case Calc::Mul:
      if (__builtin_mul_overflow(a, b, &result)) stop(slot, "does not fit in 64 bits");
      return result;
    case Calc::Floordiv:
    case Calc::Mod:
      if (b == 0) stop(slot, "divides by zero");
      if (b == -1) {  // the most negative a has no quotient in the hardware's division
        if (calc == Calc::Mod) return 0;
        if (__builtin_sub_overflow(int64_t{0}, a, &result)) stop(slot, "does not fit in 64 bits");
        return result;
      }
      return calc == Calc::Floordiv ? floor_quotient(a, b) : a - floor_quotient(a, b) * b;
    case Calc::Min:
      return a < b ? a : b;
    default:
      return a < b ? b : a;
  }
}

int64_t evaluated(const SlotDef& slot, const int64_t* slots, std::vector<int64_t>& stack) {
  stack.clear();
  for (const CalcStep& step : slot.formula) {
    if (step.calc == Calc::Const) {
      stack.push_back(step.operand);
    } else if (step.calc == Calc::Slot) {
      stack.push_back(slots[step.operand]);
    } else {
      const int64_t right = stack.back();
      stack.pop_back();
      stack.back() = combined(slot, step.calc, stack.back(), right);
    }
  }
  return stack.back();
}

void check_count(const char* what, size_t given, int64_t needed) {
  if (given != static_cast<uint64_t>(needed)) {
    throw Failure(SPYRE_BAD_ARGUMENT, "a launch passes " + std::to_string(given) + " " + what +
                                          ", the program takes " + std::to_string(needed));
  }
}

}  // namespace

void fill_formulas(const Program& program, int64_t* slots) {
  thread_local std::vector<int64_t> stack;  // launches allocate nothing
  for (size_t i = 0; i < program.slots.size(); ++i) {
    const SlotDef& slot = program.slots[i];
    if (slot.given == Given::Formula) slots[i] = evaluated(slot, slots, stack);
  }
}

void fill_slots(const Program& program, const uint64_t* addresses, size_t address_count,
                const int64_t* sizes, size_t size_count, const double* scalars, size_t scalar_count,
                uint64_t pool, int64_t* slots) {
  check_count("addresses", address_count, program.addresses);
  check_count("sizes", size_count, program.sizes);
  check_count("scalars", scalar_count, program.scalars);
  for (size_t i = 0; i < program.slots.size(); ++i) {
    const SlotDef& slot = program.slots[i];
    switch (slot.given) {
      case Given::Address:
        slots[i] = static_cast<int64_t>(addresses[slot.number]);
        break;
      case Given::Size:
        slots[i] = sizes[slot.number];
        break;
      case Given::Scalar:
        std::memcpy(&slots[i], &scalars[slot.number], sizeof slots[i]);
        break;
      case Given::Pool:
        slots[i] = static_cast<int64_t>(pool);
        break;
      case Given::Formula:
        break;
    }
  }
  fill_formulas(program, slots);
}

}  // namespace spyre
