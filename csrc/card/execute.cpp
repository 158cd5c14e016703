#include "execute.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "card.h"
#include "demand.h"
#include "execute_units.h"
#include "kept.h"
#include "late.h"

namespace spyre {
namespace {

// Rounding to nearest, no trap, no flushing of denormals; the caller's state comes back.
class FloatState {
 public:
#if defined(__SSE__)
  FloatState() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~FloatState() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

constexpr int64_t kTogetherBytes = 512 << 10;  // of tiles of trips that run together: half an L2
constexpr int64_t kLeastTripBytes = 1 << 10;   // also where a trip has no tiles: loads left out
constexpr int64_t kReadPast = 64;              // matmul kernels read up to 15 columns too many

// One section's work: threads claim cores in ascending order.
class SectionRun {
 public:
  SectionRun(const Machine& machine, const Program& program, const Section& section,
             const SectionPlan& plan, const Place* const* sources, const uint8_t* left_out,
             const Place* const* targets, const uint8_t* together, const int64_t* slots)
      : machine_(machine),
        program_(program),
        section_(section),
        plan_(plan),
        sources_(sources),
        left_out_(left_out),
        targets_(targets),
        together_(together),
        slots_(slots) {}

  void operator()(int thread) {
    [[maybe_unused]] const FloatState state;
    Worker& worker = (*machine_.workers)[thread];
    for (;;) {
      const int core = next_.fetch_add(1);
      if (core >= section_.cores || failed_.load(std::memory_order_relaxed)) return;
      try {
        run_core(core, worker);
      } catch (const Failure& failure) {
        keep(core, failure);
      } catch (const std::exception& error) {
        keep(core, Failure(SPYRE_STOPPED, error.what()));
      }
    }
  }

  void rethrow() const {
    if (failed_) throw *failure_;
  }

 private:
  void run_core(int core, Worker& worker) {
    fill_ranges(section_, slots_, core, &worker.axes);
    if (machine_.debug & SPYRE_DEBUG_LATE) return run_late(core, worker);
    run_body(section_.body,
             {machine_, program_, slots_, worker.axes, machine_.lx->of_core(core), worker}, core);
  }

  void run_body(const std::vector<Node>& body, const Frame& frame, int core) {
    for (const Node& node : body) {
      if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
        run_loop(node, *loop, frame, core);
      } else {
        execute(frame, node, core);
      }
    }
  }

  void run_loop(const Node& node, const TileLoop& loop, const Frame& frame, int core) {
    AxisRange& range = frame.worker.axes[loop.axis];
    const AxisRange outside = range;
    const int64_t trips = trips_of(loop, range);
    int64_t trip = 0;
    if (together_[node.id]) {
      trip = run_whole_trips(*plan_.nodes[node.id].batch, loop, frame, core);
    }
    for (; trip < trips; ++trip) {
      stand_at(loop, outside, trip, &range);
      run_body(loop.body, frame, core);
    }
    range = outside;
  }

  static void stand_at(const TileLoop& loop, const AxisRange& outside, int64_t trip,
                       AxisRange* range) {
    range->start = outside.low + trip * loop.tile;
    range->end = std::min(range->start + loop.tile, outside.high);
  }

  // Runs the trips with a whole tile, several at a time; how many that were.
  int64_t run_whole_trips(const Batch& batch, const TileLoop& loop, const Frame& frame, int core) {
    AxisRange& range = frame.worker.axes[loop.axis];
    const AxisRange outside = range;
    const int64_t whole = (outside.high - outside.low) / loop.tile;
    const int64_t room =
        std::min(whole, kTogetherBytes / std::max<int64_t>(batch.bytes, kLeastTripBytes));
    if (room < 2) return 0;
    stand_at(loop, outside, 0, &range);
    const bool any_empty = std::any_of(frame.axes.begin(), frame.axes.end(),
                                       [](const AxisRange& r) { return r.empty(); });
    if (any_empty || !covered(batch, slots_, frame.axes)) {
      range = outside;
      return 0;
    }
    char* const memory = frame.worker.tiles.bytes(batch.bytes * room + kReadPast);
    Trips trips{batch, loop.tile, memory, room, 0, 1};
    Frame inside = frame;
    inside.trips = &trips;
    for (int64_t first = 0; first < whole; first += room) {
      const int64_t count = std::min(room, whole - first);
      for (const Node& node : loop.body) {
        const bool at_once = plan_.nodes[node.id].together;
        trips.count = at_once ? count : 1;
        for (trips.trip = 0; trips.trip < count; trips.trip += trips.count) {
          stand_at(loop, outside, first + trips.trip, &range);
          execute(inside, node, core);
        }
      }
    }
    range = outside;
    return whole;
  }

  void run_late(int core, Worker& worker) {
    auto run = [&](const Node& node, const std::vector<AxisRange>& axes, BufferSlots buffers) {
      execute({machine_, program_, slots_, axes, machine_.lx->of_core(core), worker, buffers}, node,
              core);
    };
    LateTransfers late(program_, run);
    auto visit = [&](const Node& node, const std::vector<AxisRange>& axes, int64_t trip) {
      late.issue(node, axes, trip);
    };
    walk(section_.body, worker.axes, visit);
    late.finish();
  }

  void execute(const Frame& frame, const Node& node, int core) const {
    machine_.interrupt->check();
    const NodePlan& plan = plan_.nodes[node.id];
    Places places{plan.forward.empty() ? nullptr : plan.forward.data(), sources_};
    if (!plan.stored.empty()) {
      places.stored = plan.stored.data();
      places.targets = targets_;
    }
    if (const auto* copy = std::get_if<Copy>(&node.form)) {
      places.elided = (plan.elided_by >= 0 && left_out_[plan.elided_by]) ||
                      (plan.written_by >= 0 && targets_[plan.written_by]);
      execute_copy(frame, *copy, places);
    } else if (const auto* pt = std::get_if<Pt>(&node.form)) {
      execute_pt(frame, *pt, places);
    } else if (const auto* vec = std::get_if<Vec>(&node.form)) {
      execute_vec(frame, *vec, plan.code, places);
    } else if (const auto* ring = std::get_if<Ring>(&node.form)) {
      execute_ring(frame, *ring, core);
    }
  }

  // Cores are claimed in order, so every core before the first one that fails runs to its end:
  // which failure is kept does not depend on the threads.
  void keep(int core, const Failure& failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!failed_ || core < failed_core_) {
      failed_core_ = core;
      failure_ = std::make_unique<Failure>(failure);
    }
    failed_ = true;
  }

  const Machine& machine_;
  const Program& program_;
  const Section& section_;
  const SectionPlan& plan_;
  const Place* const* sources_;
  const uint8_t* left_out_;
  const Place* const* targets_;
  const uint8_t* together_;  // by Node::id: a loop whose trips run together
  const int64_t* slots_;
  std::atomic<int> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  int failed_core_ = 0;
  std::unique_ptr<Failure> failure_;
};

}  // namespace

Executable::Executable(const Program& program, const Kernels& kernels)
    : program_(program), plans_(plan_execution(program, kernels)) {
  int readers = 0;
  size_t most = 0, nodes = 0, stores = 0;
  for (const SectionPlan& plan : plans_) {
    most = std::max(most, plan.forwards.size());
    readers = std::max(readers, plan.readers);
    nodes = std::max(nodes, plan.nodes.size());
    stores = std::max(stores, plan.directs.size());
  }
  targets_.resize(stores);
  together_.resize(nodes);
  sources_.resize(readers);
  left_out_.resize(most);
}

void Executable::run(const Machine& machine, const int64_t* slots, int first) {
  require_runnable(program_, slots);
  if (machine.debug & SPYRE_DEBUG_POISON) poison_lx(machine, first == 0);
  share_scratch(machine.workers);
  const std::vector<SectionPlan>& chosen = plans(machine);
  for (size_t s = static_cast<size_t>(first); s < chosen.size(); ++s) {
    run_section(machine, chosen, s, slots);
  }
}

const std::vector<SectionPlan>& Executable::plans(const Machine& machine) {
  if (!machine.numerics.card) return plans_;
  std::vector<SectionPlan>& made = dl16_plans_[machine.kernels];
  if (made.empty()) {
    made = plan_execution(program_, *machine.kernels);
    const NarrowValues narrow(program_);
    for (size_t s = 0; s < made.size(); ++s) {
      mark_narrow_sums(program_.sections[s].body, narrow, &made[s]);
    }
  }
  return made;
}

// NaN in every float dtype, -1 in every integer; not in what LX keeps.
void Executable::poison_lx(const Machine& machine, bool all) const {
  const std::vector<ByteRange> kept = machine.kept->ranges(all ? &program_ : nullptr);
  for (int core = 0; core < program_.cores; ++core) {
    char* const lx = machine.lx->of_core(core);
    int64_t from = 0;
    const auto poison_to = [&](int64_t to) {
      to = std::min(to, program_.lx_peak);
      if (from < to) std::memset(lx + from, 0xFF, static_cast<size_t>(to - from));
    };
    for (const ByteRange& range : kept) {
      poison_to(range.low);
      from = std::max(from, range.high);
    }
    poison_to(program_.lx_peak);
  }
}

void Executable::run_section(const Machine& machine, const std::vector<SectionPlan>& plans,
                             size_t number, const int64_t* slots) {
  const Section& section = program_.sections[number];
  const SectionPlan& plan = plans[number];
  for (size_t f = 0; f < plan.forwards.size(); ++f) {
    // (Debug modes are about the copies.)
    const Forward& forward = plan.forwards[f];
    left_out_[f] = !machine.debug && forwards_now(forward, plans, program_, slots);
    if (forward.to != number) continue;
    for (const Forward::Reader& reader : forward.readers) {
      sources_[reader.number] = left_out_[f] ? &reader.source : nullptr;
    }
  }
  if (section.joins && plan.forwards.size() == section.body.size() &&
      std::all_of(left_out_.begin(), left_out_.begin() + static_cast<long>(plan.forwards.size()),
                  [](uint8_t out) { return out; })) {
    return;  // nothing is left to load
  }
  for (size_t d = 0; d < plan.directs.size(); ++d) {
    const Place& target = plan.directs[d].store->target;
    const bool now = !machine.debug && !machine.rounds(target) &&
                     writes_directly(plan.directs[d], plan, section, slots);
    targets_[d] = now ? &target : nullptr;
  }
  for (size_t n = 0; n < plan.nodes.size(); ++n) {
    const Batch* const batch = plan.nodes[n].batch.get();
    // (Sums of numerics `card` count their terms by trip.)
    together_[n] = batch && !machine.debug && !machine.numerics.card &&
                   transfers_apart(*batch, section, slots);
  }
  SectionRun run(machine, program_, section, plan, sources_.data(), left_out_.data(),
                 targets_.data(), together_.data(), slots);
  if (section.cores == 1 || plan.adds) {
    run(0);
  } else {
    machine.pool->run(run);
  }
  touch_stores(machine, number, slots);  // before the next section, and also after a failure
  run.rethrow();
}

void Executable::touch_stores(const Machine& machine, size_t number, const int64_t* slots) const {
  const Section& section = program_.sections[number];
  const Wide first = reinterpret_cast<uintptr_t>(machine.memory->data());
  const Wide last = first + static_cast<Wide>(machine.memory->bytes());
  for (const Copy* store : plans_[number].stores) {
    const Reach reach = reach_of(*store, section, slots);
    const Wide low = std::max(reach.low, first), high = std::min(reach.high, last);
    if (low < high) {
      machine.panels->touch(static_cast<uintptr_t>(low), static_cast<uintptr_t>(high));
      machine.kept->touch(static_cast<uintptr_t>(low), static_cast<uintptr_t>(high));
    }
  }
}

}  // namespace spyre
