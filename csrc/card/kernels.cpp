// Chooses the table of kernels: what the CPU can do and the operating system saves.
#include "kernels.h"

#include <cstring>

#include "card.h"
#include "op_table.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace spyre {

const Kernels& portable_kernels();
const Kernels* avx2_kernels();  // null where the compiler could not build them
const Kernels* avx512_kernels();

namespace {

struct Features {
  bool avx2 = false, avx512 = false;
};

#if defined(__x86_64__)
uint64_t saved_state() {  // XCR0: which registers the operating system saves
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

Features features() {
  uint32_t a, b, c, d;
  Features found;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  constexpr uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  constexpr uint32_t first_leaf = fma | osxsave | avx | f16c;
  if ((c & first_leaf) != first_leaf) return found;
  constexpr uint64_t ymm = 0x6, zmm = 0xe6;  // SSE and AVX; and masks, upper halves, new registers
  uint64_t state = saved_state();
  if ((state & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.avx2 = b & 1u << 5;
  constexpr uint32_t sets = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  found.avx512 = found.avx2 && (b & sets) == sets && (state & zmm) == zmm;
  return found;
}
#else
Features features() { return {}; }
#endif

const Features& host() {
  static const Features found = features();
  return found;
}

}  // namespace

const Kernels* kernels_named(const char* isa) {
  if (!std::strcmp(isa, "portable")) return &portable_kernels();
  if (!std::strcmp(isa, "avx2") && host().avx2) return avx2_kernels();
  if (!std::strcmp(isa, "avx512") && host().avx512) return avx512_kernels();
  return nullptr;
}

const Kernels& kernels() {
  static const Kernels* const best = [] {
    if (const Kernels* found = kernels_named("avx512")) return found;
    if (const Kernels* found = kernels_named("avx2")) return found;
    return &portable_kernels();
  }();
  return *best;
}

}  // namespace spyre

const char* spyre_isa(void) { return spyre::kernels().isa; }

const char* spyre_op_name(int code) {
  const spyre::OpRow* row = spyre::op_row(code);
  return row ? row->name : nullptr;
}
