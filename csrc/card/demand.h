// How much a launch asks for, told from its extents before any of it is done.
#pragma once

#include "decode.h"

namespace spyre {

// Over all cores. Upper bounds, exact where the parts of every axis are equal and none is empty.
struct Demand {
  double instructions = 0;  // and trips of loops
  // Elements that copies and ring moves move, multiply-adds of PT, scalar ops of SFU.
  double points = 0;

  void operator+=(const Demand& other) {
    instructions += other.instructions;
    points += other.points;
  }
};

Demand demand_of(const Section& section, const int64_t* slots);

// What `execute` takes from one launch. The prefill of 1,024 tokens of a model with 8e9 parameters
// has 2^43 points in all its kernels together; 2^50 keep a host of four fast cores busy for a day.
constexpr double kMostPoints = 0x1p50;
constexpr double kMostInstructions = 0x1p40;

// Throws Failure(SPYRE_STOPPED) for a launch of more than that.
void require_runnable(const Program& program, const int64_t* slots);

// How many instructions an engine looks at one by one.
struct WalkLimits {
  const char* verb;  // what it does with them
  int code;          // of the Failure
  bool every_core;   // false: one core stands for all
  double of_section, of_program;
};

// Throws Failure(limits.code) for a launch of more.
void require_walkable(const Program& program, const int64_t* slots, const WalkLimits& limits);

}  // namespace spyre
