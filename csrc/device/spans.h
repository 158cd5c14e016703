// What the engines of the cards did and when, written down while somebody asks for it: for
// torch.profiler (profiler.cpp) and for `spyre report`.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

namespace openspyre {

struct Span {
  std::string name;
  int device = 0;
  int engine = 0;  // an Engine
  c10::StreamId stream = 0;
  uint64_t subject = 0;      // `Record::number` of a launch; 0: a copy
  uint64_t correlation = 0;  // the innermost op of torch.profiler that submitted it; 0: none
  int64_t card_start = 0, card_end = 0;  // picoseconds of card time
  int64_t host_start = 0, host_end = 0;  // nanoseconds since 1970
};

// Whether somebody asks: one relaxed load.
bool recording() noexcept;
// Recordings may overlap. `stop_recording` takes what `start_recording` gave.
size_t start_recording();
std::vector<Span> stop_recording(size_t position);
void add_span(Span span);

// The ops of torch.profiler that this thread is inside of.
void push_correlation(uint64_t id);
void pop_correlation();
uint64_t correlation() noexcept;

}  // namespace openspyre
