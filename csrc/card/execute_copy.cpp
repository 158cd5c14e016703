// LOAD and STORE: moves bytes between device memory and LX.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "execute_units.h"

namespace spyre {
namespace {

constexpr int64_t kPiece = 1 << 16;  // elements that are moved without a look at the interrupt

struct Dim {
  int64_t count, from, to;  // strides in bytes
};

// --- conversions between what PyTorch sees and DL16 codes (Machine::rounds) -----------------

struct Conversion {
  LoadFn load = nullptr;  // null: the bytes stay what they are
  VecFn round = nullptr;  // to DL16, where both ends are what PyTorch sees
  StoreFn store = nullptr;
};

// DL16 to what PyTorch sees.
StoreFn stored_outside(const Machine& machine, DType dtype) {
  const bool truncated = dtype == DType::BF16 && machine.numerics.truncate_bf16;
  return truncated ? machine.storage->store_bf16_truncated
                   : machine.storage->store[static_cast<int>(dtype)];
}

Conversion conversion_of(const Machine& machine, const Place& source, const Place& target) {
  const bool from = machine.rounds(source), to = machine.rounds(target);
  if (!from && !to) return {};
  const int at = static_cast<int>(source.dtype);
  return {(from ? machine.storage : machine.kernels)->load[at],
          from && to ? machine.rounding() : nullptr,
          to ? stored_outside(machine, source.dtype) : machine.kernels->store[at]};
}

void convert_run(const Conversion& conversion, char* to, int64_t to_stride, const char* from,
                 int64_t from_stride, int64_t count) {
  alignas(64) Register values;
  for (int64_t done = 0; done < count; done += kMaxLanes) {
    const int lanes = static_cast<int>(std::min<int64_t>(kMaxLanes, count - done));
    conversion.load(&values, from + done * from_stride, from_stride, lanes);
    if (conversion.round) conversion.round(&values, &values, nullptr, nullptr, lanes);
    conversion.store(&values, to + done * to_stride, to_stride, lanes);
  }
}

// --- plain moves: no index, no bounds ------------------------------------------------------

template <class T>
void move_strided(char* to, int64_t to_stride, const char* from, int64_t from_stride,
                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, sizeof(T));
  }
}

void move_run(const Conversion& conversion, char* to, int64_t to_stride, const char* from,
              int64_t from_stride, int64_t count, int64_t size) {
  if (conversion.load) {
    return convert_run(conversion, to, to_stride, from, from_stride, count);
  }
  if (to_stride == size && from_stride == size) {
    std::memcpy(to, from, static_cast<size_t>(count * size));
    return;
  }
  switch (size) {
    case 1:
      return move_strided<uint8_t>(to, to_stride, from, from_stride, count);
    case 2:
      return move_strided<uint16_t>(to, to_stride, from, from_stride, count);
    case 4:
      return move_strided<uint32_t>(to, to_stride, from, from_stride, count);
    default:
      return move_strided<uint64_t>(to, to_stride, from, from_stride, count);
  }
}

void clear_run(char* to, int64_t stride, int64_t count, int64_t size) {
  if (stride == size) {
    std::memset(to, 0, static_cast<size_t>(count * size));
    return;
  }
  for (int64_t i = 0; i < count; ++i) std::memset(to + i * stride, 0, static_cast<size_t>(size));
}

// `a` is contiguous in the source, `b` in the target: squares of 16 stay in L1 both ways.
template <class T>
void move_transposed(char* to, const char* from, const Dim& a, const Dim& b) {
  constexpr int64_t kSquare = 16;
  for (int64_t i = 0; i < a.count; i += kSquare) {
    const int64_t last_i = std::min(i + kSquare, a.count);
    for (int64_t j = 0; j < b.count; j += kSquare) {
      const int64_t last_j = std::min(j + kSquare, b.count);
      for (int64_t x = i; x < last_i; ++x) {
        for (int64_t y = j; y < last_j; ++y) {
          std::memcpy(to + x * a.to + y * b.to, from + x * a.from + y * b.from, sizeof(T));
        }
      }
    }
  }
}

class PlainMove {
 public:
  PlainMove(const Walk& walk, const Operand& from, const Operand& to, int64_t size,
            const Conversion& conversion, const Interrupt& interrupt)
      : size_(size), conversion_(conversion), interrupt_(interrupt) {
    bool repeats = false;  // writes an element several times: the last one must win
    for (int i = 0; i < walk.size; ++i) {
      if (walk.count[i] == 1) continue;
      dims_[count_++] = {walk.count[i], from.stride[i], to.stride[i]};
      repeats |= to.stride[i] == 0;
    }
    if (!repeats) sort();
    merge();
    if (!conversion.load) find_transposition(repeats);
  }

  void run(char* to, const char* from) const { walk_dims(0, to, from); }

 private:
  // Smallest stride of the target innermost. (std::stable_sort takes memory from the heap.)
  void sort() {
    for (int i = 1; i < count_; ++i) {
      for (int j = i; j > 0 && std::llabs(dims_[j - 1].to) < std::llabs(dims_[j].to); --j) {
        std::swap(dims_[j - 1], dims_[j]);
      }
    }
  }

  void merge() {
    int kept = 0;
    for (int i = 0; i < count_; ++i) {
      const Dim& d = dims_[i];
      Dim* outer = kept ? &dims_[kept - 1] : nullptr;
      if (outer && outer->from == d.from * d.count && outer->to == d.to * d.count) {
        *outer = {outer->count * d.count, d.from, d.to};
      } else {
        dims_[kept++] = d;
      }
    }
    count_ = kept;
  }

  void find_transposition(bool repeats) {
    if (repeats || count_ < 2 || dims_[count_ - 1].to != size_ || dims_[count_ - 1].from == size_) {
      return;
    }
    for (int i = 0; i + 1 < count_; ++i) {
      if (dims_[i].from != size_) continue;
      std::rotate(dims_ + i, dims_ + i + 1, dims_ + count_ - 1);
      transposes_ = true;
      return;
    }
  }

  void walk_dims(int depth, char* to, const char* from) const {
    const int left = count_ - depth;
    interrupt_.check();
    if (left == 0) {
      move_run(conversion_, to, size_, from, size_, 1, size_);
    } else if (left == 1) {
      move_pieces(to, from, dims_[depth]);
    } else if (left == 2 && transposes_) {
      transpose(to, from, dims_[depth], dims_[depth + 1]);
    } else {
      const Dim& d = dims_[depth];
      for (int64_t i = 0; i < d.count; ++i) walk_dims(depth + 1, to + i * d.to, from + i * d.from);
    }
  }

  void move_pieces(char* to, const char* from, const Dim& d) const {
    for (int64_t i = 0; i < d.count; i += kPiece) {
      if (i) interrupt_.check();
      move_run(conversion_, to + i * d.to, d.to, from + i * d.from, d.from,
               std::min(kPiece, d.count - i), size_);
    }
  }

  void transpose(char* to, const char* from, const Dim& a, const Dim& b) const {
    switch (size_) {
      case 1:
        return move_transposed<uint8_t>(to, from, a, b);
      case 2:
        return move_transposed<uint16_t>(to, from, a, b);
      case 4:
        return move_transposed<uint32_t>(to, from, a, b);
      default:
        return move_transposed<uint64_t>(to, from, a, b);
    }
  }

  Dim dims_[kMaxAxes];
  int count_ = 0;
  bool transposes_ = false;
  int64_t size_;
  Conversion conversion_;
  const Interrupt& interrupt_;
};

// --- adding stores -------------------------------------------------------------------------

// An element as a value of its class.
void load_element(const Frame& frame, const Place& place, const char* at, Register* to) {
  const bool rounded = frame.machine.rounds(place);
  const Kernels& k = rounded ? *frame.machine.storage : frame.kernels();
  k.load[static_cast<int>(place.dtype)](to, at, 0, 1);
  if (rounded) frame.machine.rounding()(to, to, nullptr, nullptr, 1);
}

void add_element(const Frame& frame, const Place& source, const Place& target, char* to,
                 const char* value) {
  const Kernels& k = frame.kernels();
  const int at = static_cast<int>(target.dtype), value_class = class_of(target.dtype);
  const Reduce op = value_class == 3 ? Reduce::Any : Reduce::Sum;
  auto* regs = reinterpret_cast<Register*>(frame.worker.registers.bytes(2 * sizeof(Register)));
  load_element(frame, target, to, &regs[0]);
  load_element(frame, source, value, &regs[1]);
  k.combine[static_cast<int>(op)][value_class](&regs[0], &regs[0], &regs[1], nullptr, 1);
  const bool rounded = frame.machine.rounds(target);
  if (rounded) frame.machine.rounding()(&regs[0], &regs[0], nullptr, nullptr, 1);
  const StoreFn store = rounded ? stored_outside(frame.machine, target.dtype) : k.store[at];
  store(&regs[0], to, bytes_of(target.dtype), 1);
}

// --- moves with indices, bounds or adding: row by row in the order of the axes -------------

int64_t read_index(const char* at, DType dtype) {
  auto as = [at](auto value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<int64_t>(value);
  };
  switch (dtype) {
    case DType::I64:
      return as(int64_t{});
    case DType::I32:
      return as(int32_t{});
    case DType::I16:
      return as(int16_t{});
    case DType::I8:
      return as(int8_t{});
    default:
      return as(uint8_t{});
  }
}

Wide floor_div(Wide a, Wide b) {
  const Wide q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

struct Interval {
  int64_t low, high;
};

class CarefulMove {
 public:
  CarefulMove(const Frame& frame, const Copy& copy, const Place& source, const Walk& walk,
              const Operand& from, const Operand& to, const Operand* indices)
      : frame_(frame),
        copy_(copy),
        source_(source),
        walk_(walk),
        from_(from),
        to_(to),
        indices_(indices),
        size_(bytes_of(copy.source.dtype)),
        conversion_(conversion_of(frame.machine, source, copy.target)),
        lane_(walk.size - 1),
        lanes_(walk.size ? walk.count[lane_] : 1) {
    for (size_t i = 0; i < copy.indirect.size(); ++i) {
      lane_indexed_ |= walk.size && indices[i].stride[lane_] != 0 && lanes_ > 1;
    }
  }

  void run() {
    int64_t at[kMaxAxes] = {};
    for (;;) {
      row(at);
      int axis = lane_ - 1;
      for (; axis >= 0; --axis) {
        if (++at[axis] < walk_.count[axis]) break;
        at[axis] = 0;
      }
      if (axis < 0) return;
    }
  }

 private:
  // The address of a row's lane 0; wide because the device side is not checked yet.
  static Wide moved(const Operand& operand, const int64_t* at, int dims) {
    Wide place = reinterpret_cast<uintptr_t>(operand.at);
    for (int i = 0; i < dims; ++i) place += static_cast<Wide>(at[i]) * operand.stride[i];
    return place;
  }

  static char* pointer(Wide address) {
    return reinterpret_cast<char*>(static_cast<uintptr_t>(address));
  }

  int64_t lane_stride(const Operand& operand) const {
    return walk_.size ? operand.stride[lane_] : size_;
  }

  // The lanes of a row that all bounds allow.
  Interval allowed(const int64_t* at) const {
    Interval in = {0, lanes_};
    for (const Bound& bound : copy_.bounds) {
      Wide offset = bound.offset.of(frame_.slots);
      Wide step = 0;
      const Wide size = bound.size.of(frame_.slots);
      for (const Term& term : bound.terms) {
        const Wide coefficient = term.coefficient.of(frame_.slots);
        offset += coefficient * frame_.axes[term.axis].start;
        for (int i = 0; i < walk_.size; ++i) {
          if (walk_.axis[i] != term.axis) continue;
          if (i == lane_) step = coefficient;
          if (i != lane_) offset += coefficient * at[i];
        }
      }
      clip(&in, offset, step, size);
    }
    if (in.high < in.low) in.high = in.low;
    return in;
  }

  // Keeps the x with 0 <= offset + step * x < size.
  static void clip(Interval* in, Wide offset, Wide step, Wide size) {
    Wide low = 0, high = in->high;
    if (step == 0) {
      if (offset < 0 || offset >= size) high = 0;
    } else if (step > 0) {
      low = -floor_div(offset, step);          // ceil(-offset / step)
      high = -floor_div(offset - size, step);  // ceil((size - offset) / step)
    } else {
      low = floor_div(offset - size, -step) + 1;  // offset + step x < size
      high = floor_div(offset, -step) + 1;        // offset + step x >= 0
    }
    if (low > in->low) in->low = static_cast<int64_t>(low < in->high ? low : in->high);
    if (high < in->high) in->high = static_cast<int64_t>(high > 0 ? high : 0);
  }

  void row(const int64_t* at) {
    frame_.machine.interrupt->check();
    const int outer = walk_.size ? lane_ : 0;
    const bool load = copy_.is_load();
    const Wide device = moved(load ? from_ : to_, at, outer);
    char* const lx = pointer(moved(load ? to_ : from_, at, outer));
    const Interval in = allowed(at);
    if (load) {
      clear(lx, 0, in.low);
      clear(lx, in.high, lanes_);
    }
    const int64_t step = lane_indexed_ ? 1 : kPiece;
    for (int64_t x = in.low; x < in.high; x += step) {
      piece(device, lx, at, x, std::min(x + step, in.high));
    }
  }

  void clear(char* lx, int64_t first, int64_t last) const {
    const int64_t stride = lane_stride(to_);
    for (int64_t x = first; x < last; x += kPiece) {
      frame_.machine.interrupt->check();
      clear_run(lx + x * stride, stride, std::min(kPiece, last - x), size_);
    }
  }

  // Lanes [first, last), which share their indices.
  void piece(Wide device, char* lx, const int64_t* at, int64_t first, int64_t last) {
    frame_.machine.interrupt->check();
    const bool load = copy_.is_load();
    for (size_t i = 0; i < copy_.indirect.size(); ++i) {
      int64_t index;
      if (!resolve(copy_.indirect[i], indices_[i], at, first, &index)) {
        if (load) clear(lx, first, last);
        return;
      }
      device += static_cast<Wide>(copy_.indirect[i].coefficient.of(frame_.slots)) * index;
    }
    const int64_t from_stride = lane_stride(from_), to_stride = lane_stride(to_);
    const Wide step = load ? from_stride : to_stride;
    const Wide a = device + step * first, b = device + step * (last - 1);
    frame_.check(copy_.device(), a < b ? a : b, (a < b ? b : a) + size_, copy_.origin);
    char* const to = load ? lx + first * to_stride : pointer(a);
    const char* const from = load ? pointer(a) : lx + first * from_stride;
    if (!copy_.add) {
      move_run(conversion_, to, to_stride, from, from_stride, last - first, size_);
      return;
    }
    for (int64_t x = 0; x < last - first; ++x) {
      add_element(frame_, source_, copy_.target, to + x * to_stride, from + x * from_stride);
    }
  }

  // The checked index of a piece; false: a clamped one that is outside.
  bool resolve(const Indirect& indirect, const Operand& operand, const int64_t* at, int64_t lane,
               int64_t* index) const {
    const char* place = pointer(moved(operand, at, walk_.size ? lane_ : 0));
    if (walk_.size) place += lane * operand.stride[lane_];
    const int64_t given = read_index(place, indirect.place.dtype);
    const int64_t size = indirect.size.of(frame_.slots);
    *index = indirect.wrap && given < 0 ? given + std::max<int64_t>(size, 0) : given;
    if (*index >= 0 && *index < size) return true;
    if (indirect.clamp) return false;
    throw Failure(SPYRE_INDEX, frame_.source(copy_.origin) + ": index " + std::to_string(given) +
                                   " is out of range for a dimension of size " +
                                   std::to_string(size));
  }

  const Frame& frame_;
  const Copy& copy_;
  const Place& source_;  // where it really lies
  const Walk& walk_;
  const Operand &from_, &to_;
  const Operand* indices_;
  const int64_t size_;
  const Conversion conversion_;
  const int lane_;
  const int64_t lanes_;
  bool lane_indexed_ = false;
};

}  // namespace

void move_points(const Walk& walk, const Operand& from, const Operand& to, int64_t size,
                 const Interrupt& interrupt) {
  PlainMove(walk, from, to, size, {}, interrupt).run(to.at, from.at);
}

void execute_copy(const Frame& frame, const Copy& copy, const Places& places) {
  Walk walk;
  walk.add(frame.trips);
  walk.add(copy.axes, frame.axes);
  if (walk.empty()) return;
  const Place& source = places(0, copy.source);
  if (copy.indirect.empty() && copy.bounds.empty() && !copy.add) {
    const Operand from = frame.operand(source, walk, copy.origin);
    const Operand to = frame.operand(copy.target, walk, copy.origin, Mode::Write);
    if (places.elided) return;
    const Conversion conversion = conversion_of(frame.machine, source, copy.target);
    const Interrupt& interrupt = *frame.machine.interrupt;
    PlainMove(walk, from, to, bytes_of(copy.source.dtype), conversion, interrupt)
        .run(to.at, from.at);
    return;
  }
  const bool load = copy.is_load();
  const Operand from =
      load ? frame.unchecked(source, walk) : frame.operand(source, walk, copy.origin);
  const Operand to = load ? frame.operand(copy.target, walk, copy.origin, Mode::Write)
                          : frame.unchecked(copy.target, walk);
  Operand indices[kMaxAxes];
  for (size_t i = 0; i < copy.indirect.size(); ++i) {
    indices[i] =
        frame.operand(places(static_cast<int>(i) + 1, copy.indirect[i].place), walk, copy.origin);
  }
  CarefulMove(frame, copy, source, walk, from, to, indices).run();
}

}  // namespace spyre
