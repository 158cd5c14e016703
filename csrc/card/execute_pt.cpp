// PT: matmuls of one core's tile, by blocks of rows and panels of 64 columns.
#include <algorithm>
#include <cstring>

#include "execute_units.h"

namespace spyre {
namespace {

constexpr int64_t kColumns = 64;     // of a panel
constexpr int64_t kRowsOfBlock = 6;  // of the kernel: a block of rows is a multiple
constexpr int64_t kLongestChunk = 64;
constexpr int64_t kWidenedBytes = 512 << 10;  // rows of a kept in L2 while panels pass

// One axis of the matmul with the strides (bytes) it has in each operand.
struct Dim {
  int64_t count, a, b, c;
};

// Axes of one role, neighbours merged where all three operands allow.
struct Dims {
  int size = 0;
  Dim dim[kMaxAxes];

  void add(const Dim& d) {
    if (d.count == 1) return;
    Dim* last = size ? &dim[size - 1] : nullptr;
    if (last && last->a == d.a * d.count && last->b == d.b * d.count && last->c == d.c * d.count) {
      *last = {last->count * d.count, d.a, d.b, d.c};
    } else {
      dim[size++] = d;
    }
  }
  // Takes the innermost axis out; one point if there is none.
  Dim take_last(const Dim& none) { return size ? dim[--size] : none; }
  int64_t points() const {
    int64_t product = 1;
    for (int i = 0; i < size; ++i) product *= dim[i].count;
    return product;
  }
};

// Visits every point of some axes in order: visit(offset in a, in b, in c).
template <class Visit>
void for_each(const Dim* dims, int size, int64_t a, int64_t b, int64_t c, const Visit& visit) {
  if (size == 0) return visit(a, b, c);
  for (int64_t i = 0; i < dims->count; ++i) {
    for_each(dims + 1, size - 1, a + i * dims->a, b + i * dims->b, c + i * dims->c, visit);
  }
}

class Matmul {
 public:
  Matmul(const Frame& frame, const Pt& pt, const Places& places)
      : frame_(frame), pt_(pt), a_place_(places(0, pt.a)), b_place_(places(1, pt.b)) {
    for (const auto* axes : {&pt.batch, &pt.m, &pt.n}) walk_.add(*axes, frame.axes);
    const Walk results = walk_;  // an empty k leaves c to be written
    walk_.add(pt.k, frame.axes);
    a_ = frame.operand(a_place_, walk_, pt.origin);
    b_ = frame.operand(b_place_, walk_, pt.origin);
    if (any_empty(pt.k, frame.axes)) a_ = b_ = {frame.lx, {}};  // not read, not checked
    c_ = frame.operand(pt.c, results, pt.origin, Mode::Write);
    for (int i = results.size; i < walk_.size; ++i) c_.stride[i] = 0;
    a_size_ = bytes_of(pt.a.dtype);  // of b, too
    panel_size_ = bytes_of(panel_type(pt.b.dtype));
    c_size_ = bytes_of(pt.c.dtype);
  }

  void run() {
    int position = 0;
    Dims n, m;
    position = gather(pt_.batch, position, &outer_);
    position = gather(pt_.m, position, &m);
    position = gather(pt_.n, position, &n);
    gather(pt_.k, position, &k_);
    k_points_ = k_.points();
    // Without an enclosing trip of k before this one, c starts from zero.
    for (int axis : pt_.k) accumulate_ |= !frame_.axes[axis].first_trip();
    if (k_points_ == 0 && accumulate_) return;
    rows_ = m.take_last({1, 0, 0, 0});
    // The axis of the columns is not in n where it has one point here.
    const bool side_by_side = n.size && n.dim[n.size - 1].c == c_size_;
    columns_ = side_by_side ? n.take_last({}) : Dim{1, 0, 0, c_size_};
    for (int i = 0; i < m.size; ++i) outer_.add(m.dim[i]);
    for (int i = 0; i < n.size; ++i) outer_.add(n.dim[i]);
    check_layout();
    for_each(outer_.dim, outer_.size, 0, 0, 0,
             [this](int64_t a, int64_t b, int64_t c) { tile(a_.at + a, b_.at + b, c_.at + c); });
  }

 private:
  int gather(const std::vector<int>& axes, int position, Dims* dims) const {
    for (size_t i = 0; i < axes.size(); ++i, ++position) {
      dims->add(
          {walk_.count[position], a_.stride[position], b_.stride[position], c_.stride[position]});
    }
    return position;
  }

  void check_layout() const {
    const bool whole = columns_.count == 1 || columns_.c == c_size_;
    if (!whole || rows_.c % c_size_) stop("the columns of a result do not lie side by side");
    for (int i = 0; i < k_.size; ++i) {
      if (k_.dim[i].a % a_size_ || k_.dim[i].b % a_size_) stop("a stride is not whole elements");
    }
    if (rows_.a % a_size_ || columns_.b % a_size_) stop("a stride is not whole elements");
    if (std::max({rows_.count, columns_.count, k_points_}) > INT32_MAX) stop("too large a tile");
    // Scratch memory is as large as a row of a and the columns of b.
    const bool fits = k_points_ <= elements(pt_.a) && k_points_ * columns_.count <= elements(pt_.b);
    if (!fits) stop("elements of a row or of a column share places");
  }

  int64_t elements(const Place& place) const {
    return frame_.program.buffers[place.buffer].bytes / a_size_;
  }

  [[noreturn]] void stop(const char* why) const { frame_.stop(pt_.origin, why); }

  void tile(const char* a, const char* b, char* c) {
    const int64_t k_bytes = std::max<int64_t>(k_points_, 1) * static_cast<int64_t>(sizeof(float));
    const int64_t fitting = kWidenedBytes / k_bytes / kRowsOfBlock * kRowsOfBlock;
    const int64_t most = std::max(fitting, kRowsOfBlock);
    const int64_t blocks = (rows_.count + most - 1) / most;
    const int64_t even = (rows_.count + blocks - 1) / blocks;
    const int64_t step = (even + kRowsOfBlock - 1) / kRowsOfBlock * kRowsOfBlock;
    find_panels(b);
    const bool card = frame_.machine.numerics.card;
    for (int64_t row = 0; row < rows_.count; row += step) {
      const int64_t rows = std::min(step, rows_.count - row);
      (this->*(card ? &Matmul::chunked_row_block : &Matmul::row_block))(a + row * rows_.a,
                                                                        c + row * rows_.c, rows);
    }
  }

  void row_block(const char* a, char* c, int64_t rows) {
    PtBlock block;
    block.rows = static_cast<int>(rows);
    block.k = static_cast<int>(k_points_);
    block.c_stride = rows_.c / c_size_;
    block.c_type = pt_.c.dtype;
    block.b_type = panel_type(pt_.b.dtype);
    block.b_stride = panel_stride_;
    block.accumulate = accumulate_;
    widen(a, rows, &block);
    for (int64_t column = 0; column < columns_.count; column += kColumns) {
      block.columns = static_cast<int>(std::min(kColumns, columns_.count - column));
      block.panel = panels_ + column / kColumns * panel_step_;
      block.c = c + column * c_size_;
      frame_.machine.interrupt->check();
      frame_.kernels().pt(block);
    }
  }

  // Rows of an operand as f32, `stride` floats apart; strides of the operand in elements.
  void widen(const Place& place, const void* from, int64_t row_step, int64_t step, int64_t rows,
             int64_t count, float* out, int64_t stride) const {
    const bool rounded = frame_.machine.rounds(place);
    const Kernels& kernels = rounded ? *frame_.machine.storage : frame_.kernels();
    kernels.widen(from, row_step, step, place.dtype, static_cast<int>(rows),
                  static_cast<int>(count), out, stride);
    if (rounded) round_rows(rows, count, out, stride);
  }

  void round_rows(int64_t rows, int64_t count, float* row, int64_t stride) const {
    for (int64_t r = 0; r < rows; ++r, row += stride) {
      for (int64_t x = 0; x < count; x += kMaxLanes) {
        alignas(64) Register values;
        const int lanes = static_cast<int>(std::min<int64_t>(kMaxLanes, count - x));
        std::memcpy(values.f, row + x, lanes * sizeof(float));
        frame_.machine.rounding()(&values, &values, nullptr, nullptr, lanes);
        std::memcpy(row + x, values.f, lanes * sizeof(float));
      }
    }
  }

  // Numerics `card`: k in chunks, into f32 totals.
  void chunked_row_block(const char* a, char* c, int64_t rows) {
    const bool narrow = pt_.a.dtype != DType::F32;  // else a product of f32, which stays f32
    const Numerics& numerics = frame_.machine.numerics;
    const int chunk = narrow ? numerics.chunk : 0;
    const Kernels& kernels = frame_.kernels();
    PtBlock wide;
    widen(a, rows, &wide);
    auto* const panel = reinterpret_cast<float*>(
        frame_.worker.sums.bytes((kLongestChunk + rows) * kColumns * sizeof(float)));
    float* const total = panel + kLongestChunk * kColumns;
    PanelRange range;
    ChunkBlock block;
    block.b_range = &range;
    block.rows = static_cast<int>(rows);
    block.a_stride = wide.a_stride;
    block.panel = panel;
    block.total = total;
    block.sum = narrow ? numerics.sum : SumFormat::F32;
    block.continues = chunk == 0;
    for (int64_t column = 0; column < columns_.count; column += kColumns) {
      block.columns = static_cast<int>(std::min(kColumns, columns_.count - column));
      const char* from = panels_ + column / kColumns * panel_step_;
      char* const to = c + column * c_size_;
      load_totals(to, rows, block.columns, total);
      for (int64_t k = 0; k < k_points_; k += block.k) {
        block.k = static_cast<int>(std::min<int64_t>(chunk ? chunk : kLongestChunk, k_points_ - k));
        block.a = wide.a + k;
        frame_.machine.interrupt->check();
        widen_panel(from + k * panel_stride_ * panel_size_, block.k, block.columns, panel);
        if (narrow) range = kernels.panel_range(panel, block.k, block.columns);
        kernels.chunk(block);
      }
      store_totals(total, rows, block.columns, to);
    }
  }

  // k rows of a panel as f32; fp8 lies there as f16.
  void widen_panel(const char* from, int k, int columns, float* panel) const {
    if (!is_fp8(pt_.b.dtype)) {
      return widen(b_place_, from, panel_stride_, 1, k, columns, panel, kColumns);
    }
    const Kernels& kernels = frame_.kernels();
    frame_.machine.storage->widen(from, panel_stride_, 1, DType::F16, k, columns, panel, kColumns);
    const VecFn fp9 = pt_.b.dtype == DType::F8E4 ? kernels.fp9_e4m3 : kernels.fp9_e5m2;
    for (int row = 0; row < k; ++row) {
      auto* const values = reinterpret_cast<Register*>(panel + row * kColumns);
      fp9(values, values, nullptr, nullptr, columns);
    }
  }

  void load_totals(const char* c, int64_t rows, int columns, float* total) const {
    for (int64_t row = 0; row < rows; ++row, c += rows_.c, total += kColumns) {
      if (accumulate_) {
        std::memcpy(total, c, columns * sizeof(float));
      } else {
        std::memset(total, 0, kColumns * sizeof(float));
      }
    }
  }

  void store_totals(const float* total, int64_t rows, int columns, char* c) const {
    const StoreFn store = frame_.kernels().store[static_cast<int>(pt_.c.dtype)];
    for (int64_t row = 0; row < rows; ++row, c += rows_.c, total += kColumns) {
      store(reinterpret_cast<const Register*>(total), c, c_size_, columns);
    }
  }

  // f32 rows of a: in place where they are that already.
  void widen(const char* a, int64_t rows, PtBlock* block) {
    const bool one_k = k_.size <= 1;
    const Dim k = k_.size ? k_.dim[0] : Dim{1, a_size_, a_size_, 0};
    if (pt_.a.dtype == DType::F32 && one_k && k.a == a_size_) {
      block->a = reinterpret_cast<const float*>(a);
      block->a_stride = rows_.a / a_size_;
      return;
    }
    const int64_t stride = (k_points_ + 15) / 16 * 16;
    auto* out = reinterpret_cast<float*>(
        frame_.worker.rows.bytes(rows * stride * static_cast<int64_t>(sizeof(float))));
    block->a = out;
    block->a_stride = stride;
    const int outer = std::max(k_.size - 1, 0);
    const Dim last = outer ? k_.dim[outer] : k;
    for_each(k_.dim, outer, 0, 0, 0, [&](int64_t offset, int64_t, int64_t) {
      widen(a_place_, a + offset, rows_.a / a_size_, last.a / a_size_, rows, last.count, out,
            stride);
      out += last.count;
    });
  }

  // Sets where b's panels begin, how far apart their rows and the panels are.
  void find_panels(const char* b) {
    const bool one_k = k_.size <= 1;
    const Dim k = k_.size ? k_.dim[0] : Dim{1, 0, 0, 0};
    const bool contiguous = columns_.count == 1 || columns_.b == a_size_;
    if (one_k && contiguous && !is_fp8(pt_.b.dtype)) {
      panels_ = b;
      panel_stride_ = k.b / a_size_;
      panel_step_ = kColumns * a_size_;
      return;
    }
    panel_stride_ = kColumns;
    panel_step_ = k_points_ * kColumns * panel_size_;
    const PanelKey key = {
        b, k_points_, columns_.count, k.b / a_size_, columns_.b / a_size_, pt_.b.dtype};
    const bool kept = one_k && b_place_.space == Space::Device && b_place_.argument >= 0;
    if (kept && k_points_) {
      panels_ = frame_.machine.panels->panels(key, frame_.kernels(), frame_.machine.launch);
      if (panels_) return;
    }
    panels_ = pack(b);
  }

  const char* pack(const char* b) {
    const int64_t panels = (columns_.count + kColumns - 1) / kColumns;
    char* const first = frame_.worker.panels.bytes(panels * panel_step_ + 64);
    const int outer = std::max(k_.size - 1, 0);
    const Dim last = k_.size ? k_.dim[outer] : Dim{1, 0, 0, 0};
    for (int64_t p = 0; p < panels; ++p) {
      const char* from = b + p * kColumns * columns_.b;
      const int64_t columns = std::min(kColumns, columns_.count - p * kColumns);
      char* to = first + p * panel_step_;
      for_each(k_.dim, outer, 0, 0, 0, [&](int64_t, int64_t offset, int64_t) {
        frame_.kernels().pack(from + offset, last.b / a_size_, columns_.b / a_size_, pt_.b.dtype,
                              static_cast<int>(last.count), static_cast<int>(columns), to);
        to += last.count * kColumns * panel_size_;
      });
    }
    return first;
  }

  const Frame& frame_;
  const Pt& pt_;
  const Place &a_place_, &b_place_;
  Walk walk_;
  Operand a_, b_, c_;
  int64_t a_size_, c_size_, panel_size_;
  Dims outer_, k_;
  Dim rows_, columns_;
  int64_t k_points_ = 1;
  bool accumulate_ = false;
  const char* panels_ = nullptr;
  int64_t panel_stride_ = 0, panel_step_ = 0;  // elements between rows, bytes between panels
};

}  // namespace

void execute_pt(const Frame& frame, const Pt& pt, const Places& places) {
  for (const auto* axes : {&pt.batch, &pt.m, &pt.n}) {
    if (any_empty(*axes, frame.axes)) return;
  }
  Matmul(frame, pt, places).run();
}

}  // namespace spyre
