// The coarsest partition of bytes in which given sets are unions of parts: all bytes of a part
// have the same history, however the sets interleave.
#pragma once

#include <cstdint>
#include <vector>

#include "byte_sets.h"

namespace spyre {

class Partition {
 public:
  // A set's runs may overlap. The sets must live as long.
  explicit Partition(const std::vector<std::vector<Run>>& sets);

  int parts() const { return static_cast<int>(sizes_.size()); }
  const std::vector<int>& of_set(size_t set) const { return of_set_[set]; }
  // The first byte that a set and one of its parts have in common.
  int64_t first_byte(size_t set, int part) const;
  std::vector<Run> runs(int part) const;

 private:
  void cut();
  void separate(size_t set);
  template <class Visit>
  void for_each_piece(size_t set, const Visit& visit) const;

  const std::vector<std::vector<Run>>& sets_;
  std::vector<int64_t> borders_;  // pieces lie between them
  std::vector<int> part_of_;      // by piece
  std::vector<int> sizes_;        // pieces of every part
  std::vector<std::vector<int>> of_set_;
  std::vector<std::vector<size_t>> inside_;  // by part: its pieces in the set being looked at
};

}  // namespace spyre
