// How a launch computes: as PyTorch's dtypes say, or as the card's own formats do.
#pragma once

#include <cstdint>

namespace spyre {

// Of DL16 (SEN169_FP16), for what lies between two values. Numbered as in openspyre/numerics.py.
enum class Dl16Round : uint8_t { NearestUp, NearestEven, Truncate };
constexpr int kDl16Rounds = 3;
constexpr int kFp8Biases = 15;  // 1 to 15

// What a sum keeps inside a chunk: products and sums rounded to DL16, only sums, or f32 values.
enum class SumFormat : uint8_t { Dl16, Dl16Fused, F32 };

// The switches of card.md 2.3. `card` false: float16, bfloat16 and float32 as PyTorch has them.
struct Numerics {
  bool card = false;
  Dl16Round round = Dl16Round::NearestUp;
  bool truncate_bf16 = false;  // DL16 to bf16
  SumFormat sum = SumFormat::Dl16;
  int chunk = 64;    // terms; 0: one chunk, however long the sum
  int fp8_bias = 7;  // of 1-4-3

  // Sums in f32 throughout need no chunks and no rounding.
  bool rounds_sums() const { return card && !(sum == SumFormat::F32 && chunk == 0); }
};

}  // namespace spyre
