// The forms of results that PyTorch has told before, in this process or in another. Its own checks,
// which tell them, are Python for many ops and load Dynamo and Inductor.
#pragma once

#include <mutex>
#include <optional>
#include <vector>

#include "eager_call.h"

namespace c10 {
class OperatorHandle;
}

namespace openspyre {

// What is recalled of one op. Safe to use from several threads.
class Recall {
 public:
  // The results of a call, or what the tensors it writes must become. The key stands for all that
  // PyTorch checks: the first `structure` words, then sizes, strides, and what is the same tensor.
  std::optional<std::vector<OutputForm>> find(const c10::OperatorHandle& op, const Words& key,
                                              size_t structure);
  // Keeps what PyTorch has told of a call, here and on disk, unless there is enough of its kind.
  void add(const c10::OperatorHandle& op, const Words& key, size_t structure,
           const std::vector<OutputForm>& forms);

 private:
  std::mutex mutex_;
  Table<std::vector<OutputForm>> forms_;  // by key
  Table<size_t> counts_;                  // by structure, once the disk has been asked
};

}  // namespace openspyre
