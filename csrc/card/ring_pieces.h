// A ring move cut into boxes of points that one core holds each.
#pragma once

#include <cstdint>
#include <vector>

#include "decode.h"
#include "frame.h"

namespace spyre {

// Positions are those in Ring::axes.
struct RingPiece {
  int core;                           // that holds it
  Wide source;                        // byte of the holder's buffer at the first point
  std::vector<int64_t> start, count;  // absolute coordinates
};

// Bytes in the holder's buffer between neighbours along every walked axis.
std::vector<int64_t> source_steps(const Ring& ring, const int64_t* slots);

// The pieces of what `reader` moves at its ranges, none of which is empty. Throws
// Failure(SPYRE_STOPPED) for points that no core holds, or for more than 2^16 pieces.
std::vector<RingPiece> ring_pieces(const Ring& ring, const int64_t* slots,
                                   const std::vector<AxisRange>& ranges, int reader);

}  // namespace spyre
