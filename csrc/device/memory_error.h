// Running out of memory, with the name of what needed it.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace openspyre {

// Runs `act`. Where it runs out of memory, the error tells what for: the innermost that says so.
template <typename Name, typename Act>
decltype(auto) needing_memory(const Name& name, const Act& act) {
  try {
    return act();
  } catch (c10::OutOfMemoryError& error) {
    if (error.context().empty()) error.add_context("needed by " + std::string(name()));
    throw;
  }
}

}  // namespace openspyre
