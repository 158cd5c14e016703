#include "late.h"

#include <utility>

namespace spyre {

LateTransfers::LateTransfers(const Program& program, Execute execute)
    : execute_(std::move(execute)), tokens_(program) {}

void LateTransfers::issue(const Node& instruction, const std::vector<AxisRange>& ranges,
                          int64_t trip) {
  if (skips(instruction, ranges)) return;
  read_ = tokens_.slots();
  const Tokens::Issued issued = tokens_.issue(instruction, trip);
  if (issued.unit != kPtUnit && issued.unit != kSfuUnit) {
    waiting_[issued.unit].push_back({&instruction, ranges, read_, tokens_.slots(), issued.clock});
    return;
  }
  finish(issued.clock);
  execute_(instruction, ranges, {read_.data(), tokens_.slots().data()});
}

void LateTransfers::finish(const Clock& clock) {
  for (Unit unit : {kLoadUnit, kStoreUnit, kRingUnit}) {
    while (finished_[unit] < clock.done[unit]) finish_next(unit);
  }
}

// What the copy waits for is older, and so is what that waits for: this ends.
void LateTransfers::finish_next(Unit unit) {
  const Waiting next = std::move(waiting_[unit].front());
  waiting_[unit].pop_front();
  ++finished_[unit];
  finish(next.clock);
  execute_(*next.instruction, next.ranges, {next.read.data(), next.write.data()});
}

void LateTransfers::finish() {
  while (!waiting_[kStoreUnit].empty()) finish_next(kStoreUnit);
  while (!waiting_[kLoadUnit].empty()) finish_next(kLoadUnit);
  while (!waiting_[kRingUnit].empty()) finish_next(kRingUnit);
}

}  // namespace spyre
