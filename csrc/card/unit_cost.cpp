#include "unit_cost.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "op_table.h"

namespace spyre {
namespace {

// Largest count of points or bytes that one instruction may have: keeps every sum in 64 bits.
constexpr int64_t kMaxWork = int64_t{1} << 52;

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || result > kMaxWork) {
    throw Failure(SPYRE_STOPPED, "an instruction walks too many points to time");
  }
  return result;
}

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

int64_t points_of(const std::vector<int>& axes, const std::vector<AxisRange>& ranges) {
  int64_t points = 1;
  for (int axis : axes) points = product(points, ranges[axis].count());
  return points;
}

// Wraps instead of overflowing: only the remainder by a stick is used of it.
uint64_t wrapped_product(int64_t a, int64_t b) {
  return static_cast<uint64_t>(a) * static_cast<uint64_t>(b);
}

// One axis of a copy: points that move, and its steps in bytes on both sides.
struct Walked {
  int64_t count, device, lx;
  bool indexed;  // an index read from memory depends on it
};

// Points of an axis that a bound of this axis alone lets through; other bounds let all through.
AxisRange clipped(const Copy& copy, int axis, AxisRange range, const int64_t* slots) {
  for (const Bound& bound : copy.bounds) {
    if (bound.terms.size() != 1 || bound.terms[0].axis != axis) continue;
    const int64_t step = bound.terms[0].coefficient.of(slots);
    const int64_t offset = bound.offset.of(slots), size = bound.size.of(slots);
    if (step != 1 && step != -1) continue;
    // 0 <= offset + step * x < size
    int64_t low = 0, high = 0;
    if (step == 1) {
      if (__builtin_sub_overflow(int64_t{0}, offset, &low) ||
          __builtin_sub_overflow(size, offset, &high)) {
        continue;
      }
    } else if (__builtin_sub_overflow(offset, size, &low) || __builtin_add_overflow(low, 1, &low) ||
               __builtin_add_overflow(offset, 1, &high)) {
      continue;
    }
    range.start = std::max(range.start, low);
    range.end = std::max(range.start, std::min(range.end, high));
  }
  return range;
}

int64_t coefficient_of(const Place& place, int axis, const int64_t* slots) {
  for (const Term& term : place.terms) {
    if (term.axis == axis) return term.coefficient.of(slots);
  }
  return 0;
}

int64_t magnitude(int64_t value) { return value == INT64_MIN ? INT64_MAX : std::abs(value); }

// Bytes of sticks that `count` runs of `bytes` touch; they begin at `phase` plus any multiple of
// `unit` (a divisor of the stick).
int64_t touched(int64_t bytes, uint64_t phase, int64_t unit, int64_t stick) {
  int64_t sum = 0;
  for (int64_t shift = 0; shift < stick; shift += unit) {
    const int64_t begin =
        (static_cast<int64_t>(phase % static_cast<uint64_t>(stick)) + shift) % stick;
    sum += rounded_up(begin + bytes, stick);
  }
  const int64_t phases = stick / unit;
  return (sum + phases - 1) / phases;
}

struct Runs {
  int64_t count;  // contiguous runs
  int64_t bytes;  // sticks of one
};

// Joins axes from the smallest step up while no whole stick lies between their points.
Runs runs_of(std::vector<Walked> axes, int64_t element, uint64_t phase, const Copy& copy,
             const int64_t* slots, int64_t stick) {
  std::sort(axes.begin(), axes.end(), [](const Walked& a, const Walked& b) {
    return magnitude(a.device) < magnitude(b.device);
  });
  int64_t span = element, count = 1, unit = stick;
  for (const Indirect& indirect : copy.indirect) {
    unit = std::gcd(unit, magnitude(indirect.coefficient.of(slots)));
  }
  bool open = true;  // the run still grows
  for (const Walked& axis : axes) {
    if (axis.count == 1 && !axis.indexed) continue;
    if (axis.indexed) {
      count = product(count, axis.count);
      if (axis.device != 0) unit = std::gcd(unit, magnitude(axis.device));
      continue;
    }
    if (axis.device == 0) continue;
    const int64_t step = magnitude(axis.device);
    if (open && step - span < stick) {
      span = std::max(span, product(step, axis.count - 1) + span);
      continue;
    }
    open = false;
    count = product(count, axis.count);
    unit = std::gcd(unit, step);
  }
  if (unit == 0) unit = stick;
  return {count, touched(span, phase, unit, stick)};
}

// The axis with the smallest step on one side, among those that move on both.
const Walked* unit_axis(const std::vector<Walked>& axes, int64_t Walked::* side) {
  const Walked* found = nullptr;
  for (const Walked& axis : axes) {
    if (axis.count == 1 || axis.device == 0 || axis.lx == 0) continue;
    if (!found || magnitude(axis.*side) < magnitude(found->*side)) found = &axis;
  }
  return found;
}

double server_ns(const Runs& runs, const Spec& spec) {
  const auto burst = static_cast<int64_t>(spec.dram_burst);
  const int64_t full = runs.bytes / burst, rest = runs.bytes % burst;
  auto request = [&](double bytes) {
    return std::max(bytes / spec.dram_oneway, spec.dram_request_ns);
  };
  const double one = static_cast<double>(full) * request(spec.dram_burst) +
                     (rest ? request(static_cast<double>(rest)) : 0.0);
  return static_cast<double>(runs.count) * one;
}

// Points that fill lanes one after the other: those of the last axis, and of axes before it for as
// long as every operand goes on where the row before ended.
int64_t lane_points(const Vec& vec, const std::vector<AxisRange>& ranges, const int64_t* slots) {
  int64_t row = 1;
  int last = -1;
  auto continues = [&](const Place& place, int axis) {
    return coefficient_of(place, axis, slots) ==
           static_cast<int64_t>(wrapped_product(row, coefficient_of(place, last, slots)));
  };
  for (auto axis = vec.axes.rbegin(); axis != vec.axes.rend(); ++axis) {
    const int64_t count = ranges[*axis].count();
    if (count == 1) continue;
    bool goes_on = true;
    if (last >= 0) {
      for (const Place& input : vec.inputs) goes_on &= continues(input, *axis);
      for (const VecOut& out : vec.outputs) goes_on &= continues(out.place, *axis);
    } else {
      last = *axis;
    }
    if (!goes_on) break;
    row = product(row, count);
  }
  return std::max<int64_t>(row, 1);
}

double port_bytes(const Spec& spec) { return spec.lx_bytes_per_cycle * spec.corelets; }

}  // namespace

Traffic traffic_of(const Copy& copy, const std::vector<AxisRange>& ranges, const int64_t* slots,
                   const Spec& spec) {
  const Place& device = copy.device();
  const int64_t element = bytes_of(device.dtype);
  std::vector<Walked> axes;
  axes.reserve(copy.axes.size());
  uint64_t phase = static_cast<uint64_t>(device.base.of(slots));
  int64_t elements = 1, in_lx = 1;
  for (int axis : copy.axes) {
    const AxisRange range = clipped(copy, axis, ranges[axis], slots);
    Walked walked{range.count(), coefficient_of(device, axis, slots),
                  coefficient_of(copy.lx(), axis, slots), false};
    for (const Indirect& indirect : copy.indirect) walked.indexed |= has_term(indirect.place, axis);
    for (const Term& term : device.terms) {
      if (term.axis != axis) continue;
      const int64_t first = walked.device < 0 ? range.end - 1 : range.start;
      phase += wrapped_product(walked.device, first - ranges[axis].origin(term.origin));
    }
    elements = product(elements, walked.count);
    in_lx = product(in_lx, ranges[axis].count());
    axes.push_back(walked);
  }
  const double clock = spec.clock_ghz;
  Traffic traffic;
  traffic.lx = static_cast<double>(in_lx * element) / port_bytes(spec);
  traffic.each = traffic.lx;
  traffic.fold = static_cast<double>(in_lx) / spec.psum_rate * clock;
  if (elements == 0) return traffic;
  const Runs runs =
      runs_of(axes, element, phase, copy, slots, static_cast<int64_t>(spec.stick_bytes));
  const int64_t ways = copy.add ? 2 : 1;  // adding reads what it replaces
  traffic.bytes = product(product(runs.count, runs.bytes), ways);
  traffic.server = server_ns(runs, spec) * static_cast<double>(ways) * clock;
  traffic.core = static_cast<double>(traffic.bytes) / spec.dram_per_core * clock;
  if (unit_axis(axes, &Walked::device) != unit_axis(axes, &Walked::lx)) {
    const double transposing =
        static_cast<double>(elements * element) / spec.transpose_rate * clock;
    traffic.each = std::max(traffic.each, transposing);
  }
  return traffic;
}

Work work_of(const Pt& pt, const std::vector<AxisRange>& ranges, bool split_k, const Spec& spec) {
  const int64_t element = bytes_of(pt.a.dtype);
  const auto lanes = static_cast<int64_t>(spec.stick_bytes) / element;
  auto padded = [&](const std::vector<int>& axes) {
    int64_t points = 1;
    for (int axis : axes) {
      const int64_t count = ranges[axis].count();
      points = product(points, axis == axes.back() ? rounded_up(count, lanes) : count);
    }
    return points;
  };
  const int64_t batch = points_of(pt.batch, ranges), rows = points_of(pt.m, ranges);
  const int64_t n = points_of(pt.n, ranges), k = points_of(pt.k, ranges);
  const double relative = element == 4 ? spec.pt_f32_rate : element == 1 ? spec.pt_fp8_rate : 1.0;
  const double rate = spec.mac_per_core_cycle * relative;
  // A weight block stays while its rows stream through, in passes; changing it costs
  // `pt_weight_passes` more, of which `pt_sustain` already holds the share at its own rows.
  const double pass = spec.pt_rows_per_pass;
  const double passes = std::max(1.0, static_cast<double>(rows) / pass);
  const double steady = 1.0 - spec.pt_weight_passes / (spec.pt_sustain_rows / pass);
  const double streamed = (passes * steady + spec.pt_weight_passes) * pass;
  const double columns = static_cast<double>(product(product(batch, padded(pt.n)), padded(pt.k)));
  Work work;
  const auto macs = static_cast<uint64_t>(product(product(product(batch, rows), n), k));
  work.ops = 2 * macs;
  work.fp16_flop = static_cast<double>(work.ops) / std::max(1.0, relative);
  work.least = static_cast<double>(macs) / rate;
  const double in = static_cast<double>(product(product(batch, k), rows + n) * element);
  const double out = static_cast<double>(product(product(batch, rows), n) * bytes_of(pt.c.dtype));
  work.ports = {in / port_bytes(spec), out / port_bytes(spec)};
  const double ports = std::max(work.ports.reads, work.ports.writes);
  const double corelets = split_k ? spec.ksplit_corelets / spec.corelets : 1.0;
  const double compute = columns * streamed / (rate * spec.pt_sustain * corelets);
  work.cycles = std::ceil(std::max({1.0, compute, ports}));
  return work;
}

Work work_of(const Vec& vec, const std::vector<AxisRange>& ranges, const int64_t* slots,
             const Spec& spec) {
  const auto points = static_cast<double>(points_of(vec.axes, ranges));
  const double clock = spec.clock_ghz;
  const double full = spec.sfu_lanes * spec.corelets;  // elements per cycle
  // An op takes a cycle per group of lanes, on a corelet, however many of them have a point.
  const auto row = static_cast<double>(lane_points(vec, ranges, slots));
  const double groups = points == 0 ? 0 : points / row * std::ceil(row / spec.sfu_lanes);
  const double pass = std::ceil(groups / spec.corelets);
  double ops = 0, cycles = 0;
  for (const VecOp& op : vec.ops) {
    if (op.code < kFirstOp) continue;
    ops += 1;
    cycles +=
        op_row(op.code)->transcendental ? points / spec.sfu_transcendental_rate * clock : pass;
  }
  // An axis of one point fills no lanes: the one before it does.
  int lane_axis = -1;
  for (int axis : vec.axes) {
    if (ranges[axis].count() > 1) lane_axis = axis;
  }
  for (const VecOut& out : vec.outputs) {
    if (out.reduce == Reduce::None) continue;
    ops += 1;
    // Across lanes at the rate of a row reduction; over outer axes it is an op like any other.
    const bool across = out.scan || (lane_axis >= 0 && !has_term(out.place, lane_axis));
    cycles += across ? points / spec.sfu_reduce_rate * clock : pass;
  }
  // A copy without ops still passes through.
  if (ops == 0) cycles = pass * static_cast<double>(vec.outputs.size());
  Work work;
  auto port_cycles = [&](const Place& place, double* port) {
    int64_t count = 1;
    bool strided = false;
    for (int axis : vec.axes) {
      const int64_t step = coefficient_of(place, axis, slots);
      if (step == 0) continue;
      count = product(count, ranges[axis].count());
      strided |= axis == lane_axis && ranges[axis].count() > 1 && step != bytes_of(place.dtype);
    }
    const auto bytes = static_cast<double>(count * bytes_of(place.dtype));
    *port += bytes / port_bytes(spec);
    return bytes / (strided ? spec.transpose_rate / clock : port_bytes(spec));
  };
  double in = 0, out = 0;
  for (const Place& place : vec.inputs) in += port_cycles(place, &work.ports.reads);
  for (const VecOut& stored : vec.outputs) out += port_cycles(stored.place, &work.ports.writes);
  work.ops = static_cast<uint64_t>(points * ops);
  work.least = points * ops / full;
  work.cycles = std::ceil(std::max({1.0, cycles, in, out}));
  return work;
}

// log and exp by series, in plain IEEE operations in a fixed order.
double power(double x, double e) {
  int two = 0;
  const double m = std::frexp(x, &two);  // [0.5, 1)
  const double z = (m - 1) / (m + 1), square = z * z;
  double term = z, log = 0;
  for (int n = 1; n < 60; n += 2) {
    log += term / n;
    term *= square;
  }
  const double ln2 = 0.69314718055994530942;
  const double y = e * (2 * log + two * ln2);
  const double whole = std::floor(y / ln2);
  const double rest = y - whole * ln2;
  double sum = 1, next = 1;
  for (int n = 1; n < 30; ++n) {
    next *= rest / n;
    sum += next;
  }
  return std::ldexp(sum, static_cast<int>(whole));
}

}  // namespace spyre
