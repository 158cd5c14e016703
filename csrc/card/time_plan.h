// A round (a section and those that join it) unrolled for the time engine: every core's
// instructions, what they wait for, and the requests they make to device memory.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "decode.h"
#include "ring_time.h"
#include "tokens.h"
#include "unit_cost.h"

namespace spyre {

// A dynamic instruction of a core. Whoever waits for it is in the list of edges at `waiters`.
struct Instruction {
  double cycles;  // PT, SFU
  double ready = 0;
  int32_t request;  // copies; of ring moves the exchange
  int32_t pending = 0;
  int32_t waiters = -1;
  Unit unit : 4;
  uint32_t node : 28;  // its number in the round
};

struct Edge {
  int32_t to, next;
};

struct Core {
  std::vector<Instruction> instructions;
  std::vector<Edge> edges;
  std::array<std::vector<int32_t>, kUnits> order;
  std::array<size_t, kUnits> head{};
  std::array<double, kUnits> free{}, busy{};
  std::array<bool, kUnits> in_flight{};
  double least_pt = 0, least_sfu = 0;  // at peak rates
  Ports ports;                         // of all instructions together
  double end = 0;
};

// A request to device memory and the copies that wait for it. Copies of several cores that load the
// same bytes are one request.
struct Request {
  Traffic traffic;
  bool reads, writes;
  double ready = 0;  // of the members that have arrived
  double began = 0;
  int arrived = 0;
  std::vector<std::pair<int, int32_t>> members;  // core, instruction
};

struct SectionWork {
  std::vector<uint32_t> first_nodes;  // by section of the round: the number of its first node
  std::vector<Core> cores;
  std::vector<Request> requests;  // by core, then in body order
  std::vector<Exchange> exchanges;
  uint64_t flop = 0, sfu_ops = 0, instructions = 0;
  double fp16_flop = 0;
};

// Throws Failure(SPYRE_STOPPED) for more work than can be timed.
SectionWork unrolled(const Program& program, size_t first, const Spec& spec, const int64_t* slots);

}  // namespace spyre
