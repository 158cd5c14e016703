// What ring moves read in the LX of other cores.
#pragma once

#include <vector>

#include "check.h"
#include "lx_accesses.h"

namespace spyre {

struct RemoteRead {
  int node, buffer;
  int set;             // bytes of the holder's LX
  int reader, holder;  // the first pair of cores that does it
};

// By kind of the holder, each once. Reads that leave their buffer, and those of cores that never
// work (`kinds` has none for them), are reported.
std::vector<std::vector<RemoteRead>> remote_reads(const Program& program, int section,
                                                  const int64_t* slots,
                                                  const std::vector<int>& kind_of, size_t kinds,
                                                  ByteSets* sets, Problems* problems);

}  // namespace spyre
