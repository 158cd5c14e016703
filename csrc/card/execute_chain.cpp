// SFU: whole sticks of float programs as chains (chain.h).
#include <algorithm>
#include <cstring>

#include "vec_run.h"

namespace spyre {
namespace {

constexpr int64_t kChainLanes = 1 << 16;  // between two looks at the interrupt
constexpr int64_t kMostlySticks = 4;      // sticks of a row that pay for a rest done in steps

}  // namespace

// Turns the steps into links. The value of one register at a time is in the host's registers;
// values of loads and scalars are read where they lie, others that are needed again are held.
class VecRun::ChainMaker {
 public:
  explicit ChainMaker(VecRun& run) : run_(run), chains_(*run.kernels_.chains) {}

  int links() {
    const std::vector<VecStep>& steps = run_.code_.each;
    for (int r = 0; r < run_.code_.registers; ++r) run_.where_[r] = {};
    for (const VecStep& step : run_.code_.once)
      set(step.to, kScalarRows, Origin::Constant, step.to);
    for (size_t s = 0; s < steps.size(); ++s) {
      const VecStep& step = steps[s];
      run_.of_scalars_[s] = is_of_scalars(step);
      if (run_.of_scalars_[s]) {
        set(step.to, kScalarRows, Origin::Scalars, static_cast<int>(s));
      } else if (step.kind == VecStep::Load) {
        const int kind = row_kind(run_.vec_.inputs[step.number].dtype);
        set(step.to, kind, Origin::Stream, step.number);
      } else if (step.kind == VecStep::Call) {
        call(step);
      } else {
        output(step);
      }
    }
    add(chains_.end, {Origin::Stick, 0});
    return size_;
  }

 private:
  Where& where(int reg) { return run_.where_[reg]; }
  void set(int reg, int source, Origin::Kind kind, int number) {
    where(reg) = {source, {kind, number}, 0};
    if (value_ == reg) value_ = -1;  // that was a value before, which nothing needs
  }
  void add(LinkFn run, Origin origin) {
    run_.origins_[size_] = origin;
    run_.links_[size_++].run = run;
  }

  bool is_of_scalars(const VecStep& step) {
    if (step.kind == VecStep::Load) return run_.stride(step.number, run_.lanes_) == 0;
    if (step.kind != VecStep::Call) return false;
    return std::all_of(step.args, step.args + step.arity,
                       [&](int arg) { return where(arg).source == kScalarRows; });
  }

  // The value in the host's registers goes: into a stick of its own, if it is needed again.
  void let_go() {
    if (value_ < 0 || where(value_).source >= 0 || where(value_).uses == 0) return;
    const Origin stick = {Origin::Stick, value_};
    add(chains_.hold, stick);
    where(value_).source = kHeldStick;
    where(value_).origin = stick;
  }

  void take(int reg) {
    if (value_ == reg) return;
    let_go();
    add(chains_.load[where(reg).source], where(reg).origin);
    value_ = reg;
  }

  void call(const VecStep& step) {
    const int a = step.args[0], b = step.args[step.arity - 1];
    for (int i = 0; i < step.arity; ++i) --where(step.args[i]).uses;
    if (value_ != a && value_ != b) take(a);
    let_go();
    if (a == b) {
      add(step.chain->alone, {Origin::Stick, 0});
    } else if (value_ == a) {
      add(step.chain->with[where(b).source], where(b).origin);
    } else {
      add(step.chain->behind[where(a).source], where(a).origin);
    }
    where(step.to) = {-1, {Origin::Stick, 0}, step.uses};
    value_ = step.to;
  }

  void output(const VecStep& step) {
    take(step.to);
    --where(step.to).uses;
    const VecOut& out = run_.vec_.outputs[step.number];
    const int op = static_cast<int>(out.reduce);
    const Origin target = {Origin::Stream, run_.first_output_ + step.number};
    if (out.reduce == Reduce::None) {
      add(chains_.store[row_kind(out.place.dtype)], target);
    } else if (run_.lane_reduced_[step.number]) {
      add(chains_.reduce_stick[op], {Origin::Stick, step.spare});
    } else {
      add(chains_.reduce[op], target);
    }
  }

  VecRun& run_;
  const Chains& chains_;
  int size_ = 0;
  int value_ = -1;  // the register whose value is in the host's
};

bool VecRun::suits_chain(const VecStep& step) const {
  if (step.kind == VecStep::Load) {
    const int64_t along = stride(step.number, lanes_);
    return along == 0 || along == bytes_of(vec_.inputs[step.number].dtype);
  }
  if (step.kind != VecStep::Output || lane_reduced_[step.number]) return true;
  return stride(first_output_ + step.number, lanes_) == step.element;
}

bool VecRun::make_chain() {
  const int64_t sticks = lanes_.count / kLanes, rest = lanes_.count % kLanes;
  if (sticks == 0 || (rest && sticks < kMostlySticks) || !in_rows_) return false;
  for (const VecStep& step : code_.each) {
    if (!suits_chain(step)) return false;
  }
  link_count_ = ChainMaker(*this).links();
  chained_ = sticks * kLanes;
  const bool folds = std::any_of(lane_reduced_, lane_reduced_ + vec_.outputs.size(),
                                 [](bool reduced) { return reduced; });
  pitch_ = (std::max<int64_t>(rest, 1) + kLanes - 1) / kLanes * kLanes;
  const int64_t most = rest ? capacity_ / pitch_ : kMostRows;
  block_rows_ = folds ? 1 : std::clamp<int64_t>(kChainLanes / chained_, 1, most);
  return true;
}

// One block of rows, their first `chained_` lanes.
void VecRun::run_chain() {
  lane_ = 0;
  width_ = chained_;
  for (size_t s = 0; s < code_.each.size(); ++s) {
    if (!of_scalars_[s]) continue;
    run_step(code_.each[s]);
    const float* const values = scalars(code_.each[s].to)->f;  // another step may take its register
    std::copy(values, values + block_, row_scalars_ + s * kMostRows);
  }
  begin_reductions();
  for (int64_t first = 0; first < chained_; first += kChainLanes) {
    frame_.machine.interrupt->check();
    place_links();
    const int64_t lanes = std::min(kChainLanes, chained_ - first);
    kernels_.chains->run(links_, link_count_, block_, first, lanes);
  }
}

void VecRun::place_links() {
  for (int i = 0; i < link_count_; ++i) {
    const Origin& origin = origins_[i];
    Link& link = links_[i];
    switch (origin.kind) {
      case Origin::Stream:
        link.at = reinterpret_cast<uintptr_t>(address(origin.number, row_, 0));
        link.step = static_cast<uintptr_t>(stride(origin.number, rows_));
        break;
      case Origin::Scalars:
        link.at = reinterpret_cast<uintptr_t>(row_scalars_ + origin.number * kMostRows);
        link.step = sizeof(float);
        break;
      case Origin::Constant:
        link.at = reinterpret_cast<uintptr_t>(scalars(origin.number));
        link.step = 0;
        break;
      default:
        link.at = reinterpret_cast<uintptr_t>(regs_ + origin.number);
        link.step = 0;
    }
  }
}

// What chains add to over rows must be there before.
void VecRun::begin_reductions() {
  if (!code_.reduces_lanes) return;
  for (const VecStep& step : code_.each) {
    if (step.kind != VecStep::Output || lane_reduced_[step.number]) continue;
    const VecOut& out = vec_.outputs[step.number];
    if (out.reduce == Reduce::None || !begins(out, row_)) continue;
    Partials neutral;
    kernels_.neutral(&neutral, out.reduce, 0);
    const int64_t rows = over_rows(out) ? 1 : block_;
    for (int64_t r = 0; r < rows; ++r) {
      char* const to = address(first_output_ + step.number, row_ + r, 0);
      for (int64_t x = 0; x < chained_; ++x) std::memcpy(to + 4 * x, &neutral.f[0], 4);
    }
  }
}

}  // namespace spyre
