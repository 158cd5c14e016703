// Ops whose result is as large as values say: where a mask is true, what stands there, how often
// something repeats. The card computes into buffers of the largest size and counts; the host reads
// the count, one wait as on any device, and the result is the front part of the buffer.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_compositeexplicitautogradnonfunctional_dispatch.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

#include "fallback.h"

namespace openspyre {
namespace {

using at::Tensor;
using std::optional;
using Indices = c10::List<optional<Tensor>>;

// Positions of the true ones of a flat mask, in order. Each position has a place of its own, the
// true ones' before the others': no two are written to the same.
Tensor positions(const Tensor& chosen) {
  const int64_t size = chosen.numel();
  const auto whole = chosen.options().dtype(at::kLong);
  if (size == 0) return at::empty({0}, whole);
  const Tensor number = at::arange(size, whole);
  const Tensor before = at::cumsum(chosen, 0);
  const Tensor place = at::where(chosen, before.sub(1), before[size - 1].add(number).sub(before));
  const Tensor found = at::empty_like(number).scatter_(0, place, number);
  return found.narrow(0, 0, before[size - 1].item<int64_t>());
}

// --- nonzero
// --------------------------------------------------------------------------------------

// [count, dims], a transposed view: each coordinate is contiguous, as compiled graphs expect it.
Tensor nonzero(const Tensor& self) {
  const Tensor chosen = (self.scalar_type() == at::kBool ? self : at::ne(self, 0)).reshape(-1);
  Tensor rest = positions(chosen);
  std::vector<Tensor> coordinates(self.dim());
  for (int64_t dim = self.dim() - 1; dim >= 0; --dim) {
    coordinates[dim] = dim ? at::remainder(rest, self.size(dim)) : rest;
    if (dim) rest = rest.floor_divide(self.size(dim));
  }
  if (coordinates.empty()) return rest.new_empty({rest.numel(), 0});
  return at::stack(coordinates).t();
}

Tensor& nonzero_out(const Tensor& self, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "Expected object of scalar type Long as out, but got ", out.scalar_type());
  TORCH_CHECK(self.device() == out.device(), "expected self and out to be on the same device, but ",
              "found ", self.device(), " and ", out.device());
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  const Tensor found = openspyre::nonzero(self);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

// --- indexing by masks
// ----------------------------------------------------------------------------

bool is_mask(const optional<Tensor>& index) {
  return index && index->defined() &&
         (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
}

// Once a mask and call, as PyTorch does.
void warn_of_bytes(const Tensor& mask) {
  if (mask.scalar_type() == at::kByte)
    TORCH_WARN("indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool ",
               "instead.");
}

// Whether all are whole numbers on the device, which is what programs take.
bool fits(const Tensor& self, const Indices& indices) {
  bool all = true;
  for (const auto& each : indices) {
    const optional<Tensor> index = each;
    if (is_mask(index)) all = false;
    if (!index || !index->defined() || index->device() == self.device()) continue;
    TORCH_CHECK(index->is_cpu(), "indices should be either on cpu or on the same device as the ",
                "indexed tensor (", self.device(), "), but one is on ", index->device());
    all = false;
  }
  return all;
}

// Whether a mask that begins at a dim of `self` is as large as what it chooses from.
void check_mask(const Tensor& self, const Tensor& mask, int64_t dim) {
  TORCH_CHECK_INDEX(dim + mask.dim() <= self.dim(), "too many indices for tensor of dimension ",
                    self.dim());
  for (int64_t i = 0; i < mask.dim(); ++i)
    TORCH_CHECK_INDEX(mask.size(i) == self.size(dim + i), "The shape of the mask ", mask.sizes(),
                      " at index ", i, " does not match the shape of the indexed tensor ",
                      self.sizes(), " at index ", dim + i);
}

Indices fitting(const Tensor& self, const Indices& indices) {
  Indices found;
  for (const auto& each : indices) {
    const optional<Tensor> index = each;
    if (!is_mask(index)) {
      const bool there = index && index->defined();
      found.push_back(there ? optional<Tensor>(index->to(self.device())) : index);
      continue;
    }
    warn_of_bytes(*index);
    check_mask(self, *index, static_cast<int64_t>(found.size()));
    const Tensor places = index->nonzero().to(self.device());
    for (int64_t dim = 0; dim < index->dim(); ++dim) found.push_back(places.select(1, dim));
  }
  return found;
}

// The one mask among the indices, with a dim for each of `self`; undefined where there are others.
Tensor only_mask(const Tensor& self, const Indices& indices) {
  Tensor mask;
  int64_t dims = 0;
  for (const auto& each : indices) {
    const optional<Tensor> index = each;
    if (!index || !index->defined()) {
      if (!mask.defined()) ++dims;
      continue;
    }
    if (!is_mask(index) || mask.defined() || index->device() != self.device()) return {};
    mask = *index;
    check_mask(self, mask, dims);
    dims += mask.dim();
  }
  warn_of_bytes(mask);
  if (mask.scalar_type() == at::kByte) mask = mask.to(at::kBool);
  for (; dims < self.dim(); ++dims) mask = mask.unsqueeze(-1);
  return mask;
}

// PyTorch's own asks for the places of a mask twice.
Tensor index(const Tensor& self, const Indices& indices) {
  return at::compositeexplicitautogradnonfunctional::index(
      self, fits(self, indices) ? indices : fitting(self, indices));
}

// Ops (self, indices, ...) whose indices may be masks or on the host.
void unmasked(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  auto& argument = (*stack)[first + 1];
  const Indices indices = argument.to<Indices>();
  const Tensor self = (*stack)[first].toTensor();
  if (!fits(self, indices)) argument = fitting(self, indices);
  run_or_fall_back(op, stack);
}

// One value wherever a mask is true needs no count.
void index_put(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  Tensor self = (*stack)[first].toTensor();
  const Indices indices = (*stack)[first + 1].to<Indices>();
  const Tensor value = (*stack)[first + 2].toTensor();
  if (fits(self, indices) || (*stack)[first + 3].toBool()) return unmasked(op, stack);
  const Tensor mask = value.numel() == 1 ? only_mask(self, indices) : Tensor();
  if (!mask.defined()) return unmasked(op, stack);
  self.masked_fill_(mask, value.reshape({}));
  stack->resize(first);
  stack->emplace_back(self);
}

Tensor masked_select(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  TORCH_CHECK(self.device() == mask.device(), "masked_select: expected mask to be on the device ",
              "of self, ", self.device(), ", but found ", mask.device());
  const auto both = at::broadcast_tensors({self, mask});
  return both[0].reshape(-1).index_select(0, positions(both[1].reshape(-1)));
}

Tensor& masked_select_out(const Tensor& self, const Tensor& mask, Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  const Tensor found = openspyre::masked_select(self, mask);
  at::native::resize_output(out, found.sizes());
  return out.copy_(found);
}

// --- repeats
// --------------------------------------------------------------------------------------

// How often each number comes: [1, 0, 2] is [0, 2, 2].
Tensor repeat_interleave(const Tensor& repeats, optional<int64_t> size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) return at::empty_like(repeats);
  const Tensor ends = at::cumsum(repeats, 0, at::kLong);
  if (!size) {
    const Tensor read = at::stack({ends[-1], repeats.min().to(at::kLong)}).cpu();
    TORCH_CHECK(read[1].item<int64_t>() >= 0, "repeats can not be negative");
    size = read[0].item<int64_t>();
  }
  const Tensor place = at::arange(*size, ends.options());
  return at::searchsorted(ends, place, /*out_int32=*/false, /*right=*/true)
      .to(repeats.scalar_type());
}

// --- unique
// ---------------------------------------------------------------------------------------

using Unique = std::tuple<Tensor, Tensor, Tensor>;

// The groups of equal neighbours of a flat tensor: one value of each, every element's group, sizes.
Unique groups(const Tensor& flat, bool counts) {
  const int64_t size = flat.numel();
  const auto whole = flat.options().dtype(at::kLong);
  if (size == 0) return {flat.clone(), at::empty({0}, whole), at::empty({0}, whole)};
  const Tensor begins = at::cat({at::ones({1}, flat.options().dtype(at::kBool)),
                                 at::ne(flat.narrow(0, 1, size - 1), flat.narrow(0, 0, size - 1))});
  const Tensor first = positions(begins);
  const Tensor group = at::cumsum(begins, 0).sub(1);
  Tensor sizes = at::empty({0}, whole);
  if (counts)
    sizes = at::cat({first.narrow(0, 1, first.numel() - 1), at::full({1}, size, whole)}).sub(first);
  return {flat.index_select(0, first), group, sizes};
}

void unique_consecutive(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const Tensor self = (*stack)[first].toTensor();
  // Along a dim, slices are compared: no kernel for that yet.
  if (!(*stack)[first + 3].isNone() && self.dim() != 1) return run_or_fall_back(op, stack);
  const bool inverse = (*stack)[first + 1].toBool(), counts = (*stack)[first + 2].toBool();
  auto [values, group, sizes] = groups(self.reshape(-1), counts);
  stack->resize(first);
  torch::jit::push(stack, values, inverse ? group.view(self.sizes()) : group.new_empty({0}), sizes);
}

Unique unique(const Tensor& self, bool /*sorted*/, bool inverse, bool counts) {
  const auto [sorted, order] = self.reshape(-1).sort(/*stable=*/true, 0, /*descending=*/false);
  auto [values, group, sizes] = groups(sorted, counts);
  if (!inverse) return {values, group.new_empty({0}), sizes};
  const Tensor back = at::empty_like(group).scatter_(0, order, group);
  return {values, back.view(self.sizes()), sizes};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", TORCH_FN(nonzero));
  m.impl("nonzero.out", TORCH_FN(nonzero_out));
  m.impl("index.Tensor", TORCH_FN(index));
  m.impl("index.Tensor_out", torch::CppFunction::makeFromBoxedFunction<&unmasked>());
  m.impl("_index_put_impl_", torch::CppFunction::makeFromBoxedFunction<&index_put>());
  m.impl("masked_select", TORCH_FN(masked_select));
  m.impl("masked_select.out", TORCH_FN(masked_select_out));
  m.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  m.impl("unique_consecutive", torch::CppFunction::makeFromBoxedFunction<&unique_consecutive>());
  m.impl("_unique2", TORCH_FN(unique));
}

}  // namespace openspyre
