// What an instruction must satisfy beyond numbers in range: the rules of
// src/openspyre/ir/program.py. They throw Failure(SPYRE_INVALID_PROGRAM).
//
// Axis, buffer, slot and source numbers are in range already; axes are below 64.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "decode.h"

namespace spyre {

void check_rules(const Copy& copy);
// `loops`: axes of the loops around the instruction.
void check_rules(const Pt& pt, const std::vector<int>& loops);
void check_rules(const Vec& vec, const std::vector<int>& loops, size_t slot_count);
void check_rules(const Ring& ring, const std::vector<Buffer>& buffers);
// Of `program->prologue` leading sections; fills in what follows from them.
void find_prologue(Program* program);

[[noreturn]] void refuse(const std::string& why);
inline void require(bool holds, const char* why) {
  if (!holds) refuse(why);
}

}  // namespace spyre
