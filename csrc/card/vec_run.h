// One vector instruction of one core at its current ranges: blocks of rows x lanes.
#pragma once

#include "execute_units.h"

namespace spyre {

inline int64_t lane_bytes(int value_class) { return value_class == 0 ? 4 : 8; }

// Lane `lane` of a register of a class, as a register.
inline Register* part(Register* reg, int64_t lane, int value_class) {
  return reinterpret_cast<Register*>(reinterpret_cast<char*>(reg) + lane * lane_bytes(value_class));
}

class VecRun {
 public:
  VecRun(const Frame& frame, const Vec& vec, const VecCode& code, const Places& places);
  void run();

 private:
  // The walked axes after merging: rows are walked by `dims_`, the innermost of them in blocks.
  struct Dim {
    int64_t count;
    int64_t position;  // in the instruction's own walk
  };

  // A register's values: lazily, where they come from (kernels.h: Rows).
  struct Held {
    Rows rows;    // where the values are; of class 0 only
    bool filled;  // also in every lane of the register

    // Field by field: a copy of 16 bytes would have to wait for every store before it (measured: a
    // fifth of a softmax).
    void set(const void* at, ptrdiff_t stride, RowKind kind, bool fills) {
      rows.at = static_cast<const char*>(at);
      rows.stride = stride;
      rows.kind = kind;
      filled = fills;
    }
  };

  // --- operands and shape ---

  // What an output writes: a reduced axis is walked, but not written.
  Walk written(const VecOut& out) const;
  // An index value as a stream: `at` holds the value at the start, strides are counts.
  Operand index_stream(const VecIndex& index) const;
  bool reduces(const VecOut& out, int position) const {
    return out.reduce != Reduce::None && !out.scan && !has_term(out.place, walk_.axis[position]);
  }
  // The inner position can take the outer one in: every stream continues and no output treats
  // them differently. Rows of a reduction or scan over the lanes keep their lanes: which partial
  // sum a lane joins must not depend on strides.
  bool mergeable(int outer, int inner, int64_t inner_count) const;
  int strided(const Dim& dim) const;  // operands that do not lie side by side along it
  void put_lanes_last(Dim* dims, int size) const;
  void choose_dims();

  int64_t stride(int stream, const Dim& dim) const {
    return dim.position < 0 ? 0 : streams_[stream].stride[dim.position];
  }

  // Walks the outer dims; `at_` holds the coordinate of each.
  void rows_of_dim(int dim);

  // --- one block: rows [row_, row_ + block_), lanes [lane_, lane_ + width_) ---

  char* address(int stream, int64_t row, int64_t lane) const {
    const uintptr_t at =
        row_base_[stream] +
        static_cast<uintptr_t>(row) * static_cast<uintptr_t>(stride(stream, rows_)) +
        static_cast<uintptr_t>(lane) * static_cast<uintptr_t>(stride(stream, lanes_));
    return reinterpret_cast<char*>(at);
  }

  int all_lanes() const { return static_cast<int>((block_ - 1) * pitch_ + width_); }

  static constexpr int kMostRows = kMaxLanes / 16;  // of a block: rows begin at 16 lanes

  // Values of class 0 that all lanes of a row share: one per row.
  Register* scalars(int reg) const {
    return reinterpret_cast<Register*>(scalars_ + static_cast<ptrdiff_t>(reg) * kMostRows);
  }
  void hold_scalars(int reg, bool all_the_same) {
    held_[reg].set(scalars(reg), all_the_same ? 0 : sizeof(float), kScalarRows, false);
  }
  ptrdiff_t pitch_bytes() const {
    return static_cast<ptrdiff_t>(pitch_ * static_cast<int64_t>(sizeof(float)));
  }
  void hold_register(int reg) { held_[reg].set(regs_ + reg, pitch_bytes(), kF32Rows, true); }
  // The register with every lane of the block in it.
  Register* filled(int reg, int value_class);
  void call(const VecStep& step);
  bool call_on_scalars(const VecStep& step);
  bool call_on_rows(const VecStep& step);
  bool goes_direct(const VecStep& step) const;
  void load_lanes(LoadFn load, int stream, int reg, int value_class);
  void run_once(const VecStep& step);
  double scalar(int slot) const;
  void run_step(const VecStep& step);
  void load(const VecStep& step);
  void index(const VecStep& step);
  void output(const VecStep& step);
  void store(const VecStep& step);
  // A store's stride of 0 means nothing to the kernels: one lane is stored as if contiguous.
  int64_t store_stride(int stream, const VecStep& step) const {
    const int64_t along = stride(stream, lanes_);
    return along == 0 && lanes_.count == 1 ? step.element : along;
  }

  // --- whole sticks as chains (execute_chain.cpp) ---

  // Where a link's operand is: a stream; the constant or the stick of a register; the value that a
  // step has computed per row.
  struct Origin {
    enum Kind : uint8_t { Stream, Constant, Stick, Scalars } kind;
    int number;
  };
  // By register, while a chain is made.
  struct Where {
    int source = -1;  // of Chains; -1: only in the registers of the host
    Origin origin;
    int uses = 0;  // still to come
  };
  class ChainMaker;
  // Whether the lanes and operands suit a chain. If so the first `chained_` lanes of every row are
  // its; steps do the rest.
  bool make_chain();
  bool suits_chain(const VecStep& step) const;
  void run_chain();
  void place_links();
  void begin_reductions();

  // --- reductions and scans (execute_reduce.cpp) ---

  // Every reduced axis stands at the beginning, so that the stored value is not a part of it yet.
  bool begins(const VecOut& out, int64_t row) const;
  void start_rows();
  void accumulate(const VecStep& step, const VecOut& out);
  void finish_rows();
  void fold(const VecStep& step, const VecOut& out, int64_t row);
  void fold_block(const VecStep& step, const VecOut& out);
  bool over_rows(const VecOut& out) const {
    return rows_.position >= 0 && reduces(out, static_cast<int>(rows_.position));
  }
  const RowReduction* row_reduction(const VecStep& step, const VecOut& out) const;
  void combine_rows(const VecStep& step, const VecOut& out);
  // Nothing was walked: a reduction over an empty axis still stores its neutral element.
  void store_neutral(int number);
  void fill_neutral(Register* to, const VecOut& out, int value_class, int width) const;
  void scan(const VecStep& step, const VecOut& out);

  Partials* partials(const VecStep& step) const {
    return reinterpret_cast<Partials*>(regs_ + step.spare);
  }

  // --- sums in DL16: chunks of terms, each summed in DL16, their sums added in DL16
  // (execute_chunks.cpp) ---

  bool in_chunks(const VecStep& step) const {
    return step.narrow && frame_.machine.numerics.rounds_sums();
  }

  VecFn combination(const VecStep& step, const VecOut& out) const {
    return in_chunks(step) ? kernels_.add_dl16
                           : kernels_.combine[static_cast<int>(out.reduce)][step.value_class];
  }

  // The open chunk of every element of an output, as a dense f32 array that is walked like it.
  void add_chunk_streams();
  // Where a row stands among the reduced points of this instruction, and how many there are.
  struct Turn {
    int64_t at = 0, of = 1;
    void inside(int64_t index, int64_t count) {
      at = at * count + index;
      of *= count;
    }
  };
  Turn turn(const VecOut& out, int64_t row) const;
  bool first_trip(const VecOut& out) const;
  void combine_chunks(const VecStep& step, const VecOut& out);

  const Frame& frame_;
  const Vec& vec_;
  const VecCode& code_;
  const Kernels& kernels_;
  Walk walk_;
  Operand streams_[2 * kMaxStreams];  // inputs, outputs, indices, open chunks of sums
  int count_ = 0, first_output_ = 0, first_index_ = 0;
  Dim dims_[kMaxAxes], rows_, lanes_;
  int depth_ = 0;  // outer dims above the rows
  int64_t capacity_ = 0, pitch_ = 0, block_rows_ = 0;
  bool lane_reduced_[kMaxStreams];
  bool rounded_[kMaxStreams];      // by input: its elements become DL16 (Machine::rounds)
  int chunk_stream_[kMaxStreams];  // by output
  Register* regs_ = nullptr;
  int stored_ = -1;          // the output that a call has just written
  bool in_rows_ = false;     // loads leave operands where they lie
  bool whole_rows_ = false;  // the lanes of a row are all in one block: reductions end there
  Link* links_ = nullptr;
  Origin* origins_ = nullptr;      // by link
  Where* where_ = nullptr;         // by register
  uint8_t* of_scalars_ = nullptr;  // by step: it computes one value per row
  float* row_scalars_ = nullptr;   // by step, kMostRows of each: those values
  int link_count_ = 0;
  int64_t chained_ = 0;
  float* scalars_ = nullptr;
  Held* held_ = nullptr;  // by register
  int64_t at_[kMaxAxes] = {};
  uintptr_t row_base_[2 * kMaxStreams];
  int64_t row_ = 0, block_ = 0, lane_ = 0, width_ = 0;
};

}  // namespace spyre
