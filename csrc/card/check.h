// The check engine: proves without values that a program keeps the rules of program.py for the
// sizes of one symbol block.
//
//  - Every access lies in its LX buffer, or in the span of its argument, or in the pool.
//  - Every byte that is read was written before: LX, the pool in device memory, and arguments whose
//    contents mean nothing before the launch.
//  - No argument is stored to that is only read; as many bytes of every other one are stored as the
//    user's ops write.
//  - A load through the slot of a tensor in the pool finds the bytes that were stored through this
//    slot last.
//  - Accesses to LX are to whole elements (and through one buffer to elements of one size).
//  - A read through an LX buffer finds the bytes that were written through this buffer last, in
//    the slot that was written last.
//  - A ring move finds bytes that their holder wrote through the move's source buffer in an earlier
//    round, and that nobody writes in this one.
//  - No instruction writes bytes of LX that it reads or writes as another operand, but a vector
//    instruction may work in place.
//  - Accesses to the same byte of device memory in one section, one of which writes, are of one
//    core and ordered by its tokens. What a section that joins another one loads, that one does not
//    store.
//
// This makes execution in body order the meaning of every legal order. In LX it needs no clocks:
// tokens order all accesses through one buffer, and a write behind all accesses through buffers
// that overlap; what is left, a read behind a write through another buffer, is refused.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "decode.h"
#include "frame.h"

namespace spyre {

// What a launch may do with an argument; spyre_span says what the fields mean.
struct Span {
  int64_t low, high;
  int64_t stored = 0;
  bool fresh = false;
};

// Throws Failure(SPYRE_STOPPED) with the first problems, Failure(SPYRE_TOO_LARGE) if the program is
// too large to check at these sizes. `arguments` has an entry for every address.
void check_program(const Program& program, const int64_t* slots,
                   const std::vector<Span>& arguments);

// A static instruction of a program.
struct Instr {
  int section = -1, node = -1;  // Node::id
  bool operator==(const Instr& o) const { return section == o.section && node == o.node; }
  bool operator<(const Instr& o) const {
    return std::tie(section, node) < std::tie(o.section, o.node);
  }
};

// What is wrong, each pair of instructions once, in the order found.
class Problems {
 public:
  enum Kind {
    LxBounds,
    DeviceBounds,
    ReadOnly,
    Unwritten,
    Overwritten,
    Own,
    Stale,
    Race,
    Remote,
    Parts
  };

  explicit Problems(const Program& program);

  const Node& node(Instr instr) const { return *nodes_[instr.section][instr.node]; }
  // "section s0, LOAD instruction 3 (linear) on core 0"; without a core where all do the same.
  std::string name(Instr instr, int core = -1) const;

  // A byte's number; far outside of memory it stops at what 64 bits hold.
  static std::string number(Wide byte);

  // Whether the problem is new; the caller then adds its text. `other` may be no instruction.
  bool is_new(Kind kind, Instr instr, Instr other = {});
  void add(std::string text);

  // Throws what was found, if anything.
  void raise() const;

 private:
  const Program& program_;
  std::vector<std::vector<const Node*>> nodes_;  // by section and Node::id
  std::set<std::tuple<Kind, Instr, Instr>> known_;
  std::vector<std::string> texts_;
};

// The two parts, over all sections.
void check_lx(const Program& program, const int64_t* slots, Problems& problems);
void check_device(const Program& program, const int64_t* slots, const std::vector<Span>& arguments,
                  Problems& problems);

}  // namespace spyre
