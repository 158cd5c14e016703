#include "strided.h"

#include <algorithm>
#include <cstring>

namespace openspyre {
namespace {

template <size_t bytes>
void move_elements(int64_t count, char* to, int64_t to_step, const char* from, int64_t from_step) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * to_step, from + i * from_step, bytes);
}

}  // namespace

StridedMove::StridedMove(c10::IntArrayRef sizes, c10::IntArrayRef to_strides,
                         c10::IntArrayRef from_strides, size_t itemsize)
    : itemsize_(itemsize), reach_(itemsize), bytes_(itemsize) {
  const auto unit = static_cast<int64_t>(itemsize);
  const auto outer = [](const Dim& a, const Dim& b) { return a.to > b.to; };
  c10::SmallVector<Dim, 6> dims;
  for (size_t i = 0; i < sizes.size(); ++i) {
    bytes_ *= sizes[i];
    if (sizes[i] == 1) continue;
    const Dim dim{sizes[i], to_strides[i] * unit, from_strides[i] * unit};
    // One by one: std::stable_sort asks the heap for room.
    dims.insert(std::upper_bound(dims.begin(), dims.end(), dim, outer), dim);
    reach_ += (sizes[i] - 1) * to_strides[i] * unit;
  }
  if (bytes_ == 0) reach_ = 0;
  for (const Dim& dim : dims) join(dim);
}

// Appends an inner dim, as part of the last one where both sides go on without a gap.
void StridedMove::join(Dim dim) {
  if (!dims_.empty()) {
    const Dim& outer = dims_.back();
    if (outer.to == dim.to * dim.size && outer.from == dim.from * dim.size) {
      dim.size *= outer.size;
      dims_.back() = dim;
      return;
    }
  }
  dims_.push_back(dim);
}

void StridedMove::run(char* to, const char* from) const {
  if (bytes_ == 0) return;
  if (dims_.empty())
    std::memmove(to, from, itemsize_);
  else
    walk(0, to, from);
}

void StridedMove::walk(size_t depth, char* to, const char* from) const {
  const Dim& dim = dims_[depth];
  if (depth + 1 == dims_.size()) return row(dim, to, from);
  for (int64_t i = 0; i < dim.size; ++i) walk(depth + 1, to + i * dim.to, from + i * dim.from);
}

void StridedMove::row(const Dim& dim, char* to, const char* from) const {
  const auto unit = static_cast<int64_t>(itemsize_);
  if (dim.to == unit && dim.from == unit) {
    std::memmove(to, from, dim.size * itemsize_);
    return;
  }
  switch (itemsize_) {
    case 1:
      return move_elements<1>(dim.size, to, dim.to, from, dim.from);
    case 2:
      return move_elements<2>(dim.size, to, dim.to, from, dim.from);
    case 4:
      return move_elements<4>(dim.size, to, dim.to, from, dim.from);
    case 8:
      return move_elements<8>(dim.size, to, dim.to, from, dim.from);
    default:
      return move_elements<16>(dim.size, to, dim.to, from, dim.from);
  }
}

}  // namespace openspyre
