// Matrix products with operands rounded to bfloat16 (nearest, ties to even; magnitudes below the
// smallest normal number become zero) and float32 accumulation.
//
// Each element is the multiply-add chain of product.h on rounded operands, with results below the
// smallest normal number flushed to zero. The instruction vdpbf16ps of AVX512_BF16 computes two
// steps of the chain (Intel, Architecture Instruction Set Extensions Programming Reference). Each
// lane adds the product of the upper halves and rounds, then adds the product of the lower halves
// and rounds. So the first of two neighbors along the inner dimension must be in the upper half.
// Without the instruction, the float32 products run on rounded copies of the operands, with bitwise
// equal results.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/parallel.h"
#include "train/math/product.h"
#include "train/math/workspace.h"

namespace switchyard::train {

// Rounds x in the same way as these products round their operands.
float RoundedToBFloat16(float x);

struct PairLeaves;
// Null if the CPU has no AVX512_BF16, or kernels::ActiveIsa() is weaker than AVX-512.
const PairLeaves* ActivePairLeaves();

// Multiplies with the bfloat16 instruction. With `threads` 1, runs on the calling thread only.
void MultiplyPairs(std::span<const Product<float>> products, const PairLeaves& leaves, int threads,
                   ThreadPool& pool);

// Products for CPUs without the bfloat16 instruction: `products` with rounded copies of the
// operands. Owns the copies.
class RoundedOperands {
 public:
  explicit RoundedOperands(std::span<const Product<float>> products);
  std::span<const Product<float>> products() const { return products_; }

 private:
  ScratchBuffer<float> memory_;
  std::vector<Product<float>> products_;
};

// RAII: enables flush-to-zero and denormals-are-zero for float32 operations of this thread, to
// match vdpbf16ps.
class FlushSubnormals {
 public:
  explicit FlushSubnormals(bool on);
  ~FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  const uint32_t saved_;
};

}  // namespace switchyard::train
