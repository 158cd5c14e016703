// Ops that run on the CPU because the card has no kernel for them: counted, by name.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <string>

namespace c10 {
class OperatorHandle;
}

namespace openspyre {

enum class FallbackMode { Count, Warn, Error };

void set_fallback_mode(FallbackMode mode);
FallbackMode fallback_mode();
std::map<std::string, uint64_t> fallback_counts();
void reset_fallback_counts();

// Why the ops that were counted cannot run on the card (of each, its first call).
std::map<std::string, std::string> fallback_reasons();

// What every op without a kernel of its own does: a program of the card, else the CPU.
void run_or_fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Counts one call; warns at an op's first or throws, as the mode says.
void note_fallback(const std::string& op, const std::string& why);

}  // namespace openspyre
