// SFU: reductions over lanes and over rows, and scans.
#include <algorithm>
#include <cstring>

#include "vec_run.h"

namespace spyre {

bool VecRun::begins(const VecOut& out, int64_t row) const {
  for (int i = 0; i < walk_.size; ++i) {
    if (reduces(out, i) && !frame_.axes[walk_.axis[i]].first_trip()) return false;
  }
  for (int d = 0; d < depth_; ++d) {
    if (at_[d] && reduces(out, static_cast<int>(dims_[d].position))) return false;
  }
  return !over_rows(out) || row == 0;
}

void VecRun::start_rows() {
  if (!code_.reduces_lanes) return;
  for (const VecStep& step : code_.each) {
    if (step.kind != VecStep::Output || !lane_reduced_[step.number]) continue;
    const VecOut& out = vec_.outputs[step.number];
    kernels_.neutral(partials(step), out.reduce, step.value_class);
  }
}

// The kernels that reduce rows where they lie; null: from registers.
const RowReduction* VecRun::row_reduction(const VecStep& step, const VecOut& out) const {
  if (step.value_class != 0 || in_chunks(step)) return nullptr;
  const RowKind kind = held_[step.to].rows.kind;
  const RowReduction* found = &kernels_.row_reductions[static_cast<int>(out.reduce)][kind];
  return found->fold ? found : nullptr;
}

void VecRun::accumulate(const VecStep& step, const VecOut& out) {
  if (const RowReduction* in_rows = row_reduction(step, out)) {
    if (whole_rows_) return fold_block(step, out);
    return in_rows->accumulate(partials(step), held_[step.to].rows, static_cast<int>(width_));
  }
  const auto add = kernels_.accumulate[static_cast<int>(out.reduce)][step.value_class];
  const bool chunks = in_chunks(step);
  Register* const from = filled(step.to, step.value_class);
  for (int64_t r = 0; r < block_; ++r) {
    const Register* values = part(from, r * pitch_, step.value_class);
    if (chunks) {
      kernels_.sum_chunks(partials(step)->f, values, static_cast<int>(width_),
                          frame_.machine.numerics);
    } else {
      add(partials(step), values, static_cast<int>(width_));
    }
    if (whole_rows_) {
      fold(step, out, row_ + r);
      kernels_.neutral(partials(step), out.reduce, step.value_class);
    }
  }
}

void VecRun::fold_block(const VecStep& step, const VecOut& out) {
  alignas(64) float values[kMostRows], part[kMostRows], before[kMostRows];
  auto* const now = reinterpret_cast<Register*>(part);
  auto* const then = reinterpret_cast<Register*>(before);
  const int stream = first_output_ + step.number;
  Partials neutral;
  kernels_.neutral(&neutral, out.reduce, 0);
  row_reduction(step, out)->fold(values, held_[step.to].rows, neutral.f[0],
                                 static_cast<int>(block_), static_cast<int>(width_));
  const bool into_one = over_rows(out);
  const int64_t at_once = into_one ? 1 : block_;
  const int64_t along = at_once == 1 ? step.element : stride(stream, rows_);
  for (int64_t r = 0; r < block_; r += at_once) {
    char* const to = address(stream, row_ + r, 0);
    const int count = static_cast<int>(at_once);
    std::copy(values + r, values + r + at_once, part);
    if (!begins(out, row_ + r)) {
      step.load(then, to, along, count);
      combination(step, out)(now, then, now, nullptr, count);
    }
    step.store(now, to, along, count);
  }
}

void VecRun::finish_rows() {
  if (!code_.reduces_lanes || whole_rows_) return;
  for (const VecStep& step : code_.each) {
    if (step.kind == VecStep::Output && lane_reduced_[step.number]) {
      fold(step, vec_.outputs[step.number], row_);
    }
  }
}

void VecRun::fold(const VecStep& step, const VecOut& out, int64_t row) {
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

// A reduction over outer axes: lane by lane into what is stored.
void VecRun::combine_rows(const VecStep& step, const VecOut& out) {
  if (in_chunks(step)) return combine_chunks(step, out);
  const int stream = first_output_ + step.number;
  const auto combine = kernels_.combine[static_cast<int>(out.reduce)][step.value_class];
  const RowReduction* const in_rows = row_reduction(step, out);
  const int64_t along = stride(stream, lanes_);
  const int64_t stored = store_stride(stream, step);
  const int width = static_cast<int>(width_);
  const bool into_one = over_rows(out);
  Register* const sum = regs_ + step.spare;
  Register* const from = in_rows ? nullptr : filled(step.to, step.value_class);
  const int64_t at_once = in_rows && into_one ? block_ : 1;
  for (int64_t r = 0; r < block_; r += at_once) {
    char* to = address(stream, row_ + r, lane_);
    if (r == 0 || !into_one) {
      if (begins(out, row_ + r)) {
        fill_neutral(sum, out, step.value_class, width);
      } else {
        step.load(sum, to, along, width);
      }
    }
    if (in_rows) {
      const Rows& all = held_[step.to].rows;
      const Rows rows = {all.at + r * all.stride, all.stride, all.kind};
      in_rows->combine(sum->f, rows, static_cast<int>(at_once), width);
    } else {
      combine(sum, sum, part(from, r * pitch_, step.value_class), nullptr, width);
    }
    if (r + at_once == block_ || !into_one) step.store(sum, to, stored, width);
  }
}

void VecRun::fill_neutral(Register* to, const VecOut& out, int value_class, int width) const {
  Partials neutral;
  kernels_.neutral(&neutral, out.reduce, value_class);
  for (int x = 0; x < width; ++x) {
    if (value_class == 0) to->f[x] = neutral.f[0];
    if (value_class != 0) to->i[x] = neutral.i[0];
  }
}

void VecRun::store_neutral(int number) {
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
    frame_.machine.interrupt->check();
    char* to = stream.at;
    for (int i = 0; i < size; ++i) to += at[i] * stream.stride[positions[i]];
    store(&value, to, bytes_of(out.place.dtype), 1);
    int i = size - 1;
    for (; i >= 0 && ++at[i] == walk_.count[positions[i]]; --i) at[i] = 0;
    if (i < 0) return;
  }
}

void VecRun::scan(const VecStep& step, const VecOut& out) {
  const int stream = first_output_ + step.number;
  const VecFn combine = combination(step, out);
  const int64_t along = store_stride(stream, step);
  Register* carry = regs_ + step.spare;
  Register* const from = filled(step.to, step.value_class);
  const bool scanned = lanes_.position == walk_.size - 1;  // else the scanned axis has one point
  for (int64_t r = 0; r < block_; ++r) {
    char* values = reinterpret_cast<char*>(part(from, r * pitch_, step.value_class));
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

}  // namespace spyre
