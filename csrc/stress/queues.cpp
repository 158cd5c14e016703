// Streams, events, memory and launches from many threads at random, without torch and Python: for
// sanitizers, which know nothing about code that was not built for them.
//
// `queues PROGRAM THREADS STEPS`: PROGRAM is the binary form of y = x + 1 over n floats. spec.inc
// holds the numbers of a small card. Every value is checked; at the end no memory is in use.
#include "../device/queues.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../device/arena.h"
#include "../device/card.h"
#include "../device/card_error.h"
#include "../device/launcher.h"
#include "../device/memory.h"
#include "../device/waiting.h"

namespace openspyre {

// What Python does otherwise: there is none.
WithoutGilIfHeld::WithoutGilIfHeld() : state_(nullptr) {}
WithoutGilIfHeld::~WithoutGilIfHeld() = default;
void handle_signals() {}
void throw_card_error(int, const std::string& text) { throw std::runtime_error(text); }

namespace {

constexpr int kDevices = 2, kStreamsEach = 3;
constexpr size_t kAlive = 12;
constexpr int64_t kSizes[] = {4097, 4500, 5000, 6001, 8192};  // PROGRAM is for these
constexpr int64_t kTooLarge = int64_t{1} << 60;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

// Host values into device memory, when the stream gets there.
class Fill final : public Work {
 public:
  Fill(void* to, std::vector<float> values) : to_(to), values_(std::move(values)) {
    engine = Engine::ToCard;
  }
  int run(spyre_error&) noexcept override {
    std::memcpy(to_, values_.data(), values_.size() * sizeof(float));
    touch(to_, values_.size() * sizeof(float));
    return SPYRE_OK;
  }
  const std::string& name() const override {
    static const auto* const text = new std::string("fill");
    return *text;
  }

 private:
  void* const to_;
  const std::vector<float> values_;
};

// What the GIL guards in the extension.
struct Plus {
  std::mutex mutex;
  std::shared_ptr<Variant> variant;
};

struct Tensor {
  c10::DataPtr memory;
  int device;
  int64_t size;
  c10::StreamId stream;
  float first;  // the element at i is first + i
};

class Walk {
 public:
  Walk(Plus& plus, unsigned seed) : plus_(plus), random_(seed) {
    for (int device = 0; device < kDevices; ++device) {
      for (int i = 0; i < kStreamsEach; ++i) {
        streams_[device][i] = pool_stream(device, static_cast<int>(random_() % 2) - 1);
      }
    }
  }

  void step() {
    const size_t act = alive_.empty() ? 0 : random_() % 8;
    if (act == 0 && alive_.size() < kAlive) return create();
    if (alive_.empty()) return;
    const size_t which = random_() % alive_.size();
    if (act <= 2) return launch_into(which, false);
    if (act == 3) return launch_into(which, true);
    if (act == 4) return check(which);
    if (act == 5) return fail_late(which);
    if (act == 6) return empty_cache();
    drop(which);
  }

  void finish_all() {
    while (!alive_.empty()) {
      check(alive_.size() - 1);
      drop(alive_.size() - 1);
    }
  }

 private:
  c10::StreamId any_stream(int device) { return streams_[device][random_() % kStreamsEach]; }

  Tensor fresh(int device, int64_t size, c10::StreamId stream) {
    exchange_stream_id(device, stream);
    return {allocate_on(device, static_cast<size_t>(size) * sizeof(float)), device, size, stream,
            0};
  }

  void create() {
    const int device = static_cast<int>(random_() % kDevices);
    Tensor made = fresh(device, kSizes[random_() % std::size(kSizes)], any_stream(device));
    made.first = static_cast<float>(random_() % 1000);
    std::vector<float> values(static_cast<size_t>(made.size));
    for (size_t i = 0; i < values.size(); ++i) values[i] = made.first + static_cast<float>(i);
    auto work = std::make_unique<Fill>(made.memory.get(), std::move(values));
    submit(stream_of(device, made.stream), *work.release(), random_() % 2);
    alive_.push_back(std::move(made));
  }

  // The tensor may be used on the stream, and is from now on.
  void move_to(Tensor& tensor, c10::StreamId stream) {
    if (stream == tensor.stream) return;
    wait_for(stream_of(tensor.device, stream), record(stream_of(tensor.device, tensor.stream)));
    arena(tensor.device).record_stream(reinterpret_cast<uint64_t>(tensor.memory.get()), stream);
    tensor.stream = stream;
  }

  void launch_into(size_t which, bool in_place) {
    Tensor& x = alive_[which];
    move_to(x, any_stream(x.device));
    if (in_place) {
      plus_one(x, x.memory.get(), x.size);
      x.first += 1;
    } else if (alive_.size() < kAlive) {
      Tensor y = fresh(x.device, x.size, x.stream);
      plus_one(x, y.memory.get(), x.size);
      y.first = x.first + 1;
      alive_.push_back(std::move(y));
    }
  }

  void plus_one(const Tensor& x, void* y, int64_t size) {
    Binding binding;
    binding.addresses = {reinterpret_cast<uint64_t>(x.memory.get()), reinterpret_cast<uint64_t>(y)};
    binding.sizes = {size};
    std::unique_lock<std::mutex> lock(plus_.mutex);
    Variant& variant = *plus_.variant;
    Resident& program = variant.on(x.device);
    Record& record = variant.record(binding.sizes);
    exchange_stream_id(x.device, x.stream);
    const c10::DataPtr pool = program.pool();
    const std::vector<int64_t> block =
        program.fill(binding, reinterpret_cast<uint64_t>(pool.get()));
    lock.unlock();
    launch(stream_of(x.device, x.stream), plus_.variant, program, record, block);
  }

  void check(size_t which) {
    const Tensor& x = alive_[which];
    Stream& stream = stream_of(x.device, x.stream);
    try {
      if (random_() % 2) {
        synchronize(stream);
      } else {
        synchronize(record(stream));
      }
    } catch (const std::runtime_error&) {  // of `fail_late`
    }
    finish(stream);
    std::vector<float> values(static_cast<size_t>(x.size));
    std::memcpy(values.data(), x.memory.get(), values.size() * sizeof(float));
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] != x.first + static_cast<float>(i)) fail("a wrong value");
    }
  }

  // A launch that the card refuses: it changes nothing.
  void fail_late(size_t which) {
    Tensor& x = alive_[which];
    plus_one(x, x.memory.get(), kTooLarge);
  }

  void empty_cache() { arena(static_cast<int>(random_() % kDevices)).empty_cache(); }

  void drop(size_t which) {
    std::swap(alive_[which], alive_.back());
    alive_.pop_back();
  }

  Plus& plus_;
  std::minstd_rand random_;
  c10::StreamId streams_[kDevices][kStreamsEach];
  std::vector<Tensor> alive_;
};

void configure_cards() {
  struct Number {
    const char* name;
    double value;
  };
  static constexpr Number kNumbers[] = {
#include "spec.inc"
  };
  Settings settings;
  settings.devices = kDevices;
  settings.memory = 256 << 20;
  settings.threads = 3;
  for (const Number& number : kNumbers) {
    settings.names.emplace_back(number.name);
    settings.values.push_back(number.value);
  }
  configure(std::move(settings));
}

void run(const char* path, int threads, int steps) {
  configure_cards();
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(std::string("cannot read ") + path);
  Plus plus;
  plus.variant = std::make_shared<Variant>(
      "plus", std::string(std::istreambuf_iterator<char>(file), {}), Sizes{0}, Sizes{INT64_MAX});
  std::vector<std::thread> all;
  for (int thread = 0; thread < threads; ++thread) {
    all.emplace_back([&plus, thread, steps] {
      Walk walk(plus, static_cast<unsigned>(thread + 1));
      for (int i = 0; i < steps; ++i) walk.step();
      walk.finish_all();
    });
  }
  for (std::thread& thread : all) thread.join();
  finish_everything();
  for (int device = 0; device < kDevices; ++device) {
    const int64_t left = arena(device).stats().allocated_bytes[0].current;
    if (left != 0) fail(std::to_string(left) + " bytes are still allocated");
  }
}

}  // namespace
}  // namespace openspyre

int main(int count, char** words) {
  if (count != 4) openspyre::fail("usage: queues PROGRAM THREADS STEPS");
  openspyre::run(words[1], std::atoi(words[2]), std::atoi(words[3]));
  std::puts("ok");
}
