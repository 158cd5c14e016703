// RING: moves bytes from the LX of the cores that hold them.
#include <cstring>

#include "execute_units.h"
#include "ring_pieces.h"

namespace spyre {
namespace {

struct Bytes {
  Wide low, high;
};

Bytes reach_of(Wide start, const Operand& operand, const Walk& walk, int64_t size) {
  Bytes reach{start, start + size};
  for (int i = 0; i < walk.size; ++i) {
    const Wide step = static_cast<Wide>(operand.stride[i]) * (walk.count[i] - 1);
    (step < 0 ? reach.low : reach.high) += step;
  }
  return reach;
}

// A core may move within its own LX: point by point where source and target lie interleaved.
void move_singly(const Walk& walk, const Operand& from, const Operand& to, int64_t size,
                 const Interrupt& interrupt) {
  int64_t at[kMaxAxes] = {};
  const char* source = from.at;
  char* target = to.at;
  for (;;) {
    interrupt.check();
    std::memmove(target, source, static_cast<size_t>(size));
    int axis = walk.size - 1;
    for (; axis >= 0; --axis) {
      source += from.stride[axis];
      target += to.stride[axis];
      if (++at[axis] < walk.count[axis]) break;
      source -= from.stride[axis] * walk.count[axis];
      target -= to.stride[axis] * walk.count[axis];
      at[axis] = 0;
    }
    if (axis < 0) return;
  }
}

}  // namespace

void execute_ring(const Frame& frame, const Ring& ring, int core) {
  Walk walk;
  walk.add(ring.axes, frame.axes);
  if (walk.empty()) return;
  const int64_t size = bytes_of(ring.source.dtype);
  const Operand whole = frame.operand(ring.target, walk, ring.origin, Mode::Write);
  const std::vector<int64_t> steps = source_steps(ring, frame.slots);
  Operand from{};
  for (int i = 0; i < walk.size; ++i) from.stride[i] = steps[static_cast<size_t>(i)];
  for (const RingPiece& piece : ring_pieces(ring, frame.slots, frame.axes, core)) {
    Operand to = whole;
    for (int i = 0; i < walk.size; ++i) {
      const auto at = static_cast<size_t>(i);
      walk.count[i] = piece.count[at];
      to.at += (piece.start[at] - frame.axes[ring.axes[at]].start) * to.stride[i];
    }
    const Bytes source = reach_of(piece.source, from, walk, size);
    frame.check(ring.source, source.low, source.high, ring.origin);
    from.at = frame.machine.lx->of_core(piece.core) +
              frame.program.buffers[ring.source.buffer].offset + static_cast<int64_t>(piece.source);
    const auto place = [](const char* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
    const Bytes a = reach_of(place(from.at), from, walk, size);
    const Bytes b = reach_of(place(to.at), to, walk, size);
    if (a.low < b.high && b.low < a.high) {
      move_singly(walk, from, to, size, *frame.machine.interrupt);
    } else {
      move_points(walk, from, to, size, *frame.machine.interrupt);
    }
  }
}

}  // namespace spyre
