// Objects of one class whose memory is used again: the host's heap gives it only once.
#pragma once

#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

#include "card.h"

namespace openspyre {

// Pieces of `bytes` bytes. Those that are free stay ours until the process ends.
template <size_t bytes>
class Pieces {
 public:
  static void* take() {
    {
      const std::lock_guard<std::mutex> lock(shared().mutex);
      auto& free = shared().free;
      if (!free.empty()) {
        void* const last = free.back();
        free.pop_back();
        return last;
      }
      ++shared().made;
      if (free.capacity() < shared().made) free.reserve(2 * shared().made);
    }
    return ::operator new(bytes);
  }
  static void give_back(void* piece) noexcept {
    if (in_bad_fork()) return;  // a thread that the child lacks may hold the lock
    const std::lock_guard<std::mutex> lock(shared().mutex);
    shared().free.push_back(piece);  // `take` has reserved its place
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::vector<void*> free;
    size_t made = 0;
  };
  static Shared& shared() {
    static auto* const instance = new Shared();  // engines may outlive static destructors
    return *instance;
  }
};

// Base of a class whose objects `new` makes; nothing may derive from that class.
template <typename T>
class Pooled {
 public:
  static void* operator new(size_t) { return Pieces<sizeof(T)>::take(); }
  static void operator delete(void* piece) noexcept { Pieces<sizeof(T)>::give_back(piece); }
};

// For `std::allocate_shared`.
template <typename T>
struct PooledAllocator {
  using value_type = T;

  PooledAllocator() = default;
  template <typename U>
  PooledAllocator(const PooledAllocator<U>&) {}  // NOLINT: implicit by contract

  T* allocate(size_t) { return static_cast<T*>(Pieces<sizeof(T)>::take()); }
  void deallocate(T* piece, size_t) noexcept { Pieces<sizeof(T)>::give_back(piece); }
  template <typename U>
  bool operator==(const PooledAllocator<U>&) const {
    return true;
  }
  template <typename U>
  bool operator!=(const PooledAllocator<U>&) const {
    return false;
  }
};

}  // namespace openspyre
