// Debug mode of `execute`: copies happen as late as tokens allow.
//
// PT and SFU work in body order; a copy or a ring move waits in its unit's queue until an
// instruction may only start when it has finished. A program that needs an order which no token
// gives computes something else this way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "frame.h"
#include "tokens.h"

namespace spyre {

// One core in one section.
class LateTransfers {
 public:
  using Execute =
      std::function<void(const Node&, const std::vector<AxisRange>& ranges, BufferSlots)>;
  LateTransfers(const Program& program, Execute execute);

  // The next instruction in body order.
  void issue(const Node& instruction, const std::vector<AxisRange>& ranges, int64_t trip);
  // The end of the section.
  void finish();

 private:
  struct Waiting {
    const Node* instruction;
    std::vector<AxisRange> ranges;
    std::vector<uint8_t> read, write;  // slots of the buffers
    Clock clock;
  };
  void finish(const Clock& clock);
  void finish_next(Unit unit);

  Execute execute_;
  Tokens tokens_;
  std::vector<uint8_t> read_;            // slots before the instruction
  std::deque<Waiting> waiting_[kUnits];  // of LOAD, STORE and RING
  int32_t finished_[kUnits] = {};
};

}  // namespace spyre
