#include "decode.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "program_rules.h"

namespace spyre {
namespace {

constexpr int64_t kMagic = 0x4552595053;
constexpr int64_t kVersion = 5;
constexpr size_t kHeaderWords = 5;

int64_t word_at(const uint8_t* bytes) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= uint64_t{bytes[i]} << (8 * i);
  return static_cast<int64_t>(word);
}

uint32_t crc32(const uint8_t* bytes, size_t count) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int bit = 0; bit < 8; ++bit) c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      t[i] = c;
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; ++i) crc = table[(crc ^ bytes[i]) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

class Decoder {
 public:
  Decoder(const uint8_t* bytes, size_t words, const Spec& spec)
      : bytes_(bytes), words_(words), spec_(spec) {}

  Program program() {
    p_.name = text();
    p_.slots = items<SlotDef>([&] { return slot_def(); });
    p_.buffers = items<Buffer>([&] { return buffer(); });
    element_bytes_.resize(p_.buffers.size());
    p_.pool_bytes = between(0, int64_t{1} << 46, "pool size");
    p_.addresses = between(0, 1 << 20, "number of addresses");
    p_.sizes = between(0, 1 << 20, "number of sizes");
    p_.scalars = between(0, 1 << 20, "number of scalars");
    p_.prologue = static_cast<int>(between(0, 1 << 20, "sections of a prologue"));
    check_slots();
    p_.sources = items<std::string>([&] { return text(); });
    p_.sections = items<Section>([&] { return section(); });
    require(position_ == words_, "words are left over");
    find_prologue(&p_);
    return std::move(p_);
  }

 private:
  // --- words ---

  int64_t word() {
    require(position_ < words_, "the words end early");
    return word_at(bytes_ + 8 * position_++);
  }

  int64_t between(int64_t low, int64_t high, const char* what) {
    const int64_t value = word();
    if (value < low || value > high) {
      refuse(std::string(what) + " " + std::to_string(value) + " is not in [" +
             std::to_string(low) + ", " + std::to_string(high) + "]");
    }
    return value;
  }

  bool flag() { return between(0, 1, "flag") != 0; }

  // Every item takes at least one word, so the count cannot exceed what is left.
  int64_t count() {
    return between(0, static_cast<int64_t>(words_ - position_), "length of a list");
  }

  template <class T, class Read>
  std::vector<T> items(Read read) {
    const int64_t n = count();
    std::vector<T> all;
    for (int64_t i = 0; i < n; ++i) all.push_back(read());
    return all;
  }

  std::string text() {
    const int64_t size =
        between(0, 8 * static_cast<int64_t>(words_ - position_), "length of a text");
    const size_t words = (static_cast<size_t>(size) + 7) / 8;
    require(words <= words_ - position_, "a text ends early");
    const char* from = reinterpret_cast<const char*>(bytes_ + 8 * position_);
    position_ += words;
    return std::string(from, static_cast<size_t>(size));
  }

  // --- header tables ---

  SlotDef slot_def() {
    SlotDef def;
    def.given = static_cast<Given>(between(0, 4, "kind of a slot"));
    def.number = word();
    def.name = text();
    def.formula = items<CalcStep>([&] {
      const auto calc = static_cast<Calc>(between(0, 7, "step of a formula"));
      return CalcStep{calc, word()};
    });
    return def;
  }

  void check_slots() {
    for (size_t i = 0; i < p_.slots.size(); ++i) {
      const SlotDef& def = p_.slots[i];
      const int64_t counts[] = {p_.addresses, p_.sizes, p_.scalars};
      if (def.given <= Given::Scalar) {
        require(def.number >= 0 && def.number < counts[static_cast<int>(def.given)],
                "a slot names an argument that a launch does not pass");
      }
      if (def.given == Given::Formula) {
        check_formula(def, static_cast<int64_t>(i));
      } else {
        require(def.formula.empty(), "a slot that is given has a formula");
      }
    }
  }

  static void check_formula(const SlotDef& def, int64_t own) {
    int64_t depth = 0;
    for (const CalcStep& step : def.formula) {
      if (step.calc == Calc::Slot) {
        require(step.operand >= 0 && step.operand < own, "a formula uses a slot not yet known");
      }
      if (step.calc == Calc::Const || step.calc == Calc::Slot) {
        ++depth;
      } else {
        require(depth >= 2, "a formula lacks operands");
        --depth;
      }
    }
    require(depth == 1, "a formula does not leave one value");
  }

  Buffer buffer() {
    Buffer b;
    b.name = text();
    const auto usable = static_cast<int64_t>(spec_.lx_usable);
    const auto stick = static_cast<int64_t>(spec_.stick_bytes);
    b.offset = between(0, usable, "offset of a buffer");
    b.bytes = between(0, usable, "size of a buffer");
    b.slots = static_cast<int>(between(1, 2, "slots of a buffer"));
    require(b.offset % stick == 0, "a buffer does not begin at a stick");
    require(b.slots == 1 || b.bytes % stick == 0, "the second slot does not begin at a stick");
    const int64_t end = b.offset + b.bytes * b.slots;
    if (end > usable) {
      refuse("buffer " + b.name + " ends at byte " + std::to_string(end) + " of LX, which has " +
             std::to_string(usable));
    }
    p_.lx_peak = std::max(p_.lx_peak, end);
    return b;
  }

  // --- operands ---

  Value value() {
    const bool slot = flag();
    const int64_t number = word();
    require(!slot || (number >= 0 && number < static_cast<int64_t>(p_.slots.size())),
            "a value names a slot that does not exist");
    return {number, slot};
  }

  int axis_number() {
    return static_cast<int>(between(0, static_cast<int64_t>(axes_) - 1, "axis"));
  }

  std::vector<Term> terms() {
    std::vector<Term> all = items<Term>([&] {
      Term term;
      term.axis = axis_number();
      term.coefficient = value();
      term.origin = static_cast<Origin>(between(0, 2, "origin of a term"));
      return term;
    });
    uint64_t seen = 0;
    for (const Term& term : all) {
      require(!(seen >> term.axis & 1), "a place has two terms of one axis");
      seen |= uint64_t{1} << term.axis;
    }
    return all;
  }

  DType dtype() { return static_cast<DType>(between(0, kDTypes - 1, "dtype")); }

  Place place() {
    Place p;
    p.space = static_cast<Space>(between(0, 1, "space"));
    p.dtype = dtype();
    p.base = value();
    p.terms = terms();
    const bool lx = p.space == Space::Lx;
    const int64_t buffers = static_cast<int64_t>(p_.buffers.size());
    p.buffer = static_cast<int>(between(lx ? 0 : -1, lx ? buffers - 1 : -1, "buffer of a place"));
    if (lx) check_elements(p);
    p.argument = static_cast<int>(between(-1, lx ? -1 : p_.addresses - 1, "argument of a place"));
    return p;
  }

  // LX has no byte order: bytes are read as parts of the elements that were written there.
  void check_elements(const Place& p) {
    const int64_t size = bytes_of(p.dtype);
    int64_t& known = element_bytes_[p.buffer];
    require(known == 0 || known == size, "a buffer holds elements of two sizes");
    known = size;
    auto whole = [size](const Value& v) { return v.slot || v.number % size == 0; };
    require(whole(p.base) && std::all_of(p.terms.begin(), p.terms.end(),
                                         [&](const Term& t) { return whole(t.coefficient); }),
            "a place in LX does not name whole elements");
  }

  std::vector<int> axis_list() {
    return items<int>([&] { return axis_number(); });
  }

  int origin() {
    return static_cast<int>(
        between(-1, static_cast<int64_t>(p_.sources.size()) - 1, "source of an instruction"));
  }

  // --- instructions ---

  Copy copy() {
    Copy c;
    c.axes = axis_list();
    c.source = place();
    c.target = place();
    c.indirect = items<Indirect>([&] {
      Indirect i;
      i.place = place();
      i.coefficient = value();
      i.size = value();
      i.wrap = flag();
      i.clamp = flag();
      i.distinct = flag();
      return i;
    });
    c.bounds = items<Bound>([&] {
      Bound b;
      b.terms = terms();
      b.offset = value();
      b.size = value();
      return b;
    });
    c.add = flag();
    c.origin = origin();
    check_rules(c);
    return c;
  }

  Pt pt() {
    Pt p;
    for (auto* list : {&p.batch, &p.m, &p.n, &p.k}) *list = axis_list();
    for (Place* operand : {&p.a, &p.b, &p.c}) *operand = place();
    p.origin = origin();
    check_rules(p, path_);
    return p;
  }

  Vec vec() {
    Vec v;
    v.axes = axis_list();
    v.inputs = items<Place>([&] { return place(); });
    v.indices = items<VecIndex>([&] {
      VecIndex index;
      index.terms = terms();
      index.offset = value();
      return index;
    });
    v.ops = items<VecOp>([&] { return vec_op(); });
    v.outputs = items<VecOut>([&] {
      VecOut out;
      const auto last = static_cast<int64_t>(v.ops.size()) - 1;
      out.value = static_cast<int>(between(0, last, "stored value"));
      out.place = place();
      out.reduce = static_cast<Reduce>(between(0, 5, "reduction"));
      out.scan = flag();
      return out;
    });
    v.origin = origin();
    check_rules(v, path_, p_.slots.size());
    return v;
  }

  Ring ring() {
    Ring r;
    r.axes = axis_list();
    r.source = place();
    r.target = place();
    r.held = items<Holding>([&] {
      const auto cores = static_cast<int64_t>(spec_.core_count());
      Holding h;
      h.terms = terms();
      h.offset = value();
      h.extent = value();
      h.parts = static_cast<int>(between(1, cores, "parts of a holding"));
      h.stride = static_cast<int>(between(1, cores, "stride of a holding over cores"));
      h.granule = between(1, kMaxPoints, "granule of a holding");
      h.step = value();
      require(h.step.slot || h.step.number % bytes_of(r.source.dtype) == 0,
              "a place in LX does not name whole elements");
      return h;
    });
    r.cores = static_cast<int>(between(1, spec_.core_count(), "cores of a ring move's source"));
    r.origin = origin();
    check_rules(r, p_.buffers);
    p_.cores = std::max(p_.cores, r.cores);
    return r;
  }

  VecOp vec_op() {
    VecOp op;
    op.code = static_cast<int>(between(0, 127, "op code"));
    op.dtype = dtype();
    op.args = items<int>([&] { return static_cast<int>(between(0, INT32_MAX, "operand")); });
    op.integer = word();
    op.number = 0;
    if (op.code == kConst && is_float(op.dtype)) {
      static_assert(sizeof op.number == sizeof op.integer);
      std::memcpy(&op.number, &op.integer, sizeof op.number);
    }
    return op;
  }

  // --- structure ---

  Section section() {
    Section s;
    s.name = text();
    s.joins = flag();
    require(!s.joins || sections_ > 0, "the first section joins another one");
    require(!s.joins || sections_ > p_.prologue,
            "a section of the prologue, or the first behind it, joins another one");
    ++sections_;
    const auto cores = static_cast<int64_t>(spec_.core_count());
    s.axes = items<Axis>([&] {
      Axis axis;
      axis.name = text();
      axis.extent = value();
      axis.parts = static_cast<int>(between(1, cores, "parts of an axis"));
      axis.stride = static_cast<int>(between(1, cores, "stride of an axis over cores"));
      axis.granule = between(1, kMaxPoints, "granule of an axis");
      return axis;
    });
    require(static_cast<int64_t>(s.axes.size()) <= kMaxAxes, "a section has too many axes");
    s.cores = checked_cores(s.axes);
    p_.cores = std::max(p_.cores, s.cores);
    axes_ = s.axes.size();
    next_id_ = 0;
    s.body = nodes();
    s.nodes = next_id_;
    if (s.joins) check_joins(s.body);
    return s;
  }

  static void check_joins(const std::vector<Node>& body) {
    for (const Node& node : body) {
      const auto* copy = std::get_if<Copy>(&node.form);
      const bool loads = copy && copy->is_load() && copy->indirect.empty();
      require(loads || std::holds_alternative<Ring>(node.form),
              "a section that joins another one holds more than loads and ring moves");
    }
  }

  // The parts must number the cores [0, product) without gaps: sorted by stride, each stride is
  // the product of the parts before it.
  int checked_cores(const std::vector<Axis>& axes) const {
    std::vector<const Axis*> split;
    for (const Axis& axis : axes) {
      if (axis.parts > 1) split.push_back(&axis);
    }
    std::sort(split.begin(), split.end(),
              [](const Axis* a, const Axis* b) { return a->stride < b->stride; });
    int64_t product = 1;
    for (const Axis* axis : split) {
      require(axis->stride == product, "the split over cores leaves gaps or overlaps");
      product *= axis->parts;
      require(product <= spec_.core_count(), "a section is split over more cores than there are");
    }
    return static_cast<int>(product);
  }

  std::vector<Node> nodes() {
    return items<Node>([&] {
      Node node;
      node.id = next_id_++;
      switch (between(0, 4, "kind of a node")) {
        case 0:
          node.form = loop();
          break;
        case 1:
          node.form = copy();
          break;
        case 2:
          node.form = pt();
          break;
        case 3:
          node.form = vec();
          break;
        default:
          node.form = ring();
      }
      return node;
    });
  }

  TileLoop loop() {
    TileLoop loop;
    loop.axis = axis_number();
    require(std::find(path_.begin(), path_.end(), loop.axis) == path_.end(),
            "an axis is walked by a loop inside its loop");
    loop.tile = between(1, kMaxPoints, "tile");
    path_.push_back(loop.axis);  // at most kMaxAxes deep: each axis once
    loop.body = nodes();
    require(!loop.body.empty(), "a loop has no body");  // nothing would count its trips
    path_.pop_back();
    return loop;
  }

  const uint8_t* bytes_;
  size_t words_;
  const Spec& spec_;
  size_t position_ = 0;
  Program p_;
  std::vector<int64_t> element_bytes_;  // by buffer; 0: no place yet
  size_t axes_ = 0;                     // of the section being read
  int next_id_ = 0;                     // of its nodes
  int sections_ = 0;                    // read so far
  std::vector<int> path_;               // axes of the loops around what is being read
};

}  // namespace

Program decode(const uint8_t* bytes, size_t count, const Spec& spec) {
  auto refuse_all = [](const std::string& why) { throw Failure(SPYRE_INVALID_PROGRAM, why); };
  if (count < 8 * kHeaderWords || count % 8) {
    refuse_all("the program is truncated: " + std::to_string(count) + " bytes");
  }
  if (word_at(bytes) != kMagic) refuse_all("this is not a program");
  if (word_at(bytes + 8) != kVersion) {
    refuse_all("the program has format version " + std::to_string(word_at(bytes + 8)) +
               ", this card reads version " + std::to_string(kVersion));
  }
  const uint8_t* body = bytes + 8 * kHeaderWords;
  const size_t words = count / 8 - kHeaderWords;
  if (word_at(bytes + 16) != static_cast<int64_t>(words) ||
      word_at(bytes + 24) != static_cast<int64_t>(crc32(body, 8 * words))) {
    refuse_all("the program is corrupted: its length or checksum do not match");
  }
  return Decoder(body, words, spec).program();
}

size_t round_end(const Program& program, size_t first) {
  size_t end = first + 1;
  while (end < program.sections.size() && program.sections[end].joins) ++end;
  return end;
}

std::vector<AxisRange> ranges_of(const Section& section, const int64_t* slots, int core) {
  std::vector<AxisRange> ranges;
  fill_ranges(section, slots, core, &ranges);
  return ranges;
}

void fill_ranges(const Section& section, const int64_t* slots, int core,
                 std::vector<AxisRange>* ranges) {
  ranges->clear();
  for (const Axis& axis : section.axes) {
    const int64_t extent = axis.extent.of(slots);
    if (extent > kMaxPoints) {
      throw Failure(SPYRE_STOPPED, "axis " + axis.name + " of section " + section.name + " has " +
                                       std::to_string(extent) + " points");
    }
    ranges->push_back(part_of(axis, extent, core));
  }
}

bool skips(const Node& node, const std::vector<AxisRange>& ranges) {
  if (const auto* copy = std::get_if<Copy>(&node.form)) return any_empty(copy->axes, ranges);
  if (const auto* pt = std::get_if<Pt>(&node.form)) {
    return any_empty(pt->batch, ranges) || any_empty(pt->m, ranges) || any_empty(pt->n, ranges);
  }
  if (const auto* ring = std::get_if<Ring>(&node.form)) return any_empty(ring->axes, ranges);
  const auto* vec = std::get_if<Vec>(&node.form);
  if (!vec) return false;
  for (const VecOut& out : vec->outputs) {
    bool stores = true;
    for (int axis : vec->axes) {
      const bool needed = out.reduce == Reduce::None || has_term(out.place, axis);
      if (needed && ranges[axis].empty()) stores = false;
    }
    if (stores) return false;
  }
  return true;
}

}  // namespace spyre
