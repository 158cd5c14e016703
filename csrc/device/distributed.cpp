// spyreccl below Python: a torch.distributed backend whose collectives are Python
// (openspyre/device/distributed), and the work objects that they give.
#include "distributed.h"

#include <c10/util/ApproximateClock.h>
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "python.h"
#include "queue.h"
#include "spans.h"
#include "waiting.h"

namespace py = pybind11;

namespace openspyre {
namespace {

using at::Tensor;
using std::chrono::milliseconds;
using CollectivePtr = c10::intrusive_ptr<c10d::Work>;

constexpr milliseconds kSignals{100};  // how often a wait looks whether the user ends it

// A Python object that a thread without the GIL may drop, at the end of the process too.
class Kept {
 public:
  explicit Kept(py::object object = {}) : object_(std::move(object)) {}
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  Kept& operator=(py::object object) {
    object_ = std::move(object);
    return *this;
  }
  ~Kept() {
    if (!object_) return;
    if (!Py_IsInitialized()) {
      (void)object_.release();
      return;
    }
    const WithGil held;
    object_ = py::object();
  }

  const py::object& get() const { return object_; }
  explicit operator bool() const { return static_cast<bool>(object_); }

 private:
  py::object object_;
};

// --- work ---------------------------------------------------------------------------------------

// A collective or a transfer that a thread of Python does and then finishes.
class Collective final : public c10d::Work {
 public:
  Collective(std::string name, int device)
      : name_(std::move(name)),
        device_(device),
        stream_(current_stream_id(device)),
        correlation_(recording() ? correlation() : 0),
        began_(recording() ? c10::getTime() : 0),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::ofTensors(),
            std::vector<c10::Device>{{c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)}})) {
  }

  // What it gave, from which rank, and when in card time (picoseconds). On the thread that did it,
  // whose current stream the outputs are ready on.
  void finish_with(std::vector<Tensor> outputs, int source, int64_t begins, int64_t ends) {
    begins_ = begins;
    ends_ = ends;
    source_ = source;
    note();
    future_->markCompleted(c10::IValue(std::move(outputs)));
    tell();
  }

  // With the GIL held.
  void fail(py::object error) {
    const std::string text = py::str(error);
    error_ = std::move(error);
    const WithoutGil released;  // callbacks of the future may be C++ that waits for others
    exception_ptr_ = std::make_exception_ptr(std::runtime_error(text));
    future_->setError(exception_ptr_);
    tell();
  }

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  std::exception_ptr exception() const override { return exception_ptr_; }
  int sourceRank() const override { return source_; }
  std::vector<Tensor> result() override {
    wait(kNoTimeout);
    return future_->constValue().toTensorVector();
  }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  // Blocks the host; then the current stream goes on when the outputs are there in card time.
  bool wait(milliseconds timeout) override {
    await(timeout);
    if (error_) {
      const py::gil_scoped_acquire held;
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error_.get().ptr())), error_.get().ptr());
      throw py::error_already_set();
    }
    future_->wait();
    not_before(current_stream(device_), ends_);
    return true;
  }

 private:
  void await(milliseconds timeout) {
    const WithoutGilIfHeld released;
    const auto until = std::chrono::steady_clock::now() + timeout;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!completed_) {
      cv_.wait_for(lock, kSignals);
      lock.unlock();
      handle_signals();
      TORCH_CHECK_WITH(
          DistBackendError,
          isCompleted() || timeout == kNoTimeout || std::chrono::steady_clock::now() < until,
          "spyreccl: ", name_, " is not complete after ", timeout.count(),
          " ms, the time that wait() was given");
      lock.lock();
    }
  }

  void tell() {
    const std::lock_guard<std::mutex> lock(mutex_);
    completed_ = true;
    cv_.notify_all();
  }

  void note() const {
    if (!began_) return;
    Span span;
    span.name = name_;
    span.device = device_;
    span.engine = static_cast<int>(Engine::ToCard);
    span.stream = stream_;
    span.correlation = correlation_;
    span.card_start = begins_;
    span.card_end = ends_;
    span.host_start = began_;
    span.host_end = c10::getTime();
    add_span(std::move(span));
  }

  const std::string name_;
  const int device_;
  const c10::StreamId stream_;
  const uint64_t correlation_;
  const int64_t began_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::exception_ptr exception_ptr_;
  Kept error_;
  int source_ = -1;
  int64_t begins_ = 0, ends_ = 0;
};

Collective& collective_of(PyObject* object) {
  const auto work = py::handle(object).cast<CollectivePtr>();
  auto* const found = dynamic_cast<Collective*>(work.get());
  TORCH_CHECK_TYPE(found, "this work is not one of spyreccl");
  return *found;
}

// --- the backend ---------------------------------------------------------------------------------

class PythonBackend final : public c10d::Backend {
 public:
  PythonBackend(py::object group, int rank, int size, milliseconds timeout)
      : Backend(rank, size),
        group_(std::move(group)),
        options_(c10::make_intrusive<Options>("spyreccl", timeout)) {}

  const std::string getBackendName() const override { return options_->backend; }
  // A copy: a group that is split writes into what it gets.
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(*options_);
  }
  void setTimeout(milliseconds timeout) override {
    options_->timeout = timeout;
    tell("set_timeout", timeout);
  }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override {
    const py::gil_scoped_acquire held;
    return group_.get()
        .attr("split")(store, ranks, options->timeout)
        .cast<c10::intrusive_ptr<Backend>>();
  }
  void setSequenceNumberForGroup() override {}  // all ranks begin at 0
  uint64_t getSequenceNumberForGroup() override { return calls_; }
  void startCoalescing() override { tell("start_coalescing"); }
  CollectivePtr endCoalescing() override { return call("end_coalescing"); }
  void abort() override { tell("abort"); }
  void shutdown() override { tell("shutdown"); }

  CollectivePtr broadcast(std::vector<Tensor>& tensors,
                          const c10d::BroadcastOptions& options) override {
    return call("broadcast", tensors, options);
  }
  CollectivePtr allreduce(std::vector<Tensor>& tensors,
                          const c10d::AllreduceOptions& options) override {
    return call("all_reduce", tensors, options);
  }
  CollectivePtr allreduce_coalesced(std::vector<Tensor>& tensors,
                                    const c10d::AllreduceCoalescedOptions& options) override {
    return call("all_reduce", tensors, static_cast<const c10d::AllreduceOptions&>(options));
  }
  CollectivePtr reduce(std::vector<Tensor>& tensors, const c10d::ReduceOptions& options) override {
    return call("reduce", tensors, options);
  }
  CollectivePtr allgather(std::vector<std::vector<Tensor>>& outputs, std::vector<Tensor>& inputs,
                          const c10d::AllgatherOptions& options) override {
    return call("all_gather", outputs, inputs, options);
  }
  CollectivePtr allgather_coalesced(std::vector<std::vector<Tensor>>& outputs,
                                    std::vector<Tensor>& inputs,
                                    const c10d::AllgatherOptions& options) override {
    return call("all_gather_coalesced", outputs, inputs, options);
  }
  CollectivePtr _allgather_base(Tensor& output, Tensor& input,
                                const c10d::AllgatherOptions& options) override {
    return call("all_gather_into_tensors", std::vector{output}, std::vector{input}, options);
  }
  CollectivePtr allgather_into_tensor_coalesced(std::vector<Tensor>& outputs,
                                                std::vector<Tensor>& inputs,
                                                const c10d::AllgatherOptions& options) override {
    return call("all_gather_into_tensors", outputs, inputs, options);
  }
  CollectivePtr gather(std::vector<std::vector<Tensor>>& outputs, std::vector<Tensor>& inputs,
                       const c10d::GatherOptions& options) override {
    return call("gather", outputs, inputs, options);
  }
  CollectivePtr scatter(std::vector<Tensor>& outputs, std::vector<std::vector<Tensor>>& inputs,
                        const c10d::ScatterOptions& options) override {
    return call("scatter", outputs, inputs, options);
  }
  CollectivePtr reduce_scatter(std::vector<Tensor>& outputs,
                               std::vector<std::vector<Tensor>>& inputs,
                               const c10d::ReduceScatterOptions& options) override {
    return call("reduce_scatter", outputs, inputs, options);
  }
  CollectivePtr _reduce_scatter_base(Tensor& output, Tensor& input,
                                     const c10d::ReduceScatterOptions& options) override {
    return call("reduce_scatter_tensors", std::vector{output}, std::vector{input}, options);
  }
  CollectivePtr reduce_scatter_tensor_coalesced(
      std::vector<Tensor>& outputs, std::vector<Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    return call("reduce_scatter_tensors", outputs, inputs, options);
  }
  CollectivePtr alltoall_base(Tensor& output, Tensor& input, std::vector<int64_t>& output_sizes,
                              std::vector<int64_t>& input_sizes,
                              const c10d::AllToAllOptions& options) override {
    return call("all_to_all_single", output, input, output_sizes, input_sizes, options);
  }
  CollectivePtr alltoall(std::vector<Tensor>& outputs, std::vector<Tensor>& inputs,
                         const c10d::AllToAllOptions& options) override {
    return call("all_to_all", outputs, inputs, options);
  }
  CollectivePtr send(std::vector<Tensor>& tensors, int to, int tag) override {
    return call("send", tensors, to, tag);
  }
  CollectivePtr recv(std::vector<Tensor>& tensors, int from, int tag) override {
    return call("receive", tensors, from, tag);
  }
  CollectivePtr recvAnysource(std::vector<Tensor>& tensors, int tag) override {
    return call("receive", tensors, py::none(), tag);
  }
  CollectivePtr barrier(const c10d::BarrierOptions& options) override {
    return call("barrier", options);
  }

 private:
  template <typename... Arguments>
  CollectivePtr call(const char* name, const Arguments&... arguments) {
    const py::gil_scoped_acquire held;
    ++calls_;
    return group_.get().attr(name)(arguments...).template cast<CollectivePtr>();
  }
  template <typename... Arguments>
  void tell(const char* name, const Arguments&... arguments) {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire held;
    group_.get().attr(name)(arguments...);
  }

  const Kept group_;
  const c10::intrusive_ptr<Options> options_;
  std::atomic<uint64_t> calls_{0};
};

// --- what Python calls ---------------------------------------------------------------------------

PyObject* py_collective_backend(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject* group = nullptr;
  int rank = 0, size = 0;
  long long timeout = 0;
  if (!PyArg_ParseTuple(args, "OiiL", &group, &rank, &size, &timeout)) return nullptr;
  const c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<PythonBackend>(
      py::reinterpret_borrow<py::object>(group), rank, size, milliseconds(timeout));
  return py::cast(backend).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* py_new_collective(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  const char* name = nullptr;
  int device = 0;
  if (!PyArg_ParseTuple(args, "si", &name, &device)) return nullptr;
  current_stream(device);  // throws on a bad index
  const CollectivePtr work = c10::make_intrusive<Collective>(name, device);
  return py::cast(work).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* py_finish_collective(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *object = nullptr, *outputs = nullptr;
  int source = -1;
  long long begins = 0, ends = 0;
  if (!PyArg_ParseTuple(args, "OOiLL", &object, &outputs, &source, &begins, &ends)) return nullptr;
  const auto work = py::handle(object).cast<CollectivePtr>();
  Collective& found = collective_of(object);
  auto tensors = py::handle(outputs).cast<std::vector<Tensor>>();
  {
    const WithoutGil released;
    found.finish_with(std::move(tensors), source, begins, ends);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* py_fail_collective(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *object = nullptr, *error = nullptr;
  if (!PyArg_ParseTuple(args, "OO", &object, &error)) return nullptr;
  collective_of(object).fail(py::reinterpret_borrow<py::object>(error));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* py_card_time(PyObject*, PyObject* arg) {
  HANDLE_TH_ERRORS
  const long device = PyLong_AsLong(arg);
  if (device == -1 && PyErr_Occurred()) return nullptr;
  return PyLong_FromLongLong(card_time(current_stream(static_cast<int>(device))));
  END_HANDLE_TH_ERRORS
}

PyObject* py_is_timing(PyObject*, PyObject*) { return PyBool_FromLong(timing()); }

PyObject* py_exchange_off_clock(PyObject*, PyObject* arg) {
  return PyBool_FromLong(exchange_off_clock(PyObject_IsTrue(arg) == 1));
}

PyMethodDef methods[] = {
    {"collective_backend", py_collective_backend, METH_VARARGS,
     "collective_backend(group, rank, size, timeout_ms): the torch.distributed backend of a "
     "group."},
    {"new_collective", py_new_collective, METH_VARARGS,
     "new_collective(name, device): the work object of a collective that begins."},
    {"finish_collective", py_finish_collective, METH_VARARGS,
     "finish_collective(work, outputs, source, begins, ends): it is done; card time in ps."},
    {"fail_collective", py_fail_collective, METH_VARARGS,
     "fail_collective(work, error): whoever waits for it gets the error."},
    {"card_time", py_card_time, METH_O,
     "card_time(device): when, in ps, what the current stream gets next could begin."},
    {"is_timing", py_is_timing, METH_NOARGS, "Whether card time is counted on this thread."},
    {"exchange_off_clock", py_exchange_off_clock, METH_O,
     "exchange_off_clock(off): whether what this thread submits and waits for takes no card time."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_distributed(PyObject* module) {
  // What `split_group` asks of a backend: options for those of all devices, where none has each
  // take its own; and that ranks which a new group leaves out take part in a communicator's split.
  py::class_<PythonBackend, c10d::Backend, c10::intrusive_ptr<PythonBackend>>(py::handle(module),
                                                                              "CollectiveBackend")
      .def_property_readonly("options", [](const PythonBackend&) { return py::none(); })
      .def("perform_nocolor_split", [](PythonBackend&, const py::object&) {});
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace openspyre
