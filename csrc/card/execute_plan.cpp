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
      plan_->transfers.push_back(copy);
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

bool same_term(const Use& a, const Term& one, const Use& b, const Term& other) {
  return same_value(one.coefficient, other.coefficient) &&
         (one.origin == Origin::Absolute) == (other.origin == Origin::Absolute) &&
         origin_loop(one, a.loops) == origin_loop(other, b.loops);
}

const Term* term_of(const Place& place, int axis) {
  for (const Term& term : place.terms) {
    if (term.axis == axis) return &term;
  }
  return nullptr;
}

bool is_whole(int axis, const Use& use, const Section& section) {
  return section.axes[axis].parts == 1 &&
         std::none_of(use.loops.begin(), use.loops.end(),
                      [&](const TileLoop* loop) { return loop->axis == axis; });
}

// Where the reader's elements lie in device memory if it names some axes as the load does, and the
// bytes of a tile along the others follow each other there as they do in LX.
bool find_source(const Copy& copy, const Use& load, const Use& reader, const Section& section,
                 Place* found) {
  *found = copy.source;
  if (same_terms(load, reader)) return true;
  found->terms.clear();
  for (const Term& term : load.place->terms) {
    const Term* const from = term_of(copy.source, term.axis);
    const Term* const read = term_of(*reader.place, term.axis);
    if (read && same_term(load, term, reader, *read)) {
      if (from) found->terms.push_back(*from);
    } else if (!from || read || !is_whole(term.axis, load, section) ||
               !same_value(from->coefficient, term.coefficient)) {
      return false;
    }
  }
  for (const Term& term : reader.place->terms) {
    if (has_term(*load.place, term.axis)) continue;
    if (!is_whole(term.axis, reader, section)) return false;
    found->terms.push_back({term.axis, term.coefficient, Origin::Absolute});
  }
  return true;
}

bool same_axes(const Section& a, const Section& b) {
  return std::equal(a.axes.begin(), a.axes.end(), b.axes.begin(), b.axes.end(),
                    [](const Axis& x, const Axis& y) {
                      return same_value(x.extent, y.extent) && x.parts == y.parts &&
                             x.stride == y.stride && x.granule == y.granule;
                    });
}

// The reader stands in the same trip of every loop around the load, and reads what that has loaded.
bool reads_the_load(const Use& load, const Use& reader) {
  if (reader.operand < 0) return false;
  if (std::holds_alternative<Ring>(reader.node->form)) return false;  // reads other cores' LX
  if (reader.loops.size() < load.loops.size() ||
      !std::equal(load.loops.begin(), load.loops.end(), reader.loops.begin())) {
    return false;
  }
  return reader.place->dtype == load.place->dtype &&
         same_value(reader.place->base, load.place->base);
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

void add_forward(const std::vector<std::vector<Use>>& uses, const Program& program, size_t section,
                 const Use& load, std::vector<SectionPlan>* plans) {
  const Copy& copy = std::get<Copy>(load.node->form);
  if (!is_plain(copy)) return;
  const Section& own = program.sections[section];
  Forward forward{&copy, section, section, {}};
  for (size_t s = 0; s < uses.size(); ++s) {
    for (const Use& use : uses[s]) {
      if (use.node == load.node && use.operand < 0) continue;
      // Another buffer over the same bytes may take turns with this one, but never reads them.
      if (use.place->buffer != load.place->buffer) continue;
      if (forward.readers.empty()) forward.to = s;
      const bool behind = s == section
                              ? use.node->id > load.node->id
                              : own.joins && s > section && same_axes(own, program.sections[s]);
      if (s != forward.to || !behind || !reads_the_load(load, use)) return;
      Place source;
      if (!find_source(copy, load, use, own, &source)) return;
      forward.readers.push_back({use.node, use.operand, 0, std::move(source)});
    }
  }
  SectionPlan& plan = (*plans)[forward.to];
  for (Forward::Reader& reader : forward.readers) {
    reader.number = plan.readers++;
    std::vector<int>& by_operand = plan.nodes[reader.node->id].forward;
    if (by_operand.size() <= static_cast<size_t>(reader.operand)) {
      by_operand.resize(reader.operand + 1, -1);
    }
    by_operand[reader.operand] = reader.number;
  }
  SectionPlan& loading = (*plans)[section];
  loading.nodes[load.node->id].elided_by = static_cast<int>(loading.forwards.size());
  if (forward.to != section) plan.forwards.push_back(forward);
  loading.forwards.push_back(std::move(forward));
}

// Every element of the LX tile goes to an element of device memory, named by the same axes.
bool is_plain_store(const Copy& copy) {
  if (copy.is_load() || copy.add || !copy.indirect.empty() || !copy.bounds.empty()) return false;
  for (const Term& term : copy.target.terms) {
    if (term.origin != Origin::Absolute) return false;
  }
  return std::all_of(copy.axes.begin(), copy.axes.end(), [&](int axis) {
    return has_term(copy.source, axis) && has_term(copy.target, axis);
  });
}

bool contains(const std::vector<int>& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

void add_direct(const std::vector<std::vector<Use>>& uses, const Use& store, SectionPlan* plan) {
  const Copy& copy = std::get<Copy>(store.node->form);
  if (!is_plain_store(copy)) return;
  const Use* written = nullptr;
  for (const std::vector<Use>& section : uses) {
    for (const Use& use : section) {
      if (use.place->buffer != store.place->buffer || use.place == store.place) continue;
      if (written || use.operand >= 0) return;
      written = &use;
    }
  }
  if (!written || written->loops != store.loops || written->node->id > store.node->id) return;
  const auto* vec = std::get_if<Vec>(&written->node->form);
  if (!vec || written->place->dtype != store.place->dtype ||
      !same_value(written->place->base, store.place->base) || !same_terms(*written, store)) {
    return;
  }
  for (size_t i = 0; i < vec->outputs.size(); ++i) {
    const VecOut& out = vec->outputs[i];
    if (&out.place != written->place) continue;
    const bool every_axis = std::all_of(vec->axes.begin(), vec->axes.end(),
                                        [&](int axis) { return contains(copy.axes, axis); }) &&
                            std::all_of(copy.axes.begin(), copy.axes.end(),
                                        [&](int axis) { return contains(vec->axes, axis); });
    if (!every_axis || out.reduce != Reduce::None || out.scan) return;
    std::vector<int>& stored = plan->nodes[written->node->id].stored;
    stored.resize(vec->outputs.size(), -1);
    stored[i] = plan->nodes[store.node->id].written_by = static_cast<int>(plan->directs.size());
    plan->directs.push_back({&copy, written->node});
  }
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
        add_forward(uses, program, s, use, &plans);
      }
      const auto* copy = std::get_if<Copy>(&use.node->form);
      if (copy && use.place == &copy->source) add_direct(uses, use, &plans[s]);
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

// Whether a vector instruction can take or write the elements of a place with its lanes side by
// side.
bool suits(const Vec& vec, const VecCode& code, const Place& place, const Section& section,
           const int64_t* slots, bool or_splat) {
  auto side_by_side = [&](int axis) {
    const int64_t step = coefficient_of(place, axis, slots);
    return step == bytes_of(place.dtype) || (or_splat && step == 0);
  };
  const std::vector<int>& axes = vec.axes;
  if (code.any_order && !code.in_place) {  // whichever axis it likes
    return axes.empty() || std::any_of(axes.begin(), axes.end(), side_by_side);
  }
  return axes.empty() || section.axes[axes.back()].extent.of(slots) <= 1 ||
         side_by_side(axes.back());
}

// Whether the reader takes the elements from device memory as fast as from LX.
bool suits(const Forward::Reader& reader, const SectionPlan& plan, const Section& section,
           const int64_t* slots) {
  const Place& source = reader.source;
  auto side_by_side = [&](const std::vector<int>& axes) {
    if (axes.empty() || section.axes[axes.back()].extent.of(slots) <= 1) return true;
    return coefficient_of(source, axes.back(), slots) == bytes_of(source.dtype);
  };
  if (const auto* pt = std::get_if<Pt>(&reader.node->form)) {
    if (reader.operand == 0) return side_by_side(pt->k);
    return side_by_side(pt->n) || source.argument >= 0;  // in place, or as kept panels
  }
  if (const auto* vec = std::get_if<Vec>(&reader.node->form)) {
    return suits(*vec, plan.nodes[reader.node->id].code, source, section, slots, true);
  }
  return true;
}

}  // namespace

bool writes_directly(const Direct& direct, const SectionPlan& plan, const Section& section,
                     const int64_t* slots) {
  const Reach target = reach_of(*direct.store, section, slots);
  for (const Copy* other : plan.transfers) {
    if (other != direct.store && reach_of(*other, section, slots).overlaps(target)) return false;
  }
  return suits(std::get<Vec>(direct.writer->form), plan.nodes[direct.writer->id].code,
               direct.store->target, section, slots, false);
}

bool forwards_now(const Forward& forward, const std::vector<SectionPlan>& plans,
                  const Program& program, const int64_t* slots) {
  const Reach source = reach_of(*forward.load, program.sections[forward.from], slots);
  for (size_t s = forward.from; s <= forward.to; ++s) {
    for (const Copy* store : plans[s].stores) {
      if (reach_of(*store, program.sections[s], slots).overlaps(source)) return false;
    }
  }
  const Section& section = program.sections[forward.to];
  for (const Forward::Reader& reader : forward.readers) {
    if (!suits(reader, plans[forward.to], section, slots)) return false;
  }
  return true;
}

}  // namespace spyre
