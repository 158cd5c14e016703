// SFU: reductions over rows under numerics `card`, in chunks.
#include <algorithm>
#include <cstring>

#include "vec_run.h"

namespace spyre {

void VecRun::add_chunk_streams() {
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

VecRun::Turn VecRun::turn(const VecOut& out, int64_t row) const {
  Turn found;
  for (int d = 0; d < depth_; ++d) {
    if (reduces(out, static_cast<int>(dims_[d].position))) found.inside(at_[d], dims_[d].count);
  }
  if (rows_.position >= 0 && reduces(out, static_cast<int>(rows_.position))) {
    found.inside(row, rows_.count);
  }
  return found;
}

bool VecRun::first_trip(const VecOut& out) const {
  for (int i = 0; i < walk_.size; ++i) {
    if (reduces(out, i) && !frame_.axes[walk_.axis[i]].first_trip()) return false;
  }
  return true;
}

void VecRun::combine_chunks(const VecStep& step, const VecOut& out) {
  const Numerics& numerics = frame_.machine.numerics;
  const int stream = first_output_ + step.number;
  const int64_t along = stride(stream, lanes_), stored = store_stride(stream, step);
  const int width = static_cast<int>(width_);
  const VecFn round = kernels_.cast[static_cast<int>(DType::F16)][0];
  const VecFn add = numerics.sum == SumFormat::F32
                        ? kernels_.combine[static_cast<int>(Reduce::Sum)][0]
                        : kernels_.add_dl16;
  Register* sum = regs_ + step.spare;
  Register* const from = filled(step.to, step.value_class);
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
      add(sum, sum, part(from, r * pitch_, step.value_class), nullptr, width);
      step.store(sum, to, stored, width);
      continue;
    }
    std::memcpy(sum->f, open, width * sizeof(float));
    add(sum, sum, part(from, r * pitch_, step.value_class), nullptr, width);
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

}  // namespace spyre
