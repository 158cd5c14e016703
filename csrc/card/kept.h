// What LX keeps between launches: the bytes that a program's prologue has loaded.
//
// A program's prologue (program.py) loads bytes of arguments into LX buffers that nothing else of
// the program writes. While nobody has written these bytes, in LX or in device memory, the next
// launch with the same addresses leaves the prologue out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "decode.h"
#include "execute_plan.h"
#include "numerics.h"

namespace spyre {

// The prologue of one program, and what LX has of it.
class Prologue {
 public:
  explicit Prologue(const Program& program);

  const Program& program() const { return program_; }
  int sections() const { return program_.prologue; }
  uint64_t bytes() const;  // of LX, over all cores

 private:
  friend class KeptTable;
  struct Load {
    const Copy* copy;
    const Section* section;
  };
  // Of one table (KeptTable).
  struct State {
    bool held = false;
    std::vector<int64_t> values;  // of the slots that decide what is loaded
    std::vector<Reach> sources;   // by load
    Numerics numerics;
    uint64_t loads = 0, hits = 0;
  };

  const Program& program_;
  std::vector<Load> loads_;
  State states_[2];
};

// What is held of all programs of a card, as launches and writes come, in one order: that in which
// they run (`Actual`), or that in which they are submitted (`Expected`), which says how long they
// take. Any thread.
class KeptTable {
 public:
  enum Order { Actual, Expected };
  explicit KeptTable(Order order) : order_(order) {}

  void add(Prologue& prologue);
  void remove(Prologue& prologue);

  // A launch begins: true if LX holds what its prologue loads. Otherwise it does from now on:
  // the launch loads it. What other programs keep in bytes that this one uses is forgotten.
  bool begin(Prologue& prologue, const int64_t* slots, const Numerics& numerics);
  // The launch has failed.
  void forget(Prologue& prologue);
  void forget_all();
  // Bytes [low, high) of device memory may have changed.
  void touch(uintptr_t low, uintptr_t high);
  bool empty() const { return held_.load(std::memory_order_relaxed) == 0; }

  // Bytes of every core's LX that are held, sorted, those of one program left out.
  std::vector<ByteRange> ranges(const Program* without) const;

  struct Shown {
    std::string name;  // of the program
    uint64_t bytes;    // of LX, over all cores
    uint64_t loads, hits;
  };
  std::vector<Shown> shown() const;

 private:
  Prologue::State& state(Prologue& prologue) const { return prologue.states_[order_]; }
  void drop(Prologue::State& state);

  const Order order_;
  mutable std::mutex mutex_;
  std::vector<Prologue*> all_;  // with a prologue
  std::atomic<int> held_{0};
};

}  // namespace spyre
