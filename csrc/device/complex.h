// Complex numbers, which no program of the card knows: ops on them as ops on their parts.
#pragma once

#include <ATen/core/stack.h>

namespace c10 {
class OperatorHandle;
}

namespace openspyre {

// Runs a sum, difference or product of complex tensors, and leaves the result on the stack; false,
// with the stack as it was, where the op or its arguments are others.
bool run_in_parts(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace openspyre
