// A vector program ready to run: steps with kernels looked up and registers assigned.
#pragma once

#include <cstdint>
#include <vector>

#include "chain.h"
#include "decode.h"

namespace spyre {

constexpr int kMaxStreams = 128;  // inputs, outputs and indices of one instruction

struct VecStep {
  enum Kind : uint8_t { Const, Scalar, Load, Index, Call, Output };
  Kind kind;
  int value_class = 0;
  int to = 0;        // register it fills; Output: register it stores
  int args[3] = {};  // Call: registers
  uint8_t arg_class[3] = {};
  uint8_t arity = 0;
  int direct = -1;      // Call: the one f32 output that is all that needs its value
  int uses = 0;         // Call: how often its value is an argument or an output
  int number = 0;       // Load: input, Index: index, Scalar: slot, Output: output
  int spare = 0;        // Output with a reduction: register for the partial results
  int64_t element = 0;  // Output: bytes
  bool narrow = false;  // Output: a sum that runs in DL16 under numerics `card`
  VecFn call = nullptr;
  const RowsFns* rows = nullptr;   // Call: the same over operands where they lie, if there is such
  const ChainOp* chain = nullptr;  // Call: the same as a link of a chain, if there is such
  LoadFn load = nullptr;           // Load; Output: of what a reduction continues
  StoreFn store = nullptr;         // Output
  double constant = 0;
  int64_t integer = 0;
};

struct VecCode {
  std::vector<VecStep> once;  // per instruction: constants and scalars
  std::vector<VecStep> each;  // per block of rows and lanes
  int registers = 1;
  int64_t lane_bytes = 4;      // of the widest class in use
  bool any_order = true;       // no output depends on the order of points: no scan, no sum
  bool in_place = false;       // an output may lie over an input
  bool reduces_lanes = false;  // possibly: some output is a reduction
  bool chained = false;        // a chain (chain.h) could run it, and would save a pass
};

// Throws Failure(SPYRE_INVALID_PROGRAM) for what the kernels cannot do.
VecCode compile_vec(const Vec& vec, const std::vector<Buffer>& buffers, const Kernels& kernels);

}  // namespace spyre
