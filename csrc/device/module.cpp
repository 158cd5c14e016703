// The Python module openspyre._C.
#include <ATen/EmptyTensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/Stream.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/python_headers.h>

#include <memory>
#include <string>
#include <vector>

#include "card.h"
#include "distributed.h"
#include "eager.h"
#include "fallback.h"
#include "kernel.h"
#include "memory.h"
#include "memory_error.h"
#include "numerics.h"
#include "python.h"
#include "queue.h"
#include "runtime.h"
#include "spans.h"
#include "statistics.h"

namespace openspyre {
namespace {

bool read_number(PyObject* key, PyObject* value, Settings& into) {
  const char* const name = PyUnicode_AsUTF8(key);
  const double number = PyFloat_AsDouble(value);
  if (!name || (number == -1.0 && PyErr_Occurred())) return false;
  into.names.emplace_back(name);
  into.values.push_back(number);
  return true;
}

PyObject* py_configure(PyObject*, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"devices", "memory", "threads", "card", "debug", "run", nullptr};
  const char* run = "";
  Settings chosen;
  unsigned long long memory = 0;
  PyObject* numbers = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$iKiO!Is", const_cast<char**>(names),
                                   &chosen.devices, &memory, &chosen.threads, &PyDict_Type,
                                   &numbers, &chosen.debug, &run))
    return nullptr;
  TORCH_CHECK_TYPE(numbers, "configure() needs the numbers of a card");
  chosen.memory = memory;
  chosen.run = run;
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(numbers, &position, &key, &value);)
    if (!read_number(key, value, chosen)) return nullptr;
  configure(std::move(chosen));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* py_default_generator(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const long device = PyLong_AsLong(arg);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  check_device(static_cast<int>(device));
  return THPGenerator_initDefaultGenerator(default_generator(static_cast<int>(device)));
  END_HANDLE_TH_ERRORS
}

PyObject* py_default_stream(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const long device = PyLong_AsLong(arg);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  check_device(static_cast<int>(device));
  const c10::impl::VirtualGuardImpl guard(c10::kPrivateUse1);
  return THPStream_Wrap(guard.getDefaultStream(
      c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device))));
  END_HANDLE_TH_ERRORS
}

PyObject* py_is_open(PyObject*, PyObject* arg) {
  const long device = PyLong_AsLong(arg);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(is_open(static_cast<int>(device)));
}

PyObject* py_in_bad_fork(PyObject*, PyObject*) { return PyBool_FromLong(in_bad_fork()); }

PyObject* py_drain(PyObject*, PyObject*) {
  HANDLE_TH_ERRORS
  finish_everything();
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// --- holding a stream, for tests --------------------------------------------------------------

constexpr const char* kHoldName = "openspyre.hold";

MarkPtr* held(PyObject* capsule) {
  return static_cast<MarkPtr*>(PyCapsule_GetPointer(capsule, kHoldName));
}

void drop_hold(PyObject* capsule) {
  const std::unique_ptr<MarkPtr> mark(held(capsule));
  let_go(*mark);
}

PyObject* py_hold(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const long device = PyLong_AsLong(arg);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  auto mark = std::make_unique<MarkPtr>(hold(current_stream(static_cast<int>(device))));
  return PyCapsule_New(mark.release(), kHoldName, drop_hold);
  END_HANDLE_TH_ERRORS
}

PyObject* py_let_go(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  MarkPtr* const mark = held(arg);
  if (!mark) return nullptr;
  let_go(*mark);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// --- what tools look at -------------------------------------------------------------------------

PyObject* py_start_spans(PyObject*, PyObject*) { return PyLong_FromSize_t(start_recording()); }

PyObject* py_stop_spans(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const size_t position = PyLong_AsSize_t(arg);
  if (position == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
  finish_everything();
  Owned list(PyList_New(0));
  for (const Span& span : stop_recording(position)) {
    const Owned item(Py_BuildValue(
        "(siiLKLLLL)", span.name.c_str(), span.device, span.engine,
        static_cast<long long>(span.stream), static_cast<unsigned long long>(span.subject),
        static_cast<long long>(span.card_start), static_cast<long long>(span.card_end),
        static_cast<long long>(span.host_start), static_cast<long long>(span.host_end)));
    if (!list || !item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
  END_HANDLE_TH_ERRORS
}

PyObject* py_launch_in_place(PyObject*, PyObject* arg) {
  if (arg != Py_None && !PyCallable_Check(arg))
    return PyErr_Format(PyExc_TypeError, "launch_in_place: %R is not callable", arg);
  launch_in_place(arg);
  Py_RETURN_NONE;
}

PyObject* py_watch_launches(PyObject*, PyObject* arg) {
  if (arg != Py_None && !PyCallable_Check(arg))
    return PyErr_Format(PyExc_TypeError, "watch_launches: %R is not callable", arg);
  watch_launches(arg);
  Py_RETURN_NONE;
}

// read_memory(address, count): bytes of device memory, after all that was enqueued.
PyObject* py_read_memory(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  unsigned long long address = 0;
  Py_ssize_t count = 0;
  if (!PyArg_ParseTuple(args, "Kn", &address, &count)) return nullptr;
  const auto* const start = reinterpret_cast<const char*>(address);
  const bool inside =
      count >= 0 &&
      (count == 0 || (device_of(start) >= 0 && device_of(start) == device_of(start + count - 1)));
  TORCH_CHECK(inside, "spyre: ", count, " bytes at ", address, " do not lie in a card's memory");
  finish_everything();
  return PyBytes_FromStringAndSize(start, count);
  END_HANDLE_TH_ERRORS
}

// --- what LX keeps between launches -----------------------------------------------------

PyObject* py_lx_kept(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const long device = PyLong_AsLong(arg);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  check_device(static_cast<int>(device));
  std::vector<spyre_kept> kept;
  if (is_open(static_cast<int>(device))) {
    const spyre_card* const handle = card(static_cast<int>(device)).handle;
    size_t count = spyre_card_kept(handle, nullptr, 0);
    while (count > kept.size()) {
      kept.resize(count);
      count = spyre_card_kept(handle, kept.data(), kept.size());
    }
    kept.resize(count);
  }
  Owned list(PyList_New(0));
  for (const spyre_kept& one : kept) {
    const Owned item(Py_BuildValue("(sKKK)", one.name, static_cast<unsigned long long>(one.bytes),
                                   static_cast<unsigned long long>(one.loads),
                                   static_cast<unsigned long long>(one.hits)));
    if (!list || !item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
  END_HANDLE_TH_ERRORS
}

PyObject* py_evict_lx(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const long device = PyLong_AsLong(arg);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  check_device(static_cast<int>(device));
  if (is_open(static_cast<int>(device))) {
    const WithoutGil released;
    finish_device(static_cast<int>(device));
    spyre_card_evict(card(static_cast<int>(device)).handle);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* py_fallbacks(PyObject*, PyObject*) {
  Owned result(PyDict_New());
  if (!result) return nullptr;
  for (const auto& [name, count] : fallback_counts()) {
    const Owned number(PyLong_FromUnsignedLongLong(count));
    if (!number || PyDict_SetItemString(result.get(), name.c_str(), number.get()) < 0)
      return nullptr;
  }
  return result.release();
}

PyObject* py_fallback_reasons(PyObject*, PyObject*) {
  Owned result(PyDict_New());
  if (!result) return nullptr;
  for (const auto& [name, reason] : fallback_reasons()) {
    const Owned text(PyUnicode_FromString(reason.c_str()));
    if (!text || PyDict_SetItemString(result.get(), name.c_str(), text.get()) < 0) return nullptr;
  }
  return result.release();
}

PyObject* py_eager_misses(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(eager_misses());
}

PyObject* py_reset_fallbacks(PyObject*, PyObject*) {
  reset_fallback_counts();
  Py_RETURN_NONE;
}

PyObject* py_set_fallback_mode(PyObject*, PyObject* arg) {
  const char* const text = PyUnicode_AsUTF8(arg);
  if (!text) return nullptr;
  const std::string mode(text);
  if (mode == "count")
    set_fallback_mode(FallbackMode::Count);
  else if (mode == "warn")
    set_fallback_mode(FallbackMode::Warn);
  else if (mode == "error")
    set_fallback_mode(FallbackMode::Error);
  else
    return PyErr_Format(PyExc_ValueError, "fallback mode %R: use count, warn or error", arg);
  Py_RETURN_NONE;
}

PyObject* py_numerics(PyObject*, PyObject*) {
  const spyre_numerics& now = numerics();
  return Py_BuildValue("(iiiiii)", now.card, now.dl16_round, now.bf16_out_truncate, now.acc_format,
                       now.acc_chunk, now.fp8_bias);
}

PyObject* py_set_numerics(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  spyre_numerics chosen{};
  if (!PyArg_ParseTuple(args, "iiiiii", &chosen.card, &chosen.dl16_round, &chosen.bf16_out_truncate,
                        &chosen.acc_format, &chosen.acc_chunk, &chosen.fp8_bias))
    return nullptr;
  set_numerics(chosen);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// empty_strided_spyre(size, stride, dtype, device_index, op=""): the allocation of compiled graphs.
PyObject* py_empty_strided(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  if (count < 4 || count > 5 || !THPDtype_Check(args[2])) {
    PyErr_SetString(
        PyExc_TypeError,
        "empty_strided_spyre(size, stride, dtype, device_index, op=\"\"): wrong arguments");
    return nullptr;
  }
  c10::SmallVector<int64_t, 8> size, stride;
  const char* const caller = "empty_strided_spyre";
  if (!read_ints(args[0], size, caller) || !read_ints(args[1], stride, caller)) return nullptr;
  long device = args[3] == Py_None ? current_device() : PyLong_AsLong(args[3]);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  const int previous = exchange_device(static_cast<int>(device));
  struct Restore {
    int device;
    ~Restore() { set_device_unchecked(device); }
  } restore{previous};
  const auto op = [&]() -> std::string {
    const char* const text = count == 5 ? PyUnicode_AsUTF8(args[4]) : nullptr;
    PyErr_Clear();
    return text ? text : "a compiled graph";
  };
  return THPVariable_Wrap(needing_memory(op, [&] {
    return at::detail::empty_strided_generic(size, stride, allocator(),
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             reinterpret_cast<THPDtype*>(args[2])->scalar_type);
  }));
  END_HANDLE_TH_ERRORS
}

template <typename F>
PyCFunction as_function(F* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"configure", as_function(py_configure), METH_VARARGS | METH_KEYWORDS,
     "configure(*, devices, memory, threads, card, debug=0, run=''): what the cards are; before "
     "their "
     "first use."},
    {"default_generator", py_default_generator, METH_O, "The default generator of a device."},
    {"default_stream", py_default_stream, METH_O, "The stream that a device starts with."},
    {"is_open", py_is_open, METH_O, "Whether a device's card has been used."},
    {"in_bad_fork", py_in_bad_fork, METH_NOARGS, "Whether this process was forked after use."},
    {"drain", py_drain, METH_NOARGS, "Waits for every card; reports no error."},
    {"hold", py_hold, METH_O,
     "hold(device): the current stream does nothing more until `let_go` of the result, or its "
     "end."},
    {"let_go", py_let_go, METH_O, "Lets a held stream go on."},
    {"start_spans", py_start_spans, METH_NOARGS, "Starts to record what cards do; see stop_spans."},
    {"stop_spans", py_stop_spans, METH_O,
     "What cards did since the start_spans that gave the argument: [(name, device, engine, stream, "
     "number of the kernel's record, card start and end in ps, host start and end in ns)]."},
    {"launch_in_place", py_launch_in_place, METH_O,
     "Has a callable called with the kernel and its sizes in place of each launch of this thread; "
     "None ends it."},
    {"watch_launches", py_watch_launches, METH_O,
     "Has a callable called before and after every launch with the kernel, the variant, "
     "(addresses, "
     "sizes, scalars) and whether it is after; None ends it."},
    {"read_memory", py_read_memory, METH_VARARGS,
     "read_memory(address, count): bytes of device memory, once the cards are idle."},
    {"lx_kept", py_lx_kept, METH_O,
     "[(program, bytes, loads, hits)] of what the LX of a device keeps between launches."},
    {"evict_lx", py_evict_lx, METH_O, "Forgets it, once the device is idle."},
    {"fallbacks", py_fallbacks, METH_NOARGS, "Calls that ran on the CPU, by op name."},
    {"fallback_reasons", py_fallback_reasons, METH_NOARGS, "Why they did, by op name."},
    {"eager_misses", py_eager_misses, METH_NOARGS,
     "How often an eager call asked Python for a kernel."},
    {"reset_fallbacks", py_reset_fallbacks, METH_NOARGS, "Starts counting again."},
    {"set_fallback_mode", py_set_fallback_mode, METH_O, "count, warn or error."},
    {"numerics", py_numerics, METH_NOARGS, "The words of the numerics that launches take."},
    {"set_numerics", py_set_numerics, METH_VARARGS,
     "set_numerics(*words): what launches take from now on (openspyre/numerics.py)."},
    {"empty_strided_spyre", as_function(py_empty_strided), METH_FASTCALL,
     "empty_strided_spyre(size, stride, dtype, device_index, op=\"\"): `op` needs the memory."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "openspyre._C",
                          "The native part of the spyre device.",
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace
}  // namespace openspyre

PyMODINIT_FUNC PyInit__C() {
  PyObject* const module = PyModule_Create(&openspyre::definition);
  if (!module) return nullptr;
  if (!openspyre::add_kernel_type(module) || !openspyre::add_statistics(module) ||
      !openspyre::add_distributed(module)) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
