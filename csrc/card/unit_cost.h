// What one instruction costs its unit, from the numbers of the CardSpec alone (card.md 1).
#pragma once

#include "decode.h"

namespace spyre {

// A Copy as device memory and the core see it. Times are core clock cycles.
struct Traffic {
  int64_t bytes = 0;  // of device memory: whole sticks, broadcast data once
  double server = 0;  // cycles the memory is occupied: bandwidth, and the floor per request
  double core = 0;    // shortest time on one core that fetches (or stores) it alone
  double each = 0;    // shortest time on a core however many share the data
  double lx = 0;      // at the core's LX port
  double fold = 0;    // shortest time of cores that add their sums into one before it is stored
};
Traffic traffic_of(const Copy& copy, const std::vector<AxisRange>& ranges, const int64_t* slots,
                   const Spec& spec);

// Cycles at the ports of a core's LX: the units read through one, and write through the other.
struct Ports {
  double reads = 0, writes = 0;
  void add(const Ports& other) {
    reads += other.reads;
    writes += other.writes;
  }
};

// Cycles of PT or SFU, and what the report counts.
struct Work {
  double cycles = 0;
  double least = 0;      // at the unit's peak rate
  uint64_t ops = 0;      // FLOP of PT (2 per multiply-add), scalar ops of SFU
  double fp16_flop = 0;  // of PT: what fp16 would do meanwhile, at most `ops`
  Ports ports;
};
// `split_k`: other cores work on the same sums, which takes corelets away from multiplying.
Work work_of(const Pt& pt, const std::vector<AxisRange>& ranges, bool split_k, const Spec& spec);
Work work_of(const Vec& vec, const std::vector<AxisRange>& ranges, const int64_t* slots,
             const Spec& spec);

// x to the power e for positive x: the same bits on every host, unlike the library's `pow`.
double power(double x, double e);

}  // namespace spyre
