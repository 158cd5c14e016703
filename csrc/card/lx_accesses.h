// What one core does to LX in one section: every access with the set of its bytes.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "byte_sets.h"
#include "check.h"
#include "decode.h"

namespace spyre {

struct LxAccess {
  int64_t step;  // number of the dynamic instruction
  const Place* place;
  int section, node;
  int buffer, slot;
  // Bytes of LX; both copies of a double buffer, because `execute` may use one for both.
  int set;
  int logical;  // double buffers, else -1: the set that knows the slot written last
  bool writes;
  bool at_once;  // writes every point when it has read it: may work in place
};

// Sets of bytes by number, equal ones once.
class ByteSets {
 public:
  int number_of(const Box& box);
  int add(std::vector<Run> runs);
  const std::vector<std::vector<Run>>& all() const { return all_; }
  // False only if two sets of boxes have no byte in common.
  bool may_share(int a, int b) const;

 private:
  std::map<std::vector<int64_t>, int> numbers_;
  std::vector<std::vector<Run>> all_;
  int64_t runs_ = 0;
};

// The accesses of a core in body order. Those that leave their buffer are reported.
//
// `logical`: for every double buffer where its logical bytes begin, behind LX.
std::vector<LxAccess> lx_accesses(const Program& program, int section, const int64_t* slots,
                                  const std::vector<int64_t>& logical, int core, ByteSets* sets,
                                  Problems* problems);

}  // namespace spyre
