#include "check.h"

#include <algorithm>

#include "demand.h"
#include "tokens.h"

namespace spyre {
namespace {

constexpr size_t kListed = 3;  // as many as a spyre_error holds
constexpr WalkLimits kLimits{"check", SPYRE_TOO_LARGE, false, 1 << 21, 1 << 23};

void collect(const std::vector<Node>& body, std::vector<const Node*>& nodes) {
  for (const Node& node : body) {
    nodes[node.id] = &node;
    if (const auto* loop = std::get_if<TileLoop>(&node.form)) collect(loop->body, nodes);
  }
}

int origin_of(const Node& node) {
  if (const auto* copy = std::get_if<Copy>(&node.form)) return copy->origin;
  if (const auto* pt = std::get_if<Pt>(&node.form)) return pt->origin;
  if (const auto* vec = std::get_if<Vec>(&node.form)) return vec->origin;
  if (const auto* ring = std::get_if<Ring>(&node.form)) return ring->origin;
  return -1;
}

}  // namespace

Problems::Problems(const Program& program) : program_(program) {
  for (const Section& section : program.sections) {
    nodes_.emplace_back(section.nodes);
    collect(section.body, nodes_.back());
  }
}

std::string Problems::name(Instr instr, int core) const {
  const Node& instruction = node(instr);
  std::string text = "section " + program_.sections[instr.section].name + ", " +
                     name_of(unit_of(instruction)) + " instruction " + std::to_string(instr.node);
  const int origin = origin_of(instruction);
  if (origin >= 0) text += " (" + program_.sources[origin] + ")";
  return core < 0 ? text : text + " on core " + std::to_string(core);
}

std::string Problems::number(Wide byte) {
  const Wide most = INT64_MAX;
  return std::to_string(static_cast<int64_t>(std::clamp(byte, -most, most)));
}

bool Problems::is_new(Kind kind, Instr instr, Instr other) {
  return known_.insert({kind, instr, other}).second;
}

void Problems::add(std::string text) { texts_.push_back(std::move(text)); }

void Problems::raise() const {
  if (texts_.empty()) return;
  std::string all;
  for (size_t i = 0; i < texts_.size() && i < kListed; ++i) all += (i ? "\n" : "") + texts_[i];
  if (texts_.size() > kListed) all += "\nand " + std::to_string(texts_.size() - kListed) + " more";
  throw Failure(SPYRE_STOPPED, all);
}

void check_program(const Program& program, const int64_t* slots,
                   const std::vector<Span>& arguments) {
  require_walkable(program, slots, kLimits);
  Problems problems(program);
  check_lx(program, slots, problems);
  check_device(program, slots, arguments, problems);
  problems.raise();
}

}  // namespace spyre
