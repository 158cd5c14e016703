// Float ops one after another, whose values stay in the host's vector registers.
//
// A chain is a list of links. Each link does one thing to a stick of 64 lanes and hands it on to
// the next one in registers, so only operands and results touch memory: the same operations on
// every lane in the same order as over registers of the vector interpreter, hence the same bits.
#pragma once

#include "kernels.h"

namespace spyre {

using LinkFn = void (*)();  // its real type is known where it is made (chain.inc)

struct Link {
  LinkFn run;
  uintptr_t at;    // what it reads or writes: of lane 0 of a row, or one stick for all lanes
  uintptr_t step;  // bytes from row to row, modulo 2^64
};

// Where an operand lies: a RowKind, or one stick of f32.
constexpr int kHeldStick = kRowKinds;
constexpr int kSources = kRowKinds + 1;

// Of values in memory; -1 where chains cannot read or write them.
constexpr int row_kind(DType type) {
  const bool known = type == DType::F16 || type == DType::BF16 || type == DType::F32;
  return known ? static_cast<int>(type) : -1;
}

struct ChainOp {
  LinkFn alone = nullptr;        // op(value), op(value, value)
  LinkFn with[kSources] = {};    // op(value, operand)
  LinkFn behind[kSources] = {};  // op(operand, value)
};

struct Chains {
  ChainOp ops[128];  // by op code; without `alone` where there is none
  ChainOp casts[kDTypes];
  LinkFn load[kSources];
  LinkFn store[kScalarRows];  // by RowKind
  LinkFn hold;                // to one stick
  LinkFn reduce[6];           // at[lane] = op(at[lane], value), f32
  LinkFn reduce_stick[6];     // the same to one stick
  LinkFn end;                 // the last link
  // All links but the last one move on by their steps with every row. `lanes`: whole sticks.
  void (*run)(Link* links, int count, int64_t rows, int64_t first_lane, int64_t lanes);
};

}  // namespace spyre
