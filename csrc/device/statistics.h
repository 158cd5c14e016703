// What memory is used for, as Python objects.
#pragma once

#include <torch/csrc/python_headers.h>

namespace openspyre {

// Adds the functions to the module; false with a Python error set on failure.
bool add_statistics(PyObject* module);

}  // namespace openspyre
