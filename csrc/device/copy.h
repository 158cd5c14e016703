// Copies: the only code that sees device memory as host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include "queue.h"

namespace openspyre {

// Copies source into target, either of them (or both) on a card; broadcasts and converts dtypes.
// Ordered on the current streams of the cards. Host memory that is not pinned may be used again
// when the call returns; with `non_blocking`, pinned memory must be left alone until the stream
// has got there. What returns with values on the host also reports late errors.
void copy_elements(const at::Tensor& source, const at::Tensor& target, bool non_blocking = false);

// One element of the host into every element of `target`, which may overlap itself.
void fill_elements(const at::Tensor& element, const at::Tensor& target);

// Bytes from one place of a card to another, when the stream gets there.
void copy_within(Stream& stream, void* to, const void* from, size_t bytes);

// The same elements as a CPU tensor that shares the memory; valid while `tensor` lives and no
// work for it is submitted. Waits for the current stream, and reports late errors.
at::Tensor host_view(const at::Tensor& tensor);

}  // namespace openspyre
