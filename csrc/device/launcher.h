// Programs on cards: residency, the launch in three steps, and what launches have cost.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "card.h"
#include "queue.h"

namespace openspyre {

using Sizes = c10::SmallVector<int64_t, 6>;

// What a launch binds: addresses of element zero, integer arguments, host scalars.
struct Binding {
  c10::SmallVector<uint64_t, 24> addresses;
  Sizes sizes;
  c10::SmallVector<double, 4> scalars;
};

// A binding of this thread, empty, whose storage the thread's next launch uses again.
class ReusedBinding {
 public:
  ReusedBinding();
  ReusedBinding(const ReusedBinding&) = delete;
  ReusedBinding& operator=(const ReusedBinding&) = delete;
  ~ReusedBinding();

  Binding& operator*() const { return binding_; }
  Binding* operator->() const { return &binding_; }

 private:
  Binding& binding_;
};

// A program that lies in a card's memory, ready to run.
class Resident {
 public:
  Resident(int device, const std::string& bytes);
  ~Resident();
  Resident(const Resident&) = delete;
  Resident& operator=(const Resident&) = delete;

  // Step 1, on the host: the symbol block, in memory of this thread that the next call reuses.
  const std::vector<int64_t>& fill(const Binding& binding, uint64_t pool);
  // Step 3: runs the program against the block in a slot; returns when it has finished.
  int run(uint64_t slot, const spyre_numerics& numerics, spyre_error& error) noexcept;
  spyre_report time(const Sizes& sizes, size_t address_count, size_t scalar_count, bool kept);
  bool has_prologue() const { return spyre_program_has_prologue(program_) != 0; }
  // Whether a launch that is submitted now will find LX as its last one left it.
  bool expects_kept(const std::vector<int64_t>& block, const spyre_numerics& numerics) {
    return spyre_program_expect(program_, block.data(), &numerics) != 0;
  }
  c10::DataPtr pool() const;
  int device() const { return device_; }

 private:
  int device_;
  c10::DataPtr memory_;
  spyre_program* program_ = nullptr;
};

// All launches with the same sizes.
struct Record {
  explicit Record(Sizes of) : number(next_number()), sizes(std::move(of)) {}

  const uint64_t number;  // of this process, from 1
  const Sizes sizes;
  uint64_t launches = 0;
  std::atomic<uint64_t> kept{0};        // of them, those that find what LX has kept
  std::atomic<int64_t> nanoseconds{0};  // of the host, inside run
  std::atomic<int64_t> usual{0};        // of them, a launch's as a rule
  std::optional<spyre_report> report;
  std::optional<spyre_report> kept_report;        // of a launch that finds what LX has kept
  int64_t picoseconds = 0, kept_picoseconds = 0;  // of the card, once there is a report

 private:
  static uint64_t next_number();
};

// The program for a class of sizes. Launches in flight keep it alive.
class Variant {
 public:
  Variant(std::string name, std::string bytes, Sizes low, Sizes high);

  bool serves(const Sizes& sizes) const;
  Resident& on(int device);
  Record& record(const Sizes& sizes);  // stays where it is

  const std::string& name() const { return name_; }
  const std::string& bytes() const { return bytes_; }
  const Sizes& low() const { return low_; }
  const Sizes& high() const { return high_; }
  const std::deque<Record>& records() const { return records_; }

 private:
  const std::string name_;  // of the kernel
  std::string bytes_;
  Sizes low_, high_;
  std::vector<std::unique_ptr<Resident>> on_;  // by device
  std::deque<Record> records_;
  Record* last_ = nullptr;
};

// Fills in what a launch with these sizes costs the card, if it is not yet known. `kept`: one that
// finds what LX has kept.
const spyre_report& measure(Variant& variant, Record& record, int device, size_t address_count,
                            size_t scalar_count, bool kept = false);

// Steps 2 and 3 on the stream: copies the block to a slot of the card, and runs the program when
// the stream gets there, with the numerics of now. May wait for a slot: call it without the GIL.
void launch(Stream& stream, const std::shared_ptr<Variant>& variant, Resident& program,
            Record& record, const std::vector<int64_t>& block);

}  // namespace openspyre
