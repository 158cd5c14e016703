#include "device_memory.h"

#include <algorithm>

namespace spyre {

DeviceMemory::DeviceMemory(const Spec& spec, double cores) {
  const double many = std::max(spec.dram_few_cores, spec.dram_partitioned_per_core * cores);
  rate_ = std::min(1.0, std::min(spec.dram_per_core * cores, many) / spec.dram_oneway);
}

void DeviceMemory::advance(double time) {
  const double passed = time - now_;
  if (passed > 0) {
    share();
    for (Active& a : active_) a.left = std::max(0.0, a.left - passed * a.rate);
  }
  now_ = std::max(now_, time);
}

void DeviceMemory::share() {
  if (!stale_) return;
  stale_ = false;
  double free = rate_, weight = 0;
  for (Active& a : active_) {
    a.rate = -1;
    weight += a.weight;
  }
  // Those whose limit is below their fair share get it; their rest raises the others' share.
  for (bool found = true; found;) {
    found = false;
    const double level = free / weight;
    double taken = 0, gone = 0;
    for (Active& a : active_) {
      if (a.rate >= 0 || a.limit > level * a.weight) continue;
      a.rate = a.limit;
      taken += a.limit;
      gone += a.weight;
      found = true;
    }
    free = std::max(0.0, free - taken);
    weight -= gone;
    if (weight <= 0) return;
  }
  for (Active& a : active_) {
    if (a.rate < 0) a.rate = free / weight * a.weight;
  }
}

void DeviceMemory::start(int request, double time, double work, double shortest, double cores) {
  advance(time);
  const double limit = shortest > work ? work / shortest : 1.0;
  active_.push_back({request, work, limit, cores, 0});
  stale_ = true;
}

double DeviceMemory::next_finish() {
  share();
  double soonest = -1;
  for (const Active& a : active_) {
    const double at = a.left / a.rate;
    if (soonest < 0 || at < soonest) soonest = at;
  }
  return now_ + soonest;
}

std::vector<int> DeviceMemory::finish() {
  const double at = next_finish();
  // Equal requests finish together; what rounding leaves of them is below a millionth of a cycle.
  const double tolerance = 1e-6;
  std::vector<int> done;
  std::vector<Active> rest;
  rest.reserve(active_.size());
  for (const Active& a : active_) {
    if (now_ + a.left / a.rate <= at + tolerance) {
      done.push_back(a.request);
    } else {
      rest.push_back(a);
    }
  }
  const double passed = at - now_;
  for (Active& a : rest) a.left = std::max(0.0, a.left - passed * a.rate);
  active_ = std::move(rest);
  now_ = at;
  stale_ = true;
  return done;
}

}  // namespace spyre
