// What an instruction sees while a core executes it: ranges, operands, scratch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "batch.h"
#include "decode.h"
#include "memory.h"
#include "panels.h"
#include "pool.h"

namespace spyre {

using Wide = __int128;  // addresses of a malformed program must not wrap around

// Aligned bytes of one thread that only grow: a launch that ran before allocates nothing.
class Scratch {
 public:
  char* bytes(int64_t count) {
    if (count > capacity_) {
      data_.reset(static_cast<char*>(::operator new[](count, std::align_val_t{64})));
      capacity_ = count;
    }
    return data_.get();
  }
  int64_t capacity() const { return capacity_; }

 private:
  struct Free {
    void operator()(char* at) const { ::operator delete[](at, std::align_val_t{64}); }
  };
  std::unique_ptr<char[], Free> data_;
  int64_t capacity_ = 0;
};

// Per host thread.
struct Worker {
  std::vector<AxisRange> axes;
  Scratch rows;       // widened rows of a matmul's a
  Scratch panels;     // a matmul's b, where it is not read in place
  Scratch registers;  // of the vector interpreter
  Scratch tiles;      // of trips that run together
  Scratch sums;       // of numerics `card`: a matmul's totals, the open chunks of reductions
};

// Which thread runs which core is chance: every thread gets what one of them has needed so far, so
// that launches stop allocating after the first.
void share_scratch(std::vector<Worker>* workers);

// Whether the host wants a launch to end before it is done. Whoever loops over more than some
// ten thousand points looks in between.
struct Interrupt {
  std::atomic<bool> wanted{false};
  void check() const {
    if (wanted.load(std::memory_order_relaxed)) throw Failure(SPYRE_INTERRUPTED, "interrupted");
  }
};

class KeptTable;

// The parts of a card that execution uses.
struct Machine {
  const Kernels* kernels;  // of values in LX and in the pool
  const Kernels* storage;  // of tensors that PyTorch can see
  Numerics numerics;
  Mapping* memory;
  Scratchpads* lx;
  Pool* pool;
  PanelCache* panels;
  std::vector<Worker>* workers;  // one per thread of the pool
  uint64_t launch;               // number of the launch, ascending
  unsigned debug;                // SPYRE_DEBUG_* flags
  const Interrupt* interrupt;
  KeptTable* kept;  // of what LX holds

  // Numerics `card` holds 16-bit floats as DL16 codes in LX and in the pool. What PyTorch can see
  // is what its dtype says, and becomes DL16 where it is read.
  bool rounds(const Place& place) const {
    return numerics.card && place.argument >= 0 &&
           (place.dtype == DType::F16 || place.dtype == DType::BF16);
  }
  // f32 values to DL16; at most kMaxLanes at a time.
  VecFn rounding() const { return kernels->cast[static_cast<int>(DType::F16)][0]; }
};

// Which copy of every double buffer an instruction reads and writes. A launch in body order needs
// only the first copy, whatever was written last; late transfers need both.
struct BufferSlots {
  const uint8_t* read;  // by buffer; null: the first copy
  const uint8_t* write;
};
enum class Mode : uint8_t { Read, Write };

// The axes an instruction walks and how many points of each.
struct Walk {
  int size = 0;
  int trips = -1;  // position of the trips of a loop that run together
  int axis[kMaxAxes];
  int64_t count[kMaxAxes];
  void add(const std::vector<int>& axes, const std::vector<AxisRange>& ranges);
  void add(const Trips* trips);  // before the axes; none if null
  bool empty() const;
};

// An operand at the start of every walked range, with its strides in bytes by position in the walk.
struct Operand {
  char* at;
  int64_t stride[kMaxAxes];
};

struct Frame {
  const Machine& machine;
  const Program& program;
  const int64_t* slots;
  const std::vector<AxisRange>& axes;
  char* lx;
  Worker& worker;
  BufferSlots buffer_slots{nullptr, nullptr};
  const Trips* trips = nullptr;  // inside of a loop whose trips run together

  const Kernels& kernels() const { return *machine.kernels; }

  // The operand, all of whose elements lie in its memory; throws Failure(SPYRE_STOPPED) otherwise.
  Operand operand(const Place& place, const Walk& walk, int origin, Mode mode = Mode::Read) const;
  // The same without the check, and without reading `at`'s memory being legal yet.
  Operand unchecked(const Place& place, const Walk& walk, Mode mode = Mode::Read) const;
  // Refuses [low, high) outside of the place's memory (of its buffer, for LX).
  void check(const Place& place, Wide low, Wide high, int origin) const;

  // The user's op behind an instruction.
  const std::string& source(int origin) const;
  [[noreturn]] void stop(int origin, const std::string& why) const;

 private:
  char* data_of(const Place& place, Mode mode) const;  // what its addresses count from
  bool is_held(const Place& place) const { return trips && trips->holds(place); }
};

}  // namespace spyre
