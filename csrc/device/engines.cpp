// The engines' threads, and host threads that wait for them.
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "card_error.h"
#include "queues.h"
#include "waiting.h"

namespace openspyre {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);
constexpr int kPauses = 300;                      // of a waiting host thread, before it parks
constexpr auto kGrace = std::chrono::seconds(1);  // of a program when the process ends

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

// A thread that is woken up may take the CPU of the one that wakes it: a launch would then return
// when its program is done (measured: 170 us instead of 5). Batch threads wait for a CPU.
void yield_to_callers() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none);  // a refusal changes nothing
}

}  // namespace

// --- threads -------------------------------------------------------------------

void Queues::start(Unit& on, int device, size_t engine) {
  static constexpr std::array<const char*, kEngines> kNames{"compute", "to-card", "to-host"};
  on.started = true;
  ++serving_;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the host's own threads
  threads_.emplace_back([this, &on] { serve(on); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const std::string name = "spyre" + std::to_string(device) + "-" + kNames[engine];
  pthread_setname_np(threads_.back().native_handle(), name.substr(0, 15).c_str());
}

void Queues::serve(Unit& on) {
  yield_to_callers();
  Lock lock(mutex_);
  while (await_work(lock, on)) {
    Work* const next = best(on);
    take(on, *next);
    execute(lock, on, *next);
  }
  --serving_;
  ended_.notify_all();
}

bool Queues::await_work(Lock& lock, Unit& on) {
  const auto has_work = [&] { return stopping_ || (!on.busy && !on.ready.empty()); };
  if (!has_work()) {
    const uint32_t seen = on.signal;
    lock.unlock();
    const auto until = std::chrono::steady_clock::now() + kSpin;
    while (on.signal == seen && std::chrono::steady_clock::now() < until) pause_briefly();
    lock.lock();
  }
  on.parked = true;
  on.wake.wait(lock, has_work);
  on.parked = false;
  return !stopping_;
}

void Queues::end() {
  if (in_bad_fork()) return;
  stop();
  print_unreported();
}

void Queues::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    for (auto& units : units_)
      for (Unit& on : units) on.wake.notify_all();
    const auto ended = [&] { return serving_ == 0; };
    if (!ended_.wait_for(lock, kGrace, ended)) interrupt_until(lock, ended_, ended);
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// Ends one program after the other until `ended()`. (One that is about to run forgets an
// interrupt.)
template <typename Ended>
void Queues::interrupt_until(Lock& lock, std::condition_variable& changed, const Ended& ended) {
  constexpr auto kAgain = std::chrono::milliseconds(10);
  do {
    for (int device = 0; device < device_count(); ++device)
      if (is_open(device)) spyre_card_interrupt(card(device).handle);
  } while (!changed.wait_for(lock, kAgain, ended));
}

// --- waiting --------------------------------------------------------------------------------

bool Queues::is_idle(Stream& stream) {
  const Lock lock(mutex_);
  return !stream.head;
}

// A thread that waits for a stream does the stream's next work itself if it can and does not take
// long: it handles no signals meanwhile.
bool Queues::help(Lock& lock, Stream& stream) {
  Work* const next = stream.head;
  if (!next || next->kind != Work::Kind::Run || !next->issued || next->started || !next->brief)
    return false;
  Unit& on = unit(*next);
  if (on.busy || best(on) != next) return false;
  take(on, *next);
  execute(lock, on, *next);
  return true;
}

void Queues::finish(Stream& stream, uint64_t position, int64_t picoseconds) {
  const auto finished = [&] { return stream.completed.load() >= position; };
  if (!finished()) {
    const WithoutGilIfHeld released;
    Lock lock(mutex_);
    while (!finished() && help(lock, stream)) continue;
    lock.unlock();
    for (int i = 0; i < kPauses && !finished(); ++i) pause_briefly();
    lock.lock();
    const auto done = [&] {
      if (finished()) return true;
      stream.wanted = std::min(stream.wanted, position);
      return false;
    };
    try {
      wait_until(stream.changed, lock, done);
    } catch (...) {
      // Queued work uses memory of the caller, which goes when this is thrown on.
      lock.lock();
      interrupt_until(lock, stream.changed, done);
      throw;
    }
  }
  if (is_off_clock()) return;
  const Lock lock(mutex_);
  floor_ = std::max(floor_, picoseconds);
}

void Queues::finish(Stream& stream) {
  uint64_t position = 0;
  int64_t picoseconds = 0;
  {
    const Lock lock(mutex_);
    position = stream.submitted;
    picoseconds = stream.ready;
  }
  finish(stream, position, picoseconds);
}

void Queues::finish_device(int device) {
  for (auto& entry : streams_[device])
    if (Stream* const stream = entry.load(std::memory_order_acquire)) finish(*stream);
}

// --- late errors ----------------------------------------------------------------------------

void Queues::report(Stream& stream) {
  std::shared_ptr<Late> late;
  {
    const Lock lock(mutex_);
    late.swap(stream.late);
  }
  if (late && !late->reported.exchange(true)) throw_card_error(late->code, late->text);
}

void Queues::report(const MarkPtr& mark) {
  std::shared_ptr<Late> late;
  {
    const Lock lock(mutex_);
    late = mark->late;
  }
  if (late && !late->reported.exchange(true)) throw_card_error(late->code, late->text);
}

// Of several failures the first; the others say no more than that it had consequences.
void Queues::report_device(int device) {
  std::shared_ptr<Late> first;
  {
    const Lock lock(mutex_);
    for (auto& entry : streams_[device]) {
      Stream* const stream = entry.load(std::memory_order_relaxed);
      if (!stream || !stream->late) continue;
      std::shared_ptr<Late> late;
      late.swap(stream->late);
      if (late->reported.exchange(true)) continue;
      if (!first || late->order < first->order) first = late;
    }
  }
  if (first) throw_card_error(first->code, first->text);
}

void Queues::print_unreported() {
  for (auto& streams : streams_) {
    for (auto& entry : streams) {
      const Stream* const stream = entry.load();
      if (!stream || !stream->late || stream->late->reported.exchange(true)) continue;
      if (stream->late->code == SPYRE_INTERRUPTED) continue;  // the user's doing, or `stop`
      std::fprintf(stderr, "openspyre: the card failed, and nothing waited for it: %s\n",
                   stream->late->text.c_str());
    }
  }
}

}  // namespace openspyre
