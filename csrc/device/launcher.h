// Programs on cards: residency, the launch in three steps, and what each launch has cost.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "card.h"

namespace openspyre {

using Sizes = c10::SmallVector<int64_t, 6>;

// What a launch binds: addresses of element zero, integer arguments, host scalars.
struct Binding {
  c10::SmallVector<uint64_t, 24> addresses;
  Sizes sizes;
  c10::SmallVector<double, 4> scalars;
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
  // Steps 2 and 3: copies the block to a slot on the card and runs the program. Returns when it
  // has finished. Needs no GIL.
  int run(const std::vector<int64_t>& block, spyre_error& error);
  spyre_report time(const Sizes& sizes, size_t address_count, size_t scalar_count);
  c10::DataPtr pool() const;

 private:
  int device_;
  c10::DataPtr memory_;
  spyre_program* program_ = nullptr;
};

// All launches with the same sizes.
struct Record {
  Sizes sizes;
  uint64_t launches = 0;
  int64_t nanoseconds = 0;  // of the host, inside run
  std::optional<spyre_report> report;
};

// The program for a class of sizes.
class Variant {
 public:
  Variant(std::string bytes, Sizes low, Sizes high);

  bool serves(const Sizes& sizes) const;
  Resident& on(int device);
  Record& record(const Sizes& sizes);

  const std::string& bytes() const { return bytes_; }
  const Sizes& low() const { return low_; }
  const Sizes& high() const { return high_; }
  const std::vector<Record>& records() const { return records_; }

 private:
  std::string bytes_;
  Sizes low_, high_;
  std::vector<std::unique_ptr<Resident>> on_;  // by device
  std::vector<Record> records_;
  size_t last_ = 0;
};

}  // namespace openspyre
