// LX: bounds, unwritten and overwritten bytes, stale slots. One walk in body order per core, over
// parts of LX that all accesses of a section treat alike (partition.h).
#include <algorithm>
#include <map>

#include "card.h"
#include "check.h"
#include "lx_accesses.h"
#include "partition.h"
#include "remote_reads.h"
#include "tokens.h"

namespace spyre {
namespace {

constexpr size_t kMostAccesses = size_t{1} << 23;  // of a section that are held at once

// What wrote the bytes of a part last.
struct Written {
  Instr by;  // none: nothing did
  int buffer = -1;
  int slot = 0;
  bool operator<(const Written& o) const {
    return std::tie(by, buffer, slot) < std::tie(o.by, o.buffer, o.slot);
  }
};

// Bytes that several sections see, and who wrote them on each kind of core.
struct Kept {
  std::vector<Run> runs;
  std::vector<Written> written;
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
    for (size_t s = 0; s < program_.sections.size(); s = round_end(program_, s)) {
      run_round(static_cast<int>(s), static_cast<int>(round_end(program_, s)));
    }
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
        if (const auto* ring = std::get_if<Ring>(&node.form)) {
          auto& [first, last] = lives_[ring->source.buffer];
          first = std::min(first, static_cast<int>(s));
          last = static_cast<int>(s);
        }
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
      const auto kind = static_cast<int>(cores_.size());
      const auto [found, is_new] = known.try_emplace(std::move(key), kind);
      if (is_new) cores_.push_back(core);
      kind_of_.push_back(found->second);
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

  // Section `s` and those that join it, up to `end`.
  void run_round(int s, int end) {
    ByteSets sets;
    std::vector<std::vector<LxAccess>> accesses(cores_.size());
    size_t held = 0;
    for (int each = s; each < end; ++each) {
      for (size_t kind = 0; kind < cores_.size(); ++kind) {
        if (cores_[kind] >= program_.sections[each].cores) continue;
        const auto found =
            lx_accesses(program_, each, slots_, logical_, cores_[kind], &sets, &problems_);
        accesses[kind].insert(accesses[kind].end(), found.begin(), found.end());
        held += found.size();
        if (held > kMostAccesses) {
          throw Failure(SPYRE_TOO_LARGE, "section " + program_.sections[each].name +
                                             " has too many accesses to LX to check");
        }
      }
    }
    std::vector<std::vector<std::vector<RemoteRead>>> remote;  // by section of the round
    for (int each = s; each < end; ++each) {
      remote.push_back(
          remote_reads(program_, each, slots_, kind_of_, cores_.size(), &sets, &problems_));
    }
    std::vector<int> living, kept;
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      if (lives_[b].first < end && end <= lives_[b].second) living.push_back(sets.add(bytes_of(b)));
    }
    for (const Kept& one : kept_) kept.push_back(sets.add(one.runs));
    const Partition parts(sets.all());
    std::vector<std::vector<Written>> state(cores_.size());
    for (size_t kind = 0; kind < cores_.size(); ++kind) {
      core_ = cores_[kind];
      state[kind].resize(static_cast<size_t>(parts.parts()));
      for (size_t k = 0; k < kept.size(); ++k) {
        for (int part : parts.of_set(kept[k])) state[kind][part] = kept_[k].written[kind];
      }
      for (int each = s; each < end; ++each) {
        const std::vector<RemoteRead>& reads = remote[each - s][kind];
        for (const RemoteRead& read : reads) check_remote(each, read, parts, state[kind]);
        check_unchanged(each, reads, accesses[kind], parts);
      }
      check_own_inputs(accesses[kind], sets, parts);
      for (const LxAccess& access : accesses[kind]) apply(access, parts, &state[kind]);
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
  void check_own_inputs(const std::vector<LxAccess>& accesses, const ByteSets& sets,
                        const Partition& parts) {
    std::vector<int64_t> mark(static_cast<size_t>(parts.parts()), -1);
    for (size_t i = 0; i < accesses.size(); ++i) {
      const LxAccess& write = accesses[i];
      if (!write.writes) continue;
      bool marked = false;
      for (size_t j = i; j-- > 0 && same_instruction(accesses[j], write);) {
        const LxAccess& other = accesses[j];
        if (!sets.may_share(other.set, write.set) || works_in_place(other, write)) continue;
        for (int part : parts.of_set(write.set)) {
          if (!marked) mark[part] = static_cast<int64_t>(i);
        }
        marked = true;
        for (int part : parts.of_set(other.set)) {
          if (mark[part] == static_cast<int64_t>(i)) report_own(write, other, parts, part);
        }
      }
    }
  }

  static bool same_instruction(const LxAccess& a, const LxAccess& b) {
    return a.section == b.section && a.step == b.step;
  }

  static bool works_in_place(const LxAccess& other, const LxAccess& write) {
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

  void report_own(const LxAccess& write, const LxAccess& other, const Partition& parts, int part) {
    const Instr instr{write.section, write.node};
    if (!problems_.is_new(Problems::Own, instr)) return;
    const Buffer& buffer = program_.buffers[write.buffer];
    const int64_t at = byte_of(write, parts, part);
    problems_.add(
        problems_.name(instr, core_) + " writes byte " + std::to_string(at) + " of LX buffer " +
        buffer.name + " while it " + (other.writes ? "writes" : "reads") +
        " the same byte as another operand in buffer " + program_.buffers[other.buffer].name);
  }

  // Of the buffer: the first byte that the access and a part have in common.
  int64_t byte_of(const LxAccess& access, const Partition& parts, int part) const {
    const Buffer& buffer = program_.buffers[access.buffer];
    return (parts.first_byte(access.set, part) - buffer.offset) %
           std::max<int64_t>(buffer.bytes, 1);
  }

  void apply(const LxAccess& access, const Partition& parts, std::vector<Written>* state) {
    const Written now{{access.section, access.node}, access.buffer, access.slot};
    if (!access.writes) return check_read(access, now.by, parts, *state);
    for (int set : {access.set, access.logical}) {
      if (set < 0) continue;
      for (int part : parts.of_set(set)) (*state)[part] = now;
    }
  }

  void check_read(const LxAccess& access, Instr by, const Partition& parts,
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

  void report(Problems::Kind kind, Instr by, const Written& last, const LxAccess& access,
              int64_t at) {
    if (!problems_.is_new(kind, by, last.by)) return;
    std::string text = problems_.name(by, core_) + " reads byte " + std::to_string(at) +
                       " of LX buffer " + program_.buffers[access.buffer].name;
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

  // --- what ring moves read, on a core that holds it ---

  void check_remote(int s, const RemoteRead& read, const Partition& parts,
                    const std::vector<Written>& state) {
    for (int part : parts.of_set(read.set)) {
      const Written& last = state[part];
      const bool never = last.by.section < 0;
      if (!never && last.buffer == read.buffer) continue;
      const Instr by{s, read.node};
      if (!problems_.is_new(never ? Problems::Unwritten : Problems::Overwritten, by, last.by))
        return;
      std::string text = remote_text(by, read, parts, part);
      text += never ? ", which nothing has written in an earlier section"
                    : ", but " + problems_.name(last.by) + " wrote there last, through buffer " +
                          program_.buffers[last.buffer].name;
      return problems_.add(std::move(text));
    }
  }

  // No core waits for another one inside of a section.
  void check_unchanged(int s, const std::vector<RemoteRead>& remote,
                       const std::vector<LxAccess>& accesses, const Partition& parts) {
    if (remote.empty()) return;
    std::vector<const RemoteRead*> reader(static_cast<size_t>(parts.parts()), nullptr);
    for (const RemoteRead& read : remote) {
      for (int part : parts.of_set(read.set)) reader[part] = &read;
    }
    for (const LxAccess& write : accesses) {
      if (!write.writes) continue;
      for (int part : parts.of_set(write.set)) {
        const RemoteRead* read = reader[part];
        const Instr by{write.section, write.node};
        if (!read || !problems_.is_new(Problems::Remote, {s, read->node}, by)) continue;
        problems_.add(
            remote_text({s, read->node}, *read, parts, part) + ", which " + problems_.name(by) +
            " writes in the same " + (by.section == s ? "section" : "round") + ", through buffer " +
            program_.buffers[write.buffer].name + ": no core waits for another one there");
      }
    }
  }

  std::string remote_text(Instr by, const RemoteRead& read, const Partition& parts, int part) {
    const Buffer& buffer = program_.buffers[read.buffer];
    const int64_t at = parts.first_byte(read.set, part) - buffer.offset;
    return problems_.name(by) + " on core " + std::to_string(read.reader) + " reads byte " +
           std::to_string(at) + " of LX buffer " + buffer.name + " of core " +
           std::to_string(read.holder);
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
  int core_ = 0;                            // the one being looked at
  std::vector<int> kind_of_;                // by core
  std::vector<Kept> kept_;
};

}  // namespace

void check_lx(const Program& program, const int64_t* slots, Problems& problems) {
  LxCheck(program, slots, &problems).run();
}

}  // namespace spyre
