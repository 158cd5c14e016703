#include "spans.h"

#include <atomic>
#include <mutex>

namespace openspyre {
namespace {

struct Log {
  std::mutex mutex;
  std::vector<Span> spans;
};

std::atomic<int> readers{0};

Log& log() {
  static auto* const instance = new Log();  // engines may outlive static destructors
  return *instance;
}

thread_local std::vector<uint64_t> correlations;

}  // namespace

bool recording() noexcept { return readers.load(std::memory_order_relaxed) > 0; }

size_t start_recording() {
  const std::lock_guard<std::mutex> lock(log().mutex);
  ++readers;
  return log().spans.size();
}

std::vector<Span> stop_recording(size_t position) {
  const std::lock_guard<std::mutex> lock(log().mutex);
  auto& spans = log().spans;
  std::vector<Span> found(spans.begin() + static_cast<std::ptrdiff_t>(position), spans.end());
  if (--readers == 0) spans.clear();
  return found;
}

void add_span(Span span) {
  const std::lock_guard<std::mutex> lock(log().mutex);
  if (readers > 0) log().spans.push_back(std::move(span));
}

void push_correlation(uint64_t id) { correlations.push_back(id); }
void pop_correlation() {
  if (!correlations.empty()) correlations.pop_back();
}
uint64_t correlation() noexcept { return correlations.empty() ? 0 : correlations.back(); }

}  // namespace openspyre
