// SFU: runs compiled vector programs over blocks of rows x lanes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "vec_run.h"

namespace spyre {
namespace {

constexpr int64_t kBlockBytes = 24 << 10;  // of live registers: they stay in L1
constexpr int64_t kAlign = 16;             // lanes; rows in a register begin at 64 bytes

// A scalar as a lane of an integer class.
int64_t whole(double number, int value_class) {
  if (value_class == 3) return number != 0;
  const bool fits = number >= -9223372036854775808.0 && number < 9223372036854775808.0;
  const int64_t value = fits ? static_cast<int64_t>(number) : INT64_MIN;
  return value_class == 2 ? static_cast<int32_t>(value) : value;
}
}  // namespace

VecRun::VecRun(const Frame& frame, const Vec& vec, const VecCode& code, const Places& places)
    : frame_(frame), vec_(vec), code_(code), kernels_(frame.kernels()) {
  walk_.add(frame.trips);
  walk_.add(vec.axes, frame.axes);
  for (size_t i = 0; i < vec.inputs.size(); ++i) {
    const Place& place = places(static_cast<int>(i), vec.inputs[i]);
    rounded_[i] = frame.machine.rounds(place);
    streams_[count_++] = frame.operand(place, walk_, vec.origin);
  }
  first_output_ = count_;
  for (size_t i = 0; i < vec.outputs.size(); ++i) {
    const VecOut& out = vec.outputs[i];
    const Place& place = places.target(static_cast<int>(i), out.place);
    streams_[count_++] = frame.operand(place, written(out), vec.origin, Mode::Write);
  }
  first_index_ = count_;
  for (const VecIndex& index : vec.indices) streams_[count_++] = index_stream(index);
  add_chunk_streams();
}

void VecRun::run() {
  if (walk_.empty()) {
    for (size_t i = 0; i < vec_.outputs.size(); ++i) store_neutral(static_cast<int>(i));
    return;
  }
  choose_dims();
  const int64_t registers = code_.registers;
  const int64_t steps = static_cast<int64_t>(code_.each.size());
  const int64_t links = code_.chained ? 3 * steps + 1 : 0;  // a step: at most hold, load and act
  const auto of_scalars = static_cast<int64_t>(kMostRows * sizeof(float));
  const int64_t each = static_cast<int64_t>(sizeof(Register) + sizeof(Held) + sizeof(Where));
  const int64_t of_links =
      links * static_cast<int64_t>(sizeof(Link) + sizeof(Origin)) + steps * (of_scalars + 1);
  char* const room = frame_.worker.registers.bytes(registers * (each + of_scalars) + of_links);
  regs_ = reinterpret_cast<Register*>(room);
  scalars_ = reinterpret_cast<float*>(regs_ + registers);
  held_ = reinterpret_cast<Held*>(reinterpret_cast<char*>(scalars_) + registers * of_scalars);
  where_ = reinterpret_cast<Where*>(held_ + registers);
  links_ = reinterpret_cast<Link*>(where_ + registers);
  origins_ = reinterpret_cast<Origin*>(links_ + links);
  row_scalars_ = reinterpret_cast<float*>(origins_ + links);
  of_scalars_ = reinterpret_cast<uint8_t*>(row_scalars_ + steps * kMostRows);
  in_rows_ = !code_.in_place && kernels_.row_reductions[1][kF32Rows].fold;
  for (const VecStep& step : code_.once) run_once(step);
  whole_rows_ = !(code_.chained && make_chain()) && lanes_.count <= capacity_;
  rows_of_dim(0);
}

Walk VecRun::written(const VecOut& out) const {
  if (out.reduce == Reduce::None || out.scan) return walk_;
  Walk kept = walk_;
  for (int i = 0; i < kept.size; ++i) {
    if (!has_term(out.place, kept.axis[i])) kept.count[i] = 1;
  }
  return kept;
}

Operand VecRun::index_stream(const VecIndex& index) const {
  Operand stream;
  uint64_t value = static_cast<uint64_t>(index.offset.of(frame_.slots));
  for (int i = 0; i < walk_.size; ++i) stream.stride[i] = 0;
  for (const Term& term : index.terms) {
    const uint64_t coefficient = static_cast<uint64_t>(term.coefficient.of(frame_.slots));
    value += coefficient * static_cast<uint64_t>(frame_.axes[term.axis].start);
    for (int i = 0; i < walk_.size; ++i) {
      if (walk_.axis[i] != term.axis) continue;
      const uint64_t step = i == walk_.trips ? static_cast<uint64_t>(frame_.trips->tile) : 1;
      stream.stride[i] = static_cast<int64_t>(coefficient * step);
    }
  }
  stream.at = reinterpret_cast<char*>(static_cast<uintptr_t>(value));
  return stream;
}

bool VecRun::mergeable(int outer, int inner, int64_t inner_count) const {
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

int VecRun::strided(const Dim& dim) const {
  int found = 0;
  for (int s = 0; s < count_; ++s) {
    const int64_t step = stride(s, dim);
    const DType type = s < first_output_  ? vec_.inputs[s].dtype
                       : s < first_index_ ? vec_.outputs[s - first_output_].place.dtype
                                          : DType::I64;
    found += s < first_index_ && step != 0 && step != bytes_of(type);
  }
  return found;
}

// Where no order of the walk can be told, lanes are the dim that lies side by side.
void VecRun::put_lanes_last(Dim* dims, int size) const {
  if (size < 2 || code_.in_place || !code_.any_order) return;
  for (int s = first_output_; s < first_index_; ++s) {
    const VecOut& out = vec_.outputs[s - first_output_];
    for (int d = 0; d < size; ++d) {
      const bool repeats = stride(s, dims[d]) == 0;
      if (repeats && !reduces(out, static_cast<int>(dims[d].position))) return;
    }
  }
  int best = size - 1;
  for (int d = size - 2; d >= 0; --d) {
    const bool long_enough = dims[d].count >= std::min<int64_t>(dims[size - 1].count, kAlign);
    if (long_enough && strided(dims[d]) < strided(dims[best])) best = d;
  }
  std::rotate(dims + best, dims + best + 1, dims + size);
}

void VecRun::choose_dims() {
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
  put_lanes_last(kept, size);
  lanes_ = size ? kept[--size] : Dim{1, -1};
  for (int i = 0; i < size; ++i) dims_[i] = kept[i];
  depth_ = size ? size - 1 : 0;
  rows_ = size ? dims_[size - 1] : Dim{1, -1};
  const int64_t fitting = kBlockBytes / (code_.registers * code_.lane_bytes) / kLanes * kLanes;
  capacity_ = std::clamp<int64_t>(fitting, kLanes, kMaxLanes);
  pitch_ = (std::min(lanes_.count, capacity_) + kAlign - 1) / kAlign * kAlign;
  block_rows_ = lanes_.count <= capacity_ ? std::max<int64_t>(capacity_ / pitch_, 1) : 1;
  for (size_t i = 0; i < vec_.outputs.size(); ++i) {
    lane_reduced_[i] =
        lanes_.position >= 0 && reduces(vec_.outputs[i], static_cast<int>(lanes_.position));
  }
}

void VecRun::rows_of_dim(int dim) {
  if (dim < depth_) {
    for (at_[dim] = 0; at_[dim] < dims_[dim].count; ++at_[dim]) rows_of_dim(dim + 1);
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
    if (chained_) run_chain();
    for (lane_ = chained_; lane_ < lanes_.count; lane_ += capacity_) {
      frame_.machine.interrupt->check();
      width_ = std::min(capacity_, lanes_.count - lane_);
      for (const VecStep& step : code_.each) run_step(step);
    }
    finish_rows();
  }
}

void VecRun::run_once(const VecStep& step) {
  const double number = step.kind == VecStep::Scalar ? scalar(step.number) : step.constant;
  if (step.value_class == 0) {
    float* const to = scalars(step.to)->f;
    std::fill(to, to + kMostRows, static_cast<float>(number));
    hold_scalars(step.to, true);
    return;
  }
  Register* to = regs_ + step.to;
  const bool given = step.kind == VecStep::Scalar;
  const int64_t value = given ? whole(number, step.value_class) : step.integer;
  std::fill(to->i, to->i + kMaxLanes, value);
}

double VecRun::scalar(int slot) const {
  double number;
  std::memcpy(&number, &frame_.slots[slot], sizeof number);
  return number;
}

void VecRun::run_step(const VecStep& step) {
  switch (step.kind) {
    case VecStep::Call:
      call(step);
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

void VecRun::call(const VecStep& step) {
  if (step.value_class == 0) {
    if (call_on_scalars(step) || call_on_rows(step)) return;
  }
  Register* args[3] = {};
  for (int i = 0; i < step.arity; ++i) args[i] = filled(step.args[i], step.arg_class[i]);
  step.call(regs_ + step.to, args[0], args[1], args[2], all_lanes());
  if (step.value_class == 0) hold_register(step.to);
}

// Values that rows share stay one per row.
bool VecRun::call_on_scalars(const VecStep& step) {
  bool one = true;
  for (int i = 0; i < step.arity; ++i) {
    if (step.arg_class[i] != 0 || held_[step.args[i]].rows.kind != kScalarRows) return false;
    one &= held_[step.args[i]].rows.stride == 0;
  }
  step.call(scalars(step.to), scalars(step.args[0]), scalars(step.args[1]), scalars(step.args[2]),
            static_cast<int>(block_));
  hold_scalars(step.to, one);
  return true;
}

bool VecRun::call_on_rows(const VecStep& step) {
  if (!step.rows) return false;
  const bool two = step.arity == 2;
  const Held& a = held_[step.args[0]];
  const Held& b = held_[step.args[two ? 1 : 0]];
  const RowsFn fn = step.rows->of[a.rows.kind][two ? b.rows.kind : kF16Rows];
  const bool registers = a.rows.kind == kF32Rows && a.filled && b.rows.kind == kF32Rows && b.filled;
  const bool direct = goes_direct(step);
  if (!fn || (registers && !direct)) return false;
  RowsOut to = {reinterpret_cast<char*>(regs_ + step.to), pitch_bytes()};
  if (direct) {
    const int stream = first_output_ + step.direct;
    to = {address(stream, row_, lane_), stride(stream, rows_)};
    stored_ = step.direct;
  }
  // Rows that follow each other are one.
  auto follows = [&](const Rows& rows) {
    const auto type = static_cast<DType>(rows.kind);
    return rows.stride == (rows.kind == kScalarRows ? 0 : width_ * bytes_of(type));
  };
  const bool one = to.stride == width_ * static_cast<int64_t>(sizeof(float)) && follows(a.rows) &&
                   (!two || follows(b.rows));
  fn(to, a.rows, b.rows, static_cast<int>(one ? 1 : block_),
     static_cast<int>(one ? block_ * width_ : width_));
  held_[step.to].set(to.at, to.stride, kF32Rows, !direct);
  return true;
}

// Into the memory of the output instead of a register.
bool VecRun::goes_direct(const VecStep& step) const {
  if (step.direct < 0 || !in_rows_) return false;
  const int64_t along = stride(first_output_ + step.direct, lanes_);
  return along == static_cast<int64_t>(sizeof(float)) || lanes_.count == 1;
}

Register* VecRun::filled(int reg, int value_class) {
  Register* const to = regs_ + reg;
  if (value_class != 0 || held_[reg].filled) return to;
  Held& held = held_[reg];
  if (held.rows.kind == kScalarRows) {
    for (int64_t r = 0; r < block_; ++r) {
      std::fill(to->f + r * pitch_, to->f + (r + 1) * pitch_, scalars(reg)->f[r]);
    }
    held.filled = true;  // what else needs them may still take the scalars
    return to;
  }
  const auto type = static_cast<DType>(held.rows.kind);
  const LoadFn load = kernels_.load[static_cast<int>(type)];
  for (int64_t r = 0; r < block_; ++r) {
    load(part(to, r * pitch_, 0), held.rows.at + r * held.rows.stride, bytes_of(type),
         static_cast<int>(width_));
  }
  hold_register(reg);
  return to;
}

void VecRun::load(const VecStep& step) {
  const int64_t along = stride(step.number, lanes_);
  const DType dtype = vec_.inputs[step.number].dtype;
  if (rounded_[step.number]) {
    load_lanes(frame_.machine.storage->load[static_cast<int>(dtype)], step.number, step.to, 0);
    Register* const to = regs_ + step.to;
    frame_.machine.rounding()(to, to, nullptr, nullptr, all_lanes());
  } else if (step.value_class != 0 || !in_rows_) {
    load_lanes(step.load, step.number, step.to, step.value_class);
  } else if (along == bytes_of(dtype) && static_cast<int>(dtype) < kScalarRows) {
    held_[step.to].set(address(step.number, row_, lane_), stride(step.number, rows_),
                       static_cast<RowKind>(dtype), false);
    return;
  } else if (along == 0) {
    const int64_t step_of_row = stride(step.number, rows_);
    step.load(scalars(step.to), address(step.number, row_, lane_), step_of_row,
              static_cast<int>(block_));
    hold_scalars(step.to, step_of_row == 0);
    return;
  } else {
    load_lanes(step.load, step.number, step.to, 0);
  }
  hold_register(step.to);
}

void VecRun::load_lanes(LoadFn load, int stream, int reg, int value_class) {
  const int64_t along = stride(stream, lanes_);
  for (int64_t r = 0; r < block_; ++r) {
    load(part(regs_ + reg, r * pitch_, value_class), address(stream, row_ + r, lane_), along,
         static_cast<int>(width_));
  }
}

void VecRun::index(const VecStep& step) {
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

void VecRun::output(const VecStep& step) {
  const VecOut& out = vec_.outputs[step.number];
  if (out.scan) return scan(step, out);
  if (out.reduce == Reduce::None) return store(step);
  if (lane_reduced_[step.number]) return accumulate(step, out);
  combine_rows(step, out);
}

void VecRun::store(const VecStep& step) {
  if (std::exchange(stored_, -1) == step.number) return;
  const int stream = first_output_ + step.number;
  const int64_t along = store_stride(stream, step);
  Register* const values = filled(step.to, step.value_class);
  for (int64_t r = 0; r < block_; ++r) {
    step.store(part(values, r * pitch_, step.value_class), address(stream, row_ + r, lane_), along,
               static_cast<int>(width_));
  }
}

void execute_vec(const Frame& frame, const Vec& vec, const VecCode& code, const Places& places) {
  VecRun(frame, vec, code, places).run();
}

}  // namespace spyre
