// What a thread that waits for a card owes to Python: other threads run meanwhile, and signals get
// through. Without Python's headers, so that the queues can be built alone (csrc/stress).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace openspyre {

// Lets other Python threads run; for code that may run with or without the GIL.
class WithoutGilIfHeld {
 public:
  WithoutGilIfHeld();
  WithoutGilIfHeld(const WithoutGilIfHeld&) = delete;
  WithoutGilIfHeld& operator=(const WithoutGilIfHeld&) = delete;
  ~WithoutGilIfHeld();

 private:
  void* const state_;
};

// Runs Python's handlers of the signals that have come, and throws what they raise
// (KeyboardInterrupt). Not under a lock; does nothing on other threads than the main one.
void handle_signals();

// Waits until `done()`, under the lock, and handles signals meanwhile. When it throws, the lock is
// not held.
template <typename Done>
void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                const Done& done) {
  constexpr auto kPatience = std::chrono::milliseconds(50);
  while (!changed.wait_for(lock, kPatience, done)) {
    lock.unlock();
    handle_signals();
    lock.lock();
  }
}

}  // namespace openspyre
