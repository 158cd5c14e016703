#include "time_plan.h"

#include <algorithm>
#include <unordered_map>

namespace spyre {
namespace {

// Who touched one slot of a buffer last.
struct SlotUse {
  int32_t writer = -1;
  std::array<int32_t, kUnits> readers{-1, -1, -1, -1, -1};
};
struct BufferUse {
  std::array<SlotUse, 2> slots;
  int current = 0;  // the slot written last
};

struct SharedKey {
  int64_t node, group, occurrence;
  bool operator==(const SharedKey& o) const {
    return node == o.node && group == o.group && occurrence == o.occurrence;
  }
};
struct SharedKeyHash {
  size_t operator()(const SharedKey& k) const {
    uint64_t h = static_cast<uint64_t>(k.node);
    for (int64_t part : {k.group, k.occurrence}) {
      h = (h ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15u;
      h ^= h >> 29;
    }
    return static_cast<size_t>(h);
  }
};

class Unroller {
 public:
  Unroller(const Program& program, size_t first, const Spec& spec, const int64_t* slots)
      : program_(program),
        first_(first),
        end_(round_end(program, first)),
        spec_(spec),
        slots_(slots),
        overlaps_(overlapping_buffers(program)) {}

  SectionWork run() {
    std::vector<Spread> spreads;
    int cores = 0;
    uint32_t nodes = 0;
    for (size_t s = first_; s < end_; ++s) {
      const Section& section = program_.sections[s];
      spreads.push_back(spread_of(section));
      cores = std::max(cores, section.cores);
      work_.first_nodes.push_back(nodes);
      nodes += static_cast<uint32_t>(section.nodes);
    }
    work_.cores.resize(static_cast<size_t>(cores));
    for (int core = 0; core < cores; ++core) {
      uses_.assign(program_.buffers.size(), BufferUse());
      for (size_t s = first_; s < end_; ++s) {
        section_ = &program_.sections[s];
        if (core >= section_->cores) continue;
        first_node_ = work_.first_nodes[s - first_];
        Spread& spread = spreads[s - first_];
        most_points_ = &spread.most_points;
        unroll(section_->body, spread.ranges[static_cast<size_t>(core)], core, 0, 0);
      }
    }
    for (size_t i = 0; i < messages_.size(); ++i) {
      messages_[i].fill(&work_.exchanges[i]);
      for (size_t core = 0; core < work_.cores.size(); ++core) {
        work_.cores[core].ports.add(messages_[i].ports()[core]);
      }
    }
    return std::move(work_);
  }

 private:
  // How the axes of a section are spread over its cores.
  struct Spread {
    std::vector<std::vector<AxisRange>> ranges;  // by core
    std::vector<int64_t> most_points;            // of an axis, over cores
  };

  Spread spread_of(const Section& section) const {
    Spread found{{}, std::vector<int64_t>(section.axes.size(), 0)};
    for (int core = 0; core < section.cores; ++core) {
      found.ranges.push_back(ranges_of(section, slots_, core));
      for (size_t a = 0; a < section.axes.size(); ++a) {
        found.most_points[a] = std::max(found.most_points[a], found.ranges.back()[a].count());
      }
    }
    return found;
  }

  uint32_t number_of(const Node& node) const {
    return first_node_ + static_cast<uint32_t>(node.id);
  }

  // `occurrence` numbers the trips of the loops around, the same on every core.
  void unroll(const std::vector<Node>& body, std::vector<AxisRange>& ranges, int core, int64_t trip,
              int64_t occurrence) {
    for (const Node& node : body) {
      const auto* loop = std::get_if<TileLoop>(&node.form);
      if (!loop) {
        if (!skips(node, ranges)) add(node, ranges, core, trip, occurrence);
        continue;
      }
      AxisRange& range = ranges[loop->axis];
      const AxisRange outside = range;
      const AxisRange widest{0, (*most_points_)[loop->axis], 0, 0};
      const auto radix = static_cast<uint64_t>(trips_of(*loop, widest));
      const int64_t trips = trips_of(*loop, range);
      for (int64_t t = 0; t < trips; ++t) {
        range.start = range.low + t * loop->tile;
        range.end = std::min(range.start + loop->tile, range.high);
        const uint64_t next = static_cast<uint64_t>(occurrence) * radix + static_cast<uint64_t>(t);
        unroll(loop->body, ranges, core, t, static_cast<int64_t>(next));
      }
      range = outside;
    }
  }

  bool is_split(const std::vector<int>& axes) const {
    return std::any_of(axes.begin(), axes.end(),
                       [this](int axis) { return section_->axes[axis].parts > 1; });
  }

  void add(const Node& node, const std::vector<AxisRange>& ranges, int core, int64_t trip,
           int64_t occurrence) {
    ++work_.instructions;
    if (const auto* copy = std::get_if<Copy>(&node.form)) {
      add_copy(node, *copy, ranges, core, trip, occurrence);
    } else if (const auto* pt = std::get_if<Pt>(&node.form)) {
      const Work work = work_of(*pt, ranges, is_split(pt->k), spec_);
      work_.flop += work.ops;
      work_.fp16_flop += work.fp16_flop;
      work_.cores[core].least_pt += work.least;
      work_.cores[core].ports.add(work.ports);
      const int32_t i = append(core, kPtUnit, node, work.cycles, -1);
      read(core, i, pt->a);
      read(core, i, pt->b);
      write(core, i, pt->c, trip);
    } else if (const auto* ring = std::get_if<Ring>(&node.form)) {
      add_ring(node, *ring, ranges, core, trip, occurrence);
    } else {
      const Vec& vec = std::get<Vec>(node.form);
      const Work work = work_of(vec, ranges, slots_, spec_);
      work_.sfu_ops += work.ops;
      work_.cores[core].least_sfu += work.least;
      work_.cores[core].ports.add(work.ports);
      const int32_t i = append(core, kSfuUnit, node, work.cycles, -1);
      for (const Place& input : vec.inputs) read(core, i, input);
      for (const VecOut& out : vec.outputs) write(core, i, out.place, trip);
    }
  }

  void add_copy(const Node& node, const Copy& copy, const std::vector<AxisRange>& ranges, int core,
                int64_t trip, int64_t occurrence) {
    const int32_t request = request_of(node, copy, ranges, core, occurrence);
    const Unit unit = copy.is_load() ? kLoadUnit : kStoreUnit;
    const int32_t i = append(core, unit, node, 0, request);
    Request& shared = work_.requests[static_cast<size_t>(request)];
    shared.members.emplace_back(core, i);
    double& port = copy.is_load() ? work_.cores[core].ports.writes : work_.cores[core].ports.reads;
    port += shared.traffic.lx;
    for (const Indirect& indirect : copy.indirect) read(core, i, indirect.place);
    if (copy.is_load()) {
      write(core, i, copy.target, trip);
    } else {
      read(core, i, copy.source);
    }
  }

  void add_ring(const Node& node, const Ring& ring, const std::vector<AxisRange>& ranges, int core,
                int64_t trip, int64_t occurrence) {
    const auto fresh = static_cast<int32_t>(work_.exchanges.size());
    const int32_t exchange =
        shared_.try_emplace({number_of(node), 0, occurrence}, fresh).first->second;
    if (exchange == fresh) {
      work_.exchanges.emplace_back();
      messages_.emplace_back(spec_);
    }
    const auto number = static_cast<size_t>(exchange);
    const uint64_t bytes = messages_[number].add(ring, slots_, ranges, core);
    const int32_t i = append(core, kRingUnit, node, 0, exchange);
    work_.exchanges[number].members.push_back({core, i, bytes});
    write(core, i, ring.target, trip);
  }

  int32_t append(int core, Unit unit, const Node& node, double cycles, int32_t request) {
    Core& c = work_.cores[static_cast<size_t>(core)];
    const auto i = static_cast<int32_t>(c.instructions.size());
    Instruction instruction{};
    instruction.cycles = cycles;
    instruction.request = request;
    instruction.waiters = -1;
    instruction.unit = unit;
    instruction.node = number_of(node);
    c.instructions.push_back(instruction);
    c.order[unit].push_back(i);
    return i;
  }

  // --- tokens ---

  void wait_for(int core, int32_t i, int32_t before) {
    if (before < 0 || before == i) return;
    Core& c = work_.cores[static_cast<size_t>(core)];
    c.edges.push_back({i, c.instructions[before].waiters});
    c.instructions[before].waiters = static_cast<int32_t>(c.edges.size()) - 1;
    ++c.instructions[i].pending;
  }

  void read(int core, int32_t i, const Place& place) {
    BufferUse& use = uses_[place.buffer];
    SlotUse& slot = use.slots[use.current];
    wait_for(core, i, slot.writer);
    slot.readers[work_.cores[core].instructions[i].unit] = i;
  }

  void write(int core, int32_t i, const Place& place, int64_t trip) {
    BufferUse& use = uses_[place.buffer];
    use.current = program_.buffers[place.buffer].slots == 2 ? static_cast<int>(trip % 2) : 0;
    SlotUse& slot = use.slots[use.current];
    take_over(core, i, slot);
    slot.writer = i;
    // Buffers that share bytes with this one end here: who writes them next waits for this one.
    for (int other : overlaps_[place.buffer]) {
      for (SlotUse& gone : uses_[other].slots) take_over(core, i, gone);
    }
  }

  // Instruction `i` waits for all who used the slot, which then has no user.
  void take_over(int core, int32_t i, SlotUse& slot) {
    const Core& c = work_.cores[static_cast<size_t>(core)];
    const Unit own = c.instructions[i].unit;
    // Its own unit works in order: no token is needed for that.
    for (int u = 0; u < kUnits; ++u) {
      if (u != own) wait_for(core, i, slot.readers[u]);
    }
    if (slot.writer >= 0 && c.instructions[slot.writer].unit != own) {
      wait_for(core, i, slot.writer);
    }
    slot = SlotUse();
  }

  // --- requests ---

  int32_t request_of(const Node& node, const Copy& copy, const std::vector<AxisRange>& ranges,
                     int core, int64_t occurrence) {
    const auto fresh = static_cast<int32_t>(work_.requests.size());
    // Loads of the same bytes, and adding stores to the same bytes: their sums meet on the ring.
    if (copy.indirect.empty() && (copy.is_load() || copy.add)) {
      const int64_t group = group_of(copy, core);
      const auto [found, is_new] = shared_.try_emplace({number_of(node), group, occurrence}, fresh);
      if (!is_new) {
        widen(work_.requests[found->second].traffic, copy, ranges);
        return found->second;
      }
    }
    Request request{};
    request.traffic = traffic_of(copy, ranges, slots_, spec_);
    request.reads = copy.is_load() || copy.add;
    request.writes = !copy.is_load();
    work_.requests.push_back(std::move(request));
    return fresh;
  }

  // Members may broadcast the same bytes into tiles of different sizes.
  void widen(Traffic& traffic, const Copy& copy, const std::vector<AxisRange>& ranges) const {
    traffic.each = std::max(traffic.each, traffic_of(copy, ranges, slots_, spec_).each);
  }

  // Cores with one number touch the same bytes: they agree on every split axis that the device
  // place or a bound depends on.
  int64_t group_of(const Copy& copy, int core) const {
    int64_t group = 0;
    for (size_t a = 0; a < section_->axes.size(); ++a) {
      const Axis& axis = section_->axes[a];
      if (axis.parts == 1 || !depends(copy, static_cast<int>(a))) continue;
      group += int64_t{coordinate_of(axis, core)} * axis.stride;
    }
    return group;
  }

  static bool depends(const Copy& copy, int axis) {
    if (has_term(copy.device(), axis)) return true;
    for (const Bound& bound : copy.bounds) {
      for (const Term& term : bound.terms) {
        if (term.axis == axis) return true;
      }
    }
    return false;
  }

  const Program& program_;
  const size_t first_, end_;  // sections of the round
  const Spec& spec_;
  const int64_t* slots_;

  std::vector<std::vector<int>> overlaps_;

  SectionWork work_;
  // Being unrolled:
  const Section* section_ = nullptr;
  uint32_t first_node_ = 0;  // of the section
  const std::vector<int64_t>* most_points_ = nullptr;
  std::vector<BufferUse> uses_;  // of the core
  std::unordered_map<SharedKey, int32_t, SharedKeyHash> shared_;
  std::vector<Messages> messages_;  // by exchange
};

}  // namespace

SectionWork unrolled(const Program& program, size_t first, const Spec& spec, const int64_t* slots) {
  return Unroller(program, first, spec, slots).run();
}

}  // namespace spyre
