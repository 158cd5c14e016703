// Repeats recorded calls of the card's API and compares what they give: `calls FILE`.
//
// tests/card/recording.py writes the file (all of it little-endian) while the card's tests run, on
// any host; this program runs on any other. The elements of tensors are the host's own in device
// memory, so regions of the file's memory say how large theirs are.
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

namespace {

enum Call : uint64_t { kLoad, kRun, kTime, kCheck, kCalls };
constexpr const char* kNames[] = {"load", "run", "time", "check"};

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

// Bytes [low, high) of memory hold elements of `size` bytes.
struct Region {
  uint64_t low, high, size;
};

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
    const uint64_t low = in->word(), high = in->word();
    return Region{low, high, in->word()};
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

// One card with a program, as a recorded call needs it.
class Repeated {
 public:
  explicit Repeated(const Recorded& call) : r_(call) {
    std::vector<const char*> names;
    for (const std::string& name : r_.numbers) names.push_back(name.c_str());
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

  // What differs from the record; "" if nothing does.
  std::string difference() {
    error_.text[0] = 0;
    const uint64_t code = static_cast<uint64_t>(call());
    if (code != r_.code) {
      return "code " + std::to_string(code) + ", not " + std::to_string(r_.code) + ": " +
             error_.text;
    }
    if (code && r_.error != error_.text) return error_.text + (", not " + r_.error);
    if (r_.call == kTime && !code) return report_difference();
    return r_.call == kRun && !code ? memory_difference() : "";
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
    if (r_.call == kCheck) {
      return spyre_program_check(program_, slots.data(), r_.spans.data(), r_.spans.size(), &error_);
    }
    std::string memory = r_.before;
    swap_elements(r_.regions, &memory);
    std::memcpy(reinterpret_cast<void*>(base_), memory.data(), memory.size());
    const uint64_t block = (at + r_.program.size() + 127) / 128 * 128;
    std::memcpy(reinterpret_cast<void*>(block), slots.data(), 8 * slots.size());
    return spyre_program_run(program_, block, &r_.numerics, &error_);
  }

  std::string memory_difference() {
    std::string memory(reinterpret_cast<const char*>(base_), r_.after.size());
    swap_elements(r_.regions, &memory);
    for (size_t i = 0; i < memory.size(); ++i) {
      if (memory[i] != r_.after[i]) return "byte " + std::to_string(i) + " of memory";
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
  uint64_t calls[kCalls] = {}, wrong = 0;
  while (!in.ends()) {
    const Recorded one = recorded(&in);
    ++calls[one.call];
    const std::string difference = Repeated(one).difference();
    if (difference.empty()) continue;
    ++wrong;
    std::printf("WRONG %s, %s: %s\n", one.name.c_str(), kNames[one.call], difference.c_str());
  }
  std::printf("%s", is_big_endian() ? "{\"byte_order\": \"big\"" : "{\"byte_order\": \"little\"");
  for (uint64_t call = 0; call < kCalls; ++call) {
    std::printf(", \"%s\": %" PRIu64, kNames[call], calls[call]);
  }
  std::printf(", \"wrong\": %" PRIu64 "}\n", wrong);
  return wrong ? 1 : 0;
}
