#include "program_rules.h"

#include <algorithm>
#include <initializer_list>

#include "op_table.h"

namespace spyre {
namespace {

using AxisSet = uint64_t;

// The axes of the lists, each of which an instruction may walk once.
AxisSet walked_once(std::initializer_list<const std::vector<int>*> lists) {
  AxisSet set = 0;
  for (const auto* list : lists) {
    for (int axis : *list) {
      require(!(set >> axis & 1), "an instruction walks an axis twice");
      set |= AxisSet{1} << axis;
    }
  }
  return set;
}

void check_terms(const std::vector<Term>& terms, AxisSet walked, const char* why) {
  for (const Term& term : terms) require(walked >> term.axis & 1, why);
}

void check_absolute(const std::vector<Term>& terms, const char* why) {
  for (const Term& term : terms) require(term.origin == Origin::Absolute, why);
}

bool contains(const std::vector<int>& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// --- matmul ---

void check_stick(const Place& operand, const std::vector<int>& axes) {
  if (axes.empty()) return;
  const Term* found = nullptr;
  for (const Term& term : operand.terms) {
    if (term.axis == axes.back()) found = &term;
  }
  require(
      found && (found->coefficient.slot || found->coefficient.number == bytes_of(operand.dtype)),
      "the stick dim of a matmul operand does not have a stride of one element");
}

// --- vector programs ---

DType class_dtype(int value_class) {
  constexpr DType of[] = {DType::F32, DType::I64, DType::I32, DType::B1};
  return of[value_class];
}

void check_operand_form(const Vec& v, const VecOp& op, size_t slot_count) {
  require(op.code <= kIndex, "an op code is not in the table");
  require(op.dtype == class_dtype(class_of(op.dtype)), "an operand's dtype is not a class");
  if (op.code == kConst) {
    require(op.args.empty(), "a constant has operands");
    return;
  }
  require(op.args.size() == 1, "an operand form has one number");
  const auto number = static_cast<size_t>(op.args[0]);
  switch (op.code) {
    case kLoad:
      require(number < v.inputs.size(), "a vector load names an input that does not exist");
      require(class_of(v.inputs[number].dtype) == class_of(op.dtype),
              "a vector load has another class than its input");
      break;
    case kSlot:
      require(number < slot_count, "a vector scalar names a slot that does not exist");
      break;
    default:
      require(number < v.indices.size(), "a vector index does not exist");
      require(op.dtype == DType::I64 || op.dtype == DType::I32, "an index is an integer");
  }
}

void check_op(const Vec& v, int position, size_t slot_count) {
  const VecOp& op = v.ops[position];
  if (op.code < kFirstOp) {
    check_operand_form(v, op, slot_count);
    return;
  }
  const OpRow* row = op_row(op.code);
  require(row, "an op code is not in the table");
  require(static_cast<int>(op.args.size()) == row->arity, "an op has another arity");
  for (int arg : op.args) require(arg < position, "an op uses a value not yet known");
  const int own = class_of(v.ops[op.args.back()].dtype);
  require(row->takes(own), "an op does not take values of this class");
  for (size_t i = 0; i < op.args.size(); ++i) {
    const bool condition = row->first_is_bool && i == 0;
    require(class_of(v.ops[op.args[i]].dtype) == (condition ? 3 : own),
            "operands of an op differ in class");
  }
  if (row->is_cast) return;
  require(op.dtype == (row->gives_bool ? DType::B1 : class_dtype(own)),
          "an op's result has another class");
}

bool reduces(Reduce reduce, int value_class) {
  switch (reduce) {
    case Reduce::Sum:
    case Reduce::Prod:
      return value_class != 3;
    case Reduce::Any:
      return value_class == 3;
    default:
      return true;
  }
}

void check_output(const Vec& v, const VecOut& out, const std::vector<int>& loops) {
  const DType to = out.place.dtype;
  const int from = class_of(v.ops[out.value].dtype);
  require(out.place.space == Space::Lx, "SFU writes LX");
  require((from == 0) == is_float(to), "a store converts between floats and integers");
  require(to != DType::B1 || from == 3, "a store makes a number a bool");
  if (out.reduce == Reduce::None) {
    require(!out.scan, "a scan without its op");
    return;
  }
  require(from == class_of(to), "a reduction is stored in another class");
  require(reduces(out.reduce, from), "a reduction does not take values of this class");
  if (out.scan) {
    require(!v.axes.empty() && has_term(out.place, v.axes.back()),
            "a scan has no axis to run along");
    require(!contains(loops, v.axes.back()), "a scan runs over the trips of a loop");
  } else {
    require(holds_accumulator(to), "a reduction is stored in a narrow dtype");
  }
}

// --- ring moves ---

// The digits that holdings give must not overlap, and lead to cores that hold the source.
void check_digits(const Ring& ring) {
  std::vector<const Holding*> digits;
  for (const Holding& one : ring.held) {
    if (one.parts > 1) digits.push_back(&one);
  }
  std::sort(digits.begin(), digits.end(),
            [](const Holding* a, const Holding* b) { return a->stride < b->stride; });
  int64_t unit = 1;
  for (const Holding* one : digits) {
    require(one->stride % unit == 0, "the holdings of a ring move overlap");
    unit = int64_t{one->stride} * one->parts;
  }
  for (int core = 0; core < ring.cores; ++core) {
    int64_t most = core;
    for (const Holding* one : digits) {
      most += (one->parts - 1 - core / one->stride % one->parts) * int64_t{one->stride};
    }
    require(most < ring.cores, "a ring move reads from a core that does not hold its source");
  }
}

}  // namespace

void refuse(const std::string& why) {
  throw Failure(SPYRE_INVALID_PROGRAM, "the program is malformed: " + why);
}

void check_rules(const Copy& copy) {
  const AxisSet walked = walked_once({&copy.axes});
  require(copy.source.space != copy.target.space, "a copy moves between device memory and LX");
  require(copy.source.dtype == copy.target.dtype, "a copy changes no dtype");
  require(!copy.add || !copy.is_load(), "only a store adds");
  check_terms(copy.source.terms, walked, "a copy's source uses an axis that it does not walk");
  check_terms(copy.target.terms, walked, "a copy's target uses an axis that it does not walk");
  for (const Indirect& index : copy.indirect) {
    const bool integer = !is_float(index.place.dtype) && index.place.dtype != DType::B1;
    require(index.place.space == Space::Lx && integer, "an index is an integer in LX");
    check_terms(index.place.terms, walked, "an index uses an axis that its copy does not walk");
  }
  for (const Bound& bound : copy.bounds) {
    check_terms(bound.terms, walked, "a bound uses an axis that its copy does not walk");
    check_absolute(bound.terms, "a bound counts from its axis' zero");
  }
}

void check_rules(const Pt& pt, const std::vector<int>& loops) {
  walked_once({&pt.batch, &pt.m, &pt.n, &pt.k});
  for (const Place* operand : {&pt.a, &pt.b, &pt.c}) {
    require(operand->space == Space::Lx && is_float(operand->dtype),
            "an operand of a matmul is a float in LX");
  }
  require(pt.a.dtype == pt.b.dtype || (is_fp8(pt.a.dtype) && is_fp8(pt.b.dtype)),
          "both operands of a matmul have one dtype, or are fp8");
  require(!is_fp8(pt.c.dtype), "a matmul's result is wider than fp8");
  check_terms(pt.a.terms, walked_once({&pt.batch, &pt.m, &pt.k}), "a matmul's a uses another axis");
  check_terms(pt.b.terms, walked_once({&pt.batch, &pt.n, &pt.k}), "a matmul's b uses another axis");
  check_terms(pt.c.terms, walked_once({&pt.batch, &pt.m, &pt.n}), "a matmul's c uses another axis");
  check_stick(pt.a, pt.k);
  check_stick(pt.b, pt.n);
  check_stick(pt.c, pt.n);
  for (int axis : pt.k) {
    require(!contains(loops, axis) || pt.c.dtype == DType::F32,
            "a matmul that is continued over trips keeps c in f32");
  }
}

void check_rules(const Vec& vec, const std::vector<int>& loops, size_t slot_count) {
  const AxisSet walked = walked_once({&vec.axes});
  for (const Place& input : vec.inputs) {
    require(input.space == Space::Lx, "SFU reads LX");
    check_terms(input.terms, walked, "a vector input uses an axis that is not walked");
  }
  for (const VecIndex& index : vec.indices) {
    check_terms(index.terms, walked, "a vector index uses an axis that is not walked");
    check_absolute(index.terms, "an index counts from its axis' zero");
  }
  for (size_t i = 0; i < vec.ops.size(); ++i) check_op(vec, static_cast<int>(i), slot_count);
  require(!vec.outputs.empty(), "a vector instruction stores nothing");
  for (const VecOut& out : vec.outputs) {
    check_terms(out.place.terms, walked, "a vector output uses an axis that is not walked");
    check_output(vec, out, loops);
  }
}

void check_rules(const Ring& ring, const std::vector<Buffer>& buffers) {
  const AxisSet walked = walked_once({&ring.axes});
  require(ring.source.space == Space::Lx && ring.target.space == Space::Lx,
          "a ring move goes from LX to LX");
  require(ring.source.dtype == ring.target.dtype, "a ring move changes no dtype");
  require(buffers[ring.source.buffer].slots == 1, "a ring move reads a double buffer");
  check_terms(ring.source.terms, walked, "a ring move's source uses an axis that is not walked");
  check_terms(ring.target.terms, walked, "a ring move's target uses an axis that is not walked");
  check_absolute(ring.source.terms, "a ring move's source counts from its axis' zero");
  for (const Holding& held : ring.held) {
    check_terms(held.terms, walked, "a holding uses an axis that its ring move does not walk");
    check_absolute(held.terms, "a holding counts from its axis' zero");
  }
  check_digits(ring);
}

}  // namespace spyre
