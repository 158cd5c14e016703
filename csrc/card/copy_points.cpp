#include "copy_points.h"

#include <algorithm>

#include "card.h"

namespace spyre {
namespace {

Wide floor_quotient(Wide a, Wide b) {
  const Wide q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

// Keeps the x of [start, end) with 0 <= offset + step * x < size.
void clip(AxisRange* range, Wide offset, Wide step, Wide size) {
  Wide low = range->start, high = range->end;
  if (step == 0) {
    if (offset < 0 || offset >= size) high = low;
  } else if (step > 0) {
    low = std::max(low, -floor_quotient(offset, step));
    high = std::min(high, -floor_quotient(offset - size, step));
  } else {
    low = std::max(low, floor_quotient(offset - size, -step) + 1);
    high = std::min(high, floor_quotient(offset, -step) + 1);
  }
  range->start = static_cast<int64_t>(std::min(low, Wide{range->end}));
  range->end = static_cast<int64_t>(std::max(high, Wide{range->start}));
}

// A device place as constant + sum of coefficient x absolute coordinate, by section axis.
struct Affine {
  Wide constant;
  std::vector<Wide> coefficient;
};

Affine affine(const Place& place, const int64_t* slots, const std::vector<AxisRange>& ranges,
              int64_t zero) {
  Affine found{static_cast<Wide>(place.base.of(slots)) - zero, std::vector<Wide>(ranges.size(), 0)};
  for (const Term& term : place.terms) {
    const Wide by = term.coefficient.of(slots);
    found.coefficient[term.axis] = by;
    found.constant -= by * ranges[term.axis].origin(term.origin);
  }
  return found;
}

void add_axes(const Copy& copy, const Affine& at, const std::vector<AxisRange>& ranges, Box* box) {
  for (int axis : copy.axes) {
    const Wide by = at.coefficient[axis];
    box->start += by * ranges[axis].start;
    box->dims.push_back(
        {ranges[axis].empty() ? 0 : ranges[axis].count(), static_cast<int64_t>(by)});
  }
}

void add_indices(const Copy& copy, const int64_t* slots, Box* box) {
  for (const Indirect& index : copy.indirect) {
    const int64_t size = std::max<int64_t>(index.size.of(slots), 0);
    box->dims.push_back({size, index.coefficient.of(slots)});
  }
}

// Of the axes of the bound, one that no other bound over several axes has, with a whole quotient
// of its steps; -1 if there is none.
const Term* own_term(const Copy& copy, const Bound& bound, const Affine& at, const int64_t* slots) {
  for (const Term& term : bound.terms) {
    const Wide by = term.coefficient.of(slots);
    bool own = by != 0 && at.coefficient[term.axis] % by == 0;
    for (const Bound& other : copy.bounds) {
      if (&other == &bound || other.terms.size() < 2) continue;
      for (const Term& theirs : other.terms) own &= theirs.axis != term.axis;
    }
    if (own) return &term;
  }
  return nullptr;
}

// Counts along the bound's value e, which lies in [0, size), instead of along its axes.
void take_out(const Copy& copy, const Bound& bound, const int64_t* slots, Affine* at, Box* box) {
  const Term* own = own_term(copy, bound, *at, slots);
  if (!own) return;
  const Wide by = at->coefficient[own->axis] / own->coefficient.of(slots);
  for (const Term& term : bound.terms) {
    at->coefficient[term.axis] -= by * term.coefficient.of(slots);
  }
  at->constant -= by * bound.offset.of(slots);
  box->dims.push_back({std::max<int64_t>(bound.size.of(slots), 0), static_cast<int64_t>(by)});
}

// Walks all axes of a copy but the last and clips the last one's range to every bound.
class Points {
 public:
  Points(const Copy& copy, const int64_t* slots, std::vector<AxisRange> ranges, int64_t zero)
      : copy_(copy),
        slots_(slots),
        ranges_(std::move(ranges)),
        at_(affine(copy.device(), slots, ranges_, zero)) {}

  std::vector<Box> boxes() {
    visit(0);
    return std::move(boxes_);
  }

 private:
  void visit(size_t depth) {
    if (depth + 1 >= copy_.axes.size()) return row();
    AxisRange& range = ranges_[copy_.axes[depth]];
    const AxisRange whole = range;
    for (int64_t x = whole.start; x < whole.end; ++x) {
      range.start = x;
      range.end = x + 1;
      visit(depth + 1);
    }
    range = whole;
  }

  void row() {
    if (++rows_ > kMostRuns) {
      throw Failure(SPYRE_TOO_LARGE, "a copy with bounds has too many rows to check");
    }
    std::vector<AxisRange> ranges = ranges_;
    const int lane = copy_.axes.empty() ? -1 : copy_.axes.back();
    for (const Bound& bound : copy_.bounds) {
      Wide offset = bound.offset.of(slots_), step = 0;
      for (const Term& term : bound.terms) {
        const Wide by = term.coefficient.of(slots_);
        (term.axis == lane ? step : offset) +=
            term.axis == lane ? by : by * ranges[term.axis].start;
      }
      AxisRange none{0, 0, 0, 1};
      AxisRange& range = lane < 0 ? none : ranges[lane];
      clip(&range, offset, step, bound.size.of(slots_));
      if (range.empty()) return;
    }
    Box box;
    box.start = at_.constant;
    box.size = bytes_of(copy_.device().dtype);
    add_axes(copy_, at_, ranges, &box);
    add_indices(copy_, slots_, &box);
    if (!box.empty()) boxes_.push_back(std::move(box));
  }

  const Copy& copy_;
  const int64_t* slots_;
  std::vector<AxisRange> ranges_;
  Affine at_;
  std::vector<Box> boxes_;
  int64_t rows_ = 0;
};

}  // namespace

void clip_to_bounds(const Copy& copy, const int64_t* slots, std::vector<AxisRange>* ranges) {
  for (const Bound& bound : copy.bounds) {
    const Wide offset = bound.offset.of(slots), size = bound.size.of(slots);
    if (bound.terms.size() == 1) {
      const Term& term = bound.terms[0];
      clip(&(*ranges)[term.axis], offset, term.coefficient.of(slots), size);
    } else if (bound.terms.empty() && (offset < 0 || offset >= size)) {
      for (int axis : copy.axes) (*ranges)[axis].end = (*ranges)[axis].start;
    }
  }
}

DeviceBox device_box(const Copy& copy, const int64_t* slots, std::vector<AxisRange> ranges,
                     int64_t zero) {
  Affine at = affine(copy.device(), slots, ranges, zero);  // before clipping moves the origins
  clip_to_bounds(copy, slots, &ranges);
  DeviceBox found{{}, true};
  for (const Bound& bound : copy.bounds) {
    if (bound.terms.empty() && copy.axes.empty()) found.exact = false;
    if (bound.terms.size() < 2) continue;
    found.exact = false;
    take_out(copy, bound, slots, &at, &found.box);
  }
  found.box.start = at.constant;
  found.box.size = bytes_of(copy.device().dtype);
  add_axes(copy, at, ranges, &found.box);
  add_indices(copy, slots, &found.box);
  return found;
}

std::vector<Box> device_boxes(const Copy& copy, const int64_t* slots, std::vector<AxisRange> ranges,
                              int64_t zero) {
  DeviceBox whole = device_box(copy, slots, ranges, zero);
  if (whole.exact) return {std::move(whole.box)};
  return Points(copy, slots, std::move(ranges), zero).boxes();
}

}  // namespace spyre
