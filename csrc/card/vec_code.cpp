#include "vec_code.h"

#include <algorithm>
#include <string>

#include "op_table.h"

namespace spyre {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw Failure(SPYRE_INVALID_PROGRAM, "the program is malformed: " + why);
}

class Compiler {
 public:
  Compiler(const Vec& vec, const std::vector<Buffer>& buffers, const Kernels& kernels)
      : vec_(vec), buffers_(buffers), kernels_(kernels) {}

  VecCode code() {
    if (vec_.inputs.size() + vec_.outputs.size() + vec_.indices.size() > kMaxStreams) {
      refuse("a vector instruction has too many operands");
    }
    find_last_uses();
    const int values = static_cast<int>(vec_.ops.size());
    registers_.assign(values, -1);
    for (int v = 0; v < values; ++v) {
      if (last_use_[v] < 0) continue;  // nothing reads it
      compute(v);
      if (!stores_last_) store_outputs_of(v);
      release_last_used_at(v, v);
    }
    if (stores_last_) {
      for (int v = 0; v < values; ++v) store_outputs_of(v);
    }
    for (const VecOut& out : vec_.outputs) {
      const bool order = out.reduce == Reduce::Sum || out.reduce == Reduce::Prod;
      code_.any_order &= !out.scan && !order;
    }
    code_.in_place = stores_last_;
    code_.chained = chained();
    code_.registers = std::max(next_, 1);
    return std::move(code_);
  }

 private:
  // An output over bytes that an input reads must wait until a block's inputs are loaded.
  bool in_place() const {
    for (const VecOut& out : vec_.outputs) {
      for (const Place& input : vec_.inputs) {
        const Buffer &a = buffers_[out.place.buffer], &b = buffers_[input.buffer];
        if (a.offset < b.offset + b.bytes * b.slots && b.offset < a.offset + a.bytes * a.slots) {
          return true;
        }
      }
    }
    return false;
  }

  // In float classes only, and stick by stick: what a block has read it may not find overwritten.
  bool chained() const {
    if (!kernels_.chains || stores_last_) return false;
    int passes = 0;  // over registers, if steps ran one by one
    for (const VecStep& step : code_.each) {
      if (step.value_class != 0) return false;
      if (step.kind == VecStep::Load) {
        if (row_kind(vec_.inputs[step.number].dtype) < 0) return false;
      } else if (step.kind == VecStep::Call) {
        if (!step.chain) return false;
        ++passes;
      } else if (step.kind == VecStep::Output) {
        const VecOut& out = vec_.outputs[step.number];
        const bool reduces = out.reduce != Reduce::None;
        if (out.scan || row_kind(out.place.dtype) < 0) return false;
        if (reduces && out.place.dtype != DType::F32) return false;
        passes += reduces || out.place.dtype != DType::F32;
      } else {
        return false;
      }
    }
    return passes > 1;
  }

  void find_last_uses() {
    stores_last_ = in_place();
    const int end = static_cast<int>(vec_.ops.size());
    last_use_.assign(vec_.ops.size(), -1);
    uses_.assign(vec_.ops.size(), 0);
    for (const VecOut& out : vec_.outputs) {
      last_use_[out.value] = stores_last_ ? end : out.value;
      ++uses_[out.value];
    }
    for (int v = end - 1; v >= 0; --v) {
      const VecOp& op = vec_.ops[v];
      if (op.code < kFirstOp || last_use_[v] < 0) continue;
      for (int arg : op.args) {
        last_use_[arg] = std::max(last_use_[arg], v);
        ++uses_[arg];
      }
    }
  }

  int take_register() {
    if (free_.empty()) return next_++;
    const int taken = free_.back();
    free_.pop_back();
    return taken;
  }

  static bool stays(const VecOp& op) { return op.code == kConst || op.code == kSlot; }

  // Frees the registers of values from `first` on that nothing uses after v.
  void release_last_used_at(int v, int first) {
    for (int u = first; u <= v; ++u) {
      if (last_use_[u] != v || registers_[u] < 0 || stays(vec_.ops[u])) continue;
      free_.push_back(registers_[u]);
      last_use_[u] = -1;
    }
  }

  void compute(int v) {
    const VecOp& op = vec_.ops[v];
    VecStep step;
    step.value_class = class_of(op.dtype);
    if (step.value_class != 0) code_.lane_bytes = 8;
    if (op.code < kFirstOp) step.number = op.args.empty() ? 0 : op.args[0];
    switch (op.code) {
      case kConst:
        step.kind = VecStep::Const;
        step.constant = op.number;
        step.integer = step.value_class == 2   ? static_cast<int32_t>(op.integer)
                       : step.value_class == 3 ? op.integer != 0
                                               : op.integer;
        break;
      case kSlot:
        step.kind = VecStep::Scalar;
        break;
      case kLoad:
        step.kind = VecStep::Load;
        step.load = kernels_.load[static_cast<int>(vec_.inputs[step.number].dtype)];
        break;
      case kIndex:
        step.kind = VecStep::Index;
        break;
      default:
        step.kind = VecStep::Call;
        step.call = function(op);
        if (step.value_class == 0) {
          step.rows = kernels_.rows[op.code];
          step.direct = only_output(v);
          step.chain = chain_op(op);
          step.uses = uses_[v];
        }
        step.arity = static_cast<uint8_t>(op.args.size());
        for (size_t i = 0; i < op.args.size(); ++i) {
          step.args[i] = registers_[op.args[i]];
          step.arg_class[i] = static_cast<uint8_t>(class_of(vec_.ops[op.args[i]].dtype));
        }
    }
    release_last_used_at(v, 0);  // an operand may be the destination
    // A constant is computed once, before the values whose registers are free by now.
    step.to = registers_[v] = stays(op) ? next_++ : take_register();
    (stays(op) ? code_.once : code_.each).push_back(step);
  }

  VecFn function(const VecOp& op) const {
    const OpRow& row = *op_row(op.code);
    const int of = class_of(vec_.ops[op.args.back()].dtype);
    const VecFn found =
        row.is_cast ? kernels_.cast[static_cast<int>(op.dtype)][of] : kernels_.vec[op.code][of];
    if (!found) refuse(std::string("no kernel for op ") + row.name + " of this class");
    return found;
  }

  const ChainOp* chain_op(const VecOp& op) const {
    if (!kernels_.chains || class_of(vec_.ops[op.args.back()].dtype) != 0) return nullptr;
    const bool casts = op_row(op.code)->is_cast;
    const ChainOp& found =
        casts ? kernels_.chains->casts[static_cast<int>(op.dtype)] : kernels_.chains->ops[op.code];
    return found.alone ? &found : nullptr;
  }

  // The f32 output that alone needs value v, -1 if there is none.
  int only_output(int v) const {
    int found = -1;
    for (size_t i = 0; i < vec_.outputs.size(); ++i) {
      const VecOut& out = vec_.outputs[i];
      if (out.value != v) continue;
      const bool plain = out.reduce == Reduce::None && out.place.dtype == DType::F32;
      if (found >= 0 || !plain) return -1;
      found = static_cast<int>(i);
    }
    return last_use_[v] == v ? found : -1;
  }

  void store_outputs_of(int v) {
    for (size_t i = 0; i < vec_.outputs.size(); ++i) {
      const VecOut& out = vec_.outputs[i];
      if (out.value != v) continue;
      VecStep step;
      step.kind = VecStep::Output;
      step.value_class = class_of(vec_.ops[v].dtype);
      step.to = registers_[v];
      step.number = static_cast<int>(i);
      step.element = bytes_of(out.place.dtype);
      step.load = kernels_.load[static_cast<int>(out.place.dtype)];
      step.store = kernels_.store[static_cast<int>(out.place.dtype)];
      if (out.reduce != Reduce::None) {
        if (!kernels_.combine[static_cast<int>(out.reduce)][step.value_class]) {
          refuse("no kernel for a reduction of this class");
        }
        step.spare = next_++;
        code_.reduces_lanes |= !out.scan;
      }
      code_.each.push_back(step);
    }
  }

  const Vec& vec_;
  const std::vector<Buffer>& buffers_;
  const Kernels& kernels_;
  VecCode code_;
  bool stores_last_ = false;
  std::vector<int> last_use_, uses_, registers_, free_;
  int next_ = 0;
};

}  // namespace

VecCode compile_vec(const Vec& vec, const std::vector<Buffer>& buffers, const Kernels& kernels) {
  return Compiler(vec, buffers, kernels).code();
}

}  // namespace spyre
