// Device memory: bounds, unwritten bytes, results that nobody stores, races between cores and
// units.
//
// Most copies are proved right as a whole: over all cores and trips together, a copy moves the box
// of its axes' whole extents. Only where that does not settle it, dynamic instructions are looked
// at one by one.
#include <algorithm>
#include <array>
#include <map>

#include "card.h"
#include "check.h"
#include "copy_points.h"
#include "tokens.h"

namespace spyre {
namespace {

constexpr int64_t kEnough = 1 << 20;   // pairs of touches, once one of them races
constexpr int64_t kCounted = 1 << 16;  // runs that are told apart only to count their bytes

// A copy of a section. An object is an argument, or the pool.
struct Move {
  const Node* node;
  const Copy* copy;
  int object;
  bool whole;  // `all` is what all cores and trips move together
  DeviceBox all;
  bool reads() const { return copy->is_load() || copy->add; }
  bool writes() const { return !copy->is_load(); }
};

// A run of bytes that a dynamic copy moves.
struct Touch {
  Run run;
  int core, order;
  const Move* move;
  Tokens::Issued issued;
};

struct Split {
  int axis;
  bool over_many;  // several cores have points of it
};

class DeviceCheck {
 public:
  DeviceCheck(const Program& program, const int64_t* slots, const std::vector<Span>& arguments,
              Problems* problems)
      : program_(program),
        slots_(slots),
        spans_(arguments),
        pool_(static_cast<int>(arguments.size())),
        problems_(*problems) {
    spans_.push_back({0, program.pool_bytes, 0, true});
    zeros_.resize(spans_.size());
    written_.resize(spans_.size());
    stored_.resize(spans_.size());
    names_.resize(spans_.size(), "the pool");
    for (size_t i = 0; i < arguments.size(); ++i) names_[i] = "argument " + std::to_string(i);
    for (size_t i = 0; i < program.slots.size(); ++i) {
      const SlotDef& slot = program.slots[i];
      tensors_.push_back(tensor_of(i));
      if (slot.given == Given::Pool) zeros_[pool_] = slots[i];
      if (slot.given != Given::Address) continue;
      zeros_[slot.number] = slots[i];
      if (!slot.name.empty()) names_[slot.number] += " (" + slot.name + ")";
    }
  }

  void run() {
    for (const Section& section : program_.sections) find_reads(section.body);
    for (size_t s = 0; s < program_.sections.size(); s = round_end(program_, s)) {
      run_round(static_cast<int>(s), static_cast<int>(round_end(program_, s)));
    }
    for (int object = 0; object < pool_; ++object) check_stored(object);
  }

 private:
  // Section `first` and those that join it, up to `end`, which only load.
  void run_round(int first, int end) {
    std::vector<std::pair<int, Move>> joining;
    for (int s = first + 1; s < end; ++s) {
      for (const Move& move : check_section(s)) joining.emplace_back(s, move);
    }
    const std::vector<Move> moves = check_section(first);
    for (const Move& move : moves) {
      if (!move.writes()) continue;
      for (const auto& [s, load] : joining) {
        if (load.object == move.object) check_joining(first, move, s, load);
      }
    }
  }

  // The moves of a section that stay in bounds.
  std::vector<Move> check_section(int number) {
    enter(number);
    std::vector<Move> moves;
    collect(section_->body, &moves);
    moves.erase(
        std::remove_if(moves.begin(), moves.end(),
                       [this](const Move& move) { return !may_write(move) || !in_bounds(move); }),
        moves.end());
    for (int object = 0; object <= pool_; ++object) check_object(moves, object);
    return moves;
  }

  void enter(int number) {
    number_ = number;
    section_ = &program_.sections[number];
    find_extents();
  }

  // Nothing orders a load of a section that joins another one and a store of that one.
  void check_joining(int section, const Move& store, int joins, const Move& load) {
    if (store.whole && load.whole && disjoint(store.all.box, load.all.box)) return;
    const RunSet stored = runs_of(section, store), loaded = runs_of(joins, load);
    const int64_t byte = stored.first_shared(loaded);
    const Instr x{section, store.node->id}, y{joins, load.node->id};
    if (byte < 0 || !problems_.is_new(Problems::Race, x, y)) return;
    problems_.add(problems_.name(y) + " loads byte " + Problems::number(byte) + " of " +
                  names_[store.object] + ", which " + problems_.name(x) +
                  " stores: no barrier stands between them");
  }

  static bool disjoint(const Box& a, const Box& b) {
    return a.high() <= b.low() || b.high() <= a.low();
  }

  // All that a copy moves, on all cores.
  RunSet runs_of(int section, const Move& move) {
    enter(section);
    RunSet all;
    int64_t seen = 0;
    for_each_dynamic(
        {&move}, [&](int, const Move&, const std::vector<AxisRange>& axes, const Tokens::Issued&) {
          for (const Box& box : device_boxes(*move.copy, slots_, axes, zeros_[move.object])) {
            for_each_run(box.canonical(), [&](Run run) {
              if (++seen > kMostRuns) too_large();
              all.add(run);
            });
          }
        });
    return all;
  }

  // Of a slot: that of the tensor in the pool whose address it is computed from; -1 if of none.
  int tensor_of(size_t number) const {
    const SlotDef& slot = program_.slots[number];
    if (slot.given == Given::Pool) return static_cast<int>(number);
    for (const CalcStep& step : slot.formula) {
      if (step.calc != Calc::Slot || tensors_[step.operand] < 0) continue;
      const bool pool = program_.slots[step.operand].given == Given::Pool;
      return pool ? static_cast<int>(number) : tensors_[step.operand];
    }
    return -1;
  }

  // What tells tensors apart that lie in one object.
  int tensor(const Copy& copy) const {
    const Place& place = copy.device();
    const bool named = place.argument < 0 && place.base.slot;
    return named ? std::max(tensors_[place.base.number], 0) : 0;
  }

  void find_reads(const std::vector<Node>& body) {
    for (const Node& node : body) {
      if (const auto* loop = std::get_if<TileLoop>(&node.form)) find_reads(loop->body);
      const auto* copy = std::get_if<Copy>(&node.form);
      if (copy && copy->is_load()) stored_[object_of(*copy)].read = true;
    }
  }

  int object_of(const Copy& copy) const {
    const int argument = copy.device().argument;
    return argument < 0 ? pool_ : argument;
  }

  // --- what a section moves ---

  void find_extents() {
    const size_t axes = section_->axes.size();
    extents_.clear();
    splits_.clear();
    for (size_t a = 0; a < axes; ++a) {
      const Axis& axis = section_->axes[a];
      const int64_t extent = std::max<int64_t>(axis.extent.of(slots_), 0);
      extents_.push_back({0, extent, 0, extent});
      if (axis.parts == 1) continue;
      int filled = 0;
      for (int p = 0; p < axis.parts; ++p) {
        filled += !part_of(axis, extent, p * axis.stride).empty();
      }
      splits_.push_back({static_cast<int>(a), filled > 1});
    }
  }

  void collect(const std::vector<Node>& body, std::vector<Move>* moves) {
    for (const Node& node : body) {
      if (const auto* loop = std::get_if<TileLoop>(&node.form)) collect(loop->body, moves);
      const auto* copy = std::get_if<Copy>(&node.form);
      if (!copy || any_empty(copy->axes, extents_)) continue;
      const Place& place = copy->device();
      const int object = object_of(*copy);
      const bool whole = std::all_of(place.terms.begin(), place.terms.end(), [](const Term& term) {
        return term.origin == Origin::Absolute;
      });
      moves->push_back({&node, copy, object, whole, {}});
      if (whole) moves->back().all = device_box(*copy, slots_, extents_, zeros_[object]);
    }
  }

  // --- bounds ---

  bool may_write(const Move& move) {
    if (!move.writes() || spans_[move.object].stored >= 0) return true;
    const Instr instr{number_, move.node->id};
    if (problems_.is_new(Problems::ReadOnly, instr)) {
      problems_.add(problems_.name(instr) + " stores to " + names_[move.object] +
                    ", which is only read");
    }
    return false;
  }

  bool in_bounds(const Move& move) {
    if (move.whole) {
      if (fits(move, move.all.box)) return true;
      for (int core = 0; core < section_->cores; ++core) {
        if (!fit(move, ranges_of(*section_, slots_, core), core)) return false;
      }
      return true;
    }
    bool good = true;
    for_each_dynamic({&move}, [&](int core, const Move&, const std::vector<AxisRange>& axes,
                                  const Tokens::Issued&) { good = good && fit(move, axes, core); });
    return good;
  }

  bool fit(const Move& move, const std::vector<AxisRange>& axes, int core) {
    if (any_empty(move.copy->axes, axes)) return true;
    const auto boxes = device_boxes(*move.copy, slots_, axes, zeros_[move.object]);
    return std::all_of(boxes.begin(), boxes.end(),
                       [&](const Box& box) { return fits(move, box) || refuse(move, box, core); });
  }

  bool fits(const Move& move, const Box& box) const {
    const Span& span = spans_[move.object];
    return box.empty() || (box.low() >= span.low && box.high() <= span.high);
  }

  bool refuse(const Move& move, const Box& box, int core) {
    const Instr instr{number_, move.node->id};
    if (!problems_.is_new(Problems::DeviceBounds, instr)) return false;
    const Span& span = spans_[move.object];
    problems_.add(problems_.name(instr, core) + " moves bytes " + Problems::number(box.low()) +
                  " to " + Problems::number(box.high()) + " of " + names_[move.object] +
                  ", which has bytes " + Problems::number(span.low) + " to " +
                  Problems::number(span.high));
    return false;
  }

  // --- one object ---

  void check_object(const std::vector<Move>& moves, int object) {
    std::vector<const Move*> readers, writers;
    for (const Move& move : moves) {
      if (move.object != object) continue;
      if (move.reads()) readers.push_back(&move);
      if (move.writes()) writers.push_back(&move);
    }
    std::set<const Move*> doubtful;
    for (const Move* writer : writers) {
      for (const auto* others : {&readers, &writers}) {
        for (const Move* other : *others) {
          if (!apart(*writer, *other)) doubtful.insert({writer, other});
        }
      }
    }
    if (spans_[object].fresh) {
      bool late = false;
      for (const Move* reader : readers) {
        if (written_before(*reader)) continue;
        doubtful.insert(reader);
        late = true;
      }
      if (late) doubtful.insert(writers.begin(), writers.end());
    }
    if (!doubtful.empty()) check_touches(touches(doubtful, object));
    for (const Move* writer : writers) add_stored(*writer);
  }

  // --- proofs for whole copies ---

  bool apart(const Move& writer, const Move& other) const {
    if (!writer.whole || !other.whole) return false;
    if (disjoint(writer.all.box, other.all.box)) return true;
    if (writer.copy->add && other.copy->add) return true;  // the order of sums is free
    // Different cores move different bytes; a unit of a core works in order.
    return &writer == &other && each_core_its_own(writer);
  }

  // Every split axis tells the bytes of cores apart.
  bool each_core_its_own(const Move& move) const {
    if (!move.all.exact || !without_named(move).injective()) return false;
    return std::all_of(splits_.begin(), splits_.end(), [&](const Split& split) {
      const auto& axes = move.copy->axes;
      if (std::find(axes.begin(), axes.end(), split.axis) == axes.end()) return false;
      return !split.over_many || steps_along(move.copy->device(), split.axis) ||
             names(move, split.axis);
    });
  }

  // Whether points of an axis are told apart by an index that they read.
  bool names(const Move& move, int axis) const {
    const auto& indirect = move.copy->indirect;
    return std::any_of(indirect.begin(), indirect.end(), [&](const Indirect& index) {
      return index.distinct && index.coefficient.of(slots_) != 0 && has_term(index.place, axis);
    });
  }

  // What a copy moves, where an index stands for the axes that it tells apart.
  Box without_named(const Move& move) const {
    Box box = move.all.box;  // its dims: bounds, then the copy's axes, then the indices
    const auto& axes = move.copy->axes;
    const size_t first = box.dims.size() - move.copy->indirect.size() - axes.size();
    for (size_t n = axes.size(); n-- > 0;) {
      const auto at = box.dims.begin() + static_cast<std::ptrdiff_t>(first + n);
      if (at->stride == 0 && names(move, axes[n])) box.dims.erase(at);
    }
    return box;
  }

  bool steps_along(const Place& place, int axis) const {
    return std::any_of(place.terms.begin(), place.terms.end(), [&](const Term& term) {
      return term.axis == axis && term.coefficient.of(slots_) != 0;
    });
  }

  // --- what has been stored ---

  // Of an object, by all stores so far.
  struct Stored {
    bool read = false;     // some instruction of the program loads it
    bool counted = false;  // `moved` is all one can tell
    Wide moved = 0;        // bytes, those at one place as often as they are stored
  };

  void add_stored(const Move& writer) {
    Stored& stored = stored_[writer.object];
    Wide points = 1;
    for (int axis : writer.copy->axes) points *= extents_[axis].count();
    stored.moved += points * bytes_of(writer.copy->target.dtype);
    if (!writer.copy->indirect.empty()) {
      stored.counted = true;  // which bytes, only values tell
      return;
    }
    const bool needed = spans_[writer.object].fresh && (stored.read || writer.object == pool_);
    if (!needed && !few_runs(writer)) {
      stored.counted = true;
    } else {
      add_written(writer);
    }
  }

  bool few_runs(const Move& writer) const {
    return writer.whole && writer.all.exact && run_count(writer.all.box.canonical()) <= kCounted;
  }

  void check_stored(int object) {
    const Span& span = spans_[object];
    const Stored& stored = stored_[object];
    if (span.stored <= 0) return;
    const Wide found = stored.counted ? stored.moved : Wide{written_[object].bytes()};
    if (found >= span.stored) return;
    problems_.add(Problems::number(found) + " bytes of " + names_[object] +
                  " are stored, the ops of the user write " + Problems::number(span.stored));
  }

  bool written_before(const Move& reader) const {
    if (!reader.whole) return false;
    if (covered(reader, reader.all.box)) return true;
    if (reader.all.exact) return false;
    const auto boxes = device_boxes(*reader.copy, slots_, extents_, zeros_[reader.object]);
    return std::all_of(boxes.begin(), boxes.end(),
                       [&](const Box& box) { return covered(reader, box); });
  }

  bool covered(const Move& reader, const Box& box) const {
    const Box one = box.canonical();
    if (run_count(one) > kMostRuns) too_large();
    bool all = true;
    const RunSet& written = written_[reader.object];
    for_each_run(one, [&](Run run) { all = all && written.covers(run, tensor(*reader.copy)); });
    return all;
  }

  void add_written(const Move& writer) {
    const int64_t zero = zeros_[writer.object];
    auto add = [&](const Box& box) {
      const Box one = box.canonical();
      if (run_count(one) > kMostRuns) too_large();
      for_each_run(one, [&](Run run) { written_[writer.object].add(run, tensor(*writer.copy)); });
    };
    if (writer.whole) {
      for (const Box& box : device_boxes(*writer.copy, slots_, extents_, zero)) add(box);
      return;
    }
    for_each_dynamic({&writer}, [&](int, const Move&, const std::vector<AxisRange>& axes,
                                    const Tokens::Issued&) {
      for (const Box& box : device_boxes(*writer.copy, slots_, axes, zero)) add(box);
    });
  }

  // --- dynamic instructions ---

  // Visits the given copies on every core in body order: visit(core, move, ranges, issued).
  template <class Visit>
  void for_each_dynamic(const std::set<const Move*>& moves, const Visit& visit) {
    std::vector<const Move*> by_node(static_cast<size_t>(section_->nodes), nullptr);
    for (const Move* move : moves) by_node[move->node->id] = move;
    Tokens tokens(program_);
    for (int core = 0; core < section_->cores; ++core) {
      tokens.start();
      std::vector<AxisRange> ranges = ranges_of(*section_, slots_, core);
      auto each = [&](const Node& node, const std::vector<AxisRange>& axes, int64_t trip) {
        if (skips(node, axes)) return;
        const Tokens::Issued issued = tokens.issue(node, trip);
        if (const Move* move = by_node[node.id]) visit(core, *move, axes, issued);
      };
      walk(section_->body, ranges, each);
    }
  }

  // The runs of the given copies. Reads of bytes that nothing wrote are reported on the way.
  std::vector<Touch> touches(const std::set<const Move*>& moves, int object) {
    std::vector<Touch> found;
    RunSet own;  // what the core has stored so far
    int order = 0, last = -1;
    for_each_dynamic(moves, [&](int core, const Move& move, const std::vector<AxisRange>& axes,
                                const Tokens::Issued& issued) {
      if (core != last) own = RunSet();
      last = core;
      ++order;
      for (const Box& box : device_boxes(*move.copy, slots_, axes, zeros_[object])) {
        for_each_run(box.canonical(), [&](Run run) {
          if (static_cast<int64_t>(found.size()) >= kMostRuns) too_large();
          found.push_back({run, core, order, &move, issued});
          if (!spans_[object].fresh) return;
          if (move.reads()) check_written(run, own, move, core);
          if (move.writes() && move.copy->indirect.empty()) own.add(run, tensor(*move.copy));
        });
      }
    });
    return found;
  }

  void check_written(Run run, const RunSet& own, const Move& move, int core) {
    const RunSet& before = written_[move.object];
    while (run.low < run.high) {
      const int64_t border = own.next(run.low);
      const int64_t after =
          border == run.low
              ? own.first_missing(run, tensor(*move.copy))
              : before.first_missing({run.low, std::min(run.high, border)}, tensor(*move.copy));
      if (after == run.low) {
        const Instr instr{number_, move.node->id};
        if (problems_.is_new(Problems::Unwritten, instr)) {
          problems_.add(problems_.name(instr, core) + " reads byte " + Problems::number(run.low) +
                        " of " + names_[move.object] + instead(run.low, own, *move.copy));
        }
        return;
      }
      run.low = after;
    }
  }

  // What a copy finds at a byte that is not its tensor's.
  std::string instead(int64_t byte, const RunSet& own, const Copy& copy) const {
    const int found =
        own.number_of(byte) >= 0 ? own.number_of(byte) : written_[object_of(copy)].number_of(byte);
    if (found < 0) return ", which nothing has written";
    return " as a part of " + program_.slots[tensor(copy)].name + ", but " +
           problems_.name(last_store(found)) + " wrote there last, as a part of " +
           program_.slots[found].name;
  }

  // To a tensor in the pool, up to the section being checked.
  Instr last_store(int to) const {
    Instr last;
    for (int s = 0; s <= number_; ++s) find_store(program_.sections[s].body, s, to, &last);
    return last;
  }

  void find_store(const std::vector<Node>& body, int section, int to, Instr* last) const {
    for (const Node& node : body) {
      if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
        find_store(loop->body, section, to, last);
      }
      const auto* copy = std::get_if<Copy>(&node.form);
      if (copy && !copy->is_load() && object_of(*copy) == pool_ && tensor(*copy) == to) {
        *last = {section, node.id};
      }
    }
  }

  // Sweeps over the bytes and looks at all that touch the same.
  void check_touches(std::vector<Touch> touches) {
    std::sort(touches.begin(), touches.end(), [](const Touch& a, const Touch& b) {
      return std::tie(a.run.low, a.order) < std::tie(b.run.low, b.order);
    });
    std::array<std::vector<const Touch*>, 2> open;  // readers, writers
    races_ = compared_ = 0;
    for (const Touch& touch : touches) {
      if (races_ && compared_ > kEnough) return;
      for (int writes : {0, 1}) {
        auto& others = open[writes];
        others.erase(std::remove_if(others.begin(), others.end(),
                                    [&](const Touch* o) { return o->run.high <= touch.run.low; }),
                     others.end());
        if (!writes && !touch.move->writes()) continue;
        for (const Touch* other : others) check_pair(*other, touch);
      }
      open[touch.move->writes()].push_back(&touch);
    }
  }

  void check_pair(const Touch& a, const Touch& b) {
    ++compared_;
    const Touch& first = a.order < b.order ? a : b;
    const Touch& second = a.order < b.order ? b : a;
    if (first.move->copy->add && second.move->copy->add) return;
    const bool ordered = first.core == second.core &&
                         (first.issued.unit == second.issued.unit ||
                          second.issued.clock.done[first.issued.unit] >= first.issued.number);
    if (ordered) return;
    ++races_;
    const Instr x{number_, first.move->node->id}, y{number_, second.move->node->id};
    if (!problems_.is_new(Problems::Race, x, y)) return;
    const int64_t byte = std::max(first.run.low, second.run.low);
    const std::string where = first.core == second.core ? "on core " + std::to_string(first.core)
                                                        : "on cores " + std::to_string(first.core) +
                                                              " and " + std::to_string(second.core);
    problems_.add(problems_.name(x) + " and " + problems_.name(y) + " touch byte " +
                  Problems::number(byte) + " of " + names_[first.move->object] + " " + where +
                  " in no order, and one of them writes");
  }

  [[noreturn]] void too_large() const {
    throw Failure(SPYRE_TOO_LARGE,
                  "section " + section_->name + " touches too many runs of device memory to check");
  }

  const Program& program_;
  const int64_t* slots_;
  std::vector<Span> spans_;  // by object
  const int pool_;           // the object's number
  Problems& problems_;
  std::vector<int64_t> zeros_;  // by object: its address
  std::vector<std::string> names_;
  std::vector<int> tensors_;     // by slot: see tensor_of
  std::vector<RunSet> written_;  // by object: what earlier sections have stored
  std::vector<Stored> stored_;   // by object

  int number_ = 0;  // of the section being checked
  const Section* section_ = nullptr;
  int64_t races_ = 0, compared_ = 0;  // pairs of touches
  std::vector<AxisRange> extents_;
  std::vector<Split> splits_;
};

}  // namespace

void check_device(const Program& program, const int64_t* slots, const std::vector<Span>& arguments,
                  Problems& problems) {
  DeviceCheck(program, slots, arguments, &problems).run();
}

}  // namespace spyre
