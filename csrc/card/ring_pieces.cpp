#include "ring_pieces.h"

#include <algorithm>
#include <utility>

#include "card.h"

namespace spyre {
namespace {

constexpr size_t kMostPieces = size_t{1} << 16;  // of one instruction on one core

[[noreturn]] void stop(const std::string& why) { throw Failure(SPYRE_STOPPED, why); }

Wide floor_quotient(Wide a, Wide b) {
  const Wide q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

// A holding in numbers: x = offset + sum of step x coordinate, by position in the walk.
struct Dim {
  Wide offset;
  std::vector<Wide> step;
  int64_t extent, granule;
  int parts, stride;
  Wide bytes;

  int part(int64_t x) const {
    const int64_t granules = extent / granule + (extent % granule != 0);
    return static_cast<int>(((x / granule + 1) * parts - 1) / granules);
  }
};

class Cutter {
 public:
  Cutter(const Ring& ring, const int64_t* slots, const std::vector<AxisRange>& ranges, int reader)
      : own_(reader % ring.cores) {
    for (int axis : ring.axes) {
      box_.start.push_back(ranges[axis].start);
      box_.count.push_back(ranges[axis].empty() ? 0 : ranges[axis].count());
    }
    base_ = ring.source.base.of(slots);
    step_ = steps_of(ring, ring.source.terms, slots);
    for (const Holding& held : ring.held) {
      const int64_t extent = held.extent.of(slots);
      if (extent > kMaxPoints) stop("a holding has " + std::to_string(extent) + " points");
      dims_.push_back({held.offset.of(slots), steps_of(ring, held.terms, slots), extent,
                       held.granule, held.parts, held.stride, held.step.of(slots)});
    }
  }

  std::vector<RingPiece> pieces() {
    const auto& counts = box_.count;
    if (std::find(counts.begin(), counts.end(), 0) == counts.end()) cut();
    return std::move(found_);
  }

 private:
  static std::vector<Wide> steps_of(const Ring& ring, const std::vector<Term>& terms,
                                    const int64_t* slots) {
    std::vector<Wide> steps(ring.axes.size(), 0);
    for (const Term& term : terms) {
      const auto at = std::find(ring.axes.begin(), ring.axes.end(), term.axis);
      steps[static_cast<size_t>(at - ring.axes.begin())] = term.coefficient.of(slots);
    }
    return steps;
  }

  struct Reach {
    Wide low, high;
  };
  Reach reach(const Dim& dim) const {
    Reach of{dim.offset, dim.offset};
    for (size_t i = 0; i < dim.step.size(); ++i) {
      of.low += dim.step[i] * box_.start[i];
      of.high += dim.step[i] * box_.start[i];
      (dim.step[i] < 0 ? of.low : of.high) += dim.step[i] * (box_.count[i] - 1);
    }
    return of;
  }

  // Cuts the box until one core holds all of it.
  void cut() {
    for (const Dim& dim : dims_) {
      const Reach x = reach(dim);
      if (x.low < 0 || x.high >= dim.extent) stop("a ring move reads what no core holds");
      const int part = dim.part(static_cast<int64_t>(x.low));
      if (part == dim.part(static_cast<int64_t>(x.high))) continue;
      const auto [axis, at] =
          border(dim, x, part_of(dim.extent, dim.parts, dim.granule, part).high);
      const int64_t start = box_.start[axis], count = box_.count[axis];
      box_.count[axis] = at - start;
      cut();
      box_.start[axis] = at;
      box_.count[axis] = start + count - at;
      cut();
      box_.start[axis] = start;
      box_.count[axis] = count;
      return;
    }
    add();
  }

  // An axis and a coordinate inside of it where the points with x < high and those with x >= high
  // come apart; where no axis does that, the middle of one.
  std::pair<size_t, int64_t> border(const Dim& dim, const Reach& x, Wide high) const {
    std::vector<size_t> axes;
    for (size_t i = 0; i < dim.step.size(); ++i) {
      if (dim.step[i] != 0 && box_.count[i] > 1) axes.push_back(i);
    }
    const auto size = [&](size_t i) { return dim.step[i] < 0 ? -dim.step[i] : dim.step[i]; };
    std::stable_sort(axes.begin(), axes.end(),
                     [&](size_t a, size_t b) { return size(a) > size(b); });
    for (size_t axis : axes) {
      const Wide step = dim.step[axis], first = box_.start[axis], count = box_.count[axis];
      const Wide span = size(axis) * (count - 1);
      // The others' share of x is in [low, high - span] of the reach. Counted along rising x, point
      // t has x in [x.low + t * |step|, x.high - span + t * |step|].
      const Wide below = -floor_quotient(x.high - span - high, size(axis));  // all before are
      const Wide above = -floor_quotient(x.low - high, size(axis));          // none from here is
      for (Wide t : {below, above}) {
        if (t <= 0 || t >= count) continue;
        return {axis, static_cast<int64_t>(step > 0 ? first + t : first + count - t)};
      }
    }
    return {axes.front(), box_.start[axes.front()] + box_.count[axes.front()] / 2};
  }

  void add() {
    if (found_.size() == kMostPieces) stop("a ring move has too many pieces");
    box_.core = own_;
    box_.source = base_;
    for (size_t i = 0; i < step_.size(); ++i) box_.source += step_[i] * box_.start[i];
    for (const Dim& dim : dims_) {
      Wide x = dim.offset;
      for (size_t i = 0; i < dim.step.size(); ++i) x += dim.step[i] * box_.start[i];
      const int part = dim.part(static_cast<int64_t>(x));
      box_.core += (part - own_ / dim.stride % dim.parts) * dim.stride;
      box_.source += dim.bytes * (x - part_of(dim.extent, dim.parts, dim.granule, part).low);
    }
    found_.push_back(box_);
  }

  const int own_;  // number of the core that has the reader's digits
  Wide base_;
  std::vector<Wide> step_;  // of the source's place
  std::vector<Dim> dims_;
  RingPiece box_{};
  std::vector<RingPiece> found_;
};

}  // namespace

std::vector<int64_t> source_steps(const Ring& ring, const int64_t* slots) {
  std::vector<Wide> wide(ring.axes.size(), 0);
  auto add = [&](const std::vector<Term>& terms, Wide times) {
    for (const Term& term : terms) {
      const auto at = std::find(ring.axes.begin(), ring.axes.end(), term.axis);
      Wide& step = wide[static_cast<size_t>(at - ring.axes.begin())];
      step += times * term.coefficient.of(slots);
      if (step > INT64_MAX || step < INT64_MIN) stop("a ring move steps farther than LX reaches");
    }
  };
  add(ring.source.terms, 1);
  for (const Holding& held : ring.held) add(held.terms, held.step.of(slots));
  return {wide.begin(), wide.end()};
}

std::vector<RingPiece> ring_pieces(const Ring& ring, const int64_t* slots,
                                   const std::vector<AxisRange>& ranges, int reader) {
  return Cutter(ring, slots, ranges, reader).pieces();
}

}  // namespace spyre
