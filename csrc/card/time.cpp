// The time engine: cycles of a Program for one symbol block, at event level.
//
// A core's instructions wait for their unit (in order) and for the tokens of their buffers; times
// then follow without a clock. Only device memory is shared, so only its requests are events:
// a request starts when its copy's unit and tokens are ready (several at one time: by core, then
// body order) and ends when DeviceMemory has served it.
//
// Multicast. Copies of several cores that load the same bytes, because the address depends on no
// axis that tells these cores apart, are one request: it starts when all of them are ready (their
// buffers are free), each fetches a share, and the ring hands it to the others. In the same way
// copies of several cores that add to the same bytes are one: the sums pass from core to core, each
// adds its own, and one core stores them.
//
// An exchange over the ring (ring_time.h) starts in the same way when all who move at this
// instruction and trip are ready. It takes each link from when this is free.
//
// Addresses count only modulo a stick, so times do not depend on where the allocator put things.
#include <algorithm>
#include <array>
#include <cmath>
#include <queue>
#include <tuple>

#include "decode.h"
#include "demand.h"
#include "device_memory.h"
#include "event_log.h"
#include "time_plan.h"
#include "unit_cost.h"

namespace spyre {
namespace {

// A section's instructions are held at once, some 200 bytes each.
constexpr WalkLimits kLimits{"time", SPYRE_STOPPED, true, 1 << 23, 1 << 26};

[[noreturn]] void broken(const std::string& what) {
  throw Failure(SPYRE_BROKEN, "the time engine: " + what);
}

// Times a round: a section and those that join it.
class SectionTimer {
 public:
  SectionTimer(SectionWork work, const Section& section, const Spec& spec, spyre_report& report,
               EventLog* log)
      : first_nodes_(std::move(work.first_nodes)),
        cores_(std::move(work.cores)),
        requests_(std::move(work.requests)),
        exchanges_(std::move(work.exchanges)),
        section_(section),
        spec_(spec),
        report_(report),
        log_(log),
        memory_(spec, working(cores_)),
        link_free_(2 * static_cast<size_t>(spec.core_count()), 0),
        link_busy_(link_free_.size(), 0) {
    report_.flop += work.flop;
    report_.sfu_ops += work.sfu_ops;
    report_.instructions += work.instructions;
  }

  // Cycles from the section's start to the end of its last core.
  double run() {
    simulate();
    return checked_end();
  }

 private:
  static double working(const std::vector<Core>& cores) {
    return static_cast<double>(std::count_if(
        cores.begin(), cores.end(), [](const Core& c) { return !c.instructions.empty(); }));
  }

  // --- simulation ---

  enum class What : uint8_t { Request, ExchangeEnd };
  struct Arrival {
    double time;
    int32_t number;
    What what;
    bool operator>(const Arrival& o) const {
      return std::tie(time, what, number) > std::tie(o.time, o.what, o.number);
    }
  };

  void simulate() {
    for (size_t core = 0; core < cores_.size(); ++core) advance(core);
    while (!arrivals_.empty() || !memory_.idle()) {
      if (memory_.idle() || (!arrivals_.empty() && arrivals_.top().time <= memory_.next_finish())) {
        const Arrival next = arrivals_.top();
        arrivals_.pop();
        if (next.what == What::Request) {
          start(next.number, next.time);
        } else {
          finish_exchange(next.number);
        }
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
            if (u == kRingUnit) {
              join(instruction.request, begin);
            } else {
              arrive(instruction.request, begin);
            }
            break;
          }
          moved = true;
          retire(c, u, i, begin, begin + instruction.cycles, spec_.lx_latency_cycles);
          if (log_) log_->add(event_of(core, instruction, begin, begin + instruction.cycles));
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
      arrivals_.push({request.ready, number, What::Request});
    }
  }

  void start(int32_t number, double time) {
    Request& request = requests_[number];
    request.began = time;
    const auto cores = static_cast<double>(request.members.size());
    const Traffic& traffic = request.traffic;
    count_bytes(request);
    const bool folds = request.writes && cores > 1;
    const double slowed =
        folds ? 1.0 : std::max(1.0, power(cores / spec_.multicast_free, spec_.multicast_exponent));
    const double work = traffic.server * slowed + turnaround();
    const double shortest =
        std::max({traffic.core * slowed / cores, traffic.each, folds ? traffic.fold : 0.0});
    if (work <= 0 && shortest <= 0) {
      complete(number, time);
      return;
    }
    // A copy that moves nothing (all out of bounds) still fills its tile.
    memory_.start(number, time, std::max(work, 1e-3), shortest, cores);
  }

  // `section`: counted from the round's first.
  spyre_event event_of(size_t core, const Instruction& instruction, double begin,
                       double end) const {
    const auto next = std::upper_bound(first_nodes_.begin(), first_nodes_.end(), instruction.node);
    const auto section = static_cast<size_t>(next - first_nodes_.begin()) - 1;
    spyre_event event{};
    event.begin = begin;
    event.end = end;
    event.section = static_cast<int32_t>(section);
    event.node = static_cast<int32_t>(instruction.node - first_nodes_[section]);
    event.core = static_cast<int32_t>(core);
    event.unit = instruction.unit;
    return event;
  }

  void log_copy(const Request& request, size_t core, const Instruction& copy, double end) {
    spyre_event event = event_of(core, copy, request.began, end);
    const auto [reads, writes] = directions(request);
    const bool first = static_cast<size_t>(request.members.front().first) == core;
    event.read_bytes = first ? reads : 0;
    event.write_bytes = first ? writes : 0;
    event.ring_bytes = first ? 0 : std::max(reads, writes);
    log_->add(event);
  }

  // Bytes that a request reads and writes.
  static std::pair<uint64_t, uint64_t> directions(const Request& request) {
    const auto bytes = static_cast<uint64_t>(request.traffic.bytes);
    // An adding store counts its bytes twice, once for each direction.
    const uint64_t each = request.reads && request.writes ? bytes / 2 : bytes;
    return {request.reads ? each : 0, request.writes ? each : 0};
  }

  void count_bytes(const Request& request) {
    const auto [reads, writes] = directions(request);
    read_bytes_ += reads;
    write_bytes_ += writes;
    report_.ring_bytes += std::max(reads, writes) * (request.members.size() - 1);
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
      if (log_) log_copy(request, static_cast<size_t>(core), c.instructions[i], time);
    }
    for (const auto& member : request.members) advance(static_cast<size_t>(member.first));
  }

  // --- ring ---

  void join(int32_t number, double time) {
    Exchange& exchange = exchanges_[static_cast<size_t>(number)];
    exchange.ready = std::max(exchange.ready, time);
    if (++exchange.arrived == static_cast<int>(exchange.members.size())) begin_exchange(number);
  }

  // Its links are taken from when they are free, each for as long as it needs it.
  void begin_exchange(int32_t number) {
    Exchange& exchange = exchanges_[static_cast<size_t>(number)];
    exchange.began = exchange.ready;
    exchange.end = exchange.began + exchange.least;
    for (size_t link = 0; link < exchange.links.size(); ++link) {
      if (exchange.links[link] == 0) continue;
      link_free_[link] = std::max(link_free_[link], exchange.began) + exchange.links[link];
      link_busy_[link] += exchange.links[link];
      exchange.end = std::max(exchange.end, link_free_[link]);
    }
    arrivals_.push({exchange.end, number, What::ExchangeEnd});
  }

  void finish_exchange(int32_t number) {
    const Exchange& exchange = exchanges_[static_cast<size_t>(number)];
    for (const Exchange::Member& member : exchange.members) {
      const auto core = static_cast<size_t>(member.core);
      Core& c = cores_[core];
      c.in_flight[kRingUnit] = false;
      retire(c, kRingUnit, member.instruction, exchange.began, exchange.end, exchange.latency);
      report_.ring_bytes += member.bytes;
      if (!log_) continue;
      spyre_event event = event_of(core, c.instructions[static_cast<size_t>(member.instruction)],
                                   exchange.began, exchange.end);
      event.ring_bytes = member.bytes;
      log_->add(event);
    }
    for (const Exchange::Member& member : exchange.members) {
      advance(static_cast<size_t>(member.core));
    }
  }

  // --- totals ---

  double checked_end() {
    double end = 0, ran = 0;
    std::array<double, kUnits> busy{};
    for (const Core& c : cores_) {
      // All units of a core share its LX ports; a section lasts as long as these need.
      end = std::max({end, c.end, c.ports.reads, c.ports.writes});
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
    for (double link : link_busy_) {
      if (link > end * (1 + 1e-9)) broken("a link of the ring ran faster than its rate");
    }
    report_.load_busy += whole(busy[kLoadUnit]);
    report_.store_busy += whole(busy[kStoreUnit]);
    report_.pt_busy += whole(busy[kPtUnit]);
    report_.sfu_busy += whole(busy[kSfuUnit]);
    report_.ring_busy += whole(busy[kRingUnit]);
    report_.device_read_bytes += read_bytes_;
    report_.device_write_bytes += write_bytes_;
    report_.cores = std::max(report_.cores, static_cast<uint64_t>(ran));
    return end;
  }

  static uint64_t whole(double cycles) { return static_cast<uint64_t>(std::ceil(cycles - 1e-6)); }

  std::vector<uint32_t> first_nodes_;  // by section of the round
  std::vector<Core> cores_;
  std::vector<Request> requests_;
  std::vector<Exchange> exchanges_;
  const Section& section_;
  const Spec& spec_;
  spyre_report& report_;
  EventLog* log_;  // null: nobody asks

  DeviceMemory memory_;
  std::vector<double> link_free_, link_busy_;  // as Exchange::links
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

// `fp16_flop`: the FLOP of the report, those at a higher peak as fewer.
double bound_p(const spyre_report& report, double fp16_flop, const Spec& spec) {
  const double peak = 2 * spec.mac_per_core_cycle * spec.cores;
  const auto bytes = static_cast<double>(report.device_read_bytes + report.device_write_bytes);
  return std::max(fp16_flop / peak, bytes / spec.dram_peak * spec.clock_ghz);
}

}  // namespace

spyre_report time_program(const Program& program, const Spec& spec, const int64_t* slots,
                          EventLog* log, int from) {
  const std::vector<int64_t> block = placeless(program, spec, slots);
  require_walkable(program, block.data(), kLimits);
  spyre_report report{};
  report.lx_peak = static_cast<uint64_t>(program.lx_peak);
  double cycles = 0, fp16_flop = 0;
  const auto begin = static_cast<size_t>(from);
  for (size_t s = begin; s < program.sections.size(); s = round_end(program, s)) {
    // The barrier goes once around the ring, both ways at a time.
    if (s > begin) cycles += std::floor(spec.cores / 2) * spec.ring_hop_cycles;
    SectionWork work = unrolled(program, s, spec, block.data());
    fp16_flop += work.fp16_flop;
    if (log) log->enter(static_cast<int32_t>(s), cycles);
    cycles += SectionTimer(std::move(work), program.sections[s], spec, report, log).run();
  }
  const double bound = bound_p(report, fp16_flop, spec);
  if (bound > cycles * (1 + 1e-9) + 1e-6) broken("faster than bound P");
  report.cycles = static_cast<uint64_t>(std::ceil(cycles - 1e-6));
  report.bound_p_cycles = static_cast<uint64_t>(std::ceil(bound - 1e-6));
  return report;
}

}  // namespace spyre
