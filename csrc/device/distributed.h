// What spyreccl (openspyre/device/distributed) needs of the extension.
#pragma once

#include <torch/csrc/python_headers.h>

namespace openspyre {

bool add_distributed(PyObject* module);

}  // namespace openspyre
