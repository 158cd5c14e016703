// Queues: what a card does, in which order, and when.
//
// A card has one compute queue and a copy engine per direction; each is a thread that never takes
// the GIL. Streams only order work onto them. Work may run on the thread that submits it, or on
// one that waits for it, when nothing is before it.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>

#include "../card/card.h"

namespace openspyre {

enum class Engine { Compute, ToCard, ToHost };
constexpr int kEngines = 3;

constexpr int kPoolStreams = 32;                   // of each priority
constexpr c10::StreamId kLoader = -1;              // owns what no stream may reuse: programs, slots
constexpr int64_t kInlineNanoseconds = 20'000;     // work that is not worth another thread
constexpr int64_t kBriefNanoseconds = 10'000'000;  // work that a waiting thread may do

struct Stream;
class Work;

// An error of the card that no call has reported yet. Reported once.
struct Late {
  int code = SPYRE_OK;
  std::string text;
  uint64_t order = 0;
  std::atomic<bool> reported{false};
};

// A point in a stream.
struct Mark {
  std::atomic<bool> done{false};
  int64_t picoseconds = 0;  // card time
  // The rest belongs to queue.cpp.
  Stream* stream = nullptr;
  uint64_t position = 0;
  std::shared_ptr<Late> late;  // what had failed on the stream by then
  Work* waiters = nullptr;     // at the heads of their streams
};
using MarkPtr = std::shared_ptr<Mark>;

// Something that an engine does.
class Work {
 public:
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual ~Work() = default;

  Engine engine = Engine::Compute;
  int64_t picoseconds = 0;  // card time; only counted once `timing()`
  uint64_t subject = 0;     // `Record::number` of a launch
  bool brief = true;        // a thread that waits for it may do it: see kBriefNanoseconds

  // Does it, on any thread, without the GIL. A SPYRE_* code, with the message in `error`.
  virtual int run(spyre_error& error) noexcept = 0;
  // What stands before an error's message.
  virtual const std::string& name() const = 0;
  // It has run: the object goes. Not under any lock; without the GIL.
  virtual void retire() noexcept { delete this; }

 private:
  friend class Queues;
  enum class Kind { Run, Record, Wait } kind = Kind::Run;
  Work* next = nullptr;
  Work* next_waiter = nullptr;  // for the same mark
  Stream* stream = nullptr;
  uint64_t order = 0;
  uint64_t correlation = 0;  // see spans.h
  int64_t begins = 0;        // card time, picoseconds
  bool issued = false;       // in its engine's ready list, or registered with its mark
  bool started = false;
  bool off_clock = false;  // see is_off_clock
  MarkPtr mark;
};

struct Stream {
  int device = 0;
  c10::StreamId id = 0;
  int priority = 0;  // smaller goes first
  // The rest belongs to queue.cpp.
  Work* head = nullptr;
  Work* tail = nullptr;
  uint64_t submitted = 0;
  std::atomic<uint64_t> completed{0};
  int64_t ready = 0;  // card time, picoseconds
  std::shared_ptr<Late> late;
  uint64_t wanted = ~uint64_t{0};  // what the first waiting host thread waits for
  std::condition_variable changed;
};

// --- streams --------------------------------------------------------------------------------

// A stream of a card; opens the card. Throws on an id that was never given out.
Stream& stream_of(int device, c10::StreamId id);
Stream& current_stream(int device);  // of this thread
c10::StreamId current_stream_id(int device) noexcept;
c10::StreamId exchange_stream_id(int device, c10::StreamId id);
// One of the pool's streams, in turn; a negative priority goes before the others.
c10::StreamId pool_stream(int device, int priority);

// --- work -----------------------------------------------------------------------------------

// Runs the work here if nothing is before it, and only then returns true; owns it then.
bool try_run(Stream& stream, Work& work);
// Hands the work over and returns at once.
void enqueue(Stream& stream, Work& work);
inline void submit(Stream& stream, Work& work, bool quick) {
  if (!quick || !try_run(stream, work)) enqueue(stream, work);
}

MarkPtr record(Stream& stream);
void wait_for(Stream& stream, const MarkPtr& mark);  // what the stream gets from now on

// A mark that the host sets, and a stream that waits for it: for tests.
MarkPtr hold(Stream& stream);
void let_go(const MarkPtr& mark);

// --- waiting, with the GIL released -----------------------------------------------------------
//
// KeyboardInterrupt ends the programs of the cards until the wait is over, and is thrown then.

bool is_idle(Stream& stream);
// Wait, and report nothing.
void finish(Stream& stream);
void finish(const MarkPtr& mark);
void finish_device(int device);
void finish_everything();
// Wait, then throw what has failed before and was not reported yet.
void synchronize(Stream& stream);
void synchronize(const MarkPtr& mark);
void synchronize_device(int device);

// --- card time -------------------------------------------------------------------------------

// Whether an event with timing exists or spans are recorded: work must say how long it takes.
bool timing() noexcept;
void start_timing() noexcept;
// Whether this thread's work and waits do not count: their time is accounted for elsewhere.
bool is_off_clock() noexcept;
bool exchange_off_clock(bool off) noexcept;
int64_t card_time(Stream& stream);                     // when it is ready
void not_before(Stream& stream, int64_t picoseconds);  // what it gets from now on begins then

}  // namespace openspyre
