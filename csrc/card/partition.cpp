#include "partition.h"

#include <algorithm>

namespace spyre {

Partition::Partition(const std::vector<std::vector<Run>>& sets) : sets_(sets) {
  cut();
  for (size_t set = 0; set < sets.size(); ++set) separate(set);
  std::vector<char> seen(sizes_.size(), 0);
  of_set_.resize(sets.size());
  for (size_t set = 0; set < sets.size(); ++set) {
    std::vector<int>& parts = of_set_[set];
    for_each_piece(set, [&](size_t piece) {
      const int part = part_of_[piece];
      if (!seen[part]) parts.push_back(part);
      seen[part] = 1;
    });
    for (int part : parts) seen[part] = 0;
  }
}

void Partition::cut() {
  for (const auto& runs : sets_) {
    for (const Run& run : runs) {
      borders_.push_back(run.low);
      borders_.push_back(run.high);
    }
  }
  std::sort(borders_.begin(), borders_.end());
  borders_.erase(std::unique(borders_.begin(), borders_.end()), borders_.end());
  const size_t pieces = borders_.empty() ? 0 : borders_.size() - 1;
  part_of_.assign(pieces, 0);
  sizes_.assign(1, static_cast<int>(pieces));
}

template <class Visit>
void Partition::for_each_piece(size_t set, const Visit& visit) const {
  for (const Run& run : sets_[set]) {
    const auto first = std::lower_bound(borders_.begin(), borders_.end(), run.low);
    auto piece = static_cast<size_t>(first - borders_.begin());
    for (; borders_[piece] < run.high; ++piece) visit(piece);
  }
}

// Splits every part that lies partly in the set.
void Partition::separate(size_t set) {
  std::vector<int> touched;
  inside_.resize(sizes_.size());
  for_each_piece(set, [&](size_t piece) {
    std::vector<size_t>& found = inside_[part_of_[piece]];
    if (found.empty()) touched.push_back(part_of_[piece]);
    found.push_back(piece);
  });
  for (int part : touched) {
    std::vector<size_t>& found = inside_[part];
    std::sort(found.begin(), found.end());  // runs of a set may overlap
    found.erase(std::unique(found.begin(), found.end()), found.end());
    if (static_cast<int>(found.size()) < sizes_[part]) {
      sizes_[part] -= static_cast<int>(found.size());
      for (size_t piece : found) part_of_[piece] = parts();
      sizes_.push_back(static_cast<int>(found.size()));
    }
    found.clear();
  }
}

int64_t Partition::first_byte(size_t set, int part) const {
  int64_t first = INT64_MAX;
  for_each_piece(set, [&](size_t piece) {
    if (part_of_[piece] == part) first = std::min(first, borders_[piece]);
  });
  return first;
}

std::vector<Run> Partition::runs(int part) const {
  std::vector<Run> found;
  for (size_t piece = 0; piece < part_of_.size(); ++piece) {
    if (part_of_[piece] == part) found.push_back({borders_[piece], borders_[piece + 1]});
  }
  return found;
}

}  // namespace spyre
