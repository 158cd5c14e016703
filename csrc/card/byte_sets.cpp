#include "byte_sets.h"

namespace spyre {

bool Box::empty() const {
  return size == 0 || std::any_of(dims.begin(), dims.end(), [](const Dim& d) { return !d.count; });
}

Wide Box::low() const {
  if (empty()) return 0;
  Wide at = start;
  for (const Dim& d : dims) at += d.stride < 0 ? static_cast<Wide>(d.stride) * (d.count - 1) : 0;
  return at;
}

Wide Box::high() const {
  if (empty()) return 0;
  Wide at = start + size;
  for (const Dim& d : dims) at += d.stride > 0 ? static_cast<Wide>(d.stride) * (d.count - 1) : 0;
  return at;
}

namespace {

Wide magnitude(int64_t stride) { return stride < 0 ? -static_cast<Wide>(stride) : stride; }

}  // namespace

bool Box::injective() const {
  std::vector<Dim> sorted = dims;
  std::sort(sorted.begin(), sorted.end(),
            [](const Dim& a, const Dim& b) { return magnitude(a.stride) < magnitude(b.stride); });
  Wide span = size;
  for (const Dim& d : sorted) {
    if (d.count == 1) continue;
    if (magnitude(d.stride) < span) return false;
    span += magnitude(d.stride) * (d.count - 1);
  }
  return true;
}

Box Box::canonical() const {
  Box found;
  if (empty()) return found;
  found.start = low();
  found.size = size;
  for (const Dim& d : dims) {
    if (d.count > 1 && d.stride != 0) {
      found.dims.push_back({d.count, d.stride < 0 ? -d.stride : d.stride});
    }
  }
  std::sort(found.dims.begin(), found.dims.end(), [](const Dim& a, const Dim& b) {
    return a.stride != b.stride ? a.stride < b.stride : a.count < b.count;
  });
  // Without a gap between its points, a dim makes the run longer.
  size_t taken = 0;
  for (; taken < found.dims.size() && found.dims[taken].stride <= found.size; ++taken) {
    found.size += found.dims[taken].stride * (found.dims[taken].count - 1);
  }
  found.dims.erase(found.dims.begin(), found.dims.begin() + static_cast<ptrdiff_t>(taken));
  size_t kept = 0;
  for (const Dim& d : found.dims) {
    if (kept && found.dims[kept - 1].stride * found.dims[kept - 1].count == d.stride) {
      found.dims[kept - 1].count *= d.count;
    } else {
      found.dims[kept++] = d;
    }
  }
  found.dims.resize(kept);
  return found;
}

int64_t run_count(const Box& canonical) {
  if (canonical.empty()) return 0;
  Wide count = 1;
  for (const Box::Dim& d : canonical.dims) {
    count *= d.count;
    if (count > kMostRuns) return kMostRuns + 1;
  }
  return static_cast<int64_t>(count);
}

// No piece goes over a border at `at`.
void RunSet::cut(int64_t at) {
  auto next = pieces_.lower_bound(at);
  if (next == pieces_.begin()) return;
  Piece& before = std::prev(next)->second;
  if (before.high <= at) return;
  pieces_.emplace_hint(next, at, before);
  before.high = at;
}

void RunSet::add(Run run, int number) {
  if (run.low >= run.high) return;
  cut(run.low);
  cut(run.high);
  auto next = pieces_.lower_bound(run.low);
  while (next != pieces_.end() && next->first < run.high) next = pieces_.erase(next);
  if (next != pieces_.end() && next->first == run.high && next->second.number == number) {
    run.high = next->second.high;
    next = pieces_.erase(next);
  }
  if (next != pieces_.begin()) {
    Piece& before = std::prev(next)->second;
    if (before.high == run.low && before.number == number) {
      before.high = run.high;
      return;
    }
  }
  pieces_.emplace_hint(next, run.low, Piece{run.high, number});
}

int64_t RunSet::first_missing(Run run, int number) const {
  auto next = pieces_.upper_bound(run.low);
  if (next != pieces_.begin()) --next;
  for (; next != pieces_.end() && next->first <= run.low && run.low < run.high; ++next) {
    if (next->second.high <= run.low) continue;
    if (next->second.number != number) break;
    run.low = next->second.high;
  }
  return std::min(run.low, run.high);
}

bool RunSet::covers(Run run, int number) const { return first_missing(run, number) >= run.high; }

int RunSet::number_of(int64_t byte) const {
  const auto next = pieces_.upper_bound(byte);
  if (next == pieces_.begin() || std::prev(next)->second.high <= byte) return -1;
  return std::prev(next)->second.number;
}

int64_t RunSet::next(int64_t byte) const {
  if (number_of(byte) >= 0) return byte;
  const auto found = pieces_.upper_bound(byte);
  return found == pieces_.end() ? INT64_MAX : found->first;
}

int64_t RunSet::bytes() const {
  int64_t total = 0;
  for (const auto& [low, piece] : pieces_) total += piece.high - low;
  return total;
}

int64_t RunSet::first_shared(const RunSet& other) const {
  for (const auto& [low, piece] : pieces_) {
    const int64_t found = other.next(low);
    if (found < piece.high) return found;
  }
  return -1;
}

}  // namespace spyre
