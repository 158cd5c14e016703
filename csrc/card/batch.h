// Trips of a loop executed together.
//
// A tile sized for the card's LX and its double buffering is small for a host: a row of a softmax,
// 32 of its scalars. What an instruction costs besides its elements would decide. So the
// instructions of an innermost loop each run over several trips before the next one starts, as if
// the tile were larger; buffers that only live within a trip lie once per trip in host memory.
#pragma once

#include <cstdint>
#include <vector>

#include "decode.h"

namespace spyre {

struct SectionPlan;

// A loop whose trips may run together.
struct Batch {
  // Reads that name the elements otherwise than the write before them does: the bytes decide.
  struct Cover {
    const Place *written, *read;
  };
  int axis;
  std::vector<Cover> covers;
  std::vector<const Copy*> transfers;
  // By buffer: where it begins in the memory of one trip (-1: in LX, as ever) and how far the
  // next trip's copy is. Buffers that every trip writes before it reads them, and that nothing
  // outside of the loop uses.
  std::vector<int64_t> offset, pitch;
  int64_t bytes = 0;  // of one trip
};

// Trips that run together, as a Frame sees them. Axes stand at the first one.
struct Trips {
  const Batch& batch;
  int64_t tile;
  char* memory;
  int64_t room;   // trips that `memory` is for
  int64_t trip;   // where the axis stands, among them
  int64_t count;  // of trips that an instruction runs over

  bool holds(const Place& place) const {
    return place.space == Space::Lx && batch.offset[place.buffer] >= 0;
  }
  char* data(const Place& place) const {
    return memory + batch.offset[place.buffer] * room + batch.pitch[place.buffer] * trip;
  }
  // From a trip's first element of a place to the next one's.
  int64_t stride(const Place& place, const int64_t* slots) const;
};

// Fills NodePlan::batch of the loops of a section and NodePlan::together of their instructions.
void find_batches(const Program& program, std::vector<SectionPlan>* plans);

// Loads of the loop read nothing that another trip stores, in this launch.
bool transfers_apart(const Batch& batch, const Section& section, const int64_t* slots);

// Every read finds what its own trip has written; `axes` stand at a trip, none is empty.
bool covered(const Batch& batch, const int64_t* slots, const std::vector<AxisRange>& axes);

}  // namespace spyre
