// Feeds bytes to the decoder and what it takes to the three engines, on a small card.
//
// With clang's -fsanitize=fuzzer this is a fuzzer; with -DSPYRE_REPLAY it is a program that runs
// the files of the command line. spec.inc holds the numbers of the small card (fuzzing.py).
//
// An input is 16 bytes that choose modes and sizes, and the words behind a program's header: the
// header is made here, so that mutations get past the checksum.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "../card/card.h"
#include "../card/decode.h"
#include "../card/demand.h"

extern "C" {
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t capacity);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t capacity, unsigned seed);
}

namespace {

constexpr size_t kChoices = 16, kHeaderWords = 5;
constexpr uint64_t kMemory = 4 << 20, kProgram = 1 << 20, kPool = 2 << 20, kBlock = 3 << 20;
constexpr uint64_t kArgument = 64 << 10;
// A fuzzer has no time for programs that take long and are not refused: more instructions than it
// waits for, or points, and fewer than the engines refuse (time.cpp and check.cpp at the latest).
constexpr double kWalked = 1 << 13, kRun = 1 << 17, kRefused = 1 << 26;

[[noreturn]] void fail(const char* what, const char* detail = "") {
  std::fprintf(stderr, "%s %s\n", what, detail);
  std::abort();
}

struct Number {
  const char* name;
  double value;
};
constexpr Number kNumbers[] = {
#include "spec.inc"
};

spyre_card* open_card() {
  std::vector<const char*> names;
  std::vector<double> values;
  for (const Number& number : kNumbers) {
    names.push_back(number.name);
    values.push_back(number.value);
  }
  spyre_card* card = nullptr;
  spyre_error error;
  if (spyre_card_open(names.data(), values.data(), names.size(), kMemory, 1, &card, &error)) {
    fail("no card:", error.text);
  }
  return card;
}

uint32_t crc32(const uint8_t* bytes, size_t count) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
  }
  return ~crc;
}

void put_word(uint64_t word, uint8_t* to) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<uint8_t>(word >> (8 * i));
}

using spyre::Demand;

bool within(double asked, double low, double high) { return asked > low && asked <= high; }

Demand demand_of(const spyre::Program& program, const int64_t* slots) {
  Demand total;
  for (const spyre::Section& section : program.sections) {
    total += spyre::demand_of(section, slots);
  }
  return total;
}

// How many inputs each engine took, and refused or stopped.
struct Counts {
  int refused = 0, timed = 0, checked = 0, ran = 0, stopped = 0;
} counts;

constexpr int64_t kHostile[] = {-1, 0, 1, 65, 1 << 16, int64_t{1} << 40, INT64_MAX, INT64_MIN};

struct Launch {
  std::vector<uint64_t> addresses;
  std::vector<int64_t> sizes;
  std::vector<double> scalars;
  std::vector<spyre_span> spans;
};

Launch launch_of(const spyre::Program& program, const uint8_t* choices, uint64_t base) {
  Launch launch;
  for (int64_t i = 0; i < program.addresses; ++i) {
    launch.addresses.push_back(
        base + (choices[0] % 8 ? i % 16 * kArgument : static_cast<uint64_t>(kHostile[i % 8])));
    launch.spans.push_back({0, kArgument, choices[0] % 4 - 1, choices[0] / 8 % 2});
  }
  for (int64_t i = 0; i < program.sizes; ++i) {
    const uint8_t choice = choices[4 + i % 8];
    launch.sizes.push_back(choice < 248 ? choice : kHostile[choice - 248]);
  }
  launch.scalars.assign(static_cast<size_t>(program.scalars), 0.5);
  return launch;
}

spyre_numerics numerics_of(const uint8_t* choices) {
  const int form = choices[12];
  return {choices[1] / 8 % 2, form % 4,          form / 4 % 2,
          form / 8 % 4,       choices[13] % 130, choices[14] % 17};
}

void run_engines(spyre_card* card, spyre_program* handle, const spyre::Program& program,
                 const uint8_t* choices) {
  const uint64_t base = spyre_card_memory_base(card);
  const Launch launch = launch_of(program, choices, base);
  std::vector<int64_t> slots(program.slots.size() + 1);
  spyre_error error;
  if (spyre_program_fill(handle, launch.addresses.data(), launch.addresses.size(),
                         launch.sizes.data(), launch.sizes.size(), launch.scalars.data(),
                         launch.scalars.size(), base + kPool, slots.data(), &error)) {
    return;
  }
  if (choices[1] % 8 == 0) slots[choices[2] % slots.size()] = kHostile[choices[3] % 8];
  const Demand demand = demand_of(program, slots.data());
  if (within(demand.instructions, kWalked, kRefused)) return;
  spyre_report report;
  counts.timed += !spyre_program_time(handle, slots.data(), &report, &error);
  counts.checked +=
      !spyre_program_check(handle, slots.data(), launch.spans.data(), launch.spans.size(), &error);
  if (program.slots.size() * 8 > kMemory - kBlock) return;
  if (within(demand.instructions, kWalked, spyre::kMostInstructions) ||
      within(demand.points, kRun, spyre::kMostPoints)) {
    return;
  }
  std::memcpy(reinterpret_cast<void*>(base + kBlock), slots.data(), 8 * program.slots.size());
  spyre_card_debug(card, choices[1] % 4, &error);
  const spyre_numerics numerics = numerics_of(choices);
  ++(spyre_program_run(handle, base + kBlock, &numerics, &error) ? counts.stopped : counts.ran);
  if (spyre_program_has_prologue(handle)) {  // and without it
    (void)spyre_program_time_kept(handle, slots.data(), &report, &error);
    (void)spyre_program_run(handle, base + kBlock, &numerics, &error);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static spyre_card* card = open_card();
  static const spyre::Spec spec = [] {
    std::vector<const char*> names;
    std::vector<double> values;
    for (const Number& number : kNumbers) {
      names.push_back(number.name);
      values.push_back(number.value);
    }
    return spyre::spec_of(names.data(), values.data(), names.size());
  }();
  if (size < kChoices) return 0;
  const uint8_t* choices = data;
  const size_t words = (size - kChoices) / 8, total = 8 * (words + kHeaderWords);
  if (total > kPool - kProgram) return 0;
  const uint64_t address = spyre_card_memory_base(card) + kProgram;
  auto* bytes = reinterpret_cast<uint8_t*>(address);
  std::memcpy(bytes + 8 * kHeaderWords, data + kChoices, 8 * words);
  const auto version = static_cast<uint64_t>(spyre_format_version());
  const uint64_t header[] = {0x4552595053, version, words, crc32(data + kChoices, 8 * words), 0};
  for (size_t i = 0; i < kHeaderWords; ++i) put_word(header[i], bytes + 8 * i);
  size_t given = total;
  if (choices[15] % 64 == 1) bytes[choices[14] % (8 * kHeaderWords)] ^= choices[13];
  if (choices[15] % 64 == 2) given = choices[14];
  spyre_program* handle = nullptr;
  spyre_error error;
  if (spyre_program_create(card, address, given, &handle, &error)) {
    ++counts.refused;
    return 0;
  }
  const std::vector<uint8_t> copy(bytes, bytes + given);
  const spyre::Program program = spyre::decode(copy.data(), copy.size(), spec);
  run_engines(card, handle, program, choices);
  spyre_program_destroy(handle);
  return 0;
}

#ifdef SPYRE_REPLAY

int main(int count, char** files) {
  for (int i = 1; i < count; ++i) {
    std::ifstream file(files[i], std::ios::binary);
    if (!file) fail("cannot read", files[i]);
    const std::string data((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(data.data()), data.size());
  }
  std::printf("%d inputs, %d refused, %d timed, %d checked, %d ran, %d stopped\n", count - 1,
              counts.refused, counts.timed, counts.checked, counts.ran, counts.stopped);
}

#else

// Programs are words: half of the mutations change, copy, insert or drop whole ones.
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t capacity, unsigned seed) {
  std::minstd_rand random(seed);
  if (size < kChoices + 16 || random() % 2) return LLVMFuzzerMutate(data, size, capacity);
  uint8_t* body = data + kChoices;
  const size_t words = (size - kChoices) / 8;
  uint8_t* at = body + 8 * (random() % words);
  const uint8_t* other = body + 8 * (random() % words);
  switch (random() % 6) {
    case 0:
      put_word(random() % 70 - 3, at);
      break;
    case 1:
      std::memmove(at, other, 8);
      break;
    case 2:
      put_word(static_cast<uint64_t>(kHostile[random() % 8]), at);
      break;
    case 3: {
      const size_t run = std::min<size_t>(
          {random() % 24 + 1, words - (at - body) / 8, words - (other - body) / 8});
      std::memmove(at, other, 8 * run);
      break;
    }
    case 4:
      at[random() % 8] ^= static_cast<uint8_t>(1 << random() % 8);
      break;
    default:
      return LLVMFuzzerMutate(data, size, capacity);
  }
  return size;
}

#endif
