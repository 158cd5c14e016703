// The questions that eager calls ask of Python (openspyre/frontend/eager.py). Each takes the GIL.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "eager_call.h"

namespace c10 {
class OperatorHandle;
}

namespace openspyre {

// What may be served of an op.
OpPlan plan_of(const c10::OperatorHandle& op);

// A kernel for a pattern of arguments (its words stand for all of them), or the reason for none.
std::shared_ptr<const Entry> ask_python(const OpPlan& plan, const c10::OperatorHandle& op,
                                        const torch::jit::Stack& stack, const Call& call,
                                        const Views& views, const Words& pattern);

// Whether an exception is Python's NotImplementedError, as checks written in Python raise it.
bool is_not_implemented(const std::exception& error);

// Whether it is another of Python's errors, as such checks raise for what they refuse.
bool is_refusal_by_python(const std::exception& error);

// What other processes have recorded of the calls of an op with one structure, as one text of
// words.
std::string recalled(const c10::OperatorHandle& op, const std::vector<int64_t>& structure);
// Adds to it.
void record(const c10::OperatorHandle& op, const std::vector<int64_t>& structure,
            const std::vector<int64_t>& words);

// Launches the kernel of an entry. Returns why the card has no program for these sizes, if it has
// none; throws what else Python or the card raises.
std::optional<std::string> launch_kernel(void* kernel, const Binding& binding, int device);

}  // namespace openspyre
