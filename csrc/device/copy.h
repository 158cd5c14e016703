// The copy engine: the only code that sees device memory as host memory.
#pragma once

#include <ATen/core/Tensor.h>

namespace openspyre {

// Copies source into target, either of them (or both) on a card; broadcasts and converts dtypes.
void copy_elements(const at::Tensor& source, const at::Tensor& target);

// The same elements as a CPU tensor that shares the memory; valid while `tensor` lives.
at::Tensor host_view(const at::Tensor& tensor);

}  // namespace openspyre
