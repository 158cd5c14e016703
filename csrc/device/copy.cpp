#include "copy.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "card.h"

namespace openspyre {
namespace {

constexpr int64_t kSmallCopy = 64 << 10;  // above it torch's copy uses several threads

bool is_spyre(const at::Tensor& tensor) { return tensor.is_privateuseone(); }

bool plain(const at::Tensor& source, const at::Tensor& target) {
  return source.scalar_type() == target.scalar_type() && source.is_contiguous() &&
         target.is_contiguous() && source.is_conj() == target.is_conj() &&
         source.is_neg() == target.is_neg();
}

void written(const at::Tensor& target) {
  if (!is_spyre(target)) return;
  const auto& storage = target.storage();
  touch(storage.data(), storage.nbytes());
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  auto* const data = const_cast<void*>(tensor.const_data_ptr());
  auto view = at::from_blob(data, tensor.sizes(), tensor.strides(),
                            tensor.options().device(c10::kCPU).pinned_memory(false));
  view._set_conj(tensor.is_conj());
  view._set_neg(tensor.is_neg());
  return view;
}

void copy_elements(const at::Tensor& source, const at::Tensor& target) {
  TORCH_CHECK(is_spyre(source) || source.is_cpu(), "spyre: cannot copy from ", source.device());
  TORCH_CHECK(is_spyre(target) || target.is_cpu(), "spyre: cannot copy to ", target.device());
  const auto from = source.sizes() == target.sizes() ? source : source.expand(target.sizes());
  if (target.numel() == 0) return;
  at::assert_no_internal_overlap(target);
  at::assert_no_partial_overlap(target, from);
  if (plain(from, target) && target.nbytes() <= static_cast<size_t>(kSmallCopy)) {
    std::memmove(target.data_ptr(), from.const_data_ptr(), target.nbytes());
  } else {
    auto view = is_spyre(target) ? host_view(target) : target;
    view.copy_(is_spyre(from) ? host_view(from) : from);
  }
  written(target);
}

}  // namespace openspyre
