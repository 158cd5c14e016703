#include "eager_recall.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>
#include <string>

#include "eager_python.h"

namespace openspyre {
namespace {

constexpr size_t kMost = 64;  // of one structure: a sequence that grows is not worth a write a step

using Key = std::vector<int64_t>;

Key part(const Words& key, size_t first, size_t end) {
  return {key.begin() + first, key.begin() + end};
}

// A record, in words: the count of extents and the extents, the count of results, of each its
// dtype, the count of dims, sizes, strides.
Key record_of(const Key& extents, const std::vector<OutputForm>& forms) {
  Key words{static_cast<int64_t>(extents.size())};
  words.insert(words.end(), extents.begin(), extents.end());
  words.push_back(static_cast<int64_t>(forms.size()));
  for (const OutputForm& form : forms) {
    words.push_back(static_cast<int64_t>(form.dtype));
    words.push_back(static_cast<int64_t>(form.sizes.size()));
    words.insert(words.end(), form.sizes.begin(), form.sizes.end());
    words.insert(words.end(), form.strides.begin(), form.strides.end());
  }
  return words;
}

// Reads records; what is no record ends them.
class Records {
 public:
  explicit Records(const std::string& bytes) : words_(bytes.size() / sizeof(int64_t)) {
    std::memcpy(words_.data(), bytes.data(), words_.size() * sizeof(int64_t));
  }

  bool next(Key& extents, std::vector<OutputForm>& forms) {
    forms.clear();
    size_t count = 0;
    if (!read_count(count) || !read(extents, count) || !read_count(count)) return false;
    for (size_t i = 0; i < count; ++i)
      if (!read_form(forms.emplace_back())) return false;
    return true;
  }

 private:
  bool read_form(OutputForm& form) {
    Key head;
    size_t dims = 0;
    if (!read(head, 1) || !read_count(dims)) return false;
    form.dtype = static_cast<c10::ScalarType>(head[0]);
    return read(form.sizes, dims) && read(form.strides, dims);
  }

  bool read_count(size_t& count) {
    if (at_ >= words_.size()) return false;
    const int64_t word = words_[at_++];
    count = static_cast<size_t>(word);
    return word >= 0 && count <= words_.size();
  }

  template <typename Vector>
  bool read(Vector& into, size_t count) {
    if (words_.size() - at_ < count) return false;
    const auto first = words_.begin() + static_cast<ptrdiff_t>(at_);
    into.assign(first, first + static_cast<ptrdiff_t>(count));
    at_ += count;
    return true;
  }

  Key words_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::vector<OutputForm>> Recall::find(const c10::OperatorHandle& op, const Words& key,
                                                    size_t structure_words) {
  const Key structure = part(key, 0, structure_words);
  std::unique_lock<std::mutex> lock(mutex_);
  if (counts_.find(structure) == counts_.end()) {
    lock.unlock();  // Python is asked without it
    Records records(recalled(op, structure));
    lock.lock();
    size_t& count = counts_[structure];
    Key extents;
    for (std::vector<OutputForm> forms; records.next(extents, forms); ++count) {
      Key whole = structure;
      whole.insert(whole.end(), extents.begin(), extents.end());
      forms_.insert_or_assign(std::move(whole), std::move(forms));
    }
  }
  const auto found = forms_.find(as_ref(key));
  if (found == forms_.end()) return std::nullopt;
  return found->second;
}

void Recall::add(const c10::OperatorHandle& op, const Words& key, size_t structure_words,
                 const std::vector<OutputForm>& forms) {
  const Key structure = part(key, 0, structure_words);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (counts_[structure] >= kMost) return;
    if (!forms_.try_emplace(part(key, 0, key.size()), forms).second) return;
    ++counts_[structure];
  }
  record(op, structure, record_of(part(key, structure_words, key.size()), forms));
}

}  // namespace openspyre
