// What `spyre smi` shows of this process: counters in a small file that other processes map.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace openspyre {

// Of one card; read by openspyre/runtime/shown.py. Bytes, and nanoseconds of the host.
struct CardState {
  std::atomic<uint64_t> memory{0};  // 0: the card has not been used
  std::atomic<uint64_t> allocated{0};
  std::atomic<uint64_t> reserved{0};
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> busy{0};  // in which a program ran
  uint64_t spare[3] = {};
};

// The counters of a card. Always there, whether or not anybody can read them.
CardState& card_state(int device) noexcept;

// Puts the counters into a file of this process in a folder, which is made if need be; it goes when
// the process ends. Where that fails the counters stay private. Before the first card is used.
void publish_state(const std::string& folder) noexcept;

}  // namespace openspyre
