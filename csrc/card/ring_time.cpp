#include "ring_time.h"

#include <algorithm>
#include <cmath>

namespace spyre {
namespace {

constexpr double kMaxElements = 1 << 30;  // of a piece: more than all of LX

struct BothSteps {
  int64_t count, source, target;  // steps in bytes
};

int64_t magnitude(int64_t step) { return step == INT64_MIN ? INT64_MAX : std::abs(step); }

// The axis with the smallest step on one side, among those that move on both.
const BothSteps* unit_axis(const std::vector<BothSteps>& axes, int64_t BothSteps::* side) {
  const BothSteps* found = nullptr;
  for (const BothSteps& axis : axes) {
    if (axis.count == 1 || axis.source == 0 || axis.target == 0) continue;
    if (!found || magnitude(axis.*side) < magnitude(found->*side)) found = &axis;
  }
  return found;
}

struct Moved {
  double elements;         // written
  double runs, run_bytes;  // sent
  bool transposes;
};

// Axes join from the smallest step up while no whole stick lies between their points, at both ends.
Moved moved_of(std::vector<BothSteps> axes, double element, double stick) {
  Moved moved{1, 1, element, false};
  moved.transposes = unit_axis(axes, &BothSteps::source) != unit_axis(axes, &BothSteps::target);
  std::sort(axes.begin(), axes.end(), [](const BothSteps& a, const BothSteps& b) {
    return magnitude(a.source) < magnitude(b.source);
  });
  double target = element;
  bool open = true;
  for (const BothSteps& axis : axes) {
    const auto count = static_cast<double>(axis.count);
    moved.elements *= count;
    if (axis.count == 1 || axis.source == 0) continue;  // what is repeated is sent once
    const auto from = static_cast<double>(magnitude(axis.source));
    const auto to = static_cast<double>(magnitude(axis.target));
    open = open && from - moved.run_bytes < stick && (moved.transposes || to - target < stick);
    if (open) {
      moved.run_bytes = std::max(moved.run_bytes, from * (count - 1) + moved.run_bytes);
      target = std::max(target, to * (count - 1) + target);
    } else {
      moved.runs *= count;
    }
  }
  return moved;
}

std::vector<int64_t> key_of(const RingPiece& piece, const std::vector<int64_t>& steps) {
  std::vector<int64_t> key{piece.core, static_cast<int64_t>(piece.source)};
  for (size_t i = 0; i < steps.size(); ++i) {
    if (piece.count[i] != 1) key.insert(key.end(), {piece.count[i], steps[i]});
  }
  return key;
}

}  // namespace

uint64_t Messages::add(const Ring& ring, const int64_t* slots, const std::vector<AxisRange>& ranges,
                       int reader) {
  const std::vector<int64_t> steps = source_steps(ring, slots);
  const auto element = static_cast<double>(bytes_of(ring.source.dtype));
  const double port = spec_.lx_bytes_per_cycle * spec_.corelets;
  const int cores = spec_.core_count();
  double received = 0, turned = 0;
  for (const RingPiece& piece : ring_pieces(ring, slots, ranges, reader)) {
    std::vector<BothSteps> axes;
    for (size_t i = 0; i < steps.size(); ++i) {
      int64_t target = 0;
      for (const Term& term : ring.target.terms) {
        if (term.axis == ring.axes[i]) target = term.coefficient.of(slots);
      }
      axes.push_back({piece.count[i], steps[i], target});
    }
    const Moved moved = moved_of(std::move(axes), element, spec_.stick_bytes);
    if (moved.elements > kMaxElements) {
      throw Failure(SPYRE_STOPPED, "a ring move walks too many points to time");
    }
    const double written = moved.elements * element;
    ports_[static_cast<size_t>(reader)].writes += written / port;
    if (moved.transposes) turned += written / spec_.transpose_rate * spec_.clock_ghz;
    const auto [found, is_new] = messages_.try_emplace(key_of(piece, steps));
    Message& message = found->second;
    if (is_new) {
      const double sent = moved.runs * moved.run_bytes;
      ports_[static_cast<size_t>(piece.core)].reads += sent / port;
      const double slots_of_run = std::ceil(moved.run_bytes / spec_.ring_bytes_per_cycle);
      message.cycles = moved.runs * (spec_.lx_latency_cycles + slots_of_run);
    }
    if (piece.core == reader) continue;
    received += written;
    ++message.readers;
    const int up = (reader - piece.core + cores) % cores, down = cores - up;
    // Two ways of one length: neighbours take different ones.
    if (up < down || (up == down && piece.core % 2 == 0)) {
      message.forth = std::max(message.forth, up);
    } else {
      message.back = std::max(message.back, down);
    }
  }
  transposing_ = std::max(transposing_, turned);
  return static_cast<uint64_t>(received);
}

void Messages::pass(int holder, const Message& message) {
  const int cores = spec_.core_count();
  const double slowed = std::max(
      1.0, power(std::max(1, message.readers) / spec_.multicast_free, spec_.multicast_exponent));
  auto link = [&](int core) { return 2 * static_cast<size_t>((core + cores) % cores); };
  for (int i = 0; i < message.forth; ++i) links_[link(holder + i)] += message.cycles * slowed;
  for (int i = 0; i < message.back; ++i) links_[link(holder - i) + 1] += message.cycles * slowed;
}

void Messages::fill(Exchange* exchange) {
  int farthest = 0;
  for (const auto& [key, message] : messages_) {
    pass(static_cast<int>(key[0]), message);
    farthest = std::max({farthest, message.forth, message.back});
  }
  messages_.clear();
  exchange->links = std::move(links_);
  exchange->least = transposing_;
  for (const Ports& ports : ports_) {
    exchange->least = std::max({exchange->least, ports.reads, ports.writes});
  }
  exchange->latency = spec_.lx_latency_cycles + farthest * spec_.ring_hop_cycles;
}

}  // namespace spyre
