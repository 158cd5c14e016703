// The state behind queue.h.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "card.h"
#include "queue.h"

namespace openspyre {

constexpr int kStreams = 2 + 2 * kPoolStreams;  // the loader's, the default, two pools

// An engine of a card.
struct Unit {
  std::vector<Work*> ready;  // heads of streams that wait for this engine
  bool busy = false;
  int64_t free = 0;  // card time, picoseconds
  bool started = false, parked = false;
  std::atomic<uint32_t> signal{0};
  std::condition_variable wake;
};

// All queues of all cards, under one lock: events order work across cards. It is held for the
// time of a few list operations, never while work runs.
class Queues {
 public:
  Stream& stream(int device, c10::StreamId id);

  bool try_run(Stream& stream, Work& work);
  void enqueue(Stream& stream, Work& work);
  MarkPtr record(Stream& stream);
  void wait_for(Stream& stream, const MarkPtr& mark);
  int64_t time(const Stream& stream);
  void not_before(Stream& stream, int64_t picoseconds);
  MarkPtr hold(Stream& stream);
  void let_go(const MarkPtr& mark);

  bool is_idle(Stream& stream);
  void finish(Stream& stream, uint64_t position, int64_t picoseconds);
  void finish(Stream& stream);
  void finish_device(int device);
  void report(Stream& stream);
  void report(const MarkPtr& mark);
  void report_device(int device);

  // At the end of the process: what runs ends, in a second or by force, what waits is dropped, and
  // an error that no call has reported is at least printed.
  void end();

 private:
  using Lock = std::unique_lock<std::mutex>;
  class Node;

  Unit& unit(const Work& work) {
    return units_[work.stream->device][static_cast<size_t>(work.engine)];
  }
  void adopt(Stream& stream, Work& work);
  void account(Stream& stream, Work& work);
  void push(Stream& stream, Work& work);
  void pop(Stream& stream);
  void advance(Stream& stream);
  void tell(Stream& stream);
  void settle(Mark& mark, std::shared_ptr<Late> late);
  void inherit(Stream& stream, const Mark& mark);
  void issue(Work& work);
  Work* best(Unit& unit);
  void take(Unit& unit, Work& work);
  void execute(Lock& lock, Unit& unit, Work& work);
  static void note(const Work& work, int64_t began, int64_t ended);
  bool help(Lock& lock, Stream& stream);
  void start(Unit& unit, int device, size_t engine);
  void serve(Unit& unit);
  bool await_work(Lock& lock, Unit& unit);
  void stop();
  template <typename Ended>
  void interrupt_until(Lock& lock, std::condition_variable& changed, const Ended& ended);
  void print_unreported();

  std::mutex mutex_;
  std::array<std::array<std::atomic<Stream*>, kStreams>, kMaxDevices> streams_{};
  std::array<std::array<Unit, kEngines>, kMaxDevices> units_;
  std::vector<Stream*> moving_;  // streams that `advance` looks at
  std::vector<std::thread> threads_;
  int serving_ = 0;  // of them
  std::condition_variable ended_;
  std::atomic<bool> stopping_{false};
  uint64_t order_ = 0;
  int64_t floor_ = 0;  // card time that the host has seen pass
};

Queues& queues();

}  // namespace openspyre
