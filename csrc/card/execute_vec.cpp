// SFU: runs compiled vector programs over blocks of rows x lanes.
#include <algorithm>
#include <cstring>

#include "execute_units.h"

namespace spyre {
namespace {

constexpr int64_t kBlockBytes = 24 << 10;  // of live registers: they stay in L1
constexpr int64_t kAlign = 16;             // lanes; rows in a register begin at 64 bytes

int64_t lane_bytes(int value_class) { return value_class == 0 ? 4 : 8; }

// Lane `lane` of a register of a class, as a register.
Register* part(Register* reg, int64_t lane, int value_class) {
  return reinterpret_cast<Register*>(reinterpret_cast<char*>(reg) + lane * lane_bytes(value_class));
}

// The walked axes after merging: rows are walked by `dims`, the innermost of them in blocks.
struct Dim {
  int64_t count;
  int64_t position;  // in the instruction's own walk
};

class VecRun {
 public:
  VecRun(const Frame& frame, const Vec& vec, const VecCode& code, const Places& places)
      : frame_(frame), vec_(vec), code_(code), kernels_(frame.kernels()) {
    walk_.add(vec.axes, frame.axes);
    for (size_t i = 0; i < vec.inputs.size(); ++i) {
      const Place& place = places(static_cast<int>(i), vec.inputs[i]);
      rounded_[i] = frame.machine.rounds(place);
      streams_[count_++] = frame.operand(place, walk_, vec.origin);
    }
    first_output_ = count_;
    for (const VecOut& out : vec.outputs) {
      streams_[count_++] = frame.operand(out.place, written(out), vec.origin, Mode::Write);
    }
    first_index_ = count_;
    for (const VecIndex& index : vec.indices) streams_[count_++] = index_stream(index);
    add_chunk_streams();
  }

  void run() {
    if (walk_.empty()) {
      for (size_t i = 0; i < vec_.outputs.size(); ++i) store_neutral(static_cast<int>(i));
      return;
    }
    choose_dims();
    regs_ = reinterpret_cast<Register*>(
        frame_.worker.registers.bytes(code_.registers * sizeof(Register)));
    for (const VecStep& step : code_.once) run_once(step);
    rows_of_dim(0, 0);
  }

 private:
  // --- operands ---

  // What an output writes: a reduced axis is walked, but not written.
  Walk written(const VecOut& out) const {
    if (out.reduce == Reduce::None || out.scan) return walk_;
    Walk kept = walk_;
    for (int i = 0; i < kept.size; ++i) {
      if (!has_term(out.place, kept.axis[i])) kept.count[i] = 1;
    }
    return kept;
  }

  // An index value as a stream: `at` holds the value at the start, strides are counts.
  Operand index_stream(const VecIndex& index) const {
    Operand stream;
    uint64_t value = static_cast<uint64_t>(index.offset.of(frame_.slots));
    for (int i = 0; i < walk_.size; ++i) stream.stride[i] = 0;
    for (const Term& term : index.terms) {
      const uint64_t coefficient = static_cast<uint64_t>(term.coefficient.of(frame_.slots));
      value += coefficient * static_cast<uint64_t>(frame_.axes[term.axis].start);
      for (int i = 0; i < walk_.size; ++i) {
        if (walk_.axis[i] == term.axis) stream.stride[i] = static_cast<int64_t>(coefficient);
      }
    }
    stream.at = reinterpret_cast<char*>(static_cast<uintptr_t>(value));
    return stream;
  }

  // --- shape ---

  bool reduces(const VecOut& out, int position) const {
    return out.reduce != Reduce::None && !out.scan && !has_term(out.place, walk_.axis[position]);
  }

  // The inner position can take the outer one in: every stream continues and no output treats
  // them differently. Rows of a reduction or scan over the lanes keep their lanes: which partial
  // sum a lane joins must not depend on strides.
  bool mergeable(int outer, int inner, int64_t inner_count) const {
    for (int s = 0; s < count_; ++s) {
      const int64_t* stride = streams_[s].stride;  // of an index, any number; it wraps around
      const auto reach = static_cast<uint64_t>(stride[inner]) * static_cast<uint64_t>(inner_count);
      if (static_cast<uint64_t>(stride[outer]) != reach) return false;
    }
    for (const VecOut& out : vec_.outputs) {
      if (out.scan || reduces(out, inner) || reduces(out, outer)) return false;
    }
    return true;
  }

  void choose_dims() {
    Dim kept[kMaxAxes];
    int size = 0;
    for (int i = 0; i < walk_.size; ++i) {
      if (walk_.count[i] == 1) continue;
      Dim* last = size ? &kept[size - 1] : nullptr;
      if (last && mergeable(static_cast<int>(last->position), i, walk_.count[i])) {
        *last = {last->count * walk_.count[i], i};
      } else {
        kept[size++] = {walk_.count[i], i};
      }
    }
    lanes_ = size ? kept[--size] : Dim{1, -1};
    for (int i = 0; i < size; ++i) dims_[i] = kept[i];
    depth_ = size ? size - 1 : 0;
    rows_ = size ? dims_[size - 1] : Dim{1, -1};
    const int64_t fitting = kBlockBytes / (code_.registers * code_.lane_bytes) / kLanes * kLanes;
    capacity_ = std::clamp<int64_t>(fitting, kLanes, kMaxLanes);
    pitch_ = (std::min(lanes_.count, capacity_) + kAlign - 1) / kAlign * kAlign;
    block_rows_ = lanes_.count <= capacity_ ? std::max<int64_t>(capacity_ / pitch_, 1) : 1;
    for (size_t i = 0; i < vec_.outputs.size(); ++i) {
      lane_reduced_[i] = lanes_.position >= 0 && reduces(vec_.outputs[i], lane_position());
    }
  }

  int lane_position() const { return static_cast<int>(lanes_.position); }

  int64_t stride(int stream, const Dim& dim) const {
    return dim.position < 0 ? 0 : streams_[stream].stride[dim.position];
  }

  // Walks the outer dims; `at_` holds the coordinate of each.
  void rows_of_dim(int dim, int64_t) {
    if (dim < depth_) {
      for (at_[dim] = 0; at_[dim] < dims_[dim].count; ++at_[dim]) rows_of_dim(dim + 1, 0);
      return;
    }
    for (int s = 0; s < count_; ++s) {
      uintptr_t at = reinterpret_cast<uintptr_t>(streams_[s].at);
      for (int d = 0; d < depth_; ++d) {
        at += static_cast<uintptr_t>(at_[d]) * static_cast<uintptr_t>(stride(s, dims_[d]));
      }
      row_base_[s] = at;
    }
    for (row_ = 0; row_ < rows_.count; row_ += block_rows_) {
      block_ = std::min(block_rows_, rows_.count - row_);
      start_rows();
      for (lane_ = 0; lane_ < lanes_.count; lane_ += capacity_) {
        width_ = std::min(capacity_, lanes_.count - lane_);
        for (const VecStep& step : code_.each) run_step(step);
      }
      finish_rows();
    }
  }

  // --- one block: rows [row_, row_ + block_), lanes [lane_, lane_ + width_) ---

  char* address(int stream, int64_t row, int64_t lane) const {
    const uintptr_t at =
        row_base_[stream] +
        static_cast<uintptr_t>(row) * static_cast<uintptr_t>(stride(stream, rows_)) +
        static_cast<uintptr_t>(lane) * static_cast<uintptr_t>(stride(stream, lanes_));
    return reinterpret_cast<char*>(at);
  }

  int all_lanes() const { return static_cast<int>((block_ - 1) * pitch_ + width_); }

  void run_once(const VecStep& step) {
    Register* to = regs_ + step.to;
    const double number = step.kind == VecStep::Scalar ? scalar(step.number) : step.constant;
    for (int i = 0; i < kMaxLanes; ++i) {
      if (step.value_class == 0) {
        to->f[i] = static_cast<float>(number);
      } else {
        to->i[i] = step.kind == VecStep::Scalar ? whole(number, step.value_class) : step.integer;
      }
    }
  }

  double scalar(int slot) const {
    double number;
    std::memcpy(&number, &frame_.slots[slot], sizeof number);
    return number;
  }

  static int64_t whole(double number, int value_class) {
    if (value_class == 3) return number != 0;
    const bool fits = number >= -9223372036854775808.0 && number < 9223372036854775808.0;
    const int64_t value = fits ? static_cast<int64_t>(number) : INT64_MIN;
    return value_class == 2 ? static_cast<int32_t>(value) : value;
  }

  void run_step(const VecStep& step) {
    switch (step.kind) {
      case VecStep::Call:
        step.call(regs_ + step.to, regs_ + step.args[0], regs_ + step.args[1], regs_ + step.args[2],
                  all_lanes());
        break;
      case VecStep::Load:
        load(step);
        break;
      case VecStep::Index:
        index(step);
        break;
      default:
        output(step);
    }
  }

  void load(const VecStep& step) {
    const int64_t along = stride(step.number, lanes_);
    const bool rounded = rounded_[step.number];
    const DType dtype = vec_.inputs[step.number].dtype;
    const LoadFn load = rounded ? frame_.machine.storage->load[static_cast<int>(dtype)] : step.load;
    for (int64_t r = 0; r < block_; ++r) {
      load(part(regs_ + step.to, r * pitch_, step.value_class),
           address(step.number, row_ + r, lane_), along, static_cast<int>(width_));
    }
    if (!rounded) return;
    Register* const to = regs_ + step.to;
    frame_.machine.rounding()(to, to, nullptr, nullptr, all_lanes());
  }

  void index(const VecStep& step) {
    const int stream = first_index_ + step.number;
    const uint64_t along = static_cast<uint64_t>(stride(stream, lanes_));
    for (int64_t r = 0; r < block_; ++r) {
      uint64_t value = reinterpret_cast<uintptr_t>(address(stream, row_ + r, lane_));
      int64_t* to = (regs_ + step.to)->i + r * pitch_;
      for (int64_t x = 0; x < width_; ++x, value += along) {
        to[x] = step.value_class == 2 ? static_cast<int32_t>(value) : static_cast<int64_t>(value);
      }
    }
  }

  void output(const VecStep& step) {
    const VecOut& out = vec_.outputs[step.number];
    if (out.scan) return scan(step, out);
    if (out.reduce == Reduce::None) return store(step);
    if (lane_reduced_[step.number]) return accumulate(step, out);
    combine_rows(step, out);
  }

  void store(const VecStep& step) {
    const int stream = first_output_ + step.number;
    const int64_t along = store_stride(stream, step);
    for (int64_t r = 0; r < block_; ++r) {
      step.store(part(regs_ + step.to, r * pitch_, step.value_class),
                 address(stream, row_ + r, lane_), along, static_cast<int>(width_));
    }
  }

  // A store's stride of 0 means nothing to the kernels: one lane is stored as if contiguous.
  int64_t store_stride(int stream, const VecStep& step) const {
    const int64_t along = stride(stream, lanes_);
    return along == 0 && lanes_.count == 1 ? step.element : along;
  }

  // --- reductions ---

  // Every reduced axis stands at the beginning, so that the stored value is not a part of it yet.
  bool begins(const VecOut& out, int64_t row) const {
    for (int i = 0; i < walk_.size; ++i) {
      if (reduces(out, i) && !frame_.axes[walk_.axis[i]].first_trip()) return false;
    }
    for (int d = 0; d < depth_; ++d) {
      if (at_[d] && reduces(out, static_cast<int>(dims_[d].position))) return false;
    }
    const bool over_rows = rows_.position >= 0 && reduces(out, static_cast<int>(rows_.position));
    return !over_rows || row == 0;
  }

  void start_rows() {
    if (!code_.reduces_lanes) return;
    for (const VecStep& step : code_.each) {
      if (step.kind != VecStep::Output || !lane_reduced_[step.number]) continue;
      const VecOut& out = vec_.outputs[step.number];
      kernels_.neutral(partials(step), out.reduce, step.value_class);
    }
  }

  Partials* partials(const VecStep& step) const {
    return reinterpret_cast<Partials*>(regs_ + step.spare);
  }

  void accumulate(const VecStep& step, const VecOut& out) {
    const auto add = kernels_.accumulate[static_cast<int>(out.reduce)][step.value_class];
    const bool chunks = in_chunks(step);
    for (int64_t r = 0; r < block_; ++r) {
      const Register* values = part(regs_ + step.to, r * pitch_, step.value_class);
      if (chunks) {
        kernels_.sum_chunks(partials(step)->f, values, static_cast<int>(width_),
                            frame_.machine.numerics);
      } else {
        add(partials(step), values, static_cast<int>(width_));
      }
      if (lanes_.count <= capacity_) {  // whole rows: each is finished at once
        fold(step, out, row_ + r);
        kernels_.neutral(partials(step), out.reduce, step.value_class);
      }
    }
  }

  void finish_rows() {
    if (!code_.reduces_lanes || lanes_.count <= capacity_) return;
    for (const VecStep& step : code_.each) {
      if (step.kind == VecStep::Output && lane_reduced_[step.number]) {
        fold(step, vec_.outputs[step.number], row_);
      }
    }
  }

  void fold(const VecStep& step, const VecOut& out, int64_t row) {
    alignas(64) Register value[2];
    const int op = static_cast<int>(out.reduce);
    if (in_chunks(step)) {
      value[0].f[0] = partials(step)->f[0];
    } else {
      kernels_.fold[op][step.value_class](partials(step), &value[0]);
    }
    char* to = address(first_output_ + step.number, row, 0);
    if (!begins(out, row)) {
      step.load(&value[1], to, 0, 1);
      combination(step, out)(&value[0], &value[1], &value[0], nullptr, 1);
    }
    step.store(&value[0], to, step.element, 1);
  }

  // --- sums in DL16: chunks of terms, each summed in DL16, their sums added in DL16 ---

  bool in_chunks(const VecStep& step) const {
    return step.narrow && frame_.machine.numerics.rounds_sums();
  }

  VecFn combination(const VecStep& step, const VecOut& out) const {
    return in_chunks(step) ? kernels_.add_dl16
                           : kernels_.combine[static_cast<int>(out.reduce)][step.value_class];
  }

  // The open chunk of every element of an output, as a dense f32 array that is walked like it.
  void add_chunk_streams() {
    if (!frame_.machine.numerics.rounds_sums()) return;
    int64_t bytes = 0;
    for (const VecStep& step : code_.each) {
      if (step.kind != VecStep::Output || !step.narrow) continue;
      const VecOut& out = vec_.outputs[step.number];
      if (out.scan) continue;
      // Every element has a place of its own in the buffer, or the program is wrong.
      const int64_t most = frame_.program.buffers[out.place.buffer].bytes;
      Operand stream;
      int64_t next = sizeof(float);
      for (int i = walk_.size - 1; i >= 0; --i) {
        stream.stride[i] = reduces(out, i) ? 0 : next;
        if (reduces(out, i)) continue;
        if (walk_.count[i] > most) frame_.stop(vec_.origin, "sums that share places");
        next *= std::max<int64_t>(walk_.count[i], 1);
        if (next / static_cast<int64_t>(sizeof(float)) > most) {
          frame_.stop(vec_.origin, "sums that share places");
        }
      }
      stream.at = reinterpret_cast<char*>(static_cast<uintptr_t>(bytes));
      chunk_stream_[step.number] = count_;
      streams_[count_++] = stream;
      bytes += next;
    }
    if (bytes == 0) return;
    char* const sums = frame_.worker.sums.bytes(bytes);
    std::memset(sums, 0, static_cast<size_t>(bytes));
    for (const VecStep& step : code_.each) {
      if (step.kind != VecStep::Output || !step.narrow) continue;
      if (vec_.outputs[step.number].scan) continue;
      Operand& stream = streams_[chunk_stream_[step.number]];
      stream.at = sums + reinterpret_cast<uintptr_t>(stream.at);
    }
  }

  // Where a row stands among the reduced points of this instruction, and how many there are.
  struct Turn {
    int64_t at = 0, of = 1;
    void inside(int64_t index, int64_t count) {
      at = at * count + index;
      of *= count;
    }
  };
  Turn turn(const VecOut& out, int64_t row) const {
    Turn found;
    for (int d = 0; d < depth_; ++d) {
      if (reduces(out, static_cast<int>(dims_[d].position))) found.inside(at_[d], dims_[d].count);
    }
    if (rows_.position >= 0 && reduces(out, static_cast<int>(rows_.position))) {
      found.inside(row, rows_.count);
    }
    return found;
  }

  bool first_trip(const VecOut& out) const {
    for (int i = 0; i < walk_.size; ++i) {
      if (reduces(out, i) && !frame_.axes[walk_.axis[i]].first_trip()) return false;
    }
    return true;
  }

  void combine_chunks(const VecStep& step, const VecOut& out) {
    const Numerics& numerics = frame_.machine.numerics;
    const int stream = first_output_ + step.number;
    const int64_t along = stride(stream, lanes_), stored = store_stride(stream, step);
    const int width = static_cast<int>(width_);
    const VecFn round = kernels_.cast[static_cast<int>(DType::F16)][0];
    const VecFn add = numerics.sum == SumFormat::F32
                          ? kernels_.combine[static_cast<int>(Reduce::Sum)][0]
                          : kernels_.add_dl16;
    Register* sum = regs_ + step.spare;
    for (int64_t r = 0; r < block_; ++r) {
      char* const open = address(chunk_stream_[step.number], row_ + r, lane_);
      char* const to = address(stream, row_ + r, lane_);
      const Turn now = turn(out, row_ + r);
      const bool fresh = first_trip(out) && now.at < std::max(numerics.chunk, 1);
      if (numerics.chunk == 0) {  // goes on from the total
        if (fresh) {
          fill_neutral(sum, out, step.value_class, width);
        } else {
          step.load(sum, to, along, width);
        }
        add(sum, sum, part(regs_ + step.to, r * pitch_, step.value_class), nullptr, width);
        step.store(sum, to, stored, width);
        continue;
      }
      std::memcpy(sum->f, open, width * sizeof(float));
      add(sum, sum, part(regs_ + step.to, r * pitch_, step.value_class), nullptr, width);
      if ((now.at + 1) % numerics.chunk != 0 && now.at + 1 != now.of) {
        std::memcpy(open, sum->f, width * sizeof(float));
        continue;
      }
      std::memset(open, 0, width * sizeof(float));
      round(sum, sum, nullptr, nullptr, width);
      if (!fresh) {
        alignas(64) Register total;
        step.load(&total, to, along, width);
        kernels_.add_dl16(sum, &total, sum, nullptr, width);
      }
      step.store(sum, to, stored, width);
    }
  }

  // A reduction over outer axes: lane by lane into what is stored.
  void combine_rows(const VecStep& step, const VecOut& out) {
    if (in_chunks(step)) return combine_chunks(step, out);
    const int stream = first_output_ + step.number;
    const auto combine = kernels_.combine[static_cast<int>(out.reduce)][step.value_class];
    const int64_t along = stride(stream, lanes_);
    const int64_t stored = store_stride(stream, step);
    const int width = static_cast<int>(width_);
    const bool over_rows = rows_.position >= 0 && reduces(out, static_cast<int>(rows_.position));
    Register* sum = regs_ + step.spare;
    for (int64_t r = 0; r < block_; ++r) {
      char* to = address(stream, row_ + r, lane_);
      if (r == 0 || !over_rows) {
        if (begins(out, row_ + r)) {
          fill_neutral(sum, out, step.value_class, width);
        } else {
          step.load(sum, to, along, width);
        }
      }
      combine(sum, sum, part(regs_ + step.to, r * pitch_, step.value_class), nullptr, width);
      if (r + 1 == block_ || !over_rows) step.store(sum, to, stored, width);
    }
  }

  void fill_neutral(Register* to, const VecOut& out, int value_class, int width) const {
    Partials neutral;
    kernels_.neutral(&neutral, out.reduce, value_class);
    for (int x = 0; x < width; ++x) {
      if (value_class == 0) to->f[x] = neutral.f[0];
      if (value_class != 0) to->i[x] = neutral.i[0];
    }
  }

  // Nothing was walked: a reduction over an empty axis still stores its neutral element.
  void store_neutral(int number) {
    const VecOut& out = vec_.outputs[number];
    if (out.reduce == Reduce::None || out.scan) return;
    int64_t at[kMaxAxes] = {};
    int positions[kMaxAxes], size = 0;
    for (int i = 0; i < walk_.size; ++i) {
      if (reduces(out, i)) {
        if (!frame_.axes[walk_.axis[i]].first_trip()) return;
      } else if (walk_.count[i] == 0) {
        return;
      } else {
        positions[size++] = i;
      }
    }
    alignas(64) Register value;
    fill_neutral(&value, out, class_of(vec_.ops[out.value].dtype), 1);
    const auto store = kernels_.store[static_cast<int>(out.place.dtype)];
    const Operand& stream = streams_[first_output_ + number];
    for (;;) {
      char* to = stream.at;
      for (int i = 0; i < size; ++i) to += at[i] * stream.stride[positions[i]];
      store(&value, to, bytes_of(out.place.dtype), 1);
      int i = size - 1;
      for (; i >= 0 && ++at[i] == walk_.count[positions[i]]; --i) at[i] = 0;
      if (i < 0) return;
    }
  }

  // --- scans ---

  void scan(const VecStep& step, const VecOut& out) {
    const int stream = first_output_ + step.number;
    const VecFn combine = combination(step, out);
    const int64_t along = store_stride(stream, step);
    Register* carry = regs_ + step.spare;
    const bool scanned = lanes_.position == walk_.size - 1;  // else the scanned axis has one point
    for (int64_t r = 0; r < block_; ++r) {
      char* values = reinterpret_cast<char*>(part(regs_ + step.to, r * pitch_, step.value_class));
      for (int64_t x = 0; x < width_; ++x) {
        auto* value = reinterpret_cast<Register*>(values + x * lane_bytes(step.value_class));
        alignas(64) Register one;
        std::memcpy(static_cast<void*>(&one), value, lane_bytes(step.value_class));
        if (!scanned || (lane_ == 0 && x == 0)) {
          fill_neutral(carry, out, step.value_class, 1);
        }
        combine(carry, carry, &one, nullptr, 1);
        step.store(carry, address(stream, row_ + r, lane_ + x), along, 1);
      }
    }
  }

  const Frame& frame_;
  const Vec& vec_;
  const VecCode& code_;
  const Kernels& kernels_;
  Walk walk_;
  Operand streams_[2 * kMaxStreams];  // inputs, outputs, indices, open chunks of sums
  int count_ = 0, first_output_ = 0, first_index_ = 0;
  Dim dims_[kMaxAxes], rows_, lanes_;
  int depth_ = 0;  // outer dims above the rows
  int64_t capacity_ = 0, pitch_ = 0, block_rows_ = 0;
  bool lane_reduced_[kMaxStreams];
  bool rounded_[kMaxStreams];      // by input: its elements become DL16 (Machine::rounds)
  int chunk_stream_[kMaxStreams];  // by output
  Register* regs_ = nullptr;
  int64_t at_[kMaxAxes] = {};
  uintptr_t row_base_[2 * kMaxStreams];
  int64_t row_ = 0, block_ = 0, lane_ = 0, width_ = 0;
};

}  // namespace

void execute_vec(const Frame& frame, const Vec& vec, const VecCode& code, const Places& places) {
  VecRun(frame, vec, code, places).run();
}

}  // namespace spyre
