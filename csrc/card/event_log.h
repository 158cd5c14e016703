// Where the time engine writes down what it saw, for those who ask (spyre_program_trace).
#pragma once

#include <cstddef>
#include <cstdint>

#include "card.h"

namespace spyre {

class EventLog {
 public:
  EventLog(spyre_event* events, size_t capacity) : events_(events), capacity_(capacity) {}

  // What follows happens in a section, or in those that join it, from a time on.
  void enter(int32_t section, double start) {
    section_ = section;
    start_ = start;
  }
  // Adds an event with times and sections counted from that start, if there is room.
  void add(spyre_event event) {
    if (count_ == capacity_) return;
    event.section += section_;
    event.begin += start_;
    event.end += start_;
    events_[count_++] = event;
  }

 private:
  spyre_event* events_;
  size_t capacity_, count_ = 0;
  int32_t section_ = 0;
  double start_ = 0;
};

}  // namespace spyre
