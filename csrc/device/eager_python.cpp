#include "eager_python.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/item.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <optional>

#include "kernel.h"
#include "python.h"

namespace openspyre {
namespace {

using at::Tensor;
using c10::IValue;

// An attribute of openspyre.frontend.eager.
Owned from_frontend(const char* name) {
  const Owned module = checked(PyImport_ImportModule("openspyre.frontend.eager"));
  return checked(PyObject_GetAttrString(module.get(), name));
}

std::string text_of(PyObject* object) {
  const char* const text = PyUnicode_AsUTF8(object);
  if (!text) throw_python_error();
  return text;
}

template <typename Words>
PyObject* as_bytes(const Words& words) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words.data()),
                                   static_cast<Py_ssize_t>(words.size() * sizeof(int64_t)));
}

int64_t int_at(PyObject* tuple, Py_ssize_t index) {
  PyObject* const item = PyTuple_GetItem(tuple, index);
  if (!item) throw_python_error();
  const long long number = PyLong_AsLongLong(item);
  if (number == -1 && PyErr_Occurred()) throw_python_error();
  return number;
}

// --- arguments as Python objects ----------------------------------------------------------------

class Arguments {
 public:
  Arguments(const Call& call, const Views& views)
      : call_(call),
        views_(views),
        form_(from_frontend("Form")),
        number_(from_frontend("Number")) {}

  Owned value(const IValue& value, const ArgumentPlan& plan) {
    if (plan.kind == ArgumentPlan::Written || value.isNone()) return none();
    if (value.isTensor()) return tensor(value.toTensor());
    if (is_launch_scalar(plan, value, call_.has_floats)) {
      ++scalars_;
      const double number = value.isInt() ? static_cast<double>(value.toInt()) : value.toDouble();
      return checked(PyObject_CallFunction(number_.get(), "d", number));
    }
    if (value.isBool()) return checked(PyBool_FromLong(value.toBool()));
    if (value.isInt()) return integer(value.toInt(), plan);
    if (value.isDouble()) return checked(PyFloat_FromDouble(value.toDouble()));
    if (value.isString()) return checked(PyUnicode_FromString(value.toStringRef().c_str()));
    return list(value.toListRef());
  }

  Owned outputs() {
    Owned tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(call_.outputs.size())));
    for (size_t i = 0; i < call_.outputs.size(); ++i)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                       form(call_.outputs[i], views_[call_.inputs.size() + i]).release());
    return tuple;
  }

 private:
  static Owned none() {
    Py_INCREF(Py_None);
    return Owned(Py_None);
  }

  static Owned integer(int64_t number, const ArgumentPlan& plan) {
    PyObject* named = nullptr;
    if (plan.kind == ArgumentPlan::DType)
      named = reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<c10::ScalarType>(number)));
    else if (plan.kind == ArgumentPlan::Format)
      named = torch::utils::getTHPMemoryFormat(static_cast<c10::MemoryFormat>(number));
    if (!named) return checked(PyLong_FromLongLong(number));
    Py_INCREF(named);
    return Owned(named);
  }

  Owned list(c10::ArrayRef<IValue> items) {
    Owned tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
    for (size_t i = 0; i < items.size(); ++i)
      PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                       value(items[i], ArgumentPlan{}).release());
    return tuple;
  }

  Owned tensor(const Tensor& tensor) {
    if (!tensor.defined()) return none();
    if (tensor.is_privateuseone()) return form(tensor, views_[inputs_++]);
    if (!is_launch_scalar(tensor)) {
      const bool truth = tensor.scalar_type() == c10::kBool;
      const int64_t number = tensor.item().toLong();
      return checked(truth ? PyBool_FromLong(number) : PyLong_FromLongLong(number));
    }
    return form(tensor, View{});
  }

  Owned form(const Tensor& tensor, const View& view) {
    PyObject* const dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(tensor.scalar_type()));
    const Owned sizes = checked(make_ints(view.sizes)), strides = checked(make_ints(view.strides));
    PyObject* const card = tensor.is_privateuseone() ? Py_True : Py_False;
    PyObject* const wrapped =
        tensor.unsafeGetTensorImpl()->is_wrapped_number() ? Py_True : Py_False;
    return checked(PyObject_CallFunctionObjArgs(form_.get(), dtype, card, wrapped, sizes.get(),
                                                strides.get(), nullptr));
  }

  const Call& call_;
  const Views& views_;
  Owned form_, number_;
  size_t inputs_ = 0, scalars_ = 0;
};

// --- answers ------------------------------------------------------------------------------------

std::vector<SizeSource> size_sources(PyObject* tuple, const Views& views) {
  std::vector<SizeSource> found;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(tuple, i);
    SizeSource source{int_at(item, 0) == 1, size_t(int_at(item, 1)), size_t(int_at(item, 2)), 0};
    source.value = source.of(views);
    found.push_back(source);
  }
  return found;
}

std::shared_ptr<const Entry> read_entry(PyObject* answer, const Views& views) {
  auto entry = std::make_shared<Entry>();
  PyObject *kernel = nullptr, *arguments = nullptr, *symbols = nullptr, *exact = nullptr;
  const char* why = nullptr;
  if (!PyArg_ParseTuple(answer, "OsO!O!O!", &kernel, &why, &PyTuple_Type, &arguments, &PyTuple_Type,
                        &symbols, &PyTuple_Type, &exact))
    throw_python_error();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(arguments, i);
    entry->arguments.push_back(
        {int_at(item, 0) == 1 ? Source::Scalar : Source::Tensor, size_t(int_at(item, 1))});
  }
  entry->why = why;
  entry->symbols = size_sources(symbols, views);
  entry->exact = size_sources(exact, views);
  if (kernel == Py_None) return entry;
  Py_INCREF(kernel);
  entry->kernel = kernel;
  return entry;
}

bool is_kind(const c10::Argument& argument, c10::TypeKind kind) {
  const auto* type = argument.real_type().get();
  if (const auto* optional = type->castRaw<c10::OptionalType>())
    type = optional->getElementType().get();
  return type->kind() == kind;
}

std::string unfit(const c10::FunctionSchema& schema, const OpPlan& plan) {
  for (const auto& result : schema.returns())
    if (result.type()->kind() != c10::TypeKind::TensorType) return "it does not return tensors";
  for (const size_t position : plan.written)
    if (schema.arguments()[position].type()->kind() != c10::TypeKind::TensorType)
      return "it writes a list of tensors";
  return "";
}

bool is_raised(const std::exception& error, PyObject* kind) {
  const WithGil gil;
  if (const auto* const raised = dynamic_cast<const python_error*>(&error))
    return PyErr_GivenExceptionMatches(raised->type, kind) != 0;
  const auto* const raised = dynamic_cast<const pybind11::error_already_set*>(&error);
  return raised && raised->matches(kind);
}

}  // namespace

OpPlan plan_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  OpPlan plan;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    ArgumentPlan made;
    if (argument.alias_info() && argument.alias_info()->isWrite()) {
      plan.written.push_back(i);
      if (argument.is_out()) made.kind = ArgumentPlan::Written;
    } else if (is_kind(argument, c10::TypeKind::ScalarTypeType)) {
      made.kind = ArgumentPlan::DType;
    } else if (is_kind(argument, c10::TypeKind::MemoryFormatType)) {
      made.kind = ArgumentPlan::Format;
    }
    plan.arguments.push_back(made);
  }
  plan.why = unfit(schema, plan);
  if (!plan.why.empty()) return plan;
  const WithGil gil;
  const Untraced untraced;
  const Owned ask = from_frontend("description");
  const Owned answer = checked(PyObject_CallFunction(ask.get(), "ss", schema.name().c_str(),
                                                     schema.overload_name().c_str()));
  const char* why = nullptr;
  int pointwise = 0, rounds = 0;
  PyObject* scalars = nullptr;
  if (!PyArg_ParseTuple(answer.get(), "spO!p", &why, &pointwise, &PyTuple_Type, &scalars, &rounds))
    throw_python_error();
  plan.why = why;
  plan.pointwise = pointwise != 0;
  plan.rounds = rounds != 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(scalars); ++i) {
    plan.arguments[i].scalar = static_cast<uint8_t>(int_at(scalars, i));
    plan.sized_by_scalars |= plan.arguments[i].scalar == kAnyNumber;
  }
  return plan;
}

std::shared_ptr<const Entry> ask_python(const OpPlan& plan, const c10::OperatorHandle& op,
                                        const torch::jit::Stack& stack, const Call& call,
                                        const Views& views, const Words& pattern) {
  const WithGil gil;
  const Untraced untraced;
  Arguments arguments(call, views);
  const auto values = torch::jit::last(stack, plan.arguments.size());
  const Owned tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i)
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                     arguments.value(values[i], plan.arguments[i]).release());
  const Owned outputs = arguments.outputs();
  const Owned ask = from_frontend("compiled"), key = checked(as_bytes(pattern));
  const auto& schema = op.schema();
  const Owned answer = checked(PyObject_CallFunction(ask.get(), "ssOOO", schema.name().c_str(),
                                                     schema.overload_name().c_str(), key.get(),
                                                     tuple.get(), outputs.get()));
  return read_entry(answer.get(), views);
}

bool is_not_implemented(const std::exception& error) {
  return is_raised(error, PyExc_NotImplementedError);
}

bool is_refusal_by_python(const std::exception& error) {
  return is_raised(error, PyExc_Exception) && !is_raised(error, PyExc_Warning);
}

std::string recalled(const c10::OperatorHandle& op, const std::vector<int64_t>& structure) {
  const WithGil gil;
  const Untraced untraced;
  const Owned ask = from_frontend("recalled"), key = checked(as_bytes(structure));
  const auto& schema = op.schema();
  const Owned answer = checked(PyObject_CallFunction(ask.get(), "ssO", schema.name().c_str(),
                                                     schema.overload_name().c_str(), key.get()));
  char* bytes = nullptr;
  Py_ssize_t length = 0;
  if (PyBytes_AsStringAndSize(answer.get(), &bytes, &length) < 0) throw_python_error();
  return {bytes, static_cast<size_t>(length)};
}

void record(const c10::OperatorHandle& op, const std::vector<int64_t>& structure,
            const std::vector<int64_t>& words) {
  const WithGil gil;
  const Untraced untraced;
  const Owned tell = from_frontend("record"), key = checked(as_bytes(structure)),
              added = checked(as_bytes(words));
  const auto& schema = op.schema();
  checked(PyObject_CallFunction(tell.get(), "ssOO", schema.name().c_str(),
                                schema.overload_name().c_str(), key.get(), added.get()));
}

std::optional<std::string> launch_kernel(void* kernel, const Binding& binding, int device) {
  const WithGil gil;
  if (launch(static_cast<PyObject*>(kernel), binding, device)) return std::nullopt;
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const Owned unsupported = from_frontend("Unsupported");
  if (!value || !PyErr_GivenExceptionMatches(value, unsupported.get())) {
    PyErr_Restore(type, value, trace);
    throw_python_error();
  }
  const Owned owned_type(type), owned_value(value), owned_trace(trace);
  const Owned reason = from_frontend("reason");
  const Owned text = checked(PyObject_CallOneArg(reason.get(), value));
  return text_of(text.get());
}

}  // namespace openspyre
