// The decoded Program: immutable, shared by the engines. Meaning: src/openspyre/ir/program.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "card.h"
#include "failure.h"
#include "kernels.h"
#include "spec.h"

namespace spyre {

class EventLog;

constexpr int kMaxAxes = 64;  // of a section

// An int, or a slot of the symbol block.
struct Value {
  int64_t number = 0;  // the int, or the slot's number
  bool slot = false;
  int64_t of(const int64_t* slots) const { return slot ? slots[number] : number; }
};

enum class Given : uint8_t { Address, Size, Scalar, Pool, Formula };
enum class Calc : uint8_t { Const, Slot, Add, Mul, Floordiv, Mod, Min, Max };
struct CalcStep {
  Calc calc;
  int64_t operand;
};
struct SlotDef {
  Given given;
  int64_t number;  // of the address, size or scalar; checked against Program::arguments
  std::vector<CalcStep> formula;
  std::string name;
};

struct Buffer {
  std::string name;
  int64_t offset, bytes;  // of one slot; slots lie back to back
  int slots;              // 1 or 2
};

enum class Space : uint8_t { Device, Lx };
enum class Origin : uint8_t { Absolute, Core, Tile };

struct Term {
  int axis;
  Value coefficient;  // bytes (places) or counts (bounds, vector indices)
  Origin origin;
};

struct Place {
  Space space;
  DType dtype;
  Value base;
  std::vector<Term> terms;
  int buffer = -1;    // LX: valid; device: -1
  int argument = -1;  // device: number of the argument, -1 for the pool
};

struct Indirect {
  Place place;  // in LX, of an integer dtype
  Value coefficient, size;
  bool wrap, clamp;
  bool distinct;  // the axes of `place` read different indices, on all cores
};

struct Bound {
  std::vector<Term> terms;
  Value offset, size;
};

struct Copy {
  std::vector<int> axes;
  Place source, target;  // one in LX, one in device memory
  std::vector<Indirect> indirect;
  std::vector<Bound> bounds;
  bool add;
  int origin;
  bool is_load() const { return source.space == Space::Device; }
  const Place& device() const { return is_load() ? source : target; }
  const Place& lx() const { return is_load() ? target : source; }
};

struct Pt {
  std::vector<int> batch, m, n, k;
  Place a, b, c;
  int origin;
};

// Operand forms of a vector program; ops of the table start at kFirstOp.
constexpr int kLoad = 0, kConst = 1, kSlot = 2, kIndex = 3, kFirstOp = 8;

struct VecOp {
  int code;
  DType dtype;
  std::vector<int> args;  // kLoad: input number, kSlot: slot, kIndex: index number, else values
  double number;          // kConst of a float class
  int64_t integer;        // kConst of another class
};

struct VecIndex {
  std::vector<Term> terms;
  Value offset;
};

struct VecOut {
  int value;
  Place place;
  Reduce reduce;
  bool scan;
};

struct Vec {
  std::vector<int> axes;
  std::vector<Place> inputs;  // in LX
  std::vector<VecIndex> indices;
  std::vector<VecOp> ops;
  std::vector<VecOut> outputs;  // in LX
  int origin;
};

// A dim along which the source of a ring move is spread over cores.
struct Holding {
  std::vector<Term> terms;  // absolute, counts
  Value offset, extent;
  int parts, stride;
  int64_t granule;
  Value step;  // bytes
};

struct Ring {
  std::vector<int> axes;
  Place source, target;  // in LX; the source is another core's, a buffer of one slot
  std::vector<Holding> held;
  int cores;  // hold the source
  int origin;
};

struct Node;
struct TileLoop {
  int axis;
  int64_t tile;
  std::vector<Node> body;
};
struct Node {
  std::variant<TileLoop, Copy, Pt, Vec, Ring> form;
  // Number of the instruction (or loop) in its section, in body order. Dense from 0.
  int id = 0;
};

struct Axis {
  std::string name;
  Value extent;
  int parts;
  int stride;
  int64_t granule;
};

struct Section {
  std::string name;
  bool joins;  // no barrier before it; it holds nothing but loads and ring moves
  std::vector<Axis> axes;
  std::vector<Node> body;
  int cores;  // product of parts: cores [0, cores) work, in mixed radix (stride, parts)
  int nodes;  // Node ids of the section are below this
};

// Bytes [low, high) of every core's LX.
struct ByteRange {
  int64_t low, high;
};

struct Program {
  std::string name;
  std::vector<SlotDef> slots;
  std::vector<Buffer> buffers;
  std::vector<Section> sections;
  int64_t pool_bytes = 0;
  int64_t addresses = 0, sizes = 0, scalars = 0;
  std::vector<std::string> sources;
  int64_t lx_peak = 0;  // highest byte of LX that a buffer holds
  int cores = 0;        // no instruction runs on, or reads the LX of, a core at or above it
  int prologue = 0;     // sections, the first ones, that only load what stays in LX
  // Sorted, apart from each other: of all buffers, and of those that the prologue loads.
  std::vector<ByteRange> lx_ranges, lx_kept;
  std::vector<int64_t> prologue_slots;  // whose values decide what the prologue loads
};

// Sections [first, round_end) run between two barriers: `first` and those that join it.
size_t round_end(const Program& program, size_t first);

// Reads and checks the binary form. Everything an engine indexes with is in range afterwards;
// what only slots tell (extents, addresses) is not. Throws Failure(SPYRE_INVALID_PROGRAM).
Program decode(const uint8_t* bytes, size_t count, const Spec& spec);

// Fills the symbol block: program.slots.size() values. Throws Failure.
void fill_slots(const Program& program, const uint64_t* addresses, size_t address_count,
                const int64_t* sizes, size_t size_count, const double* scalars, size_t scalar_count,
                uint64_t pool, int64_t* slots);

// Computes the FORMULA slots from the others.
void fill_formulas(const Program& program, int64_t* slots);

// Cycles and traffic for the sizes of a symbol block (time.cpp), of the sections from `first` on.
// Throws Failure.
spyre_report time_program(const Program& program, const Spec& spec, const int64_t* slots,
                          EventLog* log = nullptr, int first = 0);

constexpr int64_t bytes_of(DType dtype) {
  constexpr int64_t sizes[] = {2, 2, 4, 8, 4, 2, 1, 1, 1, 1, 1};
  return sizes[static_cast<int>(dtype)];
}
constexpr bool is_float(DType d) {
  return d == DType::F16 || d == DType::BF16 || d == DType::F32 || is_fp8(d);
}
// Class of a value, as `Kernels` numbers them: 0 f32, 1 i64, 2 i32 (and narrower), 3 bool.
constexpr int class_of(DType dtype) {
  return is_float(dtype) ? 0 : dtype == DType::I64 ? 1 : dtype == DType::B1 ? 3 : 2;
}
constexpr bool holds_accumulator(DType d) {  // a running value that is not rounded between trips
  return d == DType::F32 || d == DType::I64 || d == DType::I32 || d == DType::B1;
}

// --- walking a section ---------------------------------------------------------------------

// Where an axis stands while a core's body is walked: the core's part [low, high) and the current
// range [start, end) within it (the tile inside a loop over the axis, the part outside of it).
struct AxisRange {
  int64_t low = 0, high = 0, start = 0, end = 0;
  int64_t count() const { return end - start; }
  bool empty() const { return end <= start; }
  bool first_trip() const { return start == low; }  // also true without a loop
  int64_t origin(Origin from) const {               // coordinate = absolute - origin
    return from == Origin::Absolute ? 0 : from == Origin::Core ? low : start;
  }
};

inline int coordinate_of(const Axis& axis, int core) { return core / axis.stride % axis.parts; }

constexpr int64_t kMaxPoints = int64_t{1} << 40;  // of an axis, a tile or a granule

// Part p of `extent` points (kernel.Part). A negative extent counts as 0.
// Nothing overflows: `ranges_of` refuses extents above kMaxPoints, `decode` such granules.
inline AxisRange part_of(int64_t extent, int parts, int64_t granule, int p) {
  if (extent < 0) extent = 0;
  if (parts == 1) return {0, extent, 0, extent};
  const int64_t granules = extent / granule + (extent % granule != 0);
  int64_t low = p * granules / parts * granule;
  int64_t high = (p + 1) * granules / parts * granule;
  low = low < extent ? low : extent;
  high = high < extent ? high : extent;
  return {low, high, low, high};
}
inline AxisRange part_of(const Axis& axis, int64_t extent, int core) {
  return part_of(extent, axis.parts, axis.granule, coordinate_of(axis, core));
}

// Ranges of every axis of a section for a core (core < section.cores), outside of all loops.
// Throws Failure(SPYRE_STOPPED) for an extent above 2^40.
std::vector<AxisRange> ranges_of(const Section& section, const int64_t* slots, int core);
// The same into a vector that is used again.
void fill_ranges(const Section& section, const int64_t* slots, int core,
                 std::vector<AxisRange>* ranges);

// Trips of a loop over a range: an empty range makes one trip with an empty tile, so that a
// reduction over it still writes its neutral element. (Instructions that walk it otherwise skip.)
inline int64_t trips_of(const TileLoop& loop, const AxisRange& range) {
  const int64_t points = range.high - range.low;
  return points <= 0 ? 1 : points / loop.tile + (points % loop.tile != 0);
}

// Visits the instructions of a core in body order: visit(const Node&, const
// std::vector<AxisRange>&, int64_t trip), where `trip` counts the trips of the innermost loop
// around the instruction (0 outside of loops): a buffer of two slots is written at slot trip % 2,
// and read where it was last written.
template <class Visit>
void walk(const std::vector<Node>& body, std::vector<AxisRange>& axes, Visit& visit,
          int64_t trip = 0) {
  for (const Node& node : body) {
    const auto* loop = std::get_if<TileLoop>(&node.form);
    if (!loop) {
      visit(node, axes, trip);
      continue;
    }
    AxisRange& range = axes[loop->axis];
    const AxisRange outside = range;
    const int64_t trips = trips_of(*loop, range);
    for (int64_t t = 0; t < trips; ++t) {
      range.start = range.low + t * loop->tile;
      range.end = range.start + loop->tile < range.high ? range.start + loop->tile : range.high;
      walk(loop->body, axes, visit, t);
    }
    range = outside;
  }
}

inline bool any_empty(const std::vector<int>& axes, const std::vector<AxisRange>& ranges) {
  for (int axis : axes) {
    if (ranges[axis].empty()) return true;
  }
  return false;
}

inline bool has_term(const Place& place, int axis) {
  for (const Term& term : place.terms) {
    if (term.axis == axis) return true;
  }
  return false;
}

// Whether the instruction has nothing to do on the core at the current ranges. (Empty K of a
// matmul and empty reduced axes of a vector instruction still store.)
bool skips(const Node& node, const std::vector<AxisRange>& ranges);

}  // namespace spyre
