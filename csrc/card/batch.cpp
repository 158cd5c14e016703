#include "batch.h"

#include <algorithm>
#include <cstdlib>

#include "execute_plan.h"

namespace spyre {
namespace {

constexpr int64_t kAlign = 64;

bool contains(const std::vector<int>& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

struct Use {
  const Node* node;
  const Place* place;
  bool write;
  bool fresh;  // a write that covers its whole range and does not go on from what is there
};

// The uses of LX by one instruction, reads first. `looped`: axes of the loops around it.
void add_uses(const Node& node, const std::vector<int>& looped, std::vector<Use>* uses) {
  auto read = [&](const Place& place) { uses->push_back({&node, &place, false, false}); };
  auto write = [&](const Place& place, const std::vector<int>& axes, bool goes_on) {
    const bool whole = std::all_of(place.terms.begin(), place.terms.end(),
                                   [&](const Term& term) { return contains(axes, term.axis); });
    uses->push_back({&node, &place, true, whole && !goes_on});
  };
  auto in_trips = [&](int axis) { return contains(looped, axis); };
  if (const auto* copy = std::get_if<Copy>(&node.form)) {
    for (const Indirect& indirect : copy->indirect) read(indirect.place);
    if (copy->is_load()) write(copy->target, copy->axes, copy->add);
    if (!copy->is_load()) read(copy->source);
  } else if (const auto* pt = std::get_if<Pt>(&node.form)) {
    std::vector<int> axes = pt->batch;
    for (const auto* more : {&pt->m, &pt->n}) axes.insert(axes.end(), more->begin(), more->end());
    read(pt->a);
    read(pt->b);
    write(pt->c, axes, std::any_of(pt->k.begin(), pt->k.end(), in_trips));
  } else if (const auto* vec = std::get_if<Vec>(&node.form)) {
    for (const Place& input : vec->inputs) read(input);
    for (const VecOut& out : vec->outputs) {
      const bool goes_on = std::any_of(vec->axes.begin(), vec->axes.end(), [&](int axis) {
        return out.reduce != Reduce::None && !has_term(out.place, axis) && in_trips(axis);
      });
      write(out.place, vec->axes, goes_on);
    }
  } else if (const auto* ring = std::get_if<Ring>(&node.form)) {
    read(ring->source);
    write(ring->target, ring->axes, true);
  }
}

// Which loop of the program uses a buffer: the innermost around every use, null where they differ.
struct Owner {
  bool used = false;
  const TileLoop* loop = nullptr;
};

class Finder {
 public:
  Finder(const Program& program, std::vector<SectionPlan>* plans)
      : program_(program), plans_(plans), owners_(program.buffers.size()) {}

  void run() {
    for (const Section& section : program_.sections) find_owners(section.body, nullptr);
    for (size_t s = 0; s < program_.sections.size(); ++s) {
      plan_ = &(*plans_)[s];
      std::vector<int> looped;
      visit(program_.sections[s].body, &looped);
    }
  }

 private:
  void find_owners(const std::vector<Node>& body, const TileLoop* loop) {
    for (const Node& node : body) {
      if (const auto* inner = std::get_if<TileLoop>(&node.form)) {
        find_owners(inner->body, inner);
        continue;
      }
      std::vector<Use> uses;
      add_uses(node, {}, &uses);
      for (const Use& use : uses) {
        Owner& owner = owners_[use.place->buffer];
        owner = {true, !owner.used || owner.loop == loop ? loop : nullptr};
      }
    }
  }

  void visit(const std::vector<Node>& body, std::vector<int>* looped) {
    for (const Node& node : body) {
      const auto* loop = std::get_if<TileLoop>(&node.form);
      if (!loop) continue;
      looped->push_back(loop->axis);
      visit(loop->body, looped);
      consider(node, *loop, *looped);
      looped->pop_back();
    }
  }

  void consider(const Node& node, const TileLoop& loop, const std::vector<int>& looped) {
    if (std::count(looped.begin(), looped.end(), loop.axis) > 1) return;
    Batch batch;
    batch.axis = loop.axis;
    std::vector<Use> uses;
    bool any_vec = false;
    for (const Node& inner : loop.body) {
      if (std::holds_alternative<TileLoop>(inner.form)) return;
      if (std::holds_alternative<Ring>(inner.form)) return;  // reads other cores' LX
      any_vec |= std::holds_alternative<Vec>(inner.form);
      add_uses(inner, looped, &uses);
      const auto* copy = std::get_if<Copy>(&inner.form);
      if (copy && copy->add) return;
      if (copy) batch.transfers.push_back(copy);
    }
    if (!any_vec || !place_tiles(loop, uses, &batch)) return;
    for (const Node& inner : loop.body) {
      plan_->nodes[inner.id].together = runs_together(inner, loop.axis, batch);
    }
    plan_->nodes[node.id].batch = std::make_unique<Batch>(std::move(batch));
  }

  bool place_tiles(const TileLoop& loop, const std::vector<Use>& uses, Batch* batch) {
    batch->offset.assign(owners_.size(), -1);
    batch->pitch.assign(owners_.size(), 0);
    for (size_t i = 0; i < uses.size(); ++i) {
      const int buffer = uses[i].place->buffer;
      const auto first = std::find_if(uses.begin(), uses.end(),
                                      [&](const Use& use) { return use.place->buffer == buffer; });
      if (first != uses.begin() + static_cast<int64_t>(i)) continue;
      std::vector<Use> of_buffer;
      std::copy_if(first, uses.end(), std::back_inserter(of_buffer),
                   [&](const Use& use) { return use.place->buffer == buffer; });
      if (!stays(of_buffer) && !place_tile(loop, of_buffer, batch)) return false;
    }
    return true;
  }

  // In LX the uses mean the same, whichever instruction goes first.
  static bool stays(const std::vector<Use>& uses) {
    const bool written =
        std::any_of(uses.begin(), uses.end(), [](const Use& use) { return use.write; });
    return !written || uses.size() == 1;
  }

  bool place_tile(const TileLoop& loop, const std::vector<Use>& uses, Batch* batch) const {
    const int number = uses[0].place->buffer;
    if (owners_[number].loop != &loop || !uses[0].fresh) return false;
    for (const Use& use : uses) {
      if (use.write ? !use.fresh : !find_written(loop, uses, use, batch)) return false;
    }
    const Buffer& buffer = program_.buffers[number];
    batch->offset[number] = batch->bytes;
    batch->pitch[number] = pitch(loop, uses, buffer);
    batch->bytes += (buffer.bytes + kAlign - 1) / kAlign * kAlign;
    return true;
  }

  // A write before the read that the read finds its elements in.
  static bool find_written(const TileLoop& loop, const std::vector<Use>& uses, const Use& read,
                           Batch* batch) {
    for (const Use& use : uses) {
      if (!use.write) continue;
      if (use.node->id >= read.node->id) return false;
      if (same_elements(*use.place, *read.place)) return true;
      if (!same_in_trip(loop.axis, *use.place, *read.place)) continue;
      batch->covers.push_back({use.place, read.place});
      return true;
    }
    return false;
  }

  static bool same_elements(const Place& a, const Place& b) {
    return a.dtype == b.dtype && same_value(a.base, b.base) && a.terms.size() == b.terms.size() &&
           std::all_of(a.terms.begin(), a.terms.end(), [&](const Term& t) { return has(b, t); });
  }
  static bool has(const Place& place, const Term& term) {
    return std::any_of(place.terms.begin(), place.terms.end(), [&](const Term& other) {
      return other.axis == term.axis && other.origin == term.origin &&
             same_value(other.coefficient, term.coefficient);
    });
  }
  // Both name rows of the loop's axis alike.
  static bool same_in_trip(int axis, const Place& a, const Place& b) {
    for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      for (const Term& term : one->terms) {
        if (term.axis == axis && !has(*other, term)) return false;
      }
    }
    return true;
  }

  // The bytes of a tile follow each other from trip to trip where no use can tell.
  static int64_t pitch(const TileLoop& loop, const std::vector<Use>& uses, const Buffer& buffer) {
    int64_t row = 0;
    bool only_rows = true;
    for (const Use& use : uses) {
      const Place& place = *use.place;
      only_rows &= place.terms.size() == 1 && !place.base.slot && place.base.number == 0;
      for (const Term& term : place.terms) {
        if (term.axis != loop.axis) continue;
        const int64_t step = term.coefficient.slot ? 0 : term.coefficient.number;
        if (term.origin != Origin::Tile || (row && row != step)) return buffer.bytes;
        row = step;
      }
      if (!has_term(place, loop.axis) || row < bytes_of(place.dtype)) return buffer.bytes;
    }
    const bool fits = row <= buffer.bytes / loop.tile;
    const bool whole = fits && buffer.bytes <= row * loop.tile;
    return whole || (fits && only_rows) ? row * loop.tile : buffer.bytes;
  }

  static bool runs_together(const Node& node, int axis, const Batch& batch) {
    if (const auto* copy = std::get_if<Copy>(&node.form)) {
      return copy->indirect.empty() && copy->bounds.empty() && has_room(copy->axes);
    }
    const auto* vec = std::get_if<Vec>(&node.form);
    if (!vec || !has_room(vec->axes)) return false;
    return std::all_of(vec->outputs.begin(), vec->outputs.end(), [&](const VecOut& out) {
      const bool held = batch.offset[out.place.buffer] >= 0;
      const bool moves = std::any_of(
          out.place.terms.begin(), out.place.terms.end(),
          [&](const Term& term) { return term.axis == axis && term.origin != Origin::Tile; });
      const bool reduces = out.reduce != Reduce::None && !has_term(out.place, axis);
      return !out.scan && !reduces && (held || moves);
    });
  }

  static bool has_room(const std::vector<int>& axes) { return axes.size() < kMaxAxes; }

  static bool same_value(const Value& a, const Value& b) {
    return a.number == b.number && a.slot == b.slot;
  }

  const Program& program_;
  std::vector<SectionPlan>* plans_;
  SectionPlan* plan_ = nullptr;
  std::vector<Owner> owners_;
};

// --- in one launch ---------------------------------------------------------------------------

bool same_place(const Place& a, const Place& b, const int64_t* slots) {
  if (a.dtype != b.dtype || a.base.of(slots) != b.base.of(slots)) return false;
  auto step = [&](const Place& place, int axis) {
    Wide sum = 0;
    for (const Term& term : place.terms) {
      if (term.axis == axis) sum += term.coefficient.of(slots);
    }
    return sum;
  };
  for (const Place* place : {&a, &b}) {
    for (const Term& term : place->terms) {
      if (step(a, term.axis) != step(b, term.axis)) return false;
    }
  }
  return true;
}

// No two points of the axes have an element in common; so no two trips of a loop over `axis`.
bool is_one_to_one(const Copy& copy, int axis, const Section& section, const int64_t* slots) {
  struct Step {
    Wide size;
    int64_t count;
  };
  Step steps[kMaxAxes];
  int size = 0;
  const Place& place = copy.device();
  for (const Term& term : place.terms) {
    const Wide step = term.coefficient.of(slots);
    const int64_t count = section.axes[term.axis].extent.of(slots);
    if (count > 1 && size < kMaxAxes) steps[size++] = {step < 0 ? -step : step, count};
  }
  std::sort(steps, steps + size, [](const Step& a, const Step& b) { return a.size < b.size; });
  Wide reach = bytes_of(place.dtype);
  for (int i = 0; i < size; ++i) {
    if (steps[i].size < reach) return false;
    reach += steps[i].size * (steps[i].count - 1);
  }
  return copy.indirect.empty() && has_term(place, axis) && place.terms.size() <= kMaxAxes;
}

struct Span {
  Wide low, high;  // bytes from the base
  bool dense;
};

// The elements of a place at one point of `axis`.
Span span_of(const Place& place, int axis, const int64_t* slots,
             const std::vector<AxisRange>& axes) {
  Span span = {place.base.of(slots), place.base.of(slots) + bytes_of(place.dtype), true};
  bool used[kMaxAxes] = {};
  const size_t count = std::min<size_t>(place.terms.size(), kMaxAxes);
  for (size_t done = 0; done < count; ++done) {  // smallest step first
    const Term* next = nullptr;
    size_t at = 0;
    for (size_t i = 0; i < count; ++i) {
      const Term& term = place.terms[i];
      if (used[i]) continue;
      if (!next ||
          std::llabs(term.coefficient.of(slots)) < std::llabs(next->coefficient.of(slots))) {
        next = &term, at = i;
      }
    }
    used[at] = true;
    if (next->axis == axis) continue;
    const AxisRange& range = axes[next->axis];
    const Wide step = next->coefficient.of(slots);
    const Wide start = step * (range.start - range.origin(next->origin));
    const Wide reach = step * (range.count() - 1);
    span.dense &= (step < 0 ? -step : step) <= span.high - span.low || range.count() == 1;
    span.low += start + (reach < 0 ? reach : 0);
    span.high += start + (reach > 0 ? reach : 0);
  }
  return span;
}

}  // namespace

int64_t Trips::stride(const Place& place, const int64_t* slots) const {
  if (holds(place)) return batch.pitch[place.buffer];
  uint64_t step = 0;  // a malformed program's may wrap around
  for (const Term& term : place.terms) {
    if (term.axis != batch.axis || term.origin == Origin::Tile) continue;
    step += static_cast<uint64_t>(term.coefficient.of(slots)) * static_cast<uint64_t>(tile);
  }
  return static_cast<int64_t>(step);
}

void find_batches(const Program& program, std::vector<SectionPlan>* plans) {
  Finder(program, plans).run();
}

bool transfers_apart(const Batch& batch, const Section& section, const int64_t* slots) {
  for (const Copy* store : batch.transfers) {
    if (store->is_load()) continue;
    const Reach written = reach_of(*store, section, slots);
    for (const Copy* other : batch.transfers) {
      if (other == store || !reach_of(*other, section, slots).overlaps(written)) continue;
      const bool same = same_place(store->device(), other->device(), slots);
      if (!other->is_load() || !same || !is_one_to_one(*store, batch.axis, section, slots))
        return false;
    }
  }
  return true;
}

bool covered(const Batch& batch, const int64_t* slots, const std::vector<AxisRange>& axes) {
  return std::all_of(batch.covers.begin(), batch.covers.end(), [&](const Batch::Cover& cover) {
    const Span written = span_of(*cover.written, batch.axis, slots, axes);
    const Span read = span_of(*cover.read, batch.axis, slots, axes);
    return written.dense && written.low <= read.low && read.high <= written.high;
  });
}

}  // namespace spyre
