// Generators and pinned memory of the device, for the other parts of the extension.
#pragma once

#include <ATen/core/Generator.h>

namespace openspyre {

// The default generator of a device; a negative index means the current one.
const at::Generator& default_generator(int device);

// Whether an address lies in pinned host memory of the device's allocator.
bool is_pinned_memory(const void* pointer);

}  // namespace openspyre
