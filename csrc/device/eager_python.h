// The questions that eager calls ask of Python (openspyre/frontend/eager.py). Each takes the GIL.
#pragma once

#include <exception>
#include <memory>

#include "eager_call.h"

namespace c10 {
class OperatorHandle;
}

namespace openspyre {

// What may be served of an op.
OpPlan plan_of(const c10::OperatorHandle& op);

// A kernel for a pattern of arguments, or the reason for none.
std::shared_ptr<const Entry> ask_python(const OpPlan& plan, const c10::OperatorHandle& op,
                                        const torch::jit::Stack& stack, const Call& call,
                                        const Views& views);

// Whether an exception is Python's NotImplementedError, as checks written in Python raise it.
bool is_not_implemented(const std::exception& error);

// Launches the kernel of an entry; throws what Python or the card raises.
void launch_kernel(void* kernel, const Binding& binding, int device);

}  // namespace openspyre
