#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "fallback.h"

namespace openspyre {
namespace {

// Ops (..., out) that write a sequence: an `out` of as many elements keeps its shape and strides,
// where other ops would make it one row. Shape functions know only the row.
void write_sequence(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor out = stack->back().toTensor();
  if (out.dim() == 1) return run_or_fall_back(op, stack);
  stack->back() = at::empty({0}, out.options());
  run_or_fall_back(op, stack);
  const at::Tensor row = stack->back().toTensor();
  if (out.numel() != row.numel()) out.resize_(row.sizes());
  out.copy_(row.view(out.sizes()));
  stack->back() = out;
}

// PyTorch's checks that run before a program do not see that `out` is one of the joined.
void join(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::Tensor& out = stack->back().toTensor();
  for (const c10::IValue& each : (*stack)[stack->size() - 3].toListRef())
    at::assert_no_overlap(out, each.toTensor());
  run_or_fall_back(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* const whole : {"arange.start_out", "linspace.out", "logspace.out", "range.out"})
    m.impl(whole, torch::CppFunction::makeFromBoxedFunction<&write_sequence>());
  m.impl("cat.out", torch::CppFunction::makeFromBoxedFunction<&join>());
}

}  // namespace openspyre
