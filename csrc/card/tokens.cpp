#include "tokens.h"

namespace spyre {

Unit unit_of(const Node& instruction) {
  if (const auto* copy = std::get_if<Copy>(&instruction.form)) {
    return copy->is_load() ? kLoadUnit : kStoreUnit;
  }
  if (std::holds_alternative<Ring>(instruction.form)) return kRingUnit;
  return std::holds_alternative<Pt>(instruction.form) ? kPtUnit : kSfuUnit;
}

const char* name_of(Unit unit) {
  constexpr const char* names[] = {"LOAD", "STORE", "PT", "SFU", "RING"};
  return names[unit];
}

std::vector<std::vector<int>> overlapping_buffers(const Program& program) {
  const auto end = [](const Buffer& b) { return b.offset + b.bytes * b.slots; };
  const size_t count = program.buffers.size();
  std::vector<std::vector<int>> overlaps(count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = 0; b < count; ++b) {
      const Buffer &x = program.buffers[a], &y = program.buffers[b];
      if (a != b && x.offset < end(y) && y.offset < end(x)) {
        overlaps[a].push_back(static_cast<int>(b));
      }
    }
  }
  return overlaps;
}

Tokens::Tokens(const Program& program)
    : program_(program), overlaps_(overlapping_buffers(program)) {
  start();
}

void Tokens::start() {
  uses_.assign(program_.buffers.size(), {});
  current_.assign(program_.buffers.size(), 0);
  last_.fill(Clock());
}

Tokens::Issued Tokens::issue(const Node& instruction, int64_t trip) {
  const Unit unit = unit_of(instruction);
  clock_ = last_[unit];
  used_.clear();
  for_each_lx_place(instruction, [&](const Place& place, bool writes) {
    const int buffer = place.buffer;
    if (writes) wait_to_write(buffer, trip);
    SlotUse* use = &uses_[buffer][current_[buffer]];
    if (!writes) clock_.join(use->writer);
    used_.emplace_back(use, writes);
  });
  const Issued issued{unit, last_[unit].done[unit] + 1, clock_};
  last_[unit] = clock_;
  last_[unit].done[unit] = issued.number;
  for (const auto& [use, writes] : used_) {
    use->users.join(last_[unit]);
    if (writes) use->writer = last_[unit];
  }
  return issued;
}

void Tokens::wait_to_write(int buffer, int64_t trip) {
  if (program_.buffers[buffer].slots == 2) current_[buffer] = static_cast<uint8_t>(trip % 2);
  clock_.join(uses_[buffer][current_[buffer]].users);
  for (int other : overlaps_[buffer]) {
    for (const SlotUse& use : uses_[other]) clock_.join(use.users);
  }
}

}  // namespace spyre
