// AOTInductor packages: kernels with their programs, and the runner that gives a package's library
// its way to the card. No Python runs.
#include <ATen/DynamicLibrary.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/item.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../../src/openspyre/frontend/package_calls.h"
#include "launcher.h"
#include "memory.h"
#include "memory_error.h"

namespace openspyre {
namespace {

using at::Tensor;

thread_local std::exception_ptr failure;

template <typename Act>
int kept(Act act) {
  try {
    act();
    return 0;
  } catch (...) {
    failure = std::current_exception();
    return 1;
  }
}

// --- a kernel's text ----------------------------------------------------------------------------

int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

std::string from_hex(const std::string& text) {
  std::string bytes(text.size() / 2, '\0');
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
  return bytes;
}

// The programs of a kernel for all classes of sizes that the package was made for.
class PackagedKernel {
 public:
  explicit PackagedKernel(const std::string& text) {
    std::istringstream in(text);
    size_t arguments = 0, variants = 0;
    in >> name_ >> arguments >> sizes_ >> variants;
    scalar_.resize(arguments);
    for (auto&& scalar : scalar_) {
      int flag = 0;
      in >> flag;
      scalar = flag != 0;
    }
    for (size_t i = 0; i < variants; ++i) {
      Sizes low(sizes_), high(sizes_);
      for (auto& size : low) in >> size;
      for (auto& size : high) in >> size;
      std::string hex;
      in >> hex;
      variants_.push_back(std::make_shared<Variant>(name_, from_hex(hex), low, high));
    }
    TORCH_CHECK(in, "spyre: a package holds a kernel that cannot be read");
  }

  const std::string& name() const { return name_; }

  void launch(const Tensor* const* tensors, const int64_t* sizes, int device) {
    const ReusedBinding binding;
    for (size_t i = 0; i < scalar_.size(); ++i) {
      if (scalar_[i]) {
        binding->scalars.push_back(tensors[i]->item().toDouble());
        continue;
      }
      TORCH_CHECK(tensors[i]->is_privateuseone() && tensors[i]->device().index() == device, name_,
                  ": argument ", i, " is on ", tensors[i]->device(),
                  ", the package runs on spyre:", device);
      binding->addresses.push_back(reinterpret_cast<uint64_t>(tensors[i]->const_data_ptr()));
    }
    binding->sizes.assign(sizes, sizes + sizes_);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto& variant = serving(binding->sizes);
    Resident& program = variant->on(device);
    Record& record = variant->record(binding->sizes);
    if (timing())
      measure(*variant, record, device, binding->addresses.size(), binding->scalars.size());
    const auto pool = program.pool();
    const auto& block = program.fill(*binding, reinterpret_cast<uint64_t>(pool.get()));
    record.launches += 1;
    openspyre::launch(current_stream(device), variant, program, record, block);
  }

 private:
  const std::shared_ptr<Variant>& serving(const Sizes& sizes) const {
    for (const auto& variant : variants_)
      if (variant->serves(sizes)) return variant;
    TORCH_CHECK(false, name_, ": the package holds no program for the sizes ",
                c10::IntArrayRef(sizes),
                "\n  try: export the model with torch.export.Dim(min=..., max=...) around them");
  }

  std::string name_;
  size_t sizes_ = 0;
  std::vector<bool> scalar_;
  std::vector<std::shared_ptr<Variant>> variants_;
  std::mutex mutex_;  // of what variants remember
};

// --- what a library calls -----------------------------------------------------------------------

// Kernels of packages live until the process ends: launches may be in flight when a model goes.
int load(void** kernel, const char* text) {
  static auto* const mutex = new std::mutex();
  return kept([&] {
    const std::lock_guard<std::mutex> lock(*mutex);
    if (!*kernel) *kernel = std::make_unique<PackagedKernel>(text).release();
  });
}

int launch(void* kernel, void* const* tensors, const int64_t* sizes, int32_t device) {
  return kept([&] {
    auto& packaged = *static_cast<PackagedKernel*>(kernel);
    needing_memory(
        [&] { return "the kernel " + packaged.name(); },
        [&] { packaged.launch(reinterpret_cast<const Tensor* const*>(tensors), sizes, device); });
  });
}

int allocate(int32_t dims, const int64_t* sizes, const int64_t* strides, int32_t dtype,
             int32_t device, const char* op, void** tensor) {
  return kept([&] {
    const c10::DeviceGuard guard({c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device)});
    const auto rank = static_cast<size_t>(dims);
    Tensor made = needing_memory([&] { return op; },
                                 [&] {
                                   return at::detail::empty_strided_generic(
                                       {sizes, rank}, {strides, rank}, allocator(),
                                       c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                       static_cast<c10::ScalarType>(dtype));
                                 });
    *tensor = std::make_unique<Tensor>(std::move(made)).release();
  });
}

// How often constants of any package have been replaced where they lie.
std::atomic<uint64_t> replaced{0};

struct Constant {
  const void* host = nullptr;
  uint64_t as_of = 0;
  Tensor on_card;
};

int constant(void** copy, void* host, int32_t device, void** tensor) {
  static auto* const mutex = new std::mutex();
  return kept([&] {
    const std::lock_guard<std::mutex> lock(*mutex);
    if (!*copy) *copy = std::make_unique<Constant>().release();
    auto& mine = *static_cast<Constant*>(*copy);
    const Tensor& source = *static_cast<Tensor*>(host);
    const uint64_t now = replaced;
    if (mine.host != source.const_data_ptr() || mine.as_of != now || !mine.on_card.defined()) {
      const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
      mine.on_card = source.to(where);
      mine.host = source.const_data_ptr();
      mine.as_of = now;
    }
    *tensor = &mine.on_card;
  });
}

constexpr PackageCalls kCalls{load, launch, constant, allocate};

// --- the runner ---------------------------------------------------------------------------------

using Update = decltype(&AOTInductorModelContainerUpdateConstantBuffer);

// The library's own functions, by model.
struct Updates {
  std::mutex mutex;
  std::map<AOTInductorModelContainerHandle, std::pair<Update, Update>> stock;
};

Updates& updates() {
  static auto* const instance = new Updates();
  return *instance;
}

std::pair<Update, Update> stock_of(AOTInductorModelContainerHandle model) {
  const std::lock_guard<std::mutex> lock(updates().mutex);
  return updates().stock.at(model);
}

// Replacements as a library takes them: its constants lie in host memory.
class OnHost {
 public:
  explicit OnHost(AOTInductorConstantMapHandle given)
      : map_(*reinterpret_cast<const Constants*>(given)) {
    copies_.reserve(map_.size());
    for (auto& [name, handle] : map_) {
      const Tensor& tensor = *reinterpret_cast<const Tensor*>(handle);
      if (!tensor.is_privateuseone()) continue;
      copies_.push_back(tensor.cpu());
      handle = reinterpret_cast<AtenTensorHandle>(&copies_.back());
    }
  }
  AOTInductorConstantMapHandle handle() {
    return reinterpret_cast<AOTInductorConstantMapHandle>(&map_);
  }

 private:
  using Constants = std::unordered_map<std::string, AtenTensorHandle>;
  Constants map_;
  std::vector<Tensor> copies_;
};

AOTIRuntimeError update(AOTInductorModelContainerHandle model, AOTInductorConstantMapHandle map,
                        bool use_inactive, bool validate) {
  ++replaced;
  return stock_of(model).first(model, OnHost(map).handle(), use_inactive, validate);
}

AOTIRuntimeError update_from_cpu(AOTInductorModelContainerHandle model,
                                 AOTInductorConstantMapHandle map, bool use_inactive,
                                 bool validate) {
  ++replaced;
  return stock_of(model).second(model, OnHost(map).handle(), use_inactive, validate);
}

class Runner final : public torch::inductor::AOTIModelContainerRunner {
 public:
  // To a package's library the model is one for the CPU: it knows no other out-of-tree device.
  Runner(const std::string& path, size_t models, int device, bool single_threaded)
      : AOTIModelContainerRunner(path, models, "cpu", "", single_threaded) {
    check_version(path);
    using Bind = void (*)(const PackageCalls*, int32_t);
    reinterpret_cast<Bind>(model_so_->sym("openspyre_bind"))(&kCalls, device);
    {
      const std::lock_guard<std::mutex> lock(updates().mutex);
      updates().stock[container_handle_] = {update_constant_buffer_func_,
                                            update_constant_buffer_from_cpu_func_};
    }
    update_constant_buffer_func_ = update;
    update_constant_buffer_from_cpu_func_ = update_from_cpu;
  }

 private:
  // A library says for which declarations it was compiled; the first ones did not.
  void check_version(const std::string& path) const {
    int32_t version = 1;
    try {
      version = *static_cast<const int32_t*>(model_so_->sym("openspyre_package_version"));
    } catch (const c10::Error&) {
    }
    TORCH_CHECK(version == kPackageVersion, "spyre: ", path, " was made for version ", version,
                " of what packages ask of openspyre, and this one has version ", kPackageVersion,
                "\n  try: make the package again with this openspyre");
  }

 protected:
  std::vector<Tensor> run_impl(std::vector<AtenTensorHandle>& inputs, void* stream) override {
    failure = nullptr;
    try {
      return AOTIModelContainerRunner::run_impl(inputs, stream);
    } catch (const std::exception&) {
      if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
      throw;
    }
  }
};

std::unique_ptr<torch::inductor::AOTIModelContainerRunner> make_runner(const std::string& path,
                                                                       size_t models,
                                                                       const std::string& device,
                                                                       const std::string&,
                                                                       const bool single_threaded) {
  const c10::Device where(device);
  return std::make_unique<Runner>(
      path, models, where.has_index() ? where.index() : current_device(), single_threaded);
}

const torch::inductor::RegisterAOTIModelRunner registered("spyre", &make_runner);

}  // namespace
}  // namespace openspyre
