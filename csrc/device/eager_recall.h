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
  // The results of a call with these very sizes, or what the tensors it writes must become.
  std::optional<std::vector<OutputForm>> find(const c10::OperatorHandle& op, const Call& call);
  // Keeps what PyTorch has told of a call, here and on disk, unless there is enough of its kind.
  void add(const c10::OperatorHandle& op, const Call& call, const std::vector<OutputForm>& forms);

 private:
  std::mutex mutex_;
  Table<std::vector<OutputForm>> forms_;  // by key
  Table<size_t> counts_;                  // by structure, once the disk has been asked
};

}  // namespace openspyre
