// The instructions of each unit, executed for one core at its current ranges.
#pragma once

#include "frame.h"
#include "vec_code.h"

namespace spyre {

// Where the operands of an instruction really lie: an LX tile whose load was left out stands for
// the device memory it would have come from (execute_plan.h).
struct Places {
  const int* forward;           // by operand: its Forward::Reader, -1 for none; null: no operand
  const Place* const* sources;  // by reader: its source in this launch, null when it is copied
  bool elided = false;          // this instruction is such a load: check, do not move

  const int* stored = nullptr;  // Vec: by output, number of the store; -1 or null for none
  const Place* const* targets = nullptr;  // by store: its target in this launch, null when copied

  const Place& target(int output, const Place& own) const {
    if (!stored || stored[output] < 0) return own;
    const Place* target = targets[stored[output]];
    return target ? *target : own;
  }
  const Place& operator()(int operand, const Place& own) const {
    if (!forward || forward[operand] < 0) return own;
    const Place* source = sources[forward[operand]];
    return source ? *source : own;
  }
};

// Operands by number. Copy: 0 source, 1.. indices. Pt: 0 a, 1 b. Vec: inputs.
void execute_copy(const Frame& frame, const Copy& copy, const Places& places);
void execute_pt(const Frame& frame, const Pt& pt, const Places& places);
// Moves the points of a walk whose operands share no byte.
void move_points(const Walk& walk, const Operand& from, const Operand& to, int64_t size,
                 const Interrupt& interrupt);

void execute_ring(const Frame& frame, const Ring& ring, int core);

void execute_vec(const Frame& frame, const Vec& vec, const VecCode& code, const Places& places);

}  // namespace spyre
