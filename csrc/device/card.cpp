#include "card.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "state.h"

namespace openspyre {
namespace {

// Cards outlive static destructors: tensors may be freed at any time until the process is gone.
struct Process {
  Settings settings;
  std::mutex opening;
  std::array<std::atomic<Card*>, kMaxDevices> cards{};
  std::atomic<bool> forked{false};
};

Process& process() {
  static auto* const instance = new Process();
  return *instance;
}

thread_local int current = 0;

void note_fork() {
  for (auto& card : process().cards)
    if (card.load(std::memory_order_relaxed)) process().forked = true;
}

std::unique_ptr<Card> open(int index) {
  const Settings& chosen = process().settings;
  std::vector<const char*> names;
  for (const auto& name : chosen.names) names.push_back(name.c_str());
  const int threads =
      chosen.threads > 0 ? chosen.threads : static_cast<int>(std::thread::hardware_concurrency());
  auto card = std::make_unique<Card>();
  card->index = index;
  spyre_error error{};
  int code = spyre_card_open(names.data(), chosen.values.data(), names.size(), chosen.memory,
                             threads, &card->handle, &error);
  if (code == SPYRE_OK) code = spyre_card_debug(card->handle, chosen.debug, &error);
  TORCH_CHECK(code == SPYRE_OK, "spyre:", index, ": the card does not open: ", error.text);
  card->base = spyre_card_memory_base(card->handle);
  card->size = spyre_card_memory_size(card->handle);
  publish_state(chosen.run);
  card_state(index).memory = card->size;
  return card;
}

}  // namespace

void configure(Settings settings) {
  TORCH_CHECK(settings.devices >= 0 && settings.devices <= kMaxDevices, "spyre: ", settings.devices,
              " devices; at most ", kMaxDevices, " are supported");
  process().settings = std::move(settings);
  static const int registered = pthread_atfork(nullptr, nullptr, note_fork);
  (void)registered;
}

const Settings& settings() { return process().settings; }

int device_count() noexcept { return process().settings.devices; }

double card_number(const char* name) {
  const auto& names = process().settings.names;
  const auto found = std::find(names.begin(), names.end(), name);
  TORCH_CHECK(found != names.end(), "spyre: the card has no number named ", name);
  return process().settings.values[found - names.begin()];
}

void check_device(int index) {
  TORCH_CHECK(device_count() > 0, "spyre: this process has no card (OPENSPYRE_DEVICES=0)");
  TORCH_CHECK(index >= 0 && index < device_count(), "spyre: there is no device ", index,
              " (devices: ", device_count(), "); OPENSPYRE_DEVICES sets how many there are");
}

Card& card(int index) {
  check_device(index);
  auto& entry = process().cards[index];
  TORCH_CHECK(!in_bad_fork(),
              "spyre: the card cannot be used in a forked process. To use it with "
              "multiprocessing, you must use the 'spawn' start method");
  if (Card* opened = entry.load(std::memory_order_acquire)) return *opened;
  const std::lock_guard<std::mutex> lock(process().opening);
  if (!entry.load(std::memory_order_relaxed)) entry = open(index).release();
  return *entry.load(std::memory_order_relaxed);
}

bool is_open(int index) noexcept {
  return index >= 0 && index < device_count() && process().cards[index].load() != nullptr;
}

int device_of(const void* address) noexcept {
  const auto wanted = reinterpret_cast<uint64_t>(address);
  for (int i = 0; i < device_count(); ++i) {
    const Card* opened = process().cards[i].load(std::memory_order_acquire);
    if (opened && wanted - opened->base < opened->size) return i;
  }
  return -1;
}

void touch(const void* address, uint64_t bytes) {
  const int index = device_of(address);
  if (index < 0 || bytes == 0) return;
  spyre_card_touch(process().cards[index].load()->handle, reinterpret_cast<uint64_t>(address),
                   bytes);
}

void will_touch(const void* address, uint64_t bytes) {
  const int index = device_of(address);
  if (index < 0 || bytes == 0) return;
  spyre_card_will_touch(process().cards[index].load()->handle, reinterpret_cast<uint64_t>(address),
                        bytes);
}

bool in_bad_fork() noexcept { return process().forked.load(std::memory_order_relaxed); }

int current_device() noexcept { return current; }

int exchange_device(int index) {
  check_device(index);
  const int previous = current;
  current = index;
  return previous;
}

void set_device_unchecked(int index) noexcept { current = index; }

}  // namespace openspyre
