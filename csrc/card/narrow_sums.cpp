#include "narrow_sums.h"

#include <tuple>

namespace spyre {

bool NarrowValues::Key::operator<(const Key& other) const {
  return std::tie(buffer, slot, number) < std::tie(other.buffer, other.slot, other.number);
}

NarrowValues::NarrowValues(const Program& program) {
  for (bool more = true; more;) {  // a loop's later instructions feed its earlier ones
    more = false;
    for (const Section& section : program.sections) more |= spread(section.body);
  }
}

NarrowValues::Key NarrowValues::key_of(const Place& place) {
  if (place.space == Space::Lx) return {place.buffer, false, 0};
  return {-1, place.base.slot, place.base.number};
}

bool NarrowValues::is_narrow(const Place& place) const {
  if (place.dtype != DType::F32) return is_float(place.dtype);
  return narrow_.count(key_of(place));
}

// Remembers an f32 tile; true if that is news. What PyTorch can see is what its dtype says.
bool NarrowValues::mark(const Place& place) {
  if (place.dtype != DType::F32 || place.argument >= 0) return false;
  return narrow_.insert(key_of(place)).second;
}

// A value's own floats count, not what only chose between them.
bool NarrowValues::is_narrow(const Vec& vec, int value) const {
  std::vector<bool> narrow(vec.ops.size(), false);
  for (int v = 0; v <= value; ++v) {
    const VecOp& op = vec.ops[v];
    if (!is_float(op.dtype)) continue;
    if (op.code == kLoad) narrow[v] = is_narrow(vec.inputs[op.args[0]]);
    if (op.code < kFirstOp) continue;
    narrow[v] = op.dtype != DType::F32;  // a cast
    for (int arg : op.args) {
      if (narrow[arg]) narrow[v] = true;
    }
  }
  return narrow[value];
}

bool NarrowValues::sums_narrow(const Vec& vec, const VecOut& out) const {
  return out.reduce == Reduce::Sum && is_float(vec.ops[out.value].dtype) &&
         is_narrow(vec, out.value);
}

bool NarrowValues::spread(const std::vector<Node>& body) {
  bool news = false;
  for (const Node& node : body) {
    if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
      news |= spread(loop->body);
    } else if (const auto* copy = std::get_if<Copy>(&node.form)) {
      if (is_narrow(copy->source)) news |= mark(copy->target);
    } else if (const auto* ring = std::get_if<Ring>(&node.form)) {
      if (is_narrow(ring->source)) news |= mark(ring->target);
    } else if (const auto* pt = std::get_if<Pt>(&node.form)) {
      if (is_narrow(pt->a) || is_narrow(pt->b)) news |= mark(pt->c);
    } else if (const auto* vec = std::get_if<Vec>(&node.form)) {
      for (const VecOut& out : vec->outputs) {
        if (is_narrow(*vec, out.value)) news |= mark(out.place);
      }
    }
  }
  return news;
}

}  // namespace spyre
