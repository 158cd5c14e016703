// Reading and making Python objects.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <utility>

namespace openspyre {

// A reference that is dropped at the end of its scope.
class Owned {
 public:
  explicit Owned(PyObject* object = nullptr) : object_(object) {}
  Owned(Owned&& other) noexcept : object_(other.release()) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  Owned& operator=(Owned&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Owned() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Holds the GIL, on any thread.
class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// Throws the Python error that is set.
[[noreturn]] inline void throw_python_error() {
  python_error error;
  error.persist();
  throw std::move(error);
}

// A new reference; null means that a Python error is set, which is thrown.
inline Owned checked(PyObject* object) {
  if (!object) throw_python_error();
  return Owned(object);
}

// Lets other Python threads run; the scope must not touch Python objects.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

// Python code of ours that runs while a frame is being traced would be traced, too: Dynamo looks at
// every frame that begins on its thread. Needs the GIL.
class Untraced {
 public:
  Untraced() : before_(checked(set(Py_None))) {}
  Untraced(const Untraced&) = delete;
  Untraced& operator=(const Untraced&) = delete;
  ~Untraced() {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    if (!Owned(set(before_.get()))) PyErr_Clear();
    PyErr_Restore(type, value, trace);
  }

 private:
  static PyObject* set(PyObject* callback) {
    static PyObject* const setter = [] {
      const Owned module = checked(PyImport_ImportModule("torch._C._dynamo.eval_frame"));
      return PyObject_GetAttrString(module.get(), "set_eval_frame");
    }();
    return setter ? PyObject_CallOneArg(setter, callback) : nullptr;
  }

  Owned before_;
};

// Reads a tuple of integers into a vector; false with a Python error set on failure.
template <typename Vector>
bool read_ints(PyObject* tuple, Vector& into, const char* caller) {
  if (!PyTuple_Check(tuple)) {
    PyErr_Format(PyExc_TypeError, "%s: %R is not a tuple", caller, tuple);
    return false;
  }
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  into.resize(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    into[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    if (into[i] == -1 && PyErr_Occurred()) return false;
  }
  return true;
}

// A new tuple of the integers of a vector; null with a Python error set on failure.
template <typename Vector>
PyObject* make_ints(const Vector& values) {
  Owned tuple(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  if (!tuple) return nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    PyObject* const number = PyLong_FromLongLong(values[i]);
    if (!number) return nullptr;
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), number);
  }
  return tuple.release();
}

}  // namespace openspyre
