// What the library of an AOTInductor package asks of us. The header of every such library
// (frontend/ahead.py) repeats these declarations: it is compiled apart.
#pragma once

#include <cstdint>

namespace openspyre {

// A table of functions that the runner hands to a package's library, with the device to run on.
// Tensors are `at::Tensor*`. Each returns 0, or keeps what went wrong for the runner to throw.
struct PackageCalls {
  // A kernel from its text, once: `*kernel` is null before.
  int (*load)(void** kernel, const char* text);
  int (*launch)(void* kernel, void* const* tensors, const int64_t* sizes, int32_t device);
  // The copy on the card of a constant that the package holds in host memory; made once, and again
  // when the constant has been replaced.
  int (*constant)(void** copy, void* host, int32_t device, void** tensor);
};

}  // namespace openspyre
