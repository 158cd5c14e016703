// Which points of its axes a copy moves, and the bytes of device memory they stand for.
#pragma once

#include <vector>

#include "byte_sets.h"
#include "decode.h"

namespace spyre {

// Leaves the points that the bounds over at most one axis let through (exactly).
void clip_to_bounds(const Copy& copy, const int64_t* slots, std::vector<AxisRange>* ranges);

// The device bytes of a copy at some ranges, relative to `zero`: a box that holds them all.
struct DeviceBox {
  Box box;
  bool exact;  // it holds no others (an index takes every value that it may take)
};
DeviceBox device_box(const Copy& copy, const int64_t* slots, std::vector<AxisRange> ranges,
                     int64_t zero);

// The same as boxes without others; throws Failure(SPYRE_TOO_LARGE) above kMostRuns of them.
std::vector<Box> device_boxes(const Copy& copy, const int64_t* slots, std::vector<AxisRange> ranges,
                              int64_t zero);

}  // namespace spyre
