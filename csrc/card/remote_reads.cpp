#include "remote_reads.h"

#include <set>
#include <tuple>

#include "card.h"
#include "ring_pieces.h"

namespace spyre {
namespace {

constexpr int64_t kMostPieces = int64_t{1} << 21;  // of a section

class RemoteCollector {
 public:
  RemoteCollector(const Program& program, int section, const int64_t* slots,
                  const std::vector<int>& kind_of, size_t kinds, ByteSets* sets, Problems* problems)
      : program_(program),
        section_(section),
        slots_(slots),
        kind_of_(kind_of),
        sets_(*sets),
        problems_(*problems),
        found_(kinds) {}

  std::vector<std::vector<RemoteRead>> run() {
    const Section& section = program_.sections[section_];
    if (!has_ring(section.body)) return std::move(found_);
    for (int core = 0; core < section.cores; ++core) {
      std::vector<AxisRange> ranges = ranges_of(section, slots_, core);
      auto visit = [&](const Node& node, const std::vector<AxisRange>& axes, int64_t) {
        const auto* ring = std::get_if<Ring>(&node.form);
        if (ring) add(node, *ring, axes, core);
      };
      walk(section.body, ranges, visit);
    }
    return std::move(found_);
  }

 private:
  static bool has_ring(const std::vector<Node>& body) {
    for (const Node& node : body) {
      if (std::holds_alternative<Ring>(node.form)) return true;
      const auto* loop = std::get_if<TileLoop>(&node.form);
      if (loop && has_ring(loop->body)) return true;
    }
    return false;
  }

  void add(const Node& node, const Ring& ring, const std::vector<AxisRange>& ranges, int reader) {
    const Buffer& buffer = program_.buffers[ring.source.buffer];
    const std::vector<int64_t> steps = source_steps(ring, slots_);
    for (const RingPiece& piece : ring_pieces(ring, slots_, ranges, reader)) {
      if (++pieces_ > kMostPieces) {
        throw Failure(SPYRE_TOO_LARGE, "section " + program_.sections[section_].name +
                                           " has too many ring moves to check");
      }
      Box box{piece.source, bytes_of(ring.source.dtype), {}};
      for (size_t i = 0; i < steps.size(); ++i) box.dims.push_back({piece.count[i], steps[i]});
      const Instr instr{section_, node.id};
      if (box.low() < 0 || box.high() > buffer.bytes) {
        if (!problems_.is_new(Problems::LxBounds, instr)) continue;
        problems_.add(problems_.name(instr) + " reads bytes " + Problems::number(box.low()) +
                      " to " + Problems::number(box.high()) + " of LX buffer " + buffer.name +
                      " of core " + std::to_string(piece.core) + ", which has " +
                      std::to_string(buffer.bytes));
        continue;
      }
      if (static_cast<size_t>(piece.core) >= kind_of_.size()) {
        if (!problems_.is_new(Problems::Unwritten, instr)) continue;
        problems_.add(problems_.name(instr) + " reads LX buffer " + buffer.name + " of core " +
                      std::to_string(piece.core) + ", which never works");
        continue;
      }
      box.start += buffer.offset;
      const int kind = kind_of_[static_cast<size_t>(piece.core)], set = sets_.number_of(box);
      if (!known_.insert({kind, node.id, set}).second) continue;
      found_[static_cast<size_t>(kind)].push_back(
          {node.id, ring.source.buffer, set, reader, piece.core});
    }
  }

  const Program& program_;
  const int section_;
  const int64_t* slots_;
  const std::vector<int>& kind_of_;
  ByteSets& sets_;
  Problems& problems_;
  std::vector<std::vector<RemoteRead>> found_;
  std::set<std::tuple<int, int, int>> known_;  // kind, node, set
  int64_t pieces_ = 0;
};

}  // namespace

std::vector<std::vector<RemoteRead>> remote_reads(const Program& program, int section,
                                                  const int64_t* slots,
                                                  const std::vector<int>& kind_of, size_t kinds,
                                                  ByteSets* sets, Problems* problems) {
  return RemoteCollector(program, section, slots, kind_of, kinds, sets, problems).run();
}

}  // namespace spyre
