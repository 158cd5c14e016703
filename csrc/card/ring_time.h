// Ring moves as the time engine sees them.
//
// What the cores move at one instruction and trip is one exchange. Points that one core holds and
// another one reads are a message; those who read the same points share it. Every contiguous run of
// a message holds the links that it passes while the holder's LX answers and while its sticks pass.
// A message goes the shorter way around the ring, both ways at a time where readers lie on both
// sides, and ends at the farthest of them.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "decode.h"
#include "ring_pieces.h"
#include "unit_cost.h"

namespace spyre {

struct Exchange {
  // Cycles that links are taken: 2 * c leads from core c to the next one, 2 * c + 1 to the one
  // before.
  std::vector<double> links;
  double least = 0;    // at the LX ports of the busiest core
  double latency = 0;  // from the end of the work to the token
  double ready = 0;    // of the members that have arrived
  double began = 0, end = 0;
  int arrived = 0;
  struct Member {
    int core;
    int32_t instruction;
    uint64_t bytes;  // from other cores
  };
  std::vector<Member> members;
};

// Collects the messages of one exchange, reader by reader.
class Messages {
 public:
  explicit Messages(const Spec& spec)
      : spec_(spec),
        links_(2 * static_cast<size_t>(spec.core_count()), 0),
        ports_(static_cast<size_t>(spec.core_count())) {}

  // Returns the bytes that come from other cores.
  uint64_t add(const Ring& ring, const int64_t* slots, const std::vector<AxisRange>& ranges,
               int reader);
  // What all of it takes.
  void fill(Exchange* exchange);
  // By core.
  const std::vector<Ports>& ports() const { return ports_; }

 private:
  struct Message {
    double cycles = 0;        // on every link
    int forth = 0, back = 0;  // links to pass upwards and downwards
    int readers = 0;
  };
  void pass(int holder, const Message& message);

  const Spec& spec_;
  // By holder and by the points: where they begin, how many and how far apart.
  std::map<std::vector<int64_t>, Message> messages_;
  std::vector<double> links_;
  std::vector<Ports> ports_;  // by core
  double transposing_ = 0;    // longest that a core needs to turn what it gets
};

}  // namespace spyre
