// `openspyre._C.Kernel`: a compiled region as a callable Python object.
#pragma once

#include <torch/csrc/python_headers.h>

#include "launcher.h"

namespace openspyre {

// Launches a Kernel whose arguments are bound already. Needs the GIL and releases it while the
// card runs; returns false with a Python error set on failure.
bool launch(PyObject* kernel, const Binding& binding, int device);

// Calls a Python callable before and after every launch, with the kernel, the variant's position,
// (addresses, sizes, scalars), and whether it is after; None: nobody. Needs the GIL.
void watch_launches(PyObject* callable);

// Calls a Python callable with the kernel and its sizes in place of each launch of this thread;
// None: launches as ever. Needs the GIL.
void launch_in_place(PyObject* callable);

// Adds the type to the module. Returns false with a Python error set on failure.
bool add_kernel_type(PyObject* module);

}  // namespace openspyre
