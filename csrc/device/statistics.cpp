#include "statistics.h"

#include <ATen/core/CachingHostAllocator.h>
#include <torch/csrc/Exceptions.h>

#include <string>
#include <utility>

#include "arena.h"
#include "python.h"

namespace openspyre {
namespace {

int device_argument(PyObject* arg) {
  const long device = PyLong_AsLong(arg);
  if (device == -1 && PyErr_Occurred()) throw_python_error();
  return static_cast<int>(device);
}

// --- device memory ------------------------------------------------------------------------------

PyObject* py_memory_blocks(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const Owned list = checked(PyList_New(0));
  for (const Arena::Shown& block : arena(device_argument(arg)).snapshot()) {
    const Owned item = checked(Py_BuildValue(
        "(KKKKnLNNN)", static_cast<unsigned long long>(block.segment),
        static_cast<unsigned long long>(block.segment_bytes),
        static_cast<unsigned long long>(block.address),
        static_cast<unsigned long long>(block.bytes), static_cast<Py_ssize_t>(block.requested),
        static_cast<long long>(block.stream), PyBool_FromLong(block.small),
        PyBool_FromLong(block.freed), PyBool_FromLong(block.for_tensor)));
    if (PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return Py_NewRef(list.get());
  END_HANDLE_TH_ERRORS
}

PyObject* py_memory_limit(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  return PyLong_FromSize_t(arena(device_argument(arg)).limit());
  END_HANDLE_TH_ERRORS
}

PyObject* py_set_memory_limit(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  int device = 0;
  Py_ssize_t bytes = 0;
  if (!PyArg_ParseTuple(args, "in", &device, &bytes)) return nullptr;
  arena(device).set_limit(static_cast<size_t>(bytes));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// --- pinned host memory -------------------------------------------------------------------------

at::HostAllocator& pinned() { return *at::getHostAllocator(c10::kPrivateUse1); }

PyObject* py_host_memory_stats(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  const at::HostStats stats = pinned().get_stats();
  const Owned result = checked(PyDict_New());
  const std::pair<const char*, const at::Stat*> all[] = {
      {"active_requests", &stats.active_requests},
      {"active_bytes", &stats.active_bytes},
      {"allocations", &stats.allocations},
      {"allocated_bytes", &stats.allocated_bytes}};
  for (const auto& [name, stat] : all) {
    const std::pair<const char*, int64_t> values[] = {{"current", stat->current},
                                                      {"peak", stat->peak},
                                                      {"allocated", stat->allocated},
                                                      {"freed", stat->freed}};
    for (const auto& [kind, value] : values) {
      const Owned number = checked(PyLong_FromLongLong(value));
      const std::string key = std::string(name) + "." + kind;
      if (PyDict_SetItemString(result.get(), key.c_str(), number.get()) < 0) return nullptr;
    }
  }
  return Py_NewRef(result.get());
  END_HANDLE_TH_ERRORS
}

PyObject* py_reset_host_memory_stats(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const int peak = PyObject_IsTrue(arg);
  if (peak < 0) return nullptr;
  if (peak)
    pinned().reset_peak_stats();
  else
    pinned().reset_accumulated_stats();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"memory_blocks", py_memory_blocks, METH_O,
     "memory_blocks(device): [(segment, its bytes, address, bytes, bytes asked for or 0 if free, "
     "stream, small pool, freed but in use, for a tensor)], by address."},
    {"memory_limit", py_memory_limit, METH_O, "The bytes a device's allocator may reserve."},
    {"set_memory_limit", py_set_memory_limit, METH_VARARGS,
     "set_memory_limit(device, bytes): it reserves no more from here on."},
    {"host_memory_stats", py_host_memory_stats, METH_NOARGS, "Counters of pinned memory, by name."},
    {"reset_host_memory_stats", py_reset_host_memory_stats, METH_O,
     "Starts the maxima again (True) or the running totals (False)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_statistics(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }

}  // namespace openspyre
