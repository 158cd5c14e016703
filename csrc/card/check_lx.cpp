// LX: bounds, unwritten and overwritten bytes, stale slots. One walk in body order per core, over
// parts of LX that all accesses of a section treat alike (partition.h).
#include <algorithm>
#include <map>
#include <unordered_map>

#include "card.h"
#include "check.h"
#include "copy_points.h"
#include "partition.h"
#include "tokens.h"

namespace spyre {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 23;  // instructions and trips of a section

// What wrote the bytes of a part last.
struct Written {
  Instr by;  // none: nothing did
  int buffer = -1;
  int slot = 0;
  bool operator<(const Written& o) const {
    return std::tie(by, buffer, slot) < std::tie(o.by, o.buffer, o.slot);
  }
};

struct Access {
  int64_t step;  // number of the dynamic instruction
  const Place* place;
  int node;
  int buffer, slot;
  // Bytes of LX; both copies of a double buffer, because `execute` may use one for both.
  int set;
  int logical;  // double buffers, else -1: the set that knows the slot written last
  bool writes;
  bool at_once;  // writes every point when it has read it: may work in place
};

// Bytes that several sections see, and who wrote them on each kind of core.
struct Kept {
  std::vector<Run> runs;
  std::vector<Written> written;
};

// Sets of bytes by number, equal ones once.
class Sets {
 public:
  int number_of(const Box& box) {
    const Box one = box.canonical();
    std::vector<int64_t> key{static_cast<int64_t>(one.start), one.size};
    for (const Box::Dim& d : one.dims) key.insert(key.end(), {d.count, d.stride});
    const auto [found, is_new] = numbers_.try_emplace(std::move(key), count());
    if (is_new) add_runs(one);
    return found->second;
  }
  int add(std::vector<Run> runs) {
    all_.push_back(std::move(runs));
    return count() - 1;
  }
  int count() const { return static_cast<int>(all_.size()); }
  const std::vector<std::vector<Run>>& all() const { return all_; }
  // False only if two sets of boxes have no byte in common.
  bool may_share(int a, int b) const {
    if (all_[a].empty() || all_[b].empty()) return false;
    const Run &x = all_[a].front(), &y = all_[b].front();
    return x.low < all_[b].back().high && y.low < all_[a].back().high;
  }

 private:
  void add_runs(const Box& box) {
    runs_ += run_count(box);
    if (runs_ > kMostRuns) {
      throw Failure(SPYRE_TOO_LARGE, "the accesses to LX have too many runs to check");
    }
    all_.emplace_back();
    for_each_run(box, [&](Run run) { all_.back().push_back(run); });
  }

  std::map<std::vector<int64_t>, int> numbers_;
  std::vector<std::vector<Run>> all_;
  int64_t runs_ = 0;
};

// The accesses of one core in one section, in body order.
class Recorder {
 public:
  Recorder(const Program& program, int section, const int64_t* slots,
           const std::vector<int64_t>& logical, Sets* sets, Problems* problems)
      : program_(program),
        section_(section),
        slots_(slots),
        logical_(logical),
        sets_(*sets),
        problems_(*problems),
        last_(static_cast<size_t>(program.sections[section].nodes)) {}

  std::vector<Access> accesses(int core) {
    const Section& section = program_.sections[section_];
    current_.assign(program_.buffers.size(), 0);
    std::vector<AxisRange> ranges = ranges_of(section, slots_, core);
    auto visit = [this](const Node& node, const std::vector<AxisRange>& axes, int64_t trip) {
      if (++steps_ > kMostSteps) {
        throw Failure(SPYRE_TOO_LARGE, "section " + program_.sections[section_].name +
                                           " has too many instructions to check");
      }
      if (!skips(node, axes)) record(node, axes, trip);
    };
    walk(section.body, ranges, visit);
    return std::move(found_);
  }

 private:
  void record(const Node& node, const std::vector<AxisRange>& axes, int64_t trip) {
    node_ = &node;
    operand_ = 0;
    trip_ = trip;
    at_once_ = false;
    if (const auto* copy = std::get_if<Copy>(&node.form)) {
      record(*copy, axes);
    } else if (const auto* pt = std::get_if<Pt>(&node.form)) {
      const bool empty = any_empty(pt->k, axes);
      read(pt->a, axes, !empty);
      read(pt->b, axes, !empty);
      write(pt->c, axes, std::all_of(pt->k.begin(), pt->k.end(), [&](int axis) {
              return axes[axis].first_trip();
            }));
    } else {
      record(std::get<Vec>(node.form), axes);
    }
  }

  void record(const Copy& copy, const std::vector<AxisRange>& axes) {
    for (const Indirect& index : copy.indirect) read(index.place, axes, true);
    if (copy.is_load()) return write(copy.target, axes, true);
    if (copy.bounds.empty()) return read(copy.source, axes, true);
    // (Bounds over several axes leave the whole tile to be written.)
    std::vector<AxisRange> inside = axes;
    clip_to_bounds(copy, slots_, &inside);
    std::vector<AxisRange> moved = axes;  // places count from the tile's start
    for (int axis : copy.axes) moved[axis] = inside[axis];
    read(copy.source, axes, !any_empty(copy.axes, moved), &moved);
  }

  void record(const Vec& vec, const std::vector<AxisRange>& axes) {
    const bool empty = any_empty(vec.axes, axes);
    for (const Place& input : vec.inputs) read(input, axes, !empty);
    for (const VecOut& out : vec.outputs) {
      bool stores = true, begins = true;
      for (int axis : vec.axes) {
        const bool reduced = out.reduce != Reduce::None && !out.scan && !has_term(out.place, axis);
        stores &= reduced || !axes[axis].empty();
        begins &= !reduced || axes[axis].first_trip();
      }
      at_once_ = out.reduce == Reduce::None;
      if (stores) write(out.place, axes, begins);
    }
  }

  // An operand that is not there still has a number.
  void read(const Place& place, const std::vector<AxisRange>& axes, bool there,
            const std::vector<AxisRange>* moved = nullptr) {
    if (there) add(place, axes, current_[place.buffer], false, moved ? *moved : axes);
    ++operand_;
  }

  // A result that does not begin continues in place.
  void write(const Place& place, const std::vector<AxisRange>& axes, bool begins) {
    const int slot = program_.buffers[place.buffer].slots == 2 ? static_cast<int>(trip_ % 2) : 0;
    if (!begins) add(place, axes, slot, false, axes);
    ++operand_;
    current_[place.buffer] = slot;
    add(place, axes, slot, true, axes);
    ++operand_;
  }

  // `moved`: the points; `axes`: where coordinates count from.
  void add(const Place& place, const std::vector<AxisRange>& axes, int slot, bool writes,
           const std::vector<AxisRange>& moved) {
    const Buffer& buffer = program_.buffers[place.buffer];
    Box box;
    box.start = place.base.of(slots_);
    box.size = bytes_of(place.dtype);
    for (const Term& term : place.terms) {
      const int64_t by = term.coefficient.of(slots_);
      const AxisRange& range = moved[term.axis];
      box.start += static_cast<Wide>(by) * (range.start - axes[term.axis].origin(term.origin));
      box.dims.push_back({range.empty() ? 0 : range.count(), by});
    }
    Numbers& last = known(box, slot);
    if (last.set < 0) {
      if (!inside(box, buffer, writes)) {
        if (!writes) return;
        box = {0, buffer.bytes, {}};  // its readers are right, as far as one can tell
      }
      if (buffer.slots == 2) {
        last.logical = number(box, logical_[place.buffer]);
        box.dims.push_back({2, buffer.bytes});
      }
      last.set = number(box, buffer.offset);
    }
    found_.push_back(
        {steps_, &place, node_->id, place.buffer, slot, last.set, last.logical, writes, at_once_});
  }

  int number(Box box, int64_t from) {
    box.start += from;
    return sets_.number_of(box);
  }

  bool inside(const Box& box, const Buffer& buffer, bool writes) {
    if (box.low() >= 0 && box.high() <= buffer.bytes) return true;
    const Instr instr{section_, node_->id};
    if (problems_.is_new(Problems::LxBounds, instr)) {
      problems_.add(problems_.name(instr) + (writes ? " writes" : " reads") + " bytes " +
                    Problems::number(box.low()) + " to " + Problems::number(box.high()) +
                    " of LX buffer " + buffer.name + ", which has " + std::to_string(buffer.bytes));
    }
    return false;
  }

  // Consecutive trips mostly touch the same bytes, in turn in both slots.
  struct Numbers {
    Box box;
    int set = -1, logical = -1;
  };
  Numbers& known(const Box& box, int slot) {
    auto& by_operand = last_[node_->id];
    const size_t at = 2 * operand_ + static_cast<size_t>(slot);
    if (by_operand.size() <= at) by_operand.resize(at + 1);
    Numbers& last = by_operand[at];
    const bool same = last.set >= 0 && last.box.start == box.start &&
                      std::equal(last.box.dims.begin(), last.box.dims.end(), box.dims.begin(),
                                 box.dims.end(), [](const Box::Dim& a, const Box::Dim& b) {
                                   return a.count == b.count && a.stride == b.stride;
                                 });
    if (!same) last = {box, -1, -1};
    return last;
  }

  const Program& program_;
  const int section_;
  const int64_t* slots_;
  const std::vector<int64_t>& logical_;
  Sets& sets_;
  Problems& problems_;
  std::vector<std::vector<Numbers>> last_;  // by node, then by operand and slot
  std::vector<Access> found_;
  std::vector<int> current_;  // slot of every buffer that was written last
  const Node* node_ = nullptr;
  size_t operand_ = 0;
  bool at_once_ = false;
  int64_t trip_ = 0, steps_ = 0;
};

class LxCheck {
 public:
  LxCheck(const Program& program, const int64_t* slots, Problems* problems)
      : program_(program), slots_(slots), problems_(*problems) {
    int64_t end = program.lx_peak;
    for (const Buffer& buffer : program.buffers) {
      logical_.push_back(buffer.slots == 2 ? end : -1);
      end += buffer.slots == 2 ? buffer.bytes : 0;
    }
    find_lifetimes();
    find_kinds();
  }

  void run() {
    for (size_t s = 0; s < program_.sections.size(); ++s) run_section(static_cast<int>(s));
  }

 private:
  void find_lifetimes() {
    lives_.assign(program_.buffers.size(), {INT32_MAX, -1});
    for (size_t s = 0; s < program_.sections.size(); ++s) {
      visit(program_.sections[s].body, [&](const Node& node) {
        for_each_lx_place(node, [&](const Place& place, bool) {
          auto& [first, last] = lives_[place.buffer];
          first = std::min(first, static_cast<int>(s));
          last = static_cast<int>(s);
        });
      });
    }
  }

  template <class Visit>
  static void visit(const std::vector<Node>& body, const Visit& each) {
    for (const Node& node : body) {
      if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
        visit(loop->body, each);
      } else {
        each(node);
      }
    }
  }

  // Cores whose parts have the same sizes in every section do the same in LX: one of them stands
  // for all. (Where LX is addressed by absolute coordinates, they must agree on these too.)
  void find_kinds() {
    std::map<std::vector<int64_t>, int> known;
    int most = 0;
    for (const Section& section : program_.sections) most = std::max(most, section.cores);
    std::vector<std::vector<char>> absolute;
    for (const Section& section : program_.sections) absolute.push_back(absolute_axes(section));
    for (int core = 0; core < most; ++core) {
      std::vector<int64_t> key;
      for (size_t s = 0; s < program_.sections.size(); ++s) {
        const Section& section = program_.sections[s];
        if (core >= section.cores) {
          key.push_back(-1);
          continue;
        }
        const std::vector<AxisRange> ranges = ranges_of(section, slots_, core);
        for (size_t a = 0; a < ranges.size(); ++a) {
          key.push_back(ranges[a].count());
          if (absolute[s][a]) key.push_back(ranges[a].low);
        }
      }
      if (known.try_emplace(std::move(key), core).second) cores_.push_back(core);
    }
  }

  static std::vector<char> absolute_axes(const Section& section) {
    std::vector<char> found(section.axes.size(), 0);
    visit(section.body, [&](const Node& node) {
      for_each_lx_place(node, [&](const Place& place, bool) {
        for (const Term& term : place.terms) found[term.axis] |= term.origin == Origin::Absolute;
      });
      const auto* copy = std::get_if<Copy>(&node.form);
      if (!copy || copy->is_load()) return;
      for (const Bound& bound : copy->bounds) {
        for (const Term& term : bound.terms) found[term.axis] = 1;
      }
    });
    return found;
  }

  void run_section(int s) {
    Sets sets;
    Recorder recorder(program_, s, slots_, logical_, &sets, &problems_);
    std::vector<std::vector<Access>> accesses(cores_.size());
    for (size_t kind = 0; kind < cores_.size(); ++kind) {
      if (cores_[kind] < program_.sections[s].cores) {
        accesses[kind] = recorder.accesses(cores_[kind]);
      }
    }
    std::vector<int> living, kept;
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (lives_[b].first <= s && s < lives_[b].second) living.push_back(sets.add(bytes_of(b)));
    }
    for (const Kept& one : kept_) kept.push_back(sets.add(one.runs));
    const Partition parts(sets.all());
    std::vector<std::vector<Written>> state(cores_.size());
    for (size_t kind = 0; kind < cores_.size(); ++kind) {
      state[kind].resize(static_cast<size_t>(parts.parts()));
      for (size_t k = 0; k < kept.size(); ++k) {
        for (int part : parts.of_set(kept[k])) state[kind][part] = kept_[k].written[kind];
      }
      check_own_inputs(s, accesses[kind], sets, parts);
      for (const Access& access : accesses[kind]) apply(s, access, parts, &state[kind]);
    }
    keep(living, parts, state);
  }

  std::vector<Run> bytes_of(size_t number) const {
    const Buffer& buffer = program_.buffers[number];
    std::vector<Run> runs{{buffer.offset, buffer.offset + buffer.bytes * buffer.slots}};
    if (buffer.slots == 2) runs.push_back({logical_[number], logical_[number] + buffer.bytes});
    return runs;
  }

  // An instruction must not write what it still reads or writes otherwise.
  void check_own_inputs(int s, const std::vector<Access>& accesses, const Sets& sets,
                        const Partition& parts) {
    std::vector<int64_t> mark(static_cast<size_t>(parts.parts()), -1);
    for (size_t i = 0; i < accesses.size(); ++i) {
      const Access& write = accesses[i];
      if (!write.writes) continue;
      bool marked = false;
      for (size_t j = i; j-- > 0 && accesses[j].step == write.step;) {
        const Access& other = accesses[j];
        if (!sets.may_share(other.set, write.set) || works_in_place(other, write)) continue;
        for (int part : parts.of_set(write.set)) {
          if (!marked) mark[part] = static_cast<int64_t>(i);
        }
        marked = true;
        for (int part : parts.of_set(other.set)) {
          if (mark[part] == static_cast<int64_t>(i)) report_own(s, write, other, parts, part);
        }
      }
    }
  }

  static bool works_in_place(const Access& other, const Access& write) {
    if (other.place == write.place) return true;  // a running sum
    return write.at_once && !other.writes && same_elements(*other.place, *write.place);
  }

  static bool same_elements(const Place& a, const Place& b) {
    auto has = [](const Place& place, const Term& term) {
      return std::any_of(place.terms.begin(), place.terms.end(), [&](const Term& t) {
        return t.axis == term.axis && t.origin == term.origin &&
               t.coefficient.slot == term.coefficient.slot &&
               t.coefficient.number == term.coefficient.number;
      });
    };
    return a.buffer == b.buffer && spyre::bytes_of(a.dtype) == spyre::bytes_of(b.dtype) &&
           a.base.slot == b.base.slot && a.base.number == b.base.number &&
           a.terms.size() == b.terms.size() &&
           std::all_of(a.terms.begin(), a.terms.end(), [&](const Term& t) { return has(b, t); });
  }

  void report_own(int s, const Access& write, const Access& other, const Partition& parts,
                  int part) {
    const Instr instr{s, write.node};
    if (!problems_.is_new(Problems::Own, instr)) return;
    const Buffer& buffer = program_.buffers[write.buffer];
    const int64_t at = byte_of(write, parts, part);
    problems_.add(problems_.name(instr) + " writes byte " + std::to_string(at) + " of LX buffer " +
                  buffer.name + " while it " + (other.writes ? "writes" : "reads") +
                  " the same byte as another operand in buffer " +
                  program_.buffers[other.buffer].name);
  }

  // Of the buffer: the first byte that the access and a part have in common.
  int64_t byte_of(const Access& access, const Partition& parts, int part) const {
    const Buffer& buffer = program_.buffers[access.buffer];
    return (parts.first_byte(access.set, part) - buffer.offset) %
           std::max<int64_t>(buffer.bytes, 1);
  }

  void apply(int s, const Access& access, const Partition& parts, std::vector<Written>* state) {
    const Written now{{s, access.node}, access.buffer, access.slot};
    if (!access.writes) return check_read(access, now.by, parts, *state);
    for (int set : {access.set, access.logical}) {
      if (set < 0) continue;
      for (int part : parts.of_set(set)) (*state)[part] = now;
    }
  }

  void check_read(const Access& access, Instr by, const Partition& parts,
                  const std::vector<Written>& state) {
    if (access.logical >= 0) {
      for (int part : parts.of_set(access.logical)) {
        const Written& last = state[part];
        if (last.by.section < 0 || last.slot == access.slot) continue;
        const int64_t at = parts.first_byte(access.logical, part) - logical_[access.buffer];
        return report(Problems::Stale, by, last, access, at);
      }
    }
    for (int part : parts.of_set(access.set)) {
      const Written& last = state[part];
      if (last.by.section >= 0 && last.buffer == access.buffer) continue;
      const int64_t at = byte_of(access, parts, part);
      const bool never = last.by.section < 0;
      return report(never ? Problems::Unwritten : Problems::Overwritten, by, last, access, at);
    }
  }

  void report(Problems::Kind kind, Instr by, const Written& last, const Access& access,
              int64_t at) {
    if (!problems_.is_new(kind, by, last.by)) return;
    std::string text = problems_.name(by) + " reads byte " + std::to_string(at) + " of LX buffer " +
                       program_.buffers[access.buffer].name;
    switch (kind) {
      case Problems::Unwritten:
        text += ", which nothing has written";
        break;
      case Problems::Stale:
        text += " in slot " + std::to_string(access.slot) + ", but " + problems_.name(last.by) +
                " wrote it last in slot " + std::to_string(last.slot);
        break;
      default:
        text += ", but " + problems_.name(last.by) + " wrote there last, through buffer " +
                program_.buffers[last.buffer].name;
    }
    problems_.add(std::move(text));
  }

  // What later sections may read; parts with one history join.
  void keep(const std::vector<int>& living, const Partition& parts,
            const std::vector<std::vector<Written>>& state) {
    std::vector<char> lives(static_cast<size_t>(parts.parts()), 0);
    for (int set : living) {
      for (int part : parts.of_set(set)) lives[part] = 1;
    }
    std::map<std::vector<Written>, std::vector<Run>> joined;
    for (int part = 0; part < parts.parts(); ++part) {
      if (!lives[part]) continue;
      std::vector<Written> history;
      for (const auto& of_kind : state) history.push_back(of_kind[part]);
      const std::vector<Run> runs = parts.runs(part);
      std::vector<Run>& all = joined[std::move(history)];
      all.insert(all.end(), runs.begin(), runs.end());
    }
    kept_.clear();
    for (auto& [history, runs] : joined) kept_.push_back({std::move(runs), history});
  }

  const Program& program_;
  const int64_t* slots_;
  Problems& problems_;
  std::vector<int64_t> logical_;            // by double buffer: where its logical bytes are
  std::vector<std::pair<int, int>> lives_;  // of a buffer: first and last section
  std::vector<int> cores_;                  // one of every kind
  std::vector<Kept> kept_;
};

}  // namespace

void check_lx(const Program& program, const int64_t* slots, Problems& problems) {
  LxCheck(program, slots, &problems).run();
}

}  // namespace spyre
