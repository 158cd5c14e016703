// Host threads that run the cores of a card.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace spyre {

// A fork and join pool: the caller is thread 0, workers 1.. help when they are free. Workers spin
// briefly after a job and then park on a futex. One `run` at a time.
class Pool {
 public:
  explicit Pool(int threads);  // threads <= 0: as many as the process may use
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Calls work(thread) on the caller and on every worker that arrives before the caller is done.
  // `work` claims items from a counter of its own and must not throw.
  template <class Work>
  void run(Work& work) {
    start(&work, [](void* job, int thread) { (*static_cast<Work*>(job))(thread); });
  }

 private:
  using Call = void (*)(void* job, int thread);
  void start(void* job, Call call);
  void spawn();
  void forget_workers();
  void loop(int thread);
  void keep_workers_off(int cpu);

  const int threads_;
  int owner_ = 0;         // process that spawned the workers: they do not survive a fork
  int avoided_cpu_ = -1;  // the caller's, taken out of the workers' affinity
  std::vector<std::thread> workers_;
  std::vector<int> worker_ids_;  // of the kernel, for affinity
  void* job_ = nullptr;
  Call call_ = nullptr;
  std::atomic<bool> open_{false}, stop_{false}, joining_{false};
  std::atomic<uint32_t> epoch_{0}, active_{0}, parked_{0}, ready_{0};
};

}  // namespace spyre
