// The execute engine: values of a program, over the host's threads.
#pragma once

#include <cstdint>
#include <vector>

#include "execute_plan.h"

namespace spyre {

// A decoded program made ready for one set of kernels. Runs of one card take turns, so the state
// of a run lives here and a launch that ran before allocates nothing.
class Executable {
 public:
  // `program` must live longer. Throws Failure(SPYRE_INVALID_PROGRAM).
  Executable(const Program& program, const Kernels& kernels);

  // Runs all sections. Throws Failure(SPYRE_STOPPED or SPYRE_INDEX) of the first core that failed;
  // what other cores stored by then stays.
  void run(const Machine& machine, const int64_t* slots);

 private:
  void poison_lx(const Machine& machine) const;
  void run_section(const Machine& machine, size_t section, const int64_t* slots);
  void touch_stores(const Machine& machine, size_t section, const int64_t* slots) const;

  const Program& program_;
  std::vector<SectionPlan> plans_;
  std::vector<const Place*> sources_;  // of the running section: by Forward, null when copied
};

}  // namespace spyre
