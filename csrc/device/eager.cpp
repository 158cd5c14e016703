#include "eager.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/item.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

#include "copy.h"
#include "eager_call.h"
#include "eager_python.h"
#include "eager_recall.h"
#include "kernel.h"

namespace openspyre {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr size_t kMostExact = 1 << 12;  // remembered calls of one op, before all are forgotten

std::atomic<uint64_t> misses{0};

const std::string* forever(std::string text) {
  static auto* const texts = new std::set<std::string>();
  static auto* const mutex = new std::mutex();
  const std::lock_guard<std::mutex> lock(*mutex);
  return &*texts->insert(std::move(text)).first;
}

// --- what is known of an op -------------------------------------------------------------------

// A call with the very sizes and strides that were seen before.
struct Exact {
  const Entry* entry = nullptr;      // null: nothing to compute
  const std::string* why = nullptr;  // not null: the card has no program for these sizes
  Sizes symbols;
  std::vector<OutputForm> made;  // outputs to allocate, or what written tensors must be
};

struct Op {
  OpPlan plan;
  std::mutex mutex;
  Recall recall;
  Table<std::shared_ptr<const Exact>> exact;
  Table<std::vector<std::shared_ptr<const Entry>>> patterns;
};

Op& known(const c10::OperatorHandle& handle) {
  static auto* const ops = new std::unordered_map<const void*, std::unique_ptr<Op>>();
  static auto* const mutex = new std::mutex();
  const void* const key = &handle.operator_name();
  {
    const std::lock_guard<std::mutex> lock(*mutex);
    const auto found = ops->find(key);
    if (found != ops->end()) return *found->second;
  }
  auto made = std::make_unique<Op>();
  made->plan = plan_of(handle);  // asks Python: no lock may be held
  const std::lock_guard<std::mutex> lock(*mutex);
  return *ops->emplace(key, std::move(made)).first->second;
}

// --- the same op on meta tensors: PyTorch's checks, and the forms of its results ---------------

class MetaCall {
 public:
  Stack run(const c10::OperatorHandle& op, const Stack& stack) {
    const at::DisableRecordFunctionGuard unseen;  // a profiler would count the op twice
    const size_t count = op.schema().arguments().size();
    Stack metas;
    for (const auto& argument : torch::jit::last(stack, count)) metas.push_back(meta(argument));
    arguments_ = metas;
    op.callBoxed(&metas);
    return metas;
  }
  // What an argument became.
  const c10::IValue& argument(size_t position) const { return arguments_[position]; }

 private:
  c10::IValue meta(const c10::IValue& value) {
    if (value.isTensor()) return tensor(value.toTensor());
    if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& each : value.toTensorVector()) list.push_back(tensor(each));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& each : value.toOptionalTensorVector())
        list.push_back(each ? std::optional<Tensor>(tensor(*each)) : std::nullopt);
      return list;
    }
    return value;
  }

  // The same tensor stays one tensor and the same storage one storage, so that overlaps are seen.
  Tensor tensor(const Tensor& from) {
    if (!from.defined()) return from;
    if (from.is_cpu() && from.dim() == 0) return number(from);
    if (!from.is_privateuseone()) return from;
    for (const auto& [source, made] : tensors_)
      if (source.is_same(from)) return made;
    Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        storage(from), c10::DispatchKeySet(c10::DispatchKey::Meta), from.dtype());
    auto* const impl = made.unsafeGetTensorImpl();
    impl->set_storage_offset(from.storage_offset());
    impl->set_sizes_and_strides(from.sizes(), from.strides());
    tensors_.emplace_back(from, made);
    return made;
  }

  // A Python number stays what it is: PyTorch hands it to Python as one.
  static Tensor number(const Tensor& from) {
    if (from.unsafeGetTensorImpl()->is_wrapped_number()) return from;
    return at::empty({}, from.options().device(c10::kMeta));
  }

  c10::Storage storage(const Tensor& of) {
    auto* const source = of.storage().unsafeGetStorageImpl();
    for (const auto& [known, made] : storages_)
      if (known == source) return made;
    c10::Storage made(c10::Storage::use_byte_size_t(), source->nbytes(),
                      c10::DataPtr(nullptr, c10::Device(c10::kMeta)), c10::GetAllocator(c10::kMeta),
                      /*resizable=*/true);
    storages_.emplace_back(source, made);
    return made;
  }

  Stack arguments_;
  std::vector<std::pair<Tensor, Tensor>> tensors_;
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> storages_;
};

// --- a call -----------------------------------------------------------------------------------

void take_outputs(const OpPlan& plan, const c10::OperatorHandle& op, const Stack& stack,
                  Call& call) {
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  for (const size_t position : plan.written) call.outputs.push_back(arguments[position].toTensor());
}

// How written tensors share bytes with arguments.
struct Sharing {
  enum Worst { None, Whole, Partly } worst = None;
  Words which;  // for each pair that is the same byte for byte: its number
};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

Sharing sharing(const Call& call) {
  Sharing found;
  int64_t pair = 0;
  for (const Tensor& out : call.outputs) {
    for (const Tensor* in : call.inputs) {
      ++pair;
      if (in->storage().unsafeGetStorageImpl() != out.storage().unsafeGetStorageImpl()) continue;
      if (in->numel() == 0 || out.numel() == 0) continue;
      if (same_bytes(*in, out)) {
        found.worst = std::max(found.worst, Sharing::Whole);
        found.which.push_back(pair);
      } else if (ranges_meet(*in, out)) {
        found.worst = Sharing::Partly;
      }
    }
  }
  return found;
}

// Whether the kernel may write the tensors themselves, not a temporary.
bool is_direct(const OpPlan& plan, const Sharing& shared) {
  return shared.worst == Sharing::None || (shared.worst == Sharing::Whole && plan.pointwise);
}

// What PyTorch checks of written tensors, and the checks on meta tensors do not all see.
void check_overlaps(const std::vector<OutputForm>& forms, const Call& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const Tensor& out = call.outputs[i];
    at::assert_no_internal_overlap(out);
    // What is resized is gone before it is read.
    const bool resized = out.sizes() != c10::IntArrayRef(forms[i].sizes);
    for (const Tensor* in : call.inputs)
      if (resized)
        at::assert_no_overlap(out, *in);
      else if (!in->is_same(out))
        at::assert_no_partial_overlap(out, *in);
  }
}

void allocate(const std::vector<OutputForm>& forms, c10::Device device, Call& call) {
  for (const OutputForm& form : forms)
    call.outputs.push_back(
        at::empty_strided(form.sizes, form.strides, at::TensorOptions(device).dtype(form.dtype)));
}

OutputForm form_of(const Tensor& tensor) {
  return {Sizes(tensor.sizes().begin(), tensor.sizes().end()),
          Sizes(tensor.strides().begin(), tensor.strides().end()), tensor.scalar_type()};
}

// Whether written tensors take the sizes that PyTorch wants of them without its warning that one
// with elements loses them.
bool fits_silently(const std::vector<OutputForm>& forms, const Call& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i)
    if (call.outputs[i].numel() != 0 && call.outputs[i].sizes() != c10::IntArrayRef(forms[i].sizes))
      return false;
  return true;
}

void fit_outputs(const std::vector<OutputForm>& forms, Call& call) {
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const Tensor& out = call.outputs[i];
    if (out.sizes() == c10::IntArrayRef(forms[i].sizes)) continue;
    out.resize_(c10::IntArrayRef(forms[i].sizes));
    if (out.strides() != c10::IntArrayRef(forms[i].strides))
      out.unsafeGetTensorImpl()->set_sizes_and_strides(forms[i].sizes, forms[i].strides);
  }
}

// Makes the outputs what they must be.
void prepare(const OpPlan& plan, const std::vector<OutputForm>& forms, Call& call) {
  if (plan.written.empty())
    allocate(forms, call.device, call);
  else
    fit_outputs(forms, call);
}

void finish(const OpPlan& plan, const c10::OperatorHandle& op, Stack* stack, Call& call) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (size_t i = 0; i < op.schema().returns().size(); ++i)
    stack->emplace_back(std::move(call.outputs[i]));
}

// Returns null, or why the card has no program for these sizes.
const std::string* launch(const OpPlan& plan, const Entry& entry, const Sizes& symbols,
                          const Call& call) {
  const ReusedBinding binding;
  for (const auto& source : entry.arguments) {
    if (source.kind == Source::Scalar) {
      binding->scalars.push_back(call.scalar(source.number, plan.rounds));
      continue;
    }
    const Tensor& tensor = call.tensor(source.number);
    binding->addresses.push_back(reinterpret_cast<uint64_t>(tensor.const_data_ptr()));
  }
  binding->sizes = symbols;
  auto why = launch_kernel(entry.kernel, *binding, call.device.index());
  return why ? forever(*std::move(why)) : nullptr;
}

std::shared_ptr<const Entry> matching(const std::vector<std::shared_ptr<const Entry>>& entries,
                                      const Views& views) {
  for (const auto& entry : entries)
    if (entry->serves(views)) return entry;
  return nullptr;
}

std::shared_ptr<const Entry> entry_for(Op& known, const c10::OperatorHandle& op, const Stack& stack,
                                       const Call& call, const Views& views) {
  Words key(call.key.begin(), call.key.begin() + call.structure);
  add_pattern(views, key);
  {
    const std::lock_guard<std::mutex> lock(known.mutex);
    const auto found = known.patterns.find(as_ref(key));
    if (found != known.patterns.end())
      if (auto entry = matching(found->second, views)) return entry;
  }
  ++misses;
  auto made = ask_python(known.plan, op, stack, call, views, key);
  const std::lock_guard<std::mutex> lock(known.mutex);
  auto& entries = known.patterns[std::vector<int64_t>(key.begin(), key.end())];
  entries.push_back(made);
  return made;
}

// The result of a product of scaled matrices: PyTorch's own check asks for what one other device
// asks for. Null if the call is not one that PyTorch's CPU takes.
std::optional<std::vector<OutputForm>> scaled_product(const c10::OperatorHandle& op,
                                                      const Stack& stack) {
  const auto given = [&](const char* name) {
    const auto index = op.schema().argumentIndexWithName(name);
    return index ? stack[*index] : c10::IValue();
  };
  const Tensor a = given("self").toTensor(), b = given("mat2").toTensor();
  if (a.dim() != 2 || b.dim() != 2 || a.size(1) != b.size(0)) return std::nullopt;
  const auto bias = given("bias").toOptional<Tensor>();
  if (bias && (bias->dim() != 1 || bias->size(0) != b.size(1))) return std::nullopt;
  const auto dtype = given("out_dtype").toOptional<c10::ScalarType>().value_or(a.scalar_type());
  const int64_t m = a.size(0), n = b.size(1);
  return std::vector<OutputForm>{{{m, n}, {std::max<int64_t>(n, 1), 1}, dtype}};
}

// The forms of the results or of written tensors, from PyTorch's own checks of the call. Null if
// PyTorch cannot tell, with the reason.
std::optional<std::vector<OutputForm>> told(const OpPlan& plan, const c10::OperatorHandle& op,
                                            const Stack& stack, const std::string*& why) {
  static const std::string* const untold = forever("PyTorch cannot tell the shape of its result");
  why = untold;
  const std::string& name = op.schema().name();
  if (name == "aten::_scaled_mm" || name == "aten::_scaled_mm_v2") {
    return plan.written.empty() ? scaled_product(op, stack) : std::nullopt;
  }
  MetaCall metas;
  Stack results;
  try {
    results = metas.run(op, stack);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  } catch (const std::exception& error) {
    if (is_not_implemented(error)) return std::nullopt;
    if (op.schema().name().rfind("aten::", 0) != 0 || !is_refusal_by_python(error)) throw;
    why = refused_by_python();
    return std::nullopt;
  }
  std::vector<OutputForm> forms;
  for (const size_t position : plan.written)
    forms.push_back(form_of(metas.argument(position).toTensor()));
  if (!plan.written.empty()) return forms;
  for (const auto& result : results)
    forms.push_back(result.isTensor() && result.toTensor().defined()
                        ? form_of(result.toTensor())
                        : OutputForm{{}, {}, c10::ScalarType::Undefined});
  return forms;
}

// A call whose sizes have not been seen: PyTorch checks it, then its pattern is looked up.
const std::string* run_new(Op& known, const c10::OperatorHandle& op, Stack* stack, Call& call,
                           const Sharing& shared) {
  const OpPlan& plan = known.plan;
  bool direct = is_direct(plan, shared);
  const bool recalls = shared.worst != Sharing::Partly;
  bool remember = direct;
  Words told_for = call.key;
  told_for.append(shared.which.begin(), shared.which.end());
  auto exact = std::make_shared<Exact>();
  auto forms = recalls ? known.recall.find(op, told_for, call.structure) : std::nullopt;
  if (!forms) {
    const std::string* why = nullptr;
    forms = told(plan, op, *stack, why);
    if (!forms) return why;
    const bool silent = fits_silently(*forms, call);
    remember &= silent;
    if (recalls && silent) known.recall.add(op, told_for, call.structure, *forms);
  }
  check_overlaps(*forms, call);
  exact->made = *std::move(forms);
  for (const OutputForm& form : exact->made) {
    if (form.dtype == c10::ScalarType::Undefined)
      return forever("it does not always return tensors");
    if (!on_card_dtype(form.dtype)) return no_dtype(form.dtype);
  }
  prepare(plan, exact->made, call);
  // Several cores would write an element that lies in the tensor twice; a copy writes in order.
  for (const Tensor& out : call.outputs) direct &= !may_overlap_itself(out);
  remember &= direct;
  const auto originals = call.outputs;
  if (!direct)
    for (Tensor& out : call.outputs) out = at::empty(out.sizes(), out.options());
  bool empty = true;
  for (const Tensor& out : call.outputs) empty &= out.numel() == 0;
  std::shared_ptr<const Entry> entry;
  if (!empty) {
    Views views;
    if (!make_views(plan.pointwise, call, views)) return forever("its arguments do not broadcast");
    entry = entry_for(known, op, *stack, call, views);
    if (!entry->kernel) return &entry->why;
    exact->symbols = entry->sizes(views);
    exact->entry = entry.get();
    exact->why = launch(plan, *entry, exact->symbols, call);
  }
  if (!direct && !exact->why)
    for (size_t i = 0; i < originals.size(); ++i) copy_elements(call.outputs[i], originals[i]);
  call.outputs = originals;
  const std::string* const why = exact->why;
  if (remember) {
    const std::lock_guard<std::mutex> lock(known.mutex);
    if (known.exact.size() >= kMostExact) known.exact.clear();
    known.exact[std::vector<int64_t>(call.key.begin(), call.key.end())] = std::move(exact);
  }
  return why;
}

}  // namespace

uint64_t eager_misses() { return misses; }

const std::string* refused_by_python() {
  // As in openspyre/frontend/not_lowered.py.
  static const std::string* const text = forever("PyTorch's check of it refuses these arguments");
  return text;
}

const std::string* run_eager(const c10::OperatorHandle& op, Stack* stack) {
  Op& found = known(op);
  const OpPlan& plan = found.plan;
  if (!plan.why.empty()) return &plan.why;
  Call call;
  take_outputs(plan, op, *stack, call);
  if (const char* why = gather(plan, *stack, call)) return forever(why);
  const c10::DeviceGuard guard(call.device);
  const Sharing shared = sharing(call);
  std::shared_ptr<const Exact> exact;
  if (is_direct(plan, shared)) {
    const std::lock_guard<std::mutex> lock(found.mutex);
    const auto hit = found.exact.find(as_ref(call.key));
    if (hit != found.exact.end()) exact = hit->second;
  }
  if (exact) {
    if (exact->why) return exact->why;
    prepare(plan, exact->made, call);
    if (exact->entry)
      if (const auto* why = launch(plan, *exact->entry, exact->symbols, call)) return why;
  } else if (const std::string* why = run_new(found, op, stack, call, shared)) {
    return why;
  }
  finish(plan, op, stack, call);
  return nullptr;
}

}  // namespace openspyre
