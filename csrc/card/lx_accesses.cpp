#include "lx_accesses.h"

#include <algorithm>

#include "card.h"
#include "copy_points.h"

namespace spyre {

int ByteSets::number_of(const Box& box) {
  const Box one = box.canonical();
  std::vector<int64_t> key{static_cast<int64_t>(one.start), one.size};
  for (const Box::Dim& d : one.dims) key.insert(key.end(), {d.count, d.stride});
  const auto [found, is_new] = numbers_.try_emplace(std::move(key), static_cast<int>(all_.size()));
  if (!is_new) return found->second;
  runs_ += run_count(one);
  if (runs_ > kMostRuns) {
    throw Failure(SPYRE_TOO_LARGE, "the accesses to LX have too many runs to check");
  }
  all_.emplace_back();
  for_each_run(one, [&](Run run) { all_.back().push_back(run); });
  return found->second;
}

int ByteSets::add(std::vector<Run> runs) {
  all_.push_back(std::move(runs));
  return static_cast<int>(all_.size()) - 1;
}

// Runs of a box begin with the lowest and end with the highest.
bool ByteSets::may_share(int a, int b) const {
  if (all_[a].empty() || all_[b].empty()) return false;
  const Run &x = all_[a].front(), &y = all_[b].front();
  return x.low < all_[b].back().high && y.low < all_[a].back().high;
}

namespace {

// The accesses of one core in one section, in body order.
class Recorder {
 public:
  Recorder(const Program& program, int section, const int64_t* slots,
           const std::vector<int64_t>& logical, ByteSets* sets, Problems* problems)
      : program_(program),
        section_(section),
        slots_(slots),
        logical_(logical),
        sets_(*sets),
        problems_(*problems),
        last_(static_cast<size_t>(program.sections[section].nodes)) {}

  std::vector<LxAccess> accesses(int core) {
    const Section& section = program_.sections[section_];
    core_ = core;
    current_.assign(program_.buffers.size(), 0);
    std::vector<AxisRange> ranges = ranges_of(section, slots_, core);
    auto visit = [this](const Node& node, const std::vector<AxisRange>& axes, int64_t trip) {
      ++steps_;
      if (!skips(node, axes)) record(node, axes, trip);
    };
    walk(section.body, ranges, visit);
    return std::move(found_);
  }

 private:
  void record(const Node& node, const std::vector<AxisRange>& axes, int64_t trip) {
    node_ = &node;
    operand_ = 0;
    trip_ = trip;
    at_once_ = false;
    if (const auto* copy = std::get_if<Copy>(&node.form)) {
      record(*copy, axes);
    } else if (const auto* pt = std::get_if<Pt>(&node.form)) {
      const bool empty = any_empty(pt->k, axes);
      read(pt->a, axes, !empty);
      read(pt->b, axes, !empty);
      write(pt->c, axes, std::all_of(pt->k.begin(), pt->k.end(), [&](int axis) {
              return axes[axis].first_trip();
            }));
    } else if (const auto* ring = std::get_if<Ring>(&node.form)) {
      write(ring->target, axes, true);
    } else {
      record(std::get<Vec>(node.form), axes);
    }
  }

  void record(const Copy& copy, const std::vector<AxisRange>& axes) {
    for (const Indirect& index : copy.indirect) read(index.place, axes, true);
    if (copy.is_load()) return write(copy.target, axes, true);
    if (copy.bounds.empty()) return read(copy.source, axes, true);
    // (Bounds over several axes leave the whole tile to be written.)
    std::vector<AxisRange> inside = axes;
    clip_to_bounds(copy, slots_, &inside);
    std::vector<AxisRange> moved = axes;  // places count from the tile's start
    for (int axis : copy.axes) moved[axis] = inside[axis];
    read(copy.source, axes, !any_empty(copy.axes, moved), &moved);
  }

  void record(const Vec& vec, const std::vector<AxisRange>& axes) {
    const bool empty = any_empty(vec.axes, axes);
    for (const Place& input : vec.inputs) read(input, axes, !empty);
    for (const VecOut& out : vec.outputs) {
      bool stores = true, begins = true;
      for (int axis : vec.axes) {
        const bool reduced = out.reduce != Reduce::None && !out.scan && !has_term(out.place, axis);
        stores &= reduced || !axes[axis].empty();
        begins &= !reduced || axes[axis].first_trip();
      }
      at_once_ = out.reduce == Reduce::None;
      if (stores) write(out.place, axes, begins);
    }
  }

  // An operand that is not there still has a number.
  void read(const Place& place, const std::vector<AxisRange>& axes, bool there,
            const std::vector<AxisRange>* moved = nullptr) {
    if (there) add(place, axes, current_[place.buffer], false, moved ? *moved : axes);
    ++operand_;
  }

  // A result that does not begin continues in place.
  void write(const Place& place, const std::vector<AxisRange>& axes, bool begins) {
    const int slot = program_.buffers[place.buffer].slots == 2 ? static_cast<int>(trip_ % 2) : 0;
    if (!begins) add(place, axes, slot, false, axes);
    ++operand_;
    current_[place.buffer] = slot;
    add(place, axes, slot, true, axes);
    ++operand_;
  }

  // `moved`: the points; `axes`: where coordinates count from.
  void add(const Place& place, const std::vector<AxisRange>& axes, int slot, bool writes,
           const std::vector<AxisRange>& moved) {
    const Buffer& buffer = program_.buffers[place.buffer];
    Box box;
    box.start = place.base.of(slots_);
    box.size = bytes_of(place.dtype);
    for (const Term& term : place.terms) {
      const int64_t by = term.coefficient.of(slots_);
      const AxisRange& range = moved[term.axis];
      box.start += static_cast<Wide>(by) * (range.start - axes[term.axis].origin(term.origin));
      box.dims.push_back({range.empty() ? 0 : range.count(), by});
    }
    Numbers& last = known(box, slot);
    if (last.set < 0) {
      check_elements(box);
      if (!inside(box, buffer, writes)) {
        if (!writes) return;
        box = {0, buffer.bytes, {}};  // its readers are right, as far as one can tell
      }
      if (buffer.slots == 2) {
        last.logical = number(box, logical_[place.buffer]);
        box.dims.push_back({2, buffer.bytes});
      }
      last.set = number(box, buffer.offset);
    }
    found_.push_back({steps_, &place, section_, node_->id, place.buffer, slot, last.set,
                      last.logical, writes, at_once_});
  }

  int number(Box box, int64_t from) {
    box.start += from;
    return sets_.number_of(box);
  }

  // (Of numbers the decoder says it.)
  void check_elements(const Box& box) {
    bool whole = box.start % box.size == 0;
    for (const Box::Dim& d : box.dims) whole &= d.count <= 1 || d.stride % box.size == 0;
    const Instr instr{section_, node_->id};
    if (whole || !problems_.is_new(Problems::Parts, instr)) return;
    problems_.add(problems_.name(instr) + " does not touch whole elements of LX");
  }

  bool inside(const Box& box, const Buffer& buffer, bool writes) {
    if (box.low() >= 0 && box.high() <= buffer.bytes) return true;
    const Instr instr{section_, node_->id};
    if (problems_.is_new(Problems::LxBounds, instr)) {
      problems_.add(problems_.name(instr, core_) + (writes ? " writes" : " reads") + " bytes " +
                    Problems::number(box.low()) + " to " + Problems::number(box.high()) +
                    " of LX buffer " + buffer.name + ", which has " + std::to_string(buffer.bytes));
    }
    return false;
  }

  // Consecutive trips mostly touch the same bytes, in turn in both slots.
  struct Numbers {
    Box box;
    int set = -1, logical = -1;
  };
  Numbers& known(const Box& box, int slot) {
    auto& by_operand = last_[node_->id];
    const size_t at = 2 * operand_ + static_cast<size_t>(slot);
    if (by_operand.size() <= at) by_operand.resize(at + 1);
    Numbers& last = by_operand[at];
    const bool same = last.set >= 0 && last.box.start == box.start &&
                      std::equal(last.box.dims.begin(), last.box.dims.end(), box.dims.begin(),
                                 box.dims.end(), [](const Box::Dim& a, const Box::Dim& b) {
                                   return a.count == b.count && a.stride == b.stride;
                                 });
    if (!same) last = {box, -1, -1};
    return last;
  }

  const Program& program_;
  const int section_;
  int core_ = 0;
  const int64_t* slots_;
  const std::vector<int64_t>& logical_;
  ByteSets& sets_;
  Problems& problems_;
  std::vector<std::vector<Numbers>> last_;  // by node, then by operand and slot
  std::vector<LxAccess> found_;
  std::vector<int> current_;  // slot of every buffer that was written last
  const Node* node_ = nullptr;
  size_t operand_ = 0;
  bool at_once_ = false;
  int64_t trip_ = 0, steps_ = 0;
};

}  // namespace

std::vector<LxAccess> lx_accesses(const Program& program, int section, const int64_t* slots,
                                  const std::vector<int64_t>& logical, int core, ByteSets* sets,
                                  Problems* problems) {
  return Recorder(program, section, slots, logical, sets, problems).accesses(core);
}

}  // namespace spyre
