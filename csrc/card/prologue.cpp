// The rules of a program's prologue: what makes it right to leave it out.
#include <algorithm>

#include "program_rules.h"
#include "tokens.h"

namespace spyre {
namespace {

template <class Visit>
void visit(const std::vector<Node>& body, const Visit& each) {
  for (const Node& node : body) {
    if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
      visit(loop->body, each);
    } else {
      each(node);
    }
  }
}

ByteRange range_of(const Buffer& buffer) {
  return {buffer.offset, buffer.offset + buffer.bytes * buffer.slots};
}

// Sorted, those that touch joined.
std::vector<ByteRange> joined(std::vector<ByteRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.low < b.low; });
  std::vector<ByteRange> found;
  for (const ByteRange& range : ranges) {
    if (range.low == range.high) continue;
    if (!found.empty() && range.low <= found.back().high) {
      found.back().high = std::max(found.back().high, range.high);
    } else {
      found.push_back(range);
    }
  }
  return found;
}

class SlotSet {
 public:
  void add(const Value& value) {
    if (value.slot) numbers_.push_back(value.number);
  }
  void add(const std::vector<Term>& terms) {
    for (const Term& term : terms) add(term.coefficient);
  }
  void add(const Place& place) {
    add(place.base);
    add(place.terms);
  }
  void add(const Copy& copy) {
    add(copy.source);
    add(copy.target);
    for (const Bound& bound : copy.bounds) {
      add(bound.terms);
      add(bound.offset);
      add(bound.size);
    }
  }
  std::vector<int64_t> sorted() {
    std::sort(numbers_.begin(), numbers_.end());
    numbers_.erase(std::unique(numbers_.begin(), numbers_.end()), numbers_.end());
    return std::move(numbers_);
  }

 private:
  std::vector<int64_t> numbers_;
};

}  // namespace

void find_prologue(Program* program) {
  require(program->prologue <= static_cast<int>(program->sections.size()),
          "a prologue is longer than its program");
  std::vector<char> kept(program->buffers.size(), 0);
  SlotSet slots;
  for (int s = 0; s < program->prologue; ++s) {
    const Section& section = program->sections[s];
    for (const Axis& axis : section.axes) slots.add(axis.extent);
    visit(section.body, [&](const Node& node) {
      const auto* copy = std::get_if<Copy>(&node.form);
      require(copy && copy->is_load() && copy->indirect.empty() && copy->source.argument >= 0,
              "a prologue does something else than load from arguments");
      require(program->buffers[copy->target.buffer].slots == 1,
              "a prologue loads into a double buffer");
      kept[copy->target.buffer] = 1;
      slots.add(*copy);
    });
  }
  for (size_t s = program->prologue; s < program->sections.size(); ++s) {
    visit(program->sections[s].body, [&](const Node& node) {
      for_each_lx_place(node, [&](const Place& place, bool writes) {
        require(!writes || !kept[place.buffer], "what a prologue has loaded is written");
      });
    });
  }
  std::vector<ByteRange> held, others;
  for (size_t b = 0; b < kept.size(); ++b) {
    (kept[b] ? held : others).push_back(range_of(program->buffers[b]));
  }
  program->lx_kept = joined(held);
  std::vector<ByteRange> all = joined(others);
  for (const ByteRange& other : all) {
    for (const ByteRange& range : program->lx_kept) {
      require(other.high <= range.low || range.high <= other.low,
              "another buffer shares bytes with what a prologue loads");
    }
  }
  int64_t alone = 0;
  for (const ByteRange& range : held) alone += range.high - range.low;
  for (const ByteRange& range : program->lx_kept) alone -= range.high - range.low;
  require(alone == 0, "buffers of a prologue share bytes");
  all.insert(all.end(), program->lx_kept.begin(), program->lx_kept.end());
  program->lx_ranges = joined(std::move(all));
  program->prologue_slots = slots.sorted();
}

}  // namespace spyre
