// `openspyre._C.Kernel`: a compiled region as a callable Python object.
#pragma once

#include <torch/csrc/python_headers.h>

namespace openspyre {

// Adds the type to the module. Returns false with a Python error set on failure.
bool add_kernel_type(PyObject* module);

}  // namespace openspyre
