// Elements moved from one arrangement to another, bytes unchanged. Knows nothing of torch.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace openspyre {

class StridedMove {
 public:
  StridedMove() = default;
  // Strides in elements of `itemsize` bytes; those of the target are not zero.
  StridedMove(c10::IntArrayRef sizes, c10::IntArrayRef to_strides, c10::IntArrayRef from_strides,
              size_t itemsize);

  // The target's elements must be distinct; source and target must not overlap in part.
  void run(char* to, const char* from) const;

  // The bytes that `run` writes lie in [to, to + reach).
  size_t reach() const { return reach_; }
  size_t bytes() const { return bytes_; }

 private:
  struct Dim {
    int64_t size, to, from;  // strides in bytes
  };
  void join(Dim dim);
  void walk(size_t depth, char* to, const char* from) const;
  void row(const Dim& dim, char* to, const char* from) const;

  c10::SmallVector<Dim, 6> dims_;  // outer first
  size_t itemsize_ = 0, reach_ = 0, bytes_ = 0;
};

}  // namespace openspyre
