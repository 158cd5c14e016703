// Which sums of a program run in DL16 under numerics `card`: those of values that come from tensors
// of 16-bit floats or fp8, also by way of f32 tiles in between. Sums of f32 tensors alone stay f32.
#pragma once

#include <set>
#include <utility>

#include "decode.h"

namespace spyre {

class NarrowValues {
 public:
  explicit NarrowValues(const Program& program);

  // Whether the vector instruction adds up such values in an output.
  bool sums_narrow(const Vec& vec, const VecOut& out) const;

 private:
  // A tile of LX by its buffer, or one of the pool by where it begins.
  struct Key {
    int buffer;
    bool slot;
    int64_t number;
    bool operator<(const Key& other) const;
  };
  static Key key_of(const Place& place);
  bool is_narrow(const Place& place) const;
  bool is_narrow(const Vec& vec, int value) const;
  bool spread(const std::vector<Node>& body);
  bool mark(const Place& place);

  std::set<Key> narrow_;
};

}  // namespace spyre
