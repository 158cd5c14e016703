// What the library of an AOTInductor package asks of its runner: the one text for both, compiled
// into csrc/device/package.cpp and, by frontend/ahead.py, into every such library.
#include <cstdint>

namespace openspyre {

// Of the declarations below: a package is refused by a runner of another version.
constexpr int32_t kPackageVersion = 2;

// A table of functions that the runner hands to a package's library, with the device to run on.
// Tensors are `at::Tensor*`. Each returns 0, or keeps what went wrong for the runner to throw.
struct PackageCalls {
  // A kernel from its text, once: `*kernel` is null before.
  int (*load)(void** kernel, const char* text);
  int (*launch)(void* kernel, void* const* tensors, const int64_t* sizes, int32_t device);
  // The copy on the card of a constant that the package holds in host memory; made once, and again
  // when the constant has been replaced.
  int (*constant)(void** copy, void* host, int32_t device, void** tensor);
  // A new tensor, the caller's; `op` says what needs its memory.
  int (*allocate)(int32_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                  int32_t device, const char* op, void** tensor);
};

}  // namespace openspyre
