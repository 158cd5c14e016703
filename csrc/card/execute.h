// The execute engine: values of a program, over the host's threads.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "execute_plan.h"

namespace spyre {

// A decoded program made ready for one set of kernels. Runs of one card take turns, so the state
// of a run lives here and a launch that ran before allocates nothing.
class Executable {
 public:
  // `program` must live longer. Throws Failure(SPYRE_INVALID_PROGRAM).
  Executable(const Program& program, const Kernels& kernels);

  // Runs the sections from `first` on, with the kernels and numerics of the machine. Throws
  // Failure(SPYRE_STOPPED or SPYRE_INDEX) of the first core that failed; what other cores stored by
  // then stays.
  void run(const Machine& machine, const int64_t* slots, int first = 0);

  // Visits what a launch may store to: each(low, high), bytes of device memory.
  template <class Each>
  void stores(const int64_t* slots, const Each& each) const {
    for (size_t s = 0; s < plans_.size(); ++s) {
      for (const Copy* store : plans_[s].stores) {
        const Reach reach = reach_of(*store, program_.sections[s], slots);
        const Wide most = UINTPTR_MAX;
        if (reach.low < reach.high && reach.low >= 0 && reach.high <= most) {
          each(static_cast<uintptr_t>(reach.low), static_cast<uintptr_t>(reach.high));
        }
      }
    }
  }

 private:
  void poison_lx(const Machine& machine, bool all) const;
  const std::vector<SectionPlan>& plans(const Machine& machine);
  void run_section(const Machine& machine, const std::vector<SectionPlan>& plans, size_t section,
                   const int64_t* slots);
  void touch_stores(const Machine& machine, size_t section, const int64_t* slots) const;

  const Program& program_;
  std::vector<SectionPlan> plans_;  // of numerics `ieee`; their copies and forwards hold for both
  // Those of numerics `card`, by its kernels; made by the first launch that needs them.
  std::map<const Kernels*, std::vector<SectionPlan>> dl16_plans_;
  std::vector<uint8_t> together_;      // of the running section: by Node::id (batch.h)
  std::vector<const Place*> targets_;  // of the running section: by Direct, null when copied
  std::vector<uint8_t> left_out_;      // of the running section: loads, by Forward
  std::vector<const Place*> sources_;  // of the running section: by reader, null when copied
};

}  // namespace spyre
