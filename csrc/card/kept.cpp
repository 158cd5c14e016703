#include "kept.h"

#include <algorithm>
#include <utility>

namespace spyre {
namespace {

bool overlap(const std::vector<ByteRange>& a, const std::vector<ByteRange>& b) {
  for (const ByteRange& one : a) {
    for (const ByteRange& other : b) {
      if (one.low < other.high && other.low < one.high) return true;
    }
  }
  return false;
}

bool same(const Numerics& a, const Numerics& b) {
  return a.card == b.card && a.round == b.round && a.truncate_bf16 == b.truncate_bf16 &&
         a.sum == b.sum && a.chunk == b.chunk && a.fp8_bias == b.fp8_bias;
}

template <class Visit>
void visit_loads(const std::vector<Node>& body, const Visit& each) {
  for (const Node& node : body) {
    if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
      visit_loads(loop->body, each);
    } else if (const auto* copy = std::get_if<Copy>(&node.form)) {
      each(*copy);
    }
  }
}

}  // namespace

Prologue::Prologue(const Program& program) : program_(program) {
  for (int s = 0; s < program.prologue; ++s) {
    const Section& section = program.sections[s];
    visit_loads(section.body, [&](const Copy& copy) { loads_.push_back({&copy, &section}); });
  }
  for (State& state : states_) {  // a launch allocates nothing
    state.values.resize(program.prologue_slots.size());
    state.sources.resize(loads_.size());
  }
}

uint64_t Prologue::bytes() const {
  uint64_t total = 0;
  std::vector<char> counted(program_.buffers.size(), 0);
  for (const Load& load : loads_) {
    const int number = load.copy->target.buffer;
    if (std::exchange(counted[number], 1)) continue;
    total += static_cast<uint64_t>(program_.buffers[number].bytes) * load.section->cores;
  }
  return total;
}

void KeptTable::add(Prologue& prologue) {
  if (prologue.sections() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  all_.push_back(&prologue);
}

void KeptTable::remove(Prologue& prologue) {
  if (prologue.sections() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  drop(state(prologue));
  all_.erase(std::find(all_.begin(), all_.end(), &prologue));
}

void KeptTable::drop(Prologue::State& state) {
  if (state.held) held_.fetch_sub(1, std::memory_order_relaxed);
  state.held = false;
}

bool KeptTable::begin(Prologue& prologue, const int64_t* slots, const Numerics& numerics) {
  const Program& program = prologue.program();
  if (program.prologue == 0 && empty()) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Prologue* other : all_) {
    Prologue::State& held = state(*other);
    if (other != &prologue && held.held && overlap(program.lx_ranges, other->program().lx_kept)) {
      drop(held);
    }
  }
  if (program.prologue == 0) return false;
  Prologue::State& mine = state(prologue);
  bool same_slots = true;
  for (size_t i = 0; i < mine.values.size(); ++i) {
    const int64_t value = slots[program.prologue_slots[i]];
    same_slots &= mine.values[i] == value;
    mine.values[i] = value;
  }
  if (mine.held && same_slots && same(mine.numerics, numerics)) {
    ++mine.hits;
    return true;
  }
  for (size_t i = 0; i < mine.sources.size(); ++i) {
    mine.sources[i] = reach_of(*prologue.loads_[i].copy, *prologue.loads_[i].section, slots);
  }
  mine.numerics = numerics;
  ++mine.loads;
  if (!mine.held) held_.fetch_add(1);
  mine.held = true;
  return false;
}

void KeptTable::forget(Prologue& prologue) {
  const std::lock_guard<std::mutex> lock(mutex_);
  drop(state(prologue));
}

void KeptTable::forget_all() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Prologue* one : all_) drop(state(*one));
}

void KeptTable::touch(uintptr_t low, uintptr_t high) {
  // Written by now, for a launch that begins from here on: a read could pass the write.
  if (held_.fetch_add(0) == 0) return;
  const Reach written{static_cast<Wide>(low), static_cast<Wide>(high)};
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Prologue* one : all_) {
    Prologue::State& held = state(*one);
    if (!held.held) continue;
    const bool hit = std::any_of(held.sources.begin(), held.sources.end(),
                                 [&](const Reach& source) { return source.overlaps(written); });
    if (hit) drop(held);
  }
}

std::vector<ByteRange> KeptTable::ranges(const Program* without) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ByteRange> found;
  for (Prologue* one : all_) {
    if (!state(*one).held || &one->program() == without) continue;
    const std::vector<ByteRange>& more = one->program().lx_kept;
    found.insert(found.end(), more.begin(), more.end());
  }
  std::sort(found.begin(), found.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.low < b.low; });
  return found;
}

std::vector<KeptTable::Shown> KeptTable::shown() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Shown> found;
  for (Prologue* one : all_) {
    const Prologue::State& held = state(*one);
    if (!held.held) continue;
    found.push_back({one->program().name, one->bytes(), held.loads, held.hits});
  }
  return found;
}

}  // namespace spyre
