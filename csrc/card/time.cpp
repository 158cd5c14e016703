// The time engine: cycles of a Program for one symbol block, at event level.
//
// A core's instructions wait for their unit (in order) and for the tokens of their buffers; times
// then follow without a clock. Only device memory is shared, so only its requests are events:
// a request starts when its copy's unit and tokens are ready (several at one time: by core, then
// body order) and ends when DeviceMemory has served it.
//
// Multicast. Copies of several cores that load the same bytes, because the address depends on no
// axis that tells these cores apart, are one request: it starts when all of them are ready (their
// buffers are free), each fetches a share, and the ring hands it to the others.
//
// Addresses count only modulo a stick, so times do not depend on where the allocator put things.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <queue>
#include <unordered_map>

#include "decode.h"
#include "device_memory.h"
#include "unit_cost.h"

namespace spyre {
namespace {

enum Unit { kLoadUnit, kStoreUnit, kPtUnit, kSfuUnit, kUnits };

constexpr size_t kMaxSteps = size_t{1} << 23;  // instructions and trips of a section

[[noreturn]] void broken(const std::string& what) {
  throw Failure(SPYRE_STOPPED, "broken invariant of the time engine: " + what);
}

// A dynamic instruction of a core. Whoever waits for it is in the list of edges at `waiters`.
struct Instruction {
  double cycles;  // PT, SFU
  double ready = 0;
  int32_t request;  // copies
  int32_t pending = 0;
  int32_t waiters = -1;
  Unit unit;
};

struct Edge {
  int32_t to, next;
};

struct Core {
  std::vector<Instruction> instructions;
  std::vector<Edge> edges;
  std::array<std::vector<int32_t>, kUnits> order;
  std::array<size_t, kUnits> head{};
  std::array<double, kUnits> free{}, busy{};
  std::array<bool, kUnits> in_flight{};
  double least_pt = 0, least_sfu = 0;  // at peak rates
  double end = 0;
};

// A request to device memory and the copies that wait for it.
struct Request {
  Traffic traffic;
  bool reads, writes;
  double ready = 0;
  double began = 0;
  int arrived = 0;
  std::vector<std::pair<int, int32_t>> members;  // core, instruction
};

// --- what a core does: instructions and tokens ----------------------------------------------

// Who touched one slot of a buffer last.
struct SlotUse {
  int32_t writer = -1;
  std::array<int32_t, kUnits> readers{-1, -1, -1, -1};
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

class SectionTimer {
 public:
  SectionTimer(const Program& program, const Section& section, const Spec& spec,
               const int64_t* slots, spyre_report& report)
      : program_(program), section_(section), spec_(spec), slots_(slots), report_(report) {}

  // Cycles from the section's start to the end of its last core.
  double run() {
    plan();
    simulate();
    return checked_end();
  }

 private:
  // --- unrolling ---

  void plan() {
    cores_.resize(static_cast<size_t>(section_.cores));
    most_points_.assign(section_.axes.size(), 0);
    std::vector<std::vector<AxisRange>> ranges;
    for (int core = 0; core < section_.cores; ++core) {
      ranges.push_back(ranges_of(section_, slots_, core));
      for (size_t a = 0; a < most_points_.size(); ++a) {
        most_points_[a] = std::max(most_points_[a], ranges.back()[a].count());
      }
    }
    for (int core = 0; core < section_.cores; ++core) {
      uses_.assign(program_.buffers.size(), BufferUse());
      unroll(section_.body, ranges[core], core, 0, 0);
    }
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
      const AxisRange widest{0, most_points_[loop->axis], 0, 0};
      const auto radix = static_cast<uint64_t>(trips_of(*loop, widest));
      const int64_t trips = trips_of(*loop, range);
      for (int64_t t = 0; t < trips; ++t) {
        step();
        range.start = range.low + t * loop->tile;
        range.end = std::min(range.start + loop->tile, range.high);
        const uint64_t next = static_cast<uint64_t>(occurrence) * radix + static_cast<uint64_t>(t);
        unroll(loop->body, ranges, core, t, static_cast<int64_t>(next));
      }
      range = outside;
    }
  }

  void step() {
    if (++steps_ > kMaxSteps) {
      throw Failure(SPYRE_STOPPED, "section " + section_.name + " has too many instructions to time");
    }
  }

  void add(const Node& node, const std::vector<AxisRange>& ranges, int core, int64_t trip,
           int64_t occurrence) {
    step();
    ++count_;
    if (const auto* copy = std::get_if<Copy>(&node.form)) {
      add_copy(node, *copy, ranges, core, trip, occurrence);
    } else if (const auto* pt = std::get_if<Pt>(&node.form)) {
      const Work work = work_of(*pt, ranges, spec_);
      report_.flop += work.ops;
      cores_[core].least_pt += work.least;
      const int32_t i = append(core, kPtUnit, work.cycles, -1);
      read(core, i, pt->a);
      read(core, i, pt->b);
      write(core, i, pt->c, trip);
    } else {
      const Vec& vec = std::get<Vec>(node.form);
      const Work work = work_of(vec, ranges, slots_, spec_);
      report_.sfu_ops += work.ops;
      cores_[core].least_sfu += work.least;
      const int32_t i = append(core, kSfuUnit, work.cycles, -1);
      for (const Place& input : vec.inputs) read(core, i, input);
      for (const VecOut& out : vec.outputs) write(core, i, out.place, trip);
    }
  }

  void add_copy(const Node& node, const Copy& copy, const std::vector<AxisRange>& ranges, int core,
                int64_t trip, int64_t occurrence) {
    const int32_t request = request_of(node, copy, ranges, core, occurrence);
    const Unit unit = copy.is_load() ? kLoadUnit : kStoreUnit;
    const int32_t i = append(core, unit, 0, request);
    requests_[static_cast<size_t>(request)].members.emplace_back(core, i);
    for (const Indirect& indirect : copy.indirect) read(core, i, indirect.place);
    if (copy.is_load()) {
      write(core, i, copy.target, trip);
    } else {
      read(core, i, copy.source);
    }
  }

  int32_t append(int core, Unit unit, double cycles, int32_t request) {
    Core& c = cores_[static_cast<size_t>(core)];
    const auto i = static_cast<int32_t>(c.instructions.size());
    Instruction instruction{};
    instruction.cycles = cycles;
    instruction.request = request;
    instruction.waiters = -1;
    instruction.unit = unit;
    c.instructions.push_back(instruction);
    c.order[unit].push_back(i);
    return i;
  }

  // --- tokens ---

  void wait_for(int core, int32_t i, int32_t before) {
    if (before < 0 || before == i) return;
    Core& c = cores_[static_cast<size_t>(core)];
    c.edges.push_back({i, c.instructions[before].waiters});
    c.instructions[before].waiters = static_cast<int32_t>(c.edges.size()) - 1;
    ++c.instructions[i].pending;
  }

  void read(int core, int32_t i, const Place& place) {
    BufferUse& use = uses_[place.buffer];
    SlotUse& slot = use.slots[use.current];
    wait_for(core, i, slot.writer);
    slot.readers[cores_[core].instructions[i].unit] = i;
  }

  void write(int core, int32_t i, const Place& place, int64_t trip) {
    BufferUse& use = uses_[place.buffer];
    use.current = program_.buffers[place.buffer].slots == 2 ? static_cast<int>(trip % 2) : 0;
    SlotUse& slot = use.slots[use.current];
    const Core& c = cores_[static_cast<size_t>(core)];
    const Unit own = c.instructions[i].unit;
    // Its own unit works in order: no token is needed for that.
    for (int u = 0; u < kUnits; ++u) {
      if (u != own) wait_for(core, i, slot.readers[u]);
    }
    if (slot.writer >= 0 && c.instructions[slot.writer].unit != own) {
      wait_for(core, i, slot.writer);
    }
    slot.writer = i;
    slot.readers = {-1, -1, -1, -1};
  }

  // --- requests ---

  int32_t request_of(const Node& node, const Copy& copy, const std::vector<AxisRange>& ranges,
                     int core, int64_t occurrence) {
    const auto fresh = static_cast<int32_t>(requests_.size());
    const int64_t group = copy.is_load() && copy.indirect.empty() ? group_of(copy, core) : core;
    if (copy.is_load()) {
      const auto [found, is_new] = shared_.try_emplace({node.id, group, occurrence}, fresh);
      if (!is_new) {
        widen(requests_[found->second].traffic, copy, ranges);
        return found->second;
      }
    }
    Request request{};
    request.traffic = traffic_of(copy, ranges, slots_, spec_);
    request.reads = copy.is_load() || copy.add;
    request.writes = !copy.is_load();
    requests_.push_back(std::move(request));
    return fresh;
  }

  // Members may broadcast the same bytes into tiles of different sizes.
  void widen(Traffic& traffic, const Copy& copy, const std::vector<AxisRange>& ranges) const {
    traffic.each = std::max(traffic.each, traffic_of(copy, ranges, slots_, spec_).each);
  }

  // Cores with one number load the same bytes: they agree on every split axis that the device
  // place or a bound depends on.
  int64_t group_of(const Copy& copy, int core) const {
    int64_t group = 0;
    for (size_t a = 0; a < section_.axes.size(); ++a) {
      const Axis& axis = section_.axes[a];
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

  // --- simulation ---

  struct Arrival {
    double time;
    int32_t request;
    bool operator>(const Arrival& o) const {
      return time != o.time ? time > o.time : request > o.request;
    }
  };

  void simulate() {
    for (size_t core = 0; core < cores_.size(); ++core) advance(core);
    while (!arrivals_.empty() || !memory_.idle()) {
      if (memory_.idle() || (!arrivals_.empty() && arrivals_.top().time <= memory_.next_finish())) {
        const Arrival next = arrivals_.top();
        arrivals_.pop();
        start(next.request, next.time);
      } else {
        for (int request : memory_.finish()) complete(request, memory_.now());
      }
    }
  }

  // Issues what the core's units can: computations run to their end, copies arrive at memory.
  void advance(size_t core) {
    Core& c = cores_[core];
    for (bool moved = true; moved;) {
      moved = false;
      for (int u = 0; u < kUnits; ++u) {
        while (!c.in_flight[u] && c.head[u] < c.order[u].size()) {
          const int32_t i = c.order[u][c.head[u]];
          const Instruction& instruction = c.instructions[i];
          if (instruction.pending > 0) break;
          const double begin = std::max(instruction.ready, c.free[u]);
          if (instruction.request >= 0) {
            c.in_flight[u] = true;
            arrive(instruction.request, begin);
            break;
          }
          moved = true;
          retire(c, u, i, begin, begin + instruction.cycles, spec_.lx_latency_cycles);
        }
      }
    }
  }

  void retire(Core& c, int unit, int32_t i, double begin, double end, double latency) {
    c.busy[unit] += end - begin;
    c.free[unit] = end;
    ++c.head[unit];
    const double token = end + latency;
    c.end = std::max(c.end, token);
    for (int32_t e = c.instructions[i].waiters; e >= 0; e = c.edges[e].next) {
      Instruction& waiter = c.instructions[c.edges[e].to];
      waiter.ready = std::max(waiter.ready, token);
      --waiter.pending;
    }
  }

  void arrive(int32_t number, double time) {
    Request& request = requests_[number];
    request.ready = std::max(request.ready, time);
    if (++request.arrived == static_cast<int>(request.members.size())) {
      arrivals_.push({request.ready, number});
    }
  }

  void start(int32_t number, double time) {
    Request& request = requests_[number];
    request.began = time;
    const auto cores = static_cast<double>(request.members.size());
    const Traffic& traffic = request.traffic;
    count_bytes(request);
    const double slowed =
        std::max(1.0, power(cores / spec_.multicast_free, spec_.multicast_exponent));
    const double work = traffic.server * slowed + turnaround();
    const double shortest = std::max(traffic.core * slowed / cores, traffic.each);
    if (work <= 0 && shortest <= 0) {
      complete(number, time);
      return;
    }
    // A copy that moves nothing (all out of bounds) still fills its tile.
    memory_.start(number, time, std::max(work, 1e-3), shortest, cores);
  }

  void count_bytes(const Request& request) {
    const auto bytes = static_cast<uint64_t>(request.traffic.bytes);
    // An adding store counts its bytes twice, once for each direction.
    const uint64_t each = request.reads && request.writes ? bytes / 2 : bytes;
    if (request.reads) read_bytes_ += each;
    if (request.writes) write_bytes_ += each;
    report_.ring_bytes += bytes * (request.members.size() - 1);
  }

  // Cycles that the last request adds by mixing reads and writes in this section.
  double turnaround() {
    const uint64_t mixed = std::min(read_bytes_, write_bytes_);
    const uint64_t more = mixed - mixed_bytes_;
    mixed_bytes_ = mixed;
    return static_cast<double>(more) * spec_.dram_turnaround * spec_.clock_ghz;
  }

  void complete(int32_t number, double time) {
    const Request& request = requests_[number];
    const double hops = std::floor(static_cast<double>(request.members.size()) / 2);
    const double latency = spec_.dram_latency_ns * spec_.clock_ghz + hops * spec_.ring_hop_cycles;
    for (const auto& [core, i] : request.members) {
      Core& c = cores_[static_cast<size_t>(core)];
      const Unit unit = c.instructions[i].unit;
      c.in_flight[unit] = false;
      // A store has read its LX bytes when it ends; only the barrier waits for device memory.
      retire(c, unit, i, request.began, time, unit == kLoadUnit ? latency : 0);
      c.end = std::max(c.end, time + latency);
    }
    for (const auto& member : request.members) advance(static_cast<size_t>(member.first));
  }

  // --- totals ---

  double checked_end() {
    double end = 0, ran = 0;
    std::array<double, kUnits> busy{};
    for (const Core& c : cores_) {
      end = std::max(end, c.end);
      ran += c.instructions.empty() ? 0 : 1;
    }
    for (const Core& c : cores_) {
      for (int u = 0; u < kUnits; ++u) {
        if (c.head[u] != c.order[u].size()) broken("an instruction of " + section_.name + " hangs");
        if (c.busy[u] > end * (1 + 1e-9)) broken("a unit is busy for longer than the section");
        busy[u] += c.busy[u];
      }
      if (c.least_pt > c.busy[kPtUnit] * (1 + 1e-9)) broken("PT ran faster than its peak");
      if (c.least_sfu > c.busy[kSfuUnit] * (1 + 1e-9)) broken("SFU ran faster than its peak");
    }
    const double least_memory =
        static_cast<double>(read_bytes_ + write_bytes_) / spec_.dram_oneway * spec_.clock_ghz;
    if (least_memory > end * (1 + 1e-6)) broken("device memory ran faster than its rate");
    report_.load_busy += whole(busy[kLoadUnit]);
    report_.store_busy += whole(busy[kStoreUnit]);
    report_.pt_busy += whole(busy[kPtUnit]);
    report_.sfu_busy += whole(busy[kSfuUnit]);
    report_.device_read_bytes += read_bytes_;
    report_.device_write_bytes += write_bytes_;
    report_.cores = std::max(report_.cores, static_cast<uint64_t>(ran));
    report_.instructions += count_;
    return end;
  }

  static uint64_t whole(double cycles) { return static_cast<uint64_t>(std::ceil(cycles - 1e-6)); }

  const Program& program_;
  const Section& section_;
  const Spec& spec_;
  const int64_t* slots_;
  spyre_report& report_;

  std::vector<Core> cores_;
  std::vector<int64_t> most_points_;  // of an axis, over cores
  std::vector<BufferUse> uses_;       // of the core being unrolled
  std::vector<Request> requests_;
  std::unordered_map<SharedKey, int32_t, SharedKeyHash> shared_;
  size_t count_ = 0, steps_ = 0;

  DeviceMemory memory_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<Arrival>> arrivals_;
  uint64_t read_bytes_ = 0, write_bytes_ = 0, mixed_bytes_ = 0;
};

// The block with addresses reduced modulo a stick.
std::vector<int64_t> placeless(const Program& program, const Spec& spec, const int64_t* slots) {
  std::vector<int64_t> block(slots, slots + program.slots.size());
  const auto stick = static_cast<uint64_t>(spec.stick_bytes);
  for (size_t i = 0; i < block.size(); ++i) {
    const Given given = program.slots[i].given;
    if (given == Given::Address || given == Given::Pool) {
      block[i] = static_cast<int64_t>(static_cast<uint64_t>(block[i]) % stick);
    }
  }
  fill_formulas(program, block.data());
  return block;
}

double bound_p(const spyre_report& report, const Spec& spec) {
  const double peak = 2 * spec.mac_per_core_cycle * spec.cores;
  const auto bytes = static_cast<double>(report.device_read_bytes + report.device_write_bytes);
  return std::max(static_cast<double>(report.flop) / peak, bytes / spec.dram_peak * spec.clock_ghz);
}

}  // namespace

spyre_report time_program(const Program& program, const Spec& spec, const int64_t* slots) {
  const std::vector<int64_t> block = placeless(program, spec, slots);
  spyre_report report{};
  report.lx_peak = static_cast<uint64_t>(program.lx_peak);
  double cycles = 0;
  bool first = true;
  for (const Section& section : program.sections) {
    // The barrier goes once around the ring, both ways at a time.
    if (!first) cycles += std::floor(spec.cores / 2) * spec.ring_hop_cycles;
    first = false;
    cycles += SectionTimer(program, section, spec, block.data(), report).run();
  }
  const double bound = bound_p(report, spec);
  if (bound > cycles * (1 + 1e-9) + 1e-6) broken("faster than bound P");
  report.cycles = static_cast<uint64_t>(std::ceil(cycles - 1e-6));
  report.bound_p_cycles = static_cast<uint64_t>(std::ceil(bound - 1e-6));
  return report;
}

}  // namespace spyre
