// The cards of this process: opened on first use, kept until the process ends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../card/card.h"

namespace openspyre {

constexpr int kMaxDevices = 64;

// What Python decides before the first use (openspyre/settings.py).
struct Settings {
  int devices = 0;
  uint64_t memory = 0;             // bytes per card
  int threads = 0;                 // host threads of a card; 0: as many as torch's
  unsigned debug = 0;              // SPYRE_DEBUG_*
  std::vector<std::string> names;  // the numbers of the CardSpec
  std::vector<double> values;
  std::string run;  // folder for the state of this process (state.h)
};

void configure(Settings settings);
const Settings& settings();
int device_count() noexcept;
double card_number(const char* name);  // of the CardSpec

struct Card {
  int index = 0;
  spyre_card* handle = nullptr;
  uint64_t base = 0;
  uint64_t size = 0;
};

void check_device(int index);  // throws on a bad index

// The card of a device, opened if it is not yet. Throws on a bad index and in a forked child.
Card& card(int index);

// Whether the card is open; never opens it.
bool is_open(int index) noexcept;

// The device whose memory holds `address`, or -1.
int device_of(const void* address) noexcept;

// Says that bytes of a block of device memory may have changed (write epochs).
void touch(const void* address, uint64_t bytes);
// Says that they will have when what is submitted from now on begins.
void will_touch(const void* address, uint64_t bytes);

// True in a child process forked after a card was opened: its worker threads are gone.
bool in_bad_fork() noexcept;

int current_device() noexcept;   // of this thread
int exchange_device(int index);  // throws on a bad index
void set_device_unchecked(int index) noexcept;

}  // namespace openspyre
