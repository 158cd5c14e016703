// Sets of bytes that instructions touch: strided boxes and runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "failure.h"
#include "frame.h"

namespace spyre {

constexpr int64_t kMostRuns = int64_t{1} << 24;  // that one check looks at, one by one

struct Run {
  int64_t low, high;  // bytes [low, high)
};

// `size` bytes at start + sum of stride x [0, count) over the dims.
struct Box {
  struct Dim {
    int64_t count, stride;
  };
  Wide start = 0;
  int64_t size = 0;
  std::vector<Dim> dims;  // no count is 0 unless the box is empty

  bool empty() const;
  // The first byte and the one behind the last; {0, 0} if it is empty.
  Wide low() const;
  Wide high() const;
  // Whether no two points of the dims share a byte.
  bool injective() const;
  // Equal for boxes that were built from different dims of the same bytes, mostly. Its dims are
  // positive and ascending, and leave gaps: size < dims[0].stride.
  Box canonical() const;
};

// Visits the runs of a canonical box whose bytes fit in 64 bits, outer dims first: visit(Run).
// Runs of one box may overlap.
template <class Visit>
void for_each_run(const Box& box, const Visit& visit) {
  if (box.empty()) return;
  std::vector<int64_t> at(box.dims.size(), 0);
  int64_t low = static_cast<int64_t>(box.start);
  for (;;) {
    visit(Run{low, low + box.size});
    size_t d = 0;
    for (; d < at.size(); ++d) {
      low += box.dims[d].stride;
      if (++at[d] < box.dims[d].count) break;
      low -= box.dims[d].stride * box.dims[d].count;
      at[d] = 0;
    }
    if (d == at.size()) return;
  }
}

int64_t run_count(const Box& canonical);

// Disjoint runs in order, each with a number: bytes that were added last under this number.
class RunSet {
 public:
  void add(Run run, int number = 0);
  bool covers(Run run, int number = 0) const;
  // The first byte of the run that is not in the set under the number; run.high if all are.
  int64_t first_missing(Run run, int number = 0) const;
  // The number of a byte; -1 if it is not in the set.
  int number_of(int64_t byte) const;
  // The first byte in the set from a byte on; INT64_MAX if there is none.
  int64_t next(int64_t byte) const;
  int64_t bytes() const;
  // The first byte that is also in another set; -1 if there is none.
  int64_t first_shared(const RunSet& other) const;

 private:
  struct Piece {
    int64_t high;
    int number;
  };
  void cut(int64_t at);
  std::map<int64_t, Piece> pieces_;  // by their first byte
};

}  // namespace spyre
