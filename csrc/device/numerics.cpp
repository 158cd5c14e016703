#include "numerics.h"

#include <atomic>
#include <cstring>
#include <list>
#include <mutex>

namespace openspyre {
namespace {

struct Choices {
  std::mutex mutex;
  std::list<spyre_numerics> all{{}};  // every one that was ever set; few
  std::atomic<const spyre_numerics*> now{&all.front()};
};

Choices& choices() {
  static auto* const instance = new Choices();
  return *instance;
}

}  // namespace

const spyre_numerics& numerics() noexcept { return *choices().now.load(std::memory_order_acquire); }

void set_numerics(const spyre_numerics& chosen) {
  Choices& known = choices();
  const std::lock_guard<std::mutex> lock(known.mutex);
  for (const auto& one : known.all) {
    if (std::memcmp(&one, &chosen, sizeof one) == 0) {
      known.now = &one;
      return;
    }
  }
  known.all.push_back(chosen);
  known.now = &known.all.back();
}

}  // namespace openspyre
