#include "probe.h"

#include "formats.h"
#include "kernels.h"

namespace {

using spyre::DType;
using spyre::Kernels;
using spyre::Partials;
using spyre::Register;

const Register* reg(const void* p) { return static_cast<const Register*>(p); }
Register* reg(void* p) { return static_cast<Register*>(p); }

int run(spyre::VecFn f, void* d, const void* a, const void* b, const void* c, int lanes) {
  if (!f) return -1;
  f(reg(d), reg(a), reg(b), reg(c), lanes);
  return 0;
}

const Kernels* dl16(const char* isa, int round) {
  const Kernels* k = spyre::kernels_named(isa);
  return k ? k->dl16(static_cast<spyre::Dl16Round>(round), spyre::Numerics().fp8_bias) : nullptr;
}

}  // namespace

int spyre_probe_vec(const char* isa, int code, int value_class, void* d, const void* a,
                    const void* b, const void* c, int lanes) {
  const Kernels* k = spyre::kernels_named(isa);
  return k ? run(k->vec[code][value_class], d, a, b, c, lanes) : -1;
}

int spyre_probe_cast(const char* isa, int dtype, int value_class, void* d, const void* a,
                     int lanes) {
  const Kernels* k = spyre::kernels_named(isa);
  return k ? run(k->cast[dtype][value_class], d, a, nullptr, nullptr, lanes) : -1;
}

int spyre_probe_load(const char* isa, int dtype, void* d, const void* from, int64_t stride,
                     int lanes) {
  const Kernels* k = spyre::kernels_named(isa);
  if (!k) return -1;
  k->load[dtype](reg(d), from, stride, lanes);
  return 0;
}

int spyre_probe_store(const char* isa, int dtype, const void* a, void* to, int64_t stride,
                      int lanes) {
  const Kernels* k = spyre::kernels_named(isa);
  if (!k) return -1;
  k->store[dtype](reg(a), to, stride, lanes);
  return 0;
}

int spyre_probe_reduce(const char* isa, int op, int value_class, void* d, const void* a,
                       int lanes) {
  const Kernels* k = spyre::kernels_named(isa);
  if (!k || !k->accumulate[op][value_class]) return -1;
  Partials partials;
  k->neutral(&partials, static_cast<spyre::Reduce>(op), value_class);
  if (lanes) k->accumulate[op][value_class](&partials, reg(a), lanes);
  k->fold[op][value_class](&partials, reg(d));
  return 0;
}

int spyre_probe_combine(const char* isa, int op, int value_class, void* d, const void* a,
                        const void* b, int lanes) {
  const Kernels* k = spyre::kernels_named(isa);
  return k ? run(k->combine[op][value_class], d, a, b, nullptr, lanes) : -1;
}

int spyre_probe_pt(const char* isa, int rows, int columns, int k, const float* a, int64_t a_stride,
                   const void* panel, int64_t b_stride, int b_type, void* c, int64_t c_stride,
                   int c_type, int accumulate) {
  const Kernels* found = spyre::kernels_named(isa);
  if (!found) return -1;
  found->pt({rows, columns, k, a, a_stride, panel, b_stride, static_cast<DType>(b_type), c,
             c_stride, static_cast<DType>(c_type), accumulate != 0});
  return 0;
}

int spyre_probe_pack(const char* isa, const void* b, int64_t k_stride, int64_t n_stride, int dtype,
                     int k, int n, void* panel) {
  const Kernels* found = spyre::kernels_named(isa);
  if (!found) return -1;
  found->pack(b, k_stride, n_stride, static_cast<DType>(dtype), k, n, panel);
  return 0;
}

int spyre_probe_widen(const char* isa, const void* a, int64_t row_stride, int64_t k_stride,
                      int dtype, int rows, int k, float* out, int64_t out_stride) {
  const Kernels* found = spyre::kernels_named(isa);
  if (!found) return -1;
  found->widen(a, row_stride, k_stride, static_cast<DType>(dtype), rows, k, out, out_stride);
  return 0;
}

int spyre_probe_dl16_load(const char* isa, int round, void* d, const void* from, int64_t stride,
                          int lanes) {
  const Kernels* k = dl16(isa, round);
  if (!k) return -1;
  k->load[static_cast<int>(DType::F16)](reg(d), from, stride, lanes);
  return 0;
}

int spyre_probe_dl16_store(const char* isa, int round, const void* a, void* to, int64_t stride,
                           int lanes) {
  const Kernels* k = dl16(isa, round);
  if (!k) return -1;
  k->store[static_cast<int>(DType::BF16)](reg(a), to, stride, lanes);
  return 0;
}

int spyre_probe_dl16_add(const char* isa, int round, void* d, const void* a, const void* b,
                         int lanes) {
  const Kernels* k = dl16(isa, round);
  return k ? run(k->add_dl16, d, a, b, nullptr, lanes) : -1;
}

int spyre_probe_dl16_sum(const char* isa, int round, int format, int chunk, float* sum,
                         const void* a, int lanes) {
  const Kernels* k = dl16(isa, round);
  if (!k) return -1;
  spyre::Numerics numerics;
  numerics.sum = static_cast<spyre::SumFormat>(format);
  numerics.chunk = chunk;
  k->sum_chunks(sum, reg(a), lanes, numerics);
  return 0;
}

int spyre_probe_dl16_chunk(const char* isa, int round, int format, int continues, int rows,
                           int columns, int k, const float* a, int64_t a_stride, const float* panel,
                           float* total) {
  const Kernels* found = dl16(isa, round);
  if (!found) return -1;
  const spyre::PanelRange range = found->panel_range(panel, k, columns);
  found->chunk({rows, columns, k, a, a_stride, panel, &range, total,
                static_cast<spyre::SumFormat>(format), continues != 0});
  return 0;
}

void spyre_probe_decode(int format, int bias, const uint32_t* codes, double* values,
                        int64_t count) {
  const spyre::Format chosen = spyre::format_of(static_cast<spyre::FormatId>(format), bias);
  for (int64_t i = 0; i < count; ++i) values[i] = spyre::decoded(chosen, codes[i]);
}

void spyre_probe_encode(int format, int bias, int round, const double* values, uint32_t* codes,
                        int64_t count) {
  const spyre::Format chosen = spyre::format_of(static_cast<spyre::FormatId>(format), bias);
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = spyre::encoded(chosen, values[i], static_cast<spyre::FormatRound>(round));
  }
}
