// The numbers of a CardSpec (src/openspyre/spec.py), by the same names.
#pragma once

#include <cstddef>

namespace spyre {

// One row per field of CardSpec, in its order. A number that is missing here or there is an error
// when a card opens.
// clang-format off
#define SPYRE_SPEC_FIELDS(X)                                                                    \
  X(cores) X(corelets) X(clock_ghz) X(mac_per_core_cycle) X(pt_sustain) X(pt_fill_rows)         \
  X(pt_fill_exponent) X(pt_rows_per_pass) X(pt_weight_passes) X(pt_sustain_rows)                \
  X(pt_f32_rate) X(pt_fp8_rate) X(ksplit_corelets) X(psum_rate) X(sfu_lanes) X(sfu_reduce_rate) X(sfu_transcendental_rate) X(lx_bytes)         \
  X(lx_usable) X(lx_granule) X(lx_bytes_per_cycle) X(lx_latency_cycles)                         \
  X(ring_bytes_per_cycle) X(ring_hop_cycles) X(multicast_free) X(multicast_exponent)            \
  X(dram_peak) X(dram_oneway) X(dram_turnaround) X(dram_per_core) X(dram_few_cores)             \
  X(dram_partitioned_per_core)                                                                  \
  X(dram_latency_ns) X(dram_burst) X(dram_request_ns) X(transpose_rate) X(memory_bytes)         \
  X(stick_bytes) X(host_link) X(launch_host_us)
// clang-format on

struct Spec {
#define SPYRE_SPEC_FIELD(name) double name = 0;
  SPYRE_SPEC_FIELDS(SPYRE_SPEC_FIELD)
#undef SPYRE_SPEC_FIELD

  int core_count() const { return static_cast<int>(cores); }
};

// Throws Failure(SPYRE_BAD_ARGUMENT) for a missing, repeated or unknown name, or a value that is
// not a positive finite number.
Spec spec_of(const char* const* names, const double* values, size_t count);

}  // namespace spyre
