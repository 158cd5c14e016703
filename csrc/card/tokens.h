// The order that tokens give: which instructions of a core have finished when one starts.
//
// Meaning: "Order" in src/openspyre/ir/program.py. `time` turns the same rules into delays; here
// they become clocks, for the checker and for late transfers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "decode.h"

namespace spyre {

enum Unit { kLoadUnit, kStoreUnit, kPtUnit, kSfuUnit, kRingUnit, kUnits };

Unit unit_of(const Node& instruction);
const char* name_of(Unit unit);

// For every unit how many of its instructions have finished.
struct Clock {
  std::array<int32_t, kUnits> done{};
  void join(const Clock& other) {
    for (int u = 0; u < kUnits; ++u) done[u] = std::max(done[u], other.done[u]);
  }
};

// For every buffer, the others that share bytes of LX with it.
std::vector<std::vector<int>> overlapping_buffers(const Program& program);

// One core in one section, fed with its instructions in body order.
class Tokens {
 public:
  explicit Tokens(const Program& program);

  // Forgets everything: a section begins.
  void start();

  struct Issued {
    Unit unit;
    int32_t number;  // of the instruction on its unit, from 1
    Clock clock;     // what has finished before it may start
  };
  // The next instruction. `trip` is that of the innermost loop around it (see `walk`).
  Issued issue(const Node& instruction, int64_t trip);

  // Which copy of a double buffer was written last; 0 for other buffers.
  const std::vector<uint8_t>& slots() const { return current_; }

 private:
  struct SlotUse {
    Clock users;   // all that have read or written it
    Clock writer;  // the last one that wrote it
  };
  void wait_to_write(int buffer, int64_t trip);

  const Program& program_;
  std::vector<std::vector<int>> overlaps_;
  std::vector<std::array<SlotUse, 2>> uses_;  // by buffer
  std::vector<uint8_t> current_;
  std::array<Clock, kUnits> last_;  // of every unit, its last instruction included
  // Of the instruction being issued:
  Clock clock_;
  std::vector<std::pair<SlotUse*, bool>> used_;  // and whether it writes
};

// Visits the places of an instruction in its core's own LX: visit(place, writes). Reads come first.
// (What a ring move reads is another core's, and no token's matter.)
template <class Visit>
void for_each_lx_place(const Node& instruction, const Visit& visit) {
  if (const auto* copy = std::get_if<Copy>(&instruction.form)) {
    for (const Indirect& index : copy->indirect) visit(index.place, false);
    visit(copy->lx(), copy->is_load());
  } else if (const auto* pt = std::get_if<Pt>(&instruction.form)) {
    visit(pt->a, false);
    visit(pt->b, false);
    visit(pt->c, true);
  } else if (const auto* vec = std::get_if<Vec>(&instruction.form)) {
    for (const Place& input : vec->inputs) visit(input, false);
    for (const VecOut& out : vec->outputs) visit(out.place, true);
  } else if (const auto* ring = std::get_if<Ring>(&instruction.form)) {
    visit(ring->target, true);
  }
}

}  // namespace spyre
