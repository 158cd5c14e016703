// Repeats recorded calls of the card's API and compares what they give: `calls FILE`.
//
// tests/card/recording.py writes the file (all of it little-endian) while the card's tests run, on
// any host; this program runs on any other. The elements of tensors are the host's own in device
// memory, so regions of the file's memory say how large theirs are.
//
// What a program leaves in memory has a meaning where the checker proves that it reads no bytes of
// LX or of the pool that it has not written, and that its accesses are ordered. The runs of others
// (corrupted programs) must end, but what they leave depends on the threads and on what LX held.
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../card/card.h"
#include "../card/check.h"

namespace {

enum Call : uint64_t { kLoad, kRun, kTime, kCheck, kTimeKept, kCalls };
constexpr const char* kNames[] = {"load", "run", "time", "check", "time_kept"};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(2);
}

bool is_big_endian() {
  const uint16_t one = 1;
  unsigned char first;
  std::memcpy(&first, &one, 1);
  return first == 0;
}

class Reader {
 public:
  explicit Reader(const std::string& data) : data_(data) {}
  bool ends() const { return at_ == data_.size(); }

  uint64_t word() {
    const std::string raw = bytes(8);
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= uint64_t{static_cast<uint8_t>(raw[i])} << (8 * i);
    return value;
  }
  double number() {
    const uint64_t bits = word();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  std::string bytes(uint64_t count) {
    if (count > data_.size() - at_) fail("the file ends early");
    at_ += count;
    return data_.substr(at_ - count, count);
  }
  std::string text() { return bytes(word()); }
  template <class T, class Read>
  std::vector<T> list(const Read& read) {
    std::vector<T> all(word());
    for (T& item : all) item = read();
    return all;
  }

 private:
  const std::string& data_;
  size_t at_ = 0;
};

enum Format : uint64_t { kBits, kF16, kBf16, kF32, kF8e4m3, kF8e5m2 };

// Bytes [low, high) of memory hold elements of `size` bytes.
struct Region {
  uint64_t low, high, size;
  Format format;
};

// The largest magnitude that is no NaN, by format.
constexpr uint32_t kLargest[] = {0, 0x7C00, 0x7F80, 0x7F800000, 0x7E, 0x7C};

// Of a little-endian element.
bool is_nan(const char* at, const Region& region) {
  if (region.format == kBits) return false;
  uint32_t bits = 0;
  for (uint64_t i = 0; i < region.size; ++i) {
    bits |= uint32_t{static_cast<uint8_t>(at[i])} << (8 * i);
  }
  const uint32_t sign = uint32_t{1} << (8 * region.size - 1);
  return (bits & (sign - 1)) > kLargest[region.format];
}

void swap_elements(const std::vector<Region>& regions, std::string* memory) {
  if (!is_big_endian()) return;
  for (const Region& region : regions) {
    for (uint64_t at = region.low; at + region.size <= region.high; at += region.size) {
      std::reverse(memory->begin() + at, memory->begin() + at + region.size);
    }
  }
}

struct Recorded {
  std::string name;
  Call call;
  std::vector<std::string> numbers;
  std::vector<double> values;
  uint64_t debug;
  spyre_numerics numerics;
  std::string program;
  std::vector<uint64_t> addresses, sizes;  // addresses count from the memory's start
  std::vector<double> scalars;
  uint64_t pool;
  std::vector<Region> regions;
  std::string before, after;  // memory
  std::vector<spyre_span> spans;
  uint64_t code;
  std::string error;
  std::vector<uint64_t> report;
};

Recorded recorded(Reader* in) {
  Recorded r;
  auto word = [&] { return in->word(); };
  auto number = [&] { return in->number(); };
  r.name = in->text();
  r.call = static_cast<Call>(in->word());
  if (r.call >= kCalls) fail("an unknown call");
  r.numbers = in->list<std::string>([&] { return in->text(); });
  r.values = in->list<double>(number);
  r.debug = in->word();
  int words[6];
  for (int& one : words) one = static_cast<int>(in->word());
  r.numerics = {words[0], words[1], words[2], words[3], words[4], words[5]};
  r.program = in->text();
  r.addresses = in->list<uint64_t>(word);
  r.sizes = in->list<uint64_t>(word);
  r.scalars = in->list<double>(number);
  r.pool = in->word();
  r.regions = in->list<Region>([&] {
    const uint64_t low = in->word(), high = in->word(), size = in->word();
    return Region{low, high, size, static_cast<Format>(in->word())};
  });
  r.before = in->text();
  r.after = in->text();
  r.spans = in->list<spyre_span>([&] {
    int64_t fields[4];
    for (int64_t& field : fields) field = static_cast<int64_t>(in->word());
    return spyre_span{fields[0], fields[1], fields[2], fields[3]};
  });
  r.code = in->word();
  r.error = in->text();
  r.report = in->list<uint64_t>(word);
  return r;
}

std::vector<const char*> name_pointers(const Recorded& call) {
  std::vector<const char*> names;
  for (const std::string& name : call.numbers) names.push_back(name.c_str());
  return names;
}

std::string hex(char byte) {
  char text[8];
  std::snprintf(text, sizeof text, "%02x", static_cast<uint8_t>(byte));
  return text;
}

// One card with a program, as a recorded call needs it.
class Repeated {
 public:
  explicit Repeated(const Recorded& call) : r_(call) {
    const std::vector<const char*> names = name_pointers(call);
    const uint64_t memory = r_.before.size() + r_.program.size() + kRoom;
    if (spyre_card_open(names.data(), r_.values.data(), names.size(), memory, 2, &card_, &error_) ||
        spyre_card_debug(card_, static_cast<unsigned>(r_.debug), &error_)) {
      fail(std::string("no card: ") + error_.text);
    }
    base_ = spyre_card_memory_base(card_);
  }
  ~Repeated() {
    spyre_program_destroy(program_);
    spyre_card_close(card_);
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  bool is_defined() const { return defined_; }

  // What differs from the record; "" if nothing does.
  std::string difference() {
    error_.text[0] = 0;
    const uint64_t code = static_cast<uint64_t>(call());
    if (code != r_.code && defined_) {
      return "code " + std::to_string(code) + ", not " + std::to_string(r_.code) + ": " +
             error_.text;
    }
    if (code && r_.error != error_.text) return error_.text + (", not " + r_.error);
    if ((r_.call == kTime || r_.call == kTimeKept) && !code) return report_difference();
    return r_.call == kRun && !code && defined_ ? memory_difference() : "";
  }

 private:
  static constexpr uint64_t kRoom = 1 << 20;

  int call() {
    const uint64_t at = base_ + (r_.before.size() + 127) / 128 * 128;
    std::memcpy(reinterpret_cast<void*>(at), r_.program.data(), r_.program.size());
    const int loaded = spyre_program_create(card_, at, r_.program.size(), &program_, &error_);
    if (loaded || r_.call == kLoad) return loaded;
    std::vector<uint64_t> addresses;
    for (uint64_t address : r_.addresses) addresses.push_back(base_ + address);
    std::vector<int64_t> sizes(r_.sizes.begin(), r_.sizes.end());
    std::vector<int64_t> slots(spyre_program_slot_count(program_) + 1);
    const int filled = spyre_program_fill(
        program_, addresses.data(), addresses.size(), sizes.data(), sizes.size(), r_.scalars.data(),
        r_.scalars.size(), base_ + r_.pool, slots.data(), &error_);
    if (filled) fail(r_.name + ": no symbol block: " + error_.text);
    if (r_.call == kTime) return spyre_program_time(program_, slots.data(), &report_, &error_);
    if (r_.call == kTimeKept) {
      return spyre_program_time_kept(program_, slots.data(), &report_, &error_);
    }
    if (r_.call == kCheck) {
      return spyre_program_check(program_, slots.data(), r_.spans.data(), r_.spans.size(), &error_);
    }
    defined_ = is_proved(slots.data());
    std::string memory = r_.before;
    swap_elements(r_.regions, &memory);
    std::memcpy(reinterpret_cast<void*>(base_), memory.data(), memory.size());
    const uint64_t block = (at + r_.program.size() + 127) / 128 * 128;
    std::memcpy(reinterpret_cast<void*>(block), slots.data(), 8 * slots.size());
    return spyre_program_run(program_, block, &r_.numerics, &error_);
  }

  // All arguments are one here: a corrupted program may reach from one into another.
  bool is_proved(const int64_t* slots) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(r_.program.data());
    const spyre::Spec spec =
        spyre::spec_of(name_pointers(r_).data(), r_.values.data(), r_.values.size());
    spyre::Program program = spyre::decode(bytes, r_.program.size(), spec);
    for (spyre::Section& section : program.sections) join_arguments(&section.body);
    std::vector<spyre::Span> spans(r_.addresses.size());
    if (!spans.empty()) {
      const auto first = static_cast<int64_t>(r_.addresses[0]);
      spans[0] = {-first, static_cast<int64_t>(spyre_card_memory_size(card_)) - first};
    }
    try {
      spyre::check_program(program, slots, spans);
    } catch (const spyre::Failure& failure) {
      return failure.code() == SPYRE_TOO_LARGE;
    }
    return true;
  }

  static void join_arguments(std::vector<spyre::Node>* body) {
    for (spyre::Node& node : *body) {
      if (auto* loop = std::get_if<spyre::TileLoop>(&node.form)) join_arguments(&loop->body);
      auto* copy = std::get_if<spyre::Copy>(&node.form);
      if (!copy) continue;
      for (spyre::Place* place : {&copy->source, &copy->target}) {
        place->argument = std::min(place->argument, 0);
      }
    }
  }

  // A NaN is a NaN: hosts give different ones for inf * 0.
  void copy_nans(const Region& region, std::string* memory) const {
    for (uint64_t at = region.low; at + region.size <= region.high; at += region.size) {
      const char* expected = r_.after.data() + at;
      if (is_nan(expected, region) && is_nan(memory->data() + at, region)) {
        memory->replace(at, region.size, expected, region.size);
      }
    }
  }

  std::string memory_difference() {
    std::string memory(reinterpret_cast<const char*>(base_), r_.after.size());
    swap_elements(r_.regions, &memory);
    for (const Region& region : r_.regions) copy_nans(region, &memory);
    for (size_t i = 0; i < memory.size(); ++i) {
      if (memory[i] == r_.after[i]) continue;
      return "byte " + std::to_string(i) + " of memory is " + hex(memory[i]) + ", not " +
             hex(r_.after[i]);
    }
    return "";
  }

  std::string report_difference() const {
    static_assert(sizeof report_ % sizeof(uint64_t) == 0);
    std::vector<uint64_t> got(sizeof report_ / sizeof(uint64_t));
    std::memcpy(got.data(), &report_, sizeof report_);
    if (got.size() != r_.report.size()) return "the report has another form";
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] == r_.report[i]) continue;
      return "number " + std::to_string(i) + " of the report is " + std::to_string(got[i]) +
             ", not " + std::to_string(r_.report[i]);
    }
    return "";
  }

  const Recorded& r_;
  spyre_card* card_ = nullptr;
  spyre_program* program_ = nullptr;
  uint64_t base_ = 0;
  bool defined_ = true;
  spyre_report report_{};
  spyre_error error_{};
};

}  // namespace

int main(int count, char** words) {
  if (count != 2) fail("usage: calls FILE");
  std::ifstream file(words[1], std::ios::binary);
  if (!file) fail(std::string("cannot read ") + words[1]);
  const std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Reader in(data);
  uint64_t calls[kCalls] = {}, undefined = 0, wrong = 0;
  for (uint64_t number = 0; !in.ends(); ++number) {
    const Recorded one = recorded(&in);
    if (number % 500 == 499) std::fprintf(stderr, "%" PRIu64 " calls\n", number + 1);
    ++calls[one.call];
    Repeated repeated(one);
    const std::string difference = repeated.difference();
    if (!repeated.is_defined()) {
      ++undefined;
      std::printf("undefined %s, call %" PRIu64 "\n", one.name.c_str(), number);
    }
    if (difference.empty()) continue;
    ++wrong;
    std::printf("WRONG %s, call %" PRIu64 ", %s: %s\n", one.name.c_str(), number, kNames[one.call],
                difference.c_str());
  }
  std::printf("%s", is_big_endian() ? "{\"byte_order\": \"big\"" : "{\"byte_order\": \"little\"");
  for (uint64_t call = 0; call < kCalls; ++call) {
    std::printf(", \"%s\": %" PRIu64, kNames[call], calls[call]);
  }
  std::printf(", \"undefined\": %" PRIu64 ", \"wrong\": %" PRIu64 "}\n", undefined, wrong);
  return wrong ? 1 : 0;
}
