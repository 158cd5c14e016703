#include "queue.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

#include "pooled.h"
#include "queues.h"
#include "spans.h"

namespace openspyre {

Queues& queues() {
  static auto* const instance = [] {
    std::atexit([] { queues().end(); });
    return new Queues();  // tensors may be freed until the process is gone
  }();
  return *instance;
}

namespace {

const std::string kNoName;

std::atomic<bool> timed{false};
thread_local std::array<c10::StreamId, kMaxDevices> current_streams{};
thread_local bool off_clock = false;

// An error of the card begins with the source of an instruction: of an eager op, its name.
std::string named(const std::string& work, const std::string& error) {
  return error.compare(0, work.size() + 1, work + ":") == 0 ? error : work + ": " + error;
}

}  // namespace

// A record or a wait: needs no engine.
class Queues::Node final : public Work, public Pooled<Queues::Node> {
 public:
  int run(spyre_error&) noexcept override { return SPYRE_OK; }
  const std::string& name() const override { return kNoName; }
};

Stream& Queues::stream(int device, c10::StreamId id) {
  card(device);
  TORCH_CHECK(id >= kLoader && id < kStreams - 1, "spyre: there is no stream ", id);
  auto& entry = streams_[device][static_cast<size_t>(id + 1)];
  if (Stream* const found = entry.load(std::memory_order_acquire)) return *found;
  const Lock lock(mutex_);
  if (!entry.load(std::memory_order_relaxed)) {
    auto made = std::make_unique<Stream>();
    made->device = device;
    made->id = id;
    made->priority = id > kPoolStreams ? -1 : 0;
    entry.store(made.release(), std::memory_order_release);
  }
  return *entry.load(std::memory_order_relaxed);
}

// --- submitting -----------------------------------------------------------------------------

void Queues::adopt(Stream& stream, Work& work) {
  work.stream = &stream;
  work.next = nullptr;
  work.issued = work.started = false;
  work.order = ++order_;
  work.correlation = recording() ? correlation() : 0;
  work.off_clock = off_clock;
}

// Card time by order of submission: the host's own time does not count, what it has seen does.
void Queues::account(Stream& stream, Work& work) {
  Unit& on = unit(work);
  work.begins = std::max({stream.ready, on.free, floor_});
  if (work.picoseconds == 0 || work.off_clock) return;
  stream.ready = on.free = work.begins + work.picoseconds;
}

void Queues::push(Stream& stream, Work& work) {
  (stream.tail ? stream.tail->next : stream.head) = &work;
  stream.tail = &work;
  ++stream.submitted;
}

void Queues::pop(Stream& stream) {
  stream.head = stream.head->next;
  if (!stream.head) stream.tail = nullptr;
  ++stream.completed;
}

bool Queues::try_run(Stream& stream, Work& work) {
  Lock lock(mutex_);
  work.stream = &stream;
  Unit& on = unit(work);
  if (stream.head || on.busy || !on.ready.empty()) return false;
  adopt(stream, work);
  account(stream, work);
  push(stream, work);
  work.issued = work.started = on.busy = true;
  execute(lock, on, work);
  return true;
}

void Queues::enqueue(Stream& stream, Work& work) {
  const Lock lock(mutex_);
  adopt(stream, work);
  account(stream, work);
  push(stream, work);
  if (stream.head == &work) advance(stream);
}

MarkPtr Queues::record(Stream& stream) {
  auto mark = std::allocate_shared<Mark>(PooledAllocator<Mark>());
  mark->stream = &stream;
  const Lock lock(mutex_);
  mark->picoseconds = std::max(stream.ready, floor_);
  if (!stream.head) {
    mark->position = stream.completed;
    settle(*mark, stream.late);
    return mark;
  }
  Work* const node = std::make_unique<Node>().release();
  adopt(stream, *node);
  node->kind = Work::Kind::Record;
  node->mark = mark;
  push(stream, *node);
  mark->position = stream.submitted;
  return mark;
}

void Queues::wait_for(Stream& stream, const MarkPtr& mark) {
  const Lock lock(mutex_);
  stream.ready = std::max(stream.ready, mark->picoseconds);
  if (mark->done && !stream.head) return inherit(stream, *mark);
  Work* const node = std::make_unique<Node>().release();
  adopt(stream, *node);
  node->kind = Work::Kind::Wait;
  node->mark = mark;
  push(stream, *node);
  if (stream.head == node) advance(stream);
}

int64_t Queues::time(const Stream& stream) {
  const Lock lock(mutex_);
  return std::max(stream.ready, floor_);
}

void Queues::not_before(Stream& stream, int64_t picoseconds) {
  const Lock lock(mutex_);
  stream.ready = std::max(stream.ready, picoseconds);
}

MarkPtr Queues::hold(Stream& stream) {
  auto mark = std::allocate_shared<Mark>(PooledAllocator<Mark>());
  wait_for(stream, mark);
  return mark;
}

void Queues::let_go(const MarkPtr& mark) {
  const Lock lock(mutex_);
  if (!mark->done) settle(*mark, nullptr);
  while (!moving_.empty()) {
    Stream& next = *moving_.back();
    moving_.pop_back();
    advance(next);
  }
}

// --- progress -------------------------------------------------------------------------------

void Queues::settle(Mark& mark, std::shared_ptr<Late> late) {
  mark.late = std::move(late);
  mark.done.store(true, std::memory_order_release);
  for (; mark.waiters; mark.waiters = mark.waiters->next_waiter)
    moving_.push_back(mark.waiters->stream);
}

void Queues::inherit(Stream& stream, const Mark& mark) {
  const bool has = stream.late && !stream.late->reported;
  if (!has && mark.late && !mark.late->reported) stream.late = mark.late;
}

// Looks at the head of the stream, and of every stream that this sets free.
void Queues::advance(Stream& first) {
  moving_.push_back(&first);
  while (!moving_.empty()) {
    Stream& stream = *moving_.back();
    moving_.pop_back();
    while (Work* const work = stream.head) {
      if (work->kind == Work::Kind::Run) {
        if (!work->issued) issue(*work);
        break;
      }
      if (work->kind == Work::Kind::Record) {
        settle(*work->mark, stream.late);
      } else if (work->mark->done) {
        inherit(stream, *work->mark);
      } else {
        if (!work->issued) work->next_waiter = std::exchange(work->mark->waiters, work);
        work->issued = true;
        break;
      }
      pop(stream);
      work->retire();
    }
    tell(stream);
  }
}

void Queues::tell(Stream& stream) {
  if (stream.completed < stream.wanted) return;
  stream.wanted = ~uint64_t{0};
  stream.changed.notify_all();
}

void Queues::issue(Work& work) {
  Unit& on = unit(work);
  work.issued = true;
  on.ready.push_back(&work);
  if (!on.started) start(on, work.stream->device, static_cast<size_t>(work.engine));
  ++on.signal;
  if (on.parked) on.wake.notify_one();
}

Work* Queues::best(Unit& on) {
  const auto sooner = [](const Work* a, const Work* b) {
    const int left = a->stream->priority, right = b->stream->priority;
    return left != right ? left < right : a->order < b->order;
  };
  const auto found = std::min_element(on.ready.begin(), on.ready.end(), sooner);
  return found == on.ready.end() ? nullptr : *found;
}

void Queues::take(Unit& on, Work& work) {
  on.ready.erase(std::find(on.ready.begin(), on.ready.end(), &work));
  on.busy = work.started = true;
}

void Queues::note(const Work& work, int64_t began, int64_t ended) {
  Span span;
  span.name = work.name();
  span.device = work.stream->device;
  span.engine = static_cast<int>(work.engine);
  span.stream = work.stream->id;
  span.subject = work.subject;
  span.correlation = work.correlation;
  span.card_start = work.begins;
  span.card_end = work.begins + work.picoseconds;
  span.host_start = began;
  span.host_end = ended;
  add_span(std::move(span));
}

void Queues::execute(Lock& lock, Unit& on, Work& work) {
  lock.unlock();
  spyre_error error{};
  const int64_t began = recording() && !work.off_clock ? c10::getTime() : 0;
  const int code = work.run(error);
  if (began) note(work, began, c10::getTime());
  std::shared_ptr<Late> late;
  if (code != SPYRE_OK) {
    late = std::make_shared<Late>();
    late->code = code;
    late->text = named(work.name(), error.text);
  }
  lock.lock();
  Stream& stream = *work.stream;
  on.busy = false;
  if (late) {
    late->order = work.order;
    if (!stream.late || stream.late->reported) stream.late = std::move(late);
  }
  pop(stream);
  if (stream.head)
    advance(stream);
  else
    tell(stream);
  if (!on.ready.empty()) {
    ++on.signal;
    if (on.parked) on.wake.notify_one();
  }
  lock.unlock();
  work.retire();
  lock.lock();
}

// --- the interface ----------------------------------------------------------------------------

Stream& stream_of(int device, c10::StreamId id) { return queues().stream(device, id); }
Stream& current_stream(int device) {
  card(device);  // a bad index must not reach the array
  return stream_of(device, current_streams[device]);
}
c10::StreamId current_stream_id(int device) noexcept { return current_streams[device]; }
c10::StreamId exchange_stream_id(int device, c10::StreamId id) {
  return std::exchange(current_streams[device], id);
}
c10::StreamId pool_stream(int device, int priority) {
  static std::array<std::array<std::atomic<uint32_t>, 2>, kMaxDevices> next{};
  const int pool = priority < 0;
  return 1 + pool * kPoolStreams + next[device][pool]++ % kPoolStreams;
}

bool try_run(Stream& stream, Work& work) { return queues().try_run(stream, work); }
void enqueue(Stream& stream, Work& work) { queues().enqueue(stream, work); }
MarkPtr record(Stream& stream) { return queues().record(stream); }
void wait_for(Stream& stream, const MarkPtr& mark) { queues().wait_for(stream, mark); }
MarkPtr hold(Stream& stream) { return queues().hold(stream); }
void let_go(const MarkPtr& mark) { queues().let_go(mark); }

bool is_idle(Stream& stream) { return queues().is_idle(stream); }
void finish(Stream& stream) { queues().finish(stream); }
void finish(const MarkPtr& mark) {
  queues().finish(*mark->stream, mark->position, mark->picoseconds);
}
void finish_device(int device) {
  if (!is_open(device)) return;
  card(device);
  queues().finish_device(device);
}
void finish_everything() {
  for (int i = 0; i < device_count(); ++i) finish_device(i);
}
void synchronize(Stream& stream) {
  finish(stream);
  queues().report(stream);
}
void synchronize(const MarkPtr& mark) {
  finish(mark);
  queues().report(mark);
}
void synchronize_device(int device) {
  finish_device(device);
  if (is_open(device)) queues().report_device(device);
}

bool timing() noexcept {
  return !off_clock && (timed.load(std::memory_order_relaxed) || recording());
}
bool is_off_clock() noexcept { return off_clock; }
bool exchange_off_clock(bool off) noexcept { return std::exchange(off_clock, off); }
int64_t card_time(Stream& stream) { return queues().time(stream); }
void not_before(Stream& stream, int64_t picoseconds) { queues().not_before(stream, picoseconds); }
void start_timing() noexcept { timed.store(true, std::memory_order_relaxed); }

}  // namespace openspyre
