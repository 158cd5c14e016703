// Test entries into the kernels: each runs one kernel of one instruction set on the caller's
// memory. They return 0, or -1 where the set or the kernel does not exist. `lanes` <= 1024;
// registers are 8 KiB, 64-byte aligned (kernels.h). Not part of the API that the runtime uses.
#pragma once

#include "card.h"

#ifdef __cplusplus
extern "C" {
#endif

SPYRE_API int spyre_probe_vec(const char* isa, int code, int value_class, void* d, const void* a,
                              const void* b, const void* c, int lanes);
SPYRE_API int spyre_probe_cast(const char* isa, int dtype, int value_class, void* d, const void* a,
                               int lanes);
SPYRE_API int spyre_probe_load(const char* isa, int dtype, void* d, const void* from,
                               int64_t stride, int lanes);
SPYRE_API int spyre_probe_store(const char* isa, int dtype, const void* a, void* to, int64_t stride,
                                int lanes);
// A whole reduction: neutral partials, `lanes` values of `a`, the fold; the result is in lane 0.
SPYRE_API int spyre_probe_reduce(const char* isa, int op, int value_class, void* d, const void* a,
                                 int lanes);
SPYRE_API int spyre_probe_combine(const char* isa, int op, int value_class, void* d, const void* a,
                                  const void* b, int lanes);
SPYRE_API int spyre_probe_pt(const char* isa, int rows, int columns, int k, const float* a,
                             int64_t a_stride, const void* panel, int64_t b_stride, int b_type,
                             void* c, int64_t c_stride, int c_type, int accumulate);
SPYRE_API int spyre_probe_pack(const char* isa, const void* b, int64_t k_stride, int64_t n_stride,
                               int dtype, int k, int n, void* panel);
SPYRE_API int spyre_probe_widen(const char* isa, const void* a, int64_t row_stride,
                                int64_t k_stride, int dtype, int rows, int k, float* out,
                                int64_t out_stride);

// --- numerics `card`: the kernels of a Dl16Round -------------------------------------------
SPYRE_API int spyre_probe_dl16_load(const char* isa, int round, void* d, const void* from,
                                    int64_t stride, int lanes);
SPYRE_API int spyre_probe_dl16_store(const char* isa, int round, const void* a, void* to,
                                     int64_t stride, int lanes);
SPYRE_API int spyre_probe_dl16_add(const char* isa, int round, void* d, const void* a,
                                   const void* b, int lanes);
SPYRE_API int spyre_probe_dl16_sum(const char* isa, int round, int format, int chunk, float* sum,
                                   const void* a, int lanes);
SPYRE_API int spyre_probe_dl16_chunk(const char* isa, int round, int format, int continues,
                                     int rows, int columns, int k, const float* a, int64_t a_stride,
                                     const float* panel, float* total);
// One value at a time, of any format (formats.h).
SPYRE_API void spyre_probe_decode(int format, int bias, const uint32_t* codes, double* values,
                                  int64_t count);
SPYRE_API void spyre_probe_encode(int format, int bias, int round, const double* values,
                                  uint32_t* codes, int64_t count);

#ifdef __cplusplus
}
#endif
