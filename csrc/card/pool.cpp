#include "pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <utility>

namespace spyre {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kJoinPauses = 1000;  // an endless spin would steal the CPU from the last worker

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

void wait_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The mask the process started with: what the user allowed.
const cpu_set_t& allowed_cpus() {
  static const cpu_set_t allowed = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set)) CPU_SET(0, &set);
    return set;
  }();
  return allowed;
}

}  // namespace

Pool::Pool(int threads) : threads_(threads > 0 ? threads : CPU_COUNT(&allowed_cpus())) {}

Pool::~Pool() {
  if (owner_ != getpid()) {
    forget_workers();
    return;
  }
  stop_.store(true);
  epoch_.fetch_add(1);
  wake_all(epoch_);
  for (std::thread& worker : workers_) worker.join();
}

// In a forked child the workers do not exist: their handles can be neither joined nor detached.
void Pool::forget_workers() {
  if (!workers_.empty()) new std::vector<std::thread>(std::move(workers_));
  workers_.clear();
}

void Pool::spawn() {
  forget_workers();
  worker_ids_.assign(threads_, 0);
  avoided_cpu_ = -1;
  active_ = parked_ = ready_ = 0;
  owner_ = getpid();
  for (int thread = 1; thread < threads_; ++thread) {
    workers_.emplace_back([this, thread] { loop(thread); });
  }
  while (ready_.load() + 1 < static_cast<uint32_t>(threads_)) std::this_thread::yield();
}

void Pool::start(void* job, Call call) {
  if (threads_ == 1) return call(job, 0);
  if (owner_ != getpid()) spawn();
  job_ = job;
  call_ = call;
  open_.store(true);
  epoch_.fetch_add(1);
  if (parked_.load()) {
    keep_workers_off(sched_getcpu());
    wake_all(epoch_);
  }
  call(job, 0);
  open_.store(false);  // whoever comes later finds the job closed
  for (int n = 0; active_.load(); ++n) {
    if (n < kJoinPauses) {
      pause_briefly();
      continue;
    }
    joining_.store(true);
    if (const uint32_t busy = active_.load()) wait_while(active_, busy);
    joining_.store(false);
  }
}

// The kernel wakes a parked thread on the waker's CPU and leaves both there for milliseconds
// (measured: a 1.4 ms launch took 2.9), so the caller's CPU leaves the workers' affinity.
void Pool::keep_workers_off(int cpu) {
  const cpu_set_t& allowed = allowed_cpus();
  if (cpu == avoided_cpu_ || cpu < 0 || CPU_COUNT(&allowed) < threads_) return;
  cpu_set_t others = allowed;
  if (CPU_ISSET(cpu, &others)) CPU_CLR(cpu, &others);
  if (!CPU_COUNT(&others)) return;
  for (int thread = 1; thread < threads_; ++thread) {
    sched_setaffinity(worker_ids_[thread], sizeof others, &others);
  }
  avoided_cpu_ = cpu;
}

void Pool::loop(int thread) {
  worker_ids_[thread] = static_cast<int>(syscall(SYS_gettid));
  uint32_t seen = epoch_.load();
  ready_.fetch_add(1);
  while (!stop_.load()) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    while (epoch_.load() == seen && std::chrono::steady_clock::now() < until) pause_briefly();
    while (epoch_.load() == seen) {
      parked_.fetch_add(1);
      wait_while(epoch_, seen);
      parked_.fetch_sub(1);
    }
    seen = epoch_.load();
    active_.fetch_add(1);
    if (open_.load()) call_(job_, thread);
    active_.fetch_sub(1);
    if (joining_.load()) wake_all(active_);
  }
}

}  // namespace spyre
