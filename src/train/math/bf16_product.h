// Products whose operands are rounded to bfloat16 (nearest, ties to even; what is smaller than the
// smallest normal number counts as zero), and whose sums are float32.
//
// An element is the chain of multiply-adds that product.h describes, on rounded operands, with
// results below the smallest normal number flushed to zero. AVX512_BF16 has an instruction for two
// links of it, vdpbf16ps (Intel, Architecture Instruction Set Extensions Programming Reference):
// each lane adds the product of the upper halves, rounds, adds that of the lower halves, rounds. So
// of two neighbours along the inner dimension the first goes into the upper half, and the chain
// ascends. Without the instruction the float32 products run on rounded copies of the operands, and
// come to the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "train/math/product.h"
#include "train/math/workspace.h"

namespace switchyard::train {

// x as these products take it.
float RoundedToBFloat16(float x);

struct PairLeaves;
// Null where the CPU has no AVX512_BF16, or kernels::ActiveIsa() is weaker than AVX-512.
const PairLeaves* ActivePairLeaves();

// With the instruction. `threads` 1: on the calling thread alone.
void MultiplyPairs(std::span<const Product<float>> products, const PairLeaves& leaves, int threads,
                   ThreadPool& pool);

// Without it: the same products, over rounded copies of their operands, which live as long as this.
class RoundedOperands {
 public:
  explicit RoundedOperands(std::span<const Product<float>> products);
  std::span<const Product<float>> products() const { return products_; }

 private:
  Temporary<float> memory_;
  std::vector<Product<float>> products_;
};

// While it lives this thread's float32 operations take and give zero for numbers too small to be
// normal, as vdpbf16ps does.
class FlushSmall {
 public:
  explicit FlushSmall(bool on);
  ~FlushSmall();
  FlushSmall(const FlushSmall&) = delete;
  FlushSmall& operator=(const FlushSmall&) = delete;

 private:
  const uint32_t saved_;
};

}  // namespace switchyard::train
