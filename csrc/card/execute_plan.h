// What `execute` prepares once per program: compiled vector programs and load forwarding.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "batch.h"
#include "decode.h"
#include "frame.h"
#include "narrow_sums.h"
#include "vec_code.h"

namespace spyre {

// Load forwarding. A LOAD may be left out when every reader of its LX buffer reads exactly the
// elements it loads, at the same ranges: the readers then take them from device memory (unless
// something from the load's section to theirs stores there, which each launch checks, or the layout
// suits the reader better in LX). Saves the copy, and for matmuls makes packed panels possible.
// Readers stand in the load's section, or in a later one of the same axes if that one joins another
// section; both then have a Forward that says the same.
struct Forward {
  const Copy* load;
  size_t from, to;  // sections of the load and of its readers
  struct Reader {
    const Node* node;
    int operand;
    int number;    // of all readers of their section
    Place source;  // what the reader reads in device memory
  };
  std::vector<Reader> readers;
};

// A STORE of what one vector instruction has written, which nothing else reads: the instruction may
// write to device memory itself.
struct Direct {
  const Copy* store;
  const Node* writer;
};

struct NodePlan {
  std::vector<int> forward;  // by operand: number of its Forward::Reader, or -1
  int elided_by = -1;        // Copy: its own Forward
  std::vector<int> stored;   // Vec, by output: number of the Direct that may stand for it, or -1
  int written_by = -1;       // Copy: its own Direct
  VecCode code;              // Vec
  bool together = false;     // Vec, Copy: runs over several trips at once
  std::unique_ptr<Batch> batch;  // TileLoop
};

struct SectionPlan {
  std::vector<NodePlan> nodes;  // by Node::id
  std::vector<Forward> forwards;
  int readers = 0;  // of all forwards
  std::vector<Direct> directs;
  std::vector<const Copy*> stores;
  std::vector<const Copy*> transfers;  // all of them
  bool adds = false;  // a store adds: cores run one after another, so that sums have one order
};

// Says in the code of vector instructions which sums run in DL16.
void mark_narrow_sums(const std::vector<Node>& body, const NarrowValues& narrow, SectionPlan* plan);

// Throws Failure(SPYRE_INVALID_PROGRAM).
std::vector<SectionPlan> plan_execution(const Program& program, const Kernels& kernels);

// Bytes that a device place can reach in a launch, over all cores; low >= high: none.
struct Reach {
  Wide low, high;
  bool overlaps(const Reach& other) const { return low < other.high && other.low < high; }
};
Reach reach_of(const Copy& copy, const Section& section, const int64_t* slots);

// Whether a launch with these slots leaves the load out.
bool forwards_now(const Forward& forward, const std::vector<SectionPlan>& plans,
                  const Program& program, const int64_t* slots);

// Whether a launch with these slots leaves the store out.
bool writes_directly(const Direct& direct, const SectionPlan& plan, const Section& section,
                     const int64_t* slots);

}  // namespace spyre
