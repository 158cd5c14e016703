// Generators and pinned memory of the device, for the other parts of the extension.
#pragma once

#include <ATen/core/Generator.h>

namespace openspyre {

// The default generator of a device; a negative index means the current one.
const at::Generator& default_generator(int device);

}  // namespace openspyre
