#include "execute_plan.h"

#include <algorithm>
#include <map>
#include <string>

namespace spyre {
namespace {

// Reads and writes of LX buffers in one section, in body order.
struct Use {
  const Node* node;
  int operand;  // -1: a write
  const Place* place;
  std::vector<const TileLoop*> loops;  // around it, outermost first
};

class SectionScan {
 public:
  explicit SectionScan(SectionPlan* plan) : plan_(plan) {}

  std::vector<Use> uses(const std::vector<Node>& body) {
    visit(body);
    return std::move(uses_);
  }

 private:
  void visit(const std::vector<Node>& body) {
    for (const Node& node : body) {
      if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
        loops_.push_back(loop);
        visit(loop->body);
        loops_.pop_back();
      } else {
        add(node);
      }
    }
  }

  void add(const Node& node) {
    if (const auto* copy = std::get_if<Copy>(&node.form)) {
      if (copy->indirect.size() > static_cast<size_t>(kMaxAxes)) {
        throw Failure(SPYRE_INVALID_PROGRAM,
                      "the program is malformed: a copy has too many indices");
      }
      use(node, copy->is_load() ? -1 : 0, copy->lx());
      for (size_t i = 0; i < copy->indirect.size(); ++i) {
        use(node, static_cast<int>(i) + 1, copy->indirect[i].place);
      }
      if (!copy->is_load()) plan_->stores.push_back(copy);
      plan_->adds |= copy->add;
    } else if (const auto* pt = std::get_if<Pt>(&node.form)) {
      use(node, 0, pt->a);
      use(node, 1, pt->b);
      use(node, -1, pt->c);
    } else if (const auto* vec = std::get_if<Vec>(&node.form)) {
      for (size_t i = 0; i < vec->inputs.size(); ++i) {
        use(node, static_cast<int>(i), vec->inputs[i]);
      }
      for (const VecOut& out : vec->outputs) use(node, -1, out.place);
    } else if (const auto* ring = std::get_if<Ring>(&node.form)) {
      use(node, 0, ring->source);
      use(node, -1, ring->target);
    }
  }

  void use(const Node& node, int operand, const Place& place) {
    uses_.push_back({&node, operand, &place, loops_});
  }

  SectionPlan* plan_;
  std::vector<Use> uses_;
  std::vector<const TileLoop*> loops_;
};

// The loop that sets where a term's coordinate counts from; null: the core's part.
const TileLoop* origin_loop(const Term& term, const std::vector<const TileLoop*>& loops) {
  if (term.origin != Origin::Tile) return nullptr;
  for (const TileLoop* loop : loops) {
    if (loop->axis == term.axis) return loop;
  }
  return nullptr;
}

bool same_value(const Value& a, const Value& b) { return a.number == b.number && a.slot == b.slot; }

bool same_terms(const Use& a, const Use& b) {
  if (a.place->terms.size() != b.place->terms.size()) return false;
  for (const Term& term : a.place->terms) {
    const auto other = std::find_if(b.place->terms.begin(), b.place->terms.end(),
                                    [&](const Term& t) { return t.axis == term.axis; });
    if (other == b.place->terms.end() || !same_value(term.coefficient, other->coefficient) ||
        (term.origin == Origin::Absolute) != (other->origin == Origin::Absolute) ||
        origin_loop(term, a.loops) != origin_loop(*other, b.loops)) {
      return false;
    }
  }
  return true;
}

// The reader stands after the load in the same trip of every loop around the load, and names its
// elements as the load does.
bool reads_the_load(const Use& load, const Use& reader) {
  if (reader.operand < 0 || reader.node->id < load.node->id) return false;
  if (std::holds_alternative<Ring>(reader.node->form)) return false;  // reads other cores' LX
  if (reader.loops.size() < load.loops.size() ||
      !std::equal(load.loops.begin(), load.loops.end(), reader.loops.begin())) {
    return false;
  }
  return reader.place->dtype == load.place->dtype &&
         same_value(reader.place->base, load.place->base) && same_terms(load, reader);
}

// One element of LX for every element of device memory, named by the same axes.
bool is_plain(const Copy& copy) {
  if (!copy.is_load() || !copy.indirect.empty() || !copy.bounds.empty()) return false;
  for (const Term& term : copy.source.terms) {
    if (term.origin != Origin::Absolute) return false;
  }
  for (const Term& term : copy.target.terms) {
    if (term.coefficient.slot || term.coefficient.number == 0) return false;
  }
  return std::all_of(copy.axes.begin(), copy.axes.end(),
                     [&](int axis) { return has_term(copy.target, axis); });
}

void add_forward(const std::vector<std::vector<Use>>& uses, size_t section, const Use& load,
                 SectionPlan* plan) {
  const Copy& copy = std::get<Copy>(load.node->form);
  if (!is_plain(copy)) return;
  Forward forward{&copy, {}};
  for (size_t s = 0; s < uses.size(); ++s) {
    for (const Use& use : uses[s]) {
      if (use.node == load.node && use.operand < 0) continue;
      // Another buffer over the same bytes may take turns with this one, but never reads them.
      if (use.place->buffer != load.place->buffer) continue;
      if (s != section || !reads_the_load(load, use)) return;
      forward.readers.push_back({use.node, use.operand});
    }
  }
  const int number = static_cast<int>(plan->forwards.size());
  plan->nodes[load.node->id].elided_by = number;
  for (const Forward::Reader& reader : forward.readers) {
    std::vector<int>& by_operand = plan->nodes[reader.node->id].forward;
    if (by_operand.size() <= static_cast<size_t>(reader.operand)) {
      by_operand.resize(reader.operand + 1, -1);
    }
    by_operand[reader.operand] = number;
  }
  plan->forwards.push_back(std::move(forward));
}

void compile_nodes(const std::vector<Node>& body, const Program& program, const Kernels& kernels,
                   SectionPlan* plan) {
  for (const Node& node : body) {
    if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
      compile_nodes(loop->body, program, kernels, plan);
    } else if (const auto* vec = std::get_if<Vec>(&node.form)) {
      plan->nodes[node.id].code = compile_vec(*vec, program.buffers, kernels);
    }
  }
}

}  // namespace

std::vector<SectionPlan> plan_execution(const Program& program, const Kernels& kernels) {
  std::vector<SectionPlan> plans(program.sections.size());
  std::vector<std::vector<Use>> uses;
  for (size_t s = 0; s < plans.size(); ++s) {
    plans[s].nodes.resize(program.sections[s].nodes);
    compile_nodes(program.sections[s].body, program, kernels, &plans[s]);
    uses.push_back(SectionScan(&plans[s]).uses(program.sections[s].body));
  }
  for (size_t s = 0; s < plans.size(); ++s) {
    for (const Use& use : uses[s]) {
      if (use.operand < 0 && std::holds_alternative<Copy>(use.node->form)) {
        add_forward(uses, s, use, &plans[s]);
      }
    }
    for (const Use& use : uses[s]) {  // every operand has an entry
      std::vector<int>& forward = plans[s].nodes[use.node->id].forward;
      if (use.operand >= static_cast<int>(forward.size())) forward.resize(use.operand + 1, -1);
    }
  }
  find_batches(program, &plans);
  return plans;
}

void mark_narrow_sums(const std::vector<Node>& body, const NarrowValues& narrow,
                      SectionPlan* plan) {
  for (const Node& node : body) {
    if (const auto* loop = std::get_if<TileLoop>(&node.form)) {
      mark_narrow_sums(loop->body, narrow, plan);
    } else if (const auto* vec = std::get_if<Vec>(&node.form)) {
      for (VecStep& step : plan->nodes[node.id].code.each) {
        if (step.kind != VecStep::Output) continue;
        step.narrow = narrow.sums_narrow(*vec, vec->outputs[step.number]);
      }
    }
  }
}

Reach reach_of(const Copy& copy, const Section& section, const int64_t* slots) {
  const Place& place = copy.device();
  Wide low = place.base.of(slots), high = low + bytes_of(place.dtype);
  auto extend = [&](Wide step) { (step < 0 ? low : high) += step; };
  for (int axis : copy.axes) {
    if (section.axes[axis].extent.of(slots) <= 0) return {0, 0};
  }
  for (const Term& term : place.terms) {
    const Wide last = section.axes[term.axis].extent.of(slots) - 1;
    extend(last * term.coefficient.of(slots));
  }
  for (const Indirect& indirect : copy.indirect) {
    const Wide size = indirect.size.of(slots);
    if (size > 0) extend((size - 1) * indirect.coefficient.of(slots));
  }
  return {low, high};
}

namespace {

int64_t coefficient_of(const Place& place, int axis, const int64_t* slots) {
  for (const Term& term : place.terms) {
    if (term.axis == axis) return term.coefficient.of(slots);
  }
  return 0;
}

// Whether the reader takes the elements from device memory as fast as from LX.
bool suits(const Forward& forward, const Forward::Reader& reader, const Section& section,
           const int64_t* slots) {
  const Place& source = forward.load->source;
  auto side_by_side = [&](const std::vector<int>& axes, bool or_splat) {
    if (axes.empty() || section.axes[axes.back()].extent.of(slots) <= 1) return true;
    const int64_t step = coefficient_of(source, axes.back(), slots);
    return step == bytes_of(source.dtype) || (or_splat && step == 0);
  };
  if (const auto* pt = std::get_if<Pt>(&reader.node->form)) {
    if (reader.operand == 0) return side_by_side(pt->k, false);
    return side_by_side(pt->n, false) || source.argument >= 0;  // in place, or as kept panels
  }
  if (const auto* vec = std::get_if<Vec>(&reader.node->form)) return side_by_side(vec->axes, true);
  return true;
}

}  // namespace

bool forwards_now(const Forward& forward, const SectionPlan& plan, const Section& section,
                  const int64_t* slots) {
  const Reach source = reach_of(*forward.load, section, slots);
  for (const Copy* store : plan.stores) {
    if (reach_of(*store, section, slots).overlaps(source)) return false;
  }
  for (const Forward::Reader& reader : forward.readers) {
    if (!suits(forward, reader, section, slots)) return false;
  }
  return true;
}

}  // namespace spyre
