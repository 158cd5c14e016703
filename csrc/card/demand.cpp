#include "demand.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "card.h"

namespace spyre {
namespace {

// A sum over all cores and trips is a product over the axes: of what an axis repeats an instruction
// that does not walk it (its parts, or all trips of the loop over it), or of its points.
class Counter {
 public:
  Counter(const Section& section, const int64_t* slots) : section_(section), slots_(slots) {
    for (const Axis& axis : section.axes) repeats_ *= axis.parts;
  }

  Demand count() { return count(section_.body); }

 private:
  double points_of(int axis) const {
    return static_cast<double>(std::max<int64_t>(section_.axes[axis].extent.of(slots_), 1));
  }

  double repeats_of(int axis) const {
    const Axis& split = section_.axes[axis];
    const double parts = split.parts;
    if (!tiles_[axis]) return parts;
    const double granules = std::ceil(points_of(axis) / static_cast<double>(split.granule));
    const double longest = std::ceil(granules / parts) * static_cast<double>(split.granule);
    const double part = std::min(longest, points_of(axis));
    return parts * std::ceil(part / static_cast<double>(tiles_[axis]));
  }

  double walked(const std::vector<int>& axes) const {
    double points = 1;
    for (int axis : axes) points *= points_of(axis) / repeats_of(axis);
    return points;
  }

  double points_of(const Node& node) const {
    if (const auto* copy = std::get_if<Copy>(&node.form)) return walked(copy->axes);
    if (const auto* pt = std::get_if<Pt>(&node.form)) {
      return walked(pt->batch) * walked(pt->m) * walked(pt->n) * walked(pt->k);
    }
    if (const auto* ring = std::get_if<Ring>(&node.form)) return walked(ring->axes);
    const Vec& vec = std::get<Vec>(node.form);
    return walked(vec.axes) * static_cast<double>(vec.ops.size());
  }

  Demand count(const std::vector<Node>& body) {
    Demand total;
    for (const Node& node : body) {
      const auto* loop = std::get_if<TileLoop>(&node.form);
      if (!loop) {
        total += {repeats_, repeats_ * points_of(node)};
        continue;
      }
      const double outside = repeats_;
      repeats_ /= repeats_of(loop->axis);
      tiles_[loop->axis] = loop->tile;
      repeats_ *= repeats_of(loop->axis);
      total.instructions += repeats_;
      total += count(loop->body);
      tiles_[loop->axis] = 0;
      repeats_ = outside;
    }
    return total;
  }

  const Section& section_;
  const int64_t* slots_;
  double repeats_ = 1;
  int64_t tiles_[kMaxAxes] = {};  // of the loops around what is counted; 0: none
};

std::string in_words(double number) {
  char text[32];
  std::snprintf(text, sizeof text, number < 1e6 ? "%.0f" : "%.2g", number);
  return text;
}

void require_at_most(double most, double asked, const char* of, const Program& program) {
  if (asked <= most) return;
  throw Failure(SPYRE_STOPPED, program.name + ": a launch asks for " + in_words(asked) + " " + of +
                                   ", the card takes at most " + in_words(most));
}

}  // namespace

Demand demand_of(const Section& section, const int64_t* slots) {
  return Counter(section, slots).count();
}

void require_runnable(const Program& program, const int64_t* slots) {
  Demand all;
  for (const Section& section : program.sections) all += demand_of(section, slots);
  require_at_most(kMostPoints, all.points, "scalar operations", program);
  require_at_most(kMostInstructions, all.instructions, "instructions", program);
}

void require_walkable(const Program& program, const int64_t* slots, const WalkLimits& limits) {
  double all = 0;
  for (const Section& section : program.sections) {
    const double cores = limits.every_core ? 1 : section.cores;
    const double asked = demand_of(section, slots).instructions / cores;
    all += asked;
    if (asked <= limits.of_section && all <= limits.of_program) continue;
    throw Failure(limits.code, "section " + section.name + " has too many instructions to " +
                                   limits.verb + ": " + in_words(asked) + ", " + in_words(all) +
                                   " with those before it");
  }
}

}  // namespace spyre
