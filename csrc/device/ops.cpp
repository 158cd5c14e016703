// The ops a device must have itself: creation, copies, views, resizing. They move no more than
// metadata or bytes; every other op goes to the counted CPU fallback (fallback.cpp).
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_assert_async_native.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/all.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/item.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "copy.h"
#include "memory.h"

namespace openspyre {
namespace {

using at::IntArrayRef;
using at::Tensor;
using c10::MemoryFormat;
using c10::ScalarType;
using std::optional;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device checked_device(optional<c10::Device> device, optional<c10::Layout> layout,
                           optional<bool> pinned) {
  TORCH_CHECK(c10::layout_or_default(layout) == c10::kStrided,
              "spyre: only strided tensors can live on the card");
  TORCH_CHECK(!c10::pinned_memory_or_default(pinned), "Only dense CPU tensors can be pinned");
  return c10::device_or_default(device);
}

Tensor empty(IntArrayRef size, optional<ScalarType> dtype, optional<c10::Layout> layout,
             optional<c10::Device> device, optional<bool> pinned, optional<MemoryFormat> format) {
  const c10::DeviceGuard guard(checked_device(device, layout, pinned));
  return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<ScalarType> dtype,
                     optional<c10::Layout> layout, optional<c10::Device> device,
                     optional<bool> pinned) {
  const c10::DeviceGuard guard(checked_device(device, layout, pinned));
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool non_blocking) {
  copy_elements(source, target, non_blocking);
  return target;
}

void make_room(const Tensor& tensor, size_t bytes) {
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  if (tensor.numel() != 0 && bytes > storage->nbytes()) resize_storage(storage, bytes);
}

const Tensor& resize_tensor(const Tensor& self, IntArrayRef size, optional<MemoryFormat> format) {
  if (self.sizes() != size) {
    at::detail::check_size_nonnegative(size);
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
    make_room(self, at::detail::computeStorageNbytesContiguous(size, self.itemsize(),
                                                               self.storage_offset()));
  }
  if (format.has_value()) {
    TORCH_CHECK(*format != MemoryFormat::Preserve, "Unsupported memory format", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  if (source.sizes() != target.sizes()) resize_tensor(target, source.sizes(), std::nullopt);
  copy_elements(source, target);
  return target;
}

c10::Scalar local_scalar(const Tensor& self) { return at::_local_scalar_dense(self.cpu()); }

Tensor& fill(Tensor& self, const c10::Scalar& value) {
  const auto options = at::TensorOptions(c10::kCPU).dtype(self.scalar_type());
  fill_elements(at::scalar_tensor(value, options), self);
  return self;
}

Tensor& zero(Tensor& self) { return fill(self, 0); }

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size,
                    IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (stride.data())
    impl->set_sizes_and_strides(size, stride);
  else
    impl->set_sizes_contiguous(size);
  make_room(self, at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                                   offset));
  return self;
}

Tensor& set_nothing(Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  at::Storage none(at::Storage::use_byte_size_t(), 0, allocator()->allocate(0), allocator(), true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

// One comparison on the card, and one byte read.
bool equal(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found ", self.device(), " and ",
              other.device());
  return self.sizes() == other.sizes() && at::eq(self, other).all().item<bool>();
}

// Whether `self.data = from` may be said. PyTorch's own list of dense devices knows no PrivateUse1:
// `module.to("spyre")` would make new parameters instead of moving those that an optimizer, another
// module (tied weights) or the user holds already.
bool fit_for_data(const Tensor& self, const Tensor& from) {
  constexpr c10::DispatchKeySet dense(
      {c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit});
  const auto is_dense = [&](const Tensor& tensor) {
    const auto keys = tensor.key_set();
    return keys.has_any(c10::DispatchKeySet(c10::DispatchKey::Dense)) && keys.has_any(dense);
  };
  return (is_dense(self) && is_dense(from)) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

void record_stream(Tensor& self, c10::Stream stream) {
  allocator()->recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("_assert_async", TORCH_FN(at::native::_assert_async_cpu));  // read like item()
  m.impl("_assert_async.msg", TORCH_FN(at::native::_assert_async_msg_cpu));
  m.impl("equal", TORCH_FN(equal));
  m.impl("fill_.Scalar", TORCH_FN(fill));
  m.impl("zero_", TORCH_FN(zero));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(fit_for_data));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("resize_", TORCH_FN(resize_tensor));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("is_set_to", TORCH_FN(at::native::is_set_to));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
}

// The copy engine honours both bits itself; PyTorch's fallbacks resolve them by a copy, without
// end.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace openspyre
