#define PY_SSIZE_T_CLEAN  // lengths of "#" formats are Py_ssize_t
#include "kernel.h"

#include <ATen/ops/item.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <new>
#include <string>
#include <string_view>

#include "launcher.h"
#include "memory.h"
#include "memory_error.h"
#include "python.h"

namespace openspyre {
namespace {

struct Argument {
  bool scalar;
  c10::ScalarType dtype;  // of a tensor
};

struct State {
  std::string name;
  std::vector<Argument> arguments;
  size_t size_count = 0;
  size_t scalar_count = 0;
  Owned on_miss;
  std::vector<std::shared_ptr<Variant>> variants;
};

struct KernelObject {
  PyObject_HEAD vectorcallfunc call;
  PyObject* weak_references;
  State* state;  // owned; null until __init__
};

KernelObject* as_kernel(PyObject* object) { return reinterpret_cast<KernelObject*>(object); }

State& state(PyObject* object) {
  State* const found = as_kernel(object)->state;
  TORCH_CHECK(found, "this Kernel has not been initialised");
  return *found;
}

// --- a call ---------------------------------------------------------------------------------

bool fail_argument(const State& kernel, size_t position, const std::string& problem) {
  PyErr_Format(PyExc_TypeError, "%s: argument %zu %s", kernel.name.c_str(), position,
               problem.c_str());
  return false;
}

bool bind_tensor(const State& kernel, size_t i, PyObject* value, Binding& binding, int& device) {
  if (!THPVariable_Check(value)) return fail_argument(kernel, i, "is not a tensor");
  const at::Tensor& tensor = THPVariable_Unpack(value);
  if (!tensor.is_privateuseone())
    return fail_argument(kernel, i, "is on " + tensor.device().str() + ", not on a card");
  if (tensor.scalar_type() != kernel.arguments[i].dtype)
    return fail_argument(kernel, i,
                         std::string("has dtype ") + c10::toString(tensor.scalar_type()) +
                             ", the kernel was compiled for " +
                             c10::toString(kernel.arguments[i].dtype));
  if (device >= 0 && device != tensor.device().index())
    return fail_argument(
        kernel, i,
        "is on " + tensor.device().str() + ", others on spyre:" + std::to_string(device));
  device = tensor.device().index();
  binding.addresses.push_back(reinterpret_cast<uint64_t>(tensor.const_data_ptr()));
  return true;
}

bool bind_scalar(const State& kernel, size_t i, PyObject* value, Binding& binding) {
  if (THPVariable_Check(value)) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    if (!tensor.is_cpu() || tensor.numel() != 1)
      return fail_argument(kernel, i, "is not a CPU tensor with one element");
    binding.scalars.push_back(tensor.item().toDouble());
    return true;
  }
  const double number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred()) return false;
  binding.scalars.push_back(number);
  return true;
}

bool bind(const State& kernel, PyObject* const* args, size_t count, Binding& binding, int& device) {
  const size_t expected = kernel.arguments.size() + kernel.size_count;
  if (count != expected) {
    PyErr_Format(PyExc_TypeError, "%s: takes %zu arguments, got %zu", kernel.name.c_str(), expected,
                 count);
    return false;
  }
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    const bool bound = kernel.arguments[i].scalar
                           ? bind_scalar(kernel, i, args[i], binding)
                           : bind_tensor(kernel, i, args[i], binding, device);
    if (!bound) return false;
  }
  for (size_t i = kernel.arguments.size(); i < count; ++i) {
    const long long size = PyLong_AsLongLong(args[i]);
    if (size == -1 && PyErr_Occurred()) return false;
    binding.sizes.push_back(size);
  }
  if (device >= 0) return true;
  PyErr_Format(PyExc_TypeError, "%s: no argument is a tensor", kernel.name.c_str());
  return false;
}

std::shared_ptr<Variant> find(State& kernel, const Sizes& sizes) {
  for (auto& variant : kernel.variants)
    if (variant->serves(sizes)) return variant;
  return nullptr;
}

// A variant of (program bytes, low, high). Null with a Python error set on failure.
std::shared_ptr<Variant> read_variant(const State& kernel, PyObject* made) {
  const char* bytes = nullptr;
  Py_ssize_t length = 0;
  PyObject *low_tuple = nullptr, *high_tuple = nullptr;
  Sizes low, high;
  if (!PyArg_ParseTuple(made, "y#OO", &bytes, &length, &low_tuple, &high_tuple) ||
      !read_ints(low_tuple, low, "Kernel") || !read_ints(high_tuple, high, "Kernel"))
    return nullptr;
  if (low.size() != kernel.size_count || high.size() != kernel.size_count) {
    PyErr_Format(PyExc_ValueError, "%s: a variant needs %zu sizes", kernel.name.c_str(),
                 kernel.size_count);
    return nullptr;
  }
  return std::make_shared<Variant>(kernel.name, std::string(bytes, length), low, high);
}

// Asks Python for the program of a class of sizes. Null with a Python error set on failure.
std::shared_ptr<Variant> compile(State& kernel, const Sizes& sizes) {
  const Owned tuple(make_ints(sizes));
  if (!tuple) return nullptr;
  const Untraced untraced;
  const Owned made(PyObject_CallOneArg(kernel.on_miss.get(), tuple.get()));
  if (!made) return nullptr;
  const auto variant = read_variant(kernel, made.get());
  if (!variant) return nullptr;
  if (!variant->serves(sizes)) {
    PyErr_Format(PyExc_RuntimeError, "%s: the new variant does not serve %R", kernel.name.c_str(),
                 tuple.get());
    return nullptr;
  }
  if (auto raced = find(kernel, sizes)) return raced;  // another thread was faster
  kernel.variants.push_back(variant);
  return variant;
}

// --- what is called in place of launches ---------------------------------------------------------

thread_local PyObject* in_place = nullptr;  // owned; under the GIL

bool tell_in_place(PyObject* kernel, const Binding& binding) {
  const Untraced untraced;
  const Owned held(Py_NewRef(in_place)), sizes(make_ints(binding.sizes));
  return sizes && Owned(PyObject_CallFunctionObjArgs(held.get(), kernel, sizes.get(), nullptr));
}

// --- who watches launches -----------------------------------------------------------------------

PyObject*& watcher() {
  static PyObject* callable = nullptr;  // under the GIL
  return callable;
}

PyObject* make_numbers(const Binding& binding) {
  const Owned sizes(make_ints(binding.sizes));
  Owned addresses(PyTuple_New(static_cast<Py_ssize_t>(binding.addresses.size())));
  Owned scalars(PyTuple_New(static_cast<Py_ssize_t>(binding.scalars.size())));
  if (!sizes || !addresses || !scalars) return nullptr;
  for (size_t i = 0; i < binding.addresses.size(); ++i)
    PyTuple_SET_ITEM(addresses.get(), static_cast<Py_ssize_t>(i),
                     PyLong_FromUnsignedLongLong(binding.addresses[i]));
  for (size_t i = 0; i < binding.scalars.size(); ++i)
    PyTuple_SET_ITEM(scalars.get(), static_cast<Py_ssize_t>(i),
                     PyFloat_FromDouble(binding.scalars[i]));
  return Py_BuildValue("(OOO)", addresses.get(), sizes.get(), scalars.get());
}

// Tells the watcher, if there is one; false with a Python error set if it fails.
bool tell_watcher(PyObject* kernel, const Variant& variant, const Binding& binding, bool after) {
  PyObject* const callable = watcher();
  if (!callable) return true;
  const Untraced untraced;
  const Owned held(Py_NewRef(callable)), numbers(make_numbers(binding));
  if (!numbers) return false;
  const auto& variants = state(kernel).variants;
  Py_ssize_t index = 0;
  while (variants[index].get() != &variant) ++index;
  return bool(Owned(PyObject_CallFunction(callable, "OnOO", kernel, index, numbers.get(),
                                          after ? Py_True : Py_False)));
}

bool launch_in_memory(PyObject* self, State& kernel, const Binding& binding, int device) {
  std::shared_ptr<Variant> variant = find(kernel, binding.sizes);
  if (!variant) variant = compile(kernel, binding.sizes);
  if (!variant) return false;
  Resident& program = variant->on(device);
  Record& record = variant->record(binding.sizes);
  if (timing()) measure(*variant, record, device, binding.addresses.size(), binding.scalars.size());
  const int counted = is_off_clock() ? 0 : 1;
  const auto pool = program.pool();
  const auto& block = program.fill(binding, reinterpret_cast<uint64_t>(pool.get()));
  // A watcher may drain the card, and others may launch meanwhile: the block is this thread's.
  if (watcher()) {
    const std::vector<int64_t> kept(block);
    if (!tell_watcher(self, *variant, binding, false)) return false;
    record.launches += counted;
    {
      const WithoutGil released;
      launch(current_stream(device), variant, program, record, kept);
    }
    return tell_watcher(self, *variant, binding, true);
  }
  record.launches += counted;
  const WithoutGil released;
  launch(current_stream(device), variant, program, record, block);
  return true;
}

bool launch_bound(PyObject* self, const Binding& binding, int device) {
  if (in_place) return tell_in_place(self, binding);
  State& kernel = state(self);
  return needing_memory([&] { return "the kernel " + kernel.name; },
                        [&] { return launch_in_memory(self, kernel, binding, device); });
}

PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const State& kernel = state(self);
  if (names && PyTuple_GET_SIZE(names)) {
    PyErr_Format(PyExc_TypeError, "%s: takes no keyword arguments", kernel.name.c_str());
    return nullptr;
  }
  const ReusedBinding binding;
  int device = -1;
  if (!bind(kernel, args, PyVectorcall_NARGS(flags), *binding, device)) return nullptr;
  if (!launch_bound(self, *binding, device)) return nullptr;
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// --- what Python can ask ----------------------------------------------------------------------

Variant* variant_at(PyObject* self, Py_ssize_t index) {
  auto& variants = state(self).variants;
  if (index >= 0 && static_cast<size_t>(index) < variants.size()) return variants[index].get();
  PyErr_Format(PyExc_IndexError, "there is no variant %zd", index);
  return nullptr;
}

PyObject* py_serves(PyObject* self, PyObject* tuple) {
  HANDLE_TH_ERRORS
  Sizes sizes;
  if (!read_ints(tuple, sizes, "Kernel.serves")) return nullptr;
  State& kernel = state(self);
  return PyBool_FromLong(sizes.size() == kernel.size_count && find(kernel, sizes));
  END_HANDLE_TH_ERRORS
}

PyObject* py_add(PyObject* self, PyObject* variant) {
  HANDLE_TH_ERRORS
  State& kernel = state(self);
  auto read = read_variant(kernel, variant);
  if (!read) return nullptr;
  kernel.variants.push_back(std::move(read));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* py_variants(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  Owned list(PyList_New(0));
  for (const auto& variant : state(self).variants) {
    const Owned low(make_ints(variant->low())), high(make_ints(variant->high()));
    if (!low || !high) return nullptr;
    const auto& bytes = variant->bytes();
    const Owned item(Py_BuildValue("(y#OO)", bytes.data(), static_cast<Py_ssize_t>(bytes.size()),
                                   low.get(), high.get()));
    if (!list || !item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
  }
  return list.release();
  END_HANDLE_TH_ERRORS
}

PyObject* py_records(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  finish_everything();
  Owned list(PyList_New(0));
  const auto& variants = state(self).variants;
  for (size_t i = 0; i < variants.size(); ++i) {
    for (const Record& record : variants[i]->records()) {
      const Owned sizes(make_ints(record.sizes));
      if (!sizes) return nullptr;
      const Owned item(Py_BuildValue("(nOKdKK)", static_cast<Py_ssize_t>(i), sizes.get(),
                                     static_cast<unsigned long long>(record.launches),
                                     static_cast<double>(record.nanoseconds) * 1e-9,
                                     static_cast<unsigned long long>(record.number),
                                     static_cast<unsigned long long>(record.kept)));
      if (!list || !item || PyList_Append(list.get(), item.get()) < 0) return nullptr;
    }
  }
  return list.release();
  END_HANDLE_TH_ERRORS
}

PyObject* as_dict(const spyre_report& report) {
  const std::pair<const char*, uint64_t> numbers[] = {
      {"cycles", report.cycles},
      {"bound_p_cycles", report.bound_p_cycles},
      {"pt_busy", report.pt_busy},
      {"sfu_busy", report.sfu_busy},
      {"load_busy", report.load_busy},
      {"store_busy", report.store_busy},
      {"ring_busy", report.ring_busy},
      {"device_read_bytes", report.device_read_bytes},
      {"device_write_bytes", report.device_write_bytes},
      {"ring_bytes", report.ring_bytes},
      {"flop", report.flop},
      {"sfu_ops", report.sfu_ops},
      {"lx_peak", report.lx_peak},
      {"cores", report.cores},
      {"instructions", report.instructions},
  };
  Owned dict(PyDict_New());
  for (const auto& [name, number] : numbers) {
    const Owned value(PyLong_FromUnsignedLongLong(number));
    if (!dict || !value || PyDict_SetItemString(dict.get(), name, value.get()) < 0) return nullptr;
  }
  return dict.release();
}

PyObject* py_report(PyObject* self, PyObject* args) {
  HANDLE_TH_ERRORS
  Py_ssize_t index = 0;
  PyObject* tuple = nullptr;
  int kept = 0;
  Sizes sizes;
  if (!PyArg_ParseTuple(args, "nO|p", &index, &tuple, &kept) ||
      !read_ints(tuple, sizes, "Kernel.report"))
    return nullptr;
  Variant* const variant = variant_at(self, index);
  if (!variant) return nullptr;
  const State& kernel = state(self);
  if (sizes.size() != kernel.size_count || !variant->serves(sizes))
    return PyErr_Format(PyExc_ValueError, "variant %zd does not serve %R", index, tuple);
  const size_t addresses = kernel.arguments.size() - kernel.scalar_count;
  return as_dict(measure(*variant, variant->record(sizes), current_device(), addresses,
                         kernel.scalar_count, kept != 0));
  END_HANDLE_TH_ERRORS
}

PyObject* py_name(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  return PyUnicode_FromString(state(self).name.c_str());
  END_HANDLE_TH_ERRORS
}

PyObject* py_repr(PyObject* self) {
  HANDLE_TH_ERRORS
  const State& kernel = state(self);
  return PyUnicode_FromFormat("<Kernel %s: %zu arguments, %zu sizes, %zu variants>",
                              kernel.name.c_str(), kernel.arguments.size(), kernel.size_count,
                              kernel.variants.size());
  END_HANDLE_TH_ERRORS
}

// --- the type ---------------------------------------------------------------------------------

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self) as_kernel(self)->call = call;
  return self;
}

// By the names of kernel text (openspyre/ir/kernel.py).
constexpr std::pair<std::string_view, c10::ScalarType> kDtypes[] = {
    {"f16", c10::kHalf},
    {"bf16", c10::kBFloat16},
    {"f32", c10::kFloat},
    {"i64", c10::kLong},
    {"i32", c10::kInt},
    {"i16", c10::kShort},
    {"i8", c10::kChar},
    {"u8", c10::kByte},
    {"b1", c10::kBool},
    {"f8e4m3", c10::kFloat8_e4m3fn},
    {"f8e5m2", c10::kFloat8_e5m2},
};

bool read_argument(PyObject* item, State& kernel) {
  if (item == Py_None) {
    kernel.arguments.push_back({true, c10::ScalarType::Undefined});
    ++kernel.scalar_count;
    return true;
  }
  const char* const text = PyUnicode_AsUTF8(item);
  if (!text) return false;
  for (const auto& [name, dtype] : kDtypes) {
    if (name != text) continue;
    kernel.arguments.push_back({false, dtype});
    return true;
  }
  PyErr_Format(PyExc_ValueError, "Kernel: there is no dtype %R", item);
  return false;
}

int initialise(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"name", "arguments", "size_count", "on_miss", nullptr};
  const char* name = nullptr;
  PyObject *arguments = nullptr, *on_miss = nullptr;
  Py_ssize_t size_count = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!nO", const_cast<char**>(names), &name,
                                   &PyTuple_Type, &arguments, &size_count, &on_miss))
    return -1;
  if (as_kernel(self)->state) {
    PyErr_SetString(PyExc_RuntimeError, "Kernel: initialised twice");
    return -1;
  }
  auto made = std::make_unique<State>();
  made->name = name;
  made->size_count = static_cast<size_t>(size_count);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i)
    if (!read_argument(PyTuple_GET_ITEM(arguments, i), *made)) return -1;
  Py_INCREF(on_miss);
  made->on_miss = Owned(on_miss);
  as_kernel(self)->state = made.release();
  return 0;
}

void destroy(PyObject* self) {
  if (as_kernel(self)->weak_references) PyObject_ClearWeakRefs(self);
  const std::unique_ptr<State> owned(as_kernel(self)->state);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef methods[] = {
    {"variants", py_variants, METH_NOARGS, "[(program bytes, low, high)] of the size classes."},
    {"serves", py_serves, METH_O, "Whether a variant is there for these sizes."},
    {"add", py_add, METH_O, "Adds a variant, (program bytes, low, high): it serves these sizes."},
    {"records", py_records, METH_NOARGS,
     "[(variant, sizes, launches, host seconds, number, launches that found what LX kept)] of "
     "everything that was launched."},
    {"report", py_report, METH_VARARGS,
     "report(variant, sizes, kept=False): what one launch costs the card; `kept`: one that finds "
     "what LX has kept."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef properties[] = {
    {"name", py_name, nullptr, "The kernel's name.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject type = [] {
  PyTypeObject made = {PyVarObject_HEAD_INIT(nullptr, 0)};
  made.tp_name = "openspyre._C.Kernel";
  made.tp_doc = "Kernel(name, arguments, size_count, on_miss): call it with tensors, then sizes.";
  made.tp_basicsize = sizeof(KernelObject);
  made.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  made.tp_vectorcall_offset = offsetof(KernelObject, call);
  made.tp_call = PyVectorcall_Call;
  made.tp_weaklistoffset = offsetof(KernelObject, weak_references);
  made.tp_new = create;
  made.tp_init = initialise;
  made.tp_dealloc = destroy;
  made.tp_repr = py_repr;
  made.tp_methods = methods;
  made.tp_getset = properties;
  return made;
}();

}  // namespace

bool launch(PyObject* kernel, const Binding& binding, int device) {
  return launch_bound(kernel, binding, device);
}

void watch_launches(PyObject* callable) {
  PyObject* const before = std::exchange(watcher(), callable == Py_None ? nullptr : callable);
  Py_XINCREF(watcher());
  Py_XDECREF(before);
}

void launch_in_place(PyObject* callable) {
  PyObject* const before = std::exchange(in_place, callable == Py_None ? nullptr : callable);
  Py_XINCREF(in_place);
  Py_XDECREF(before);
}

bool add_kernel_type(PyObject* module) {
  if (PyType_Ready(&type) < 0) return false;
  Py_INCREF(&type);
  return PyModule_AddObject(module, "Kernel", reinterpret_cast<PyObject*>(&type)) == 0;
}

}  // namespace openspyre
