// Eager ops as programs of the card: look-up by the pattern of the arguments, binding, launch.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <string>

namespace c10 {
class OperatorHandle;
}

namespace openspyre {

// Runs an op on the card and leaves its results on the stack. Returns null when it did, else why
// it cannot, with the stack as it was; the text lives for ever. Takes the GIL for the launch, and
// runs Python only for a pattern of arguments that has not been seen.
const std::string* run_eager(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Why it cannot, word for word, where a check of PyTorch that is written in Python refuses the
// call. Kernels check for themselves and say it in the words that users know: they decide.
const std::string* refused_by_python();

// How often Python was asked for a kernel.
uint64_t eager_misses();

}  // namespace openspyre
