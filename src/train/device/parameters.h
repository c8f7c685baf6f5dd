// The parameters of a model in the memory of a device.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/range.h"
#include "train/device/memory.h"
#include "train/device/ops.h"
#include "train/device/ranks.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/device_update.h"
#include "train/parameter.h"

namespace switchyard::train {

// Parameters that are adjacent in device memory, in the order of a span of names: one tensor, gate
// and up of a feed-forward layer, or those of all experts as [E, 2 I, H].
struct SlabPart {
  Parameter<float>* parameter = nullptr;
  int64_t offset = 0;   // of the first element
  int64_t moments = 0;  // offset of the first moment of the rank's shard (Parameter::MyShard)
};
struct Slab {
  int64_t offset = 0;  // of the first element, a multiple of Shards::kBlock
  int64_t count = 0;
  bool trained = false, decay = false;
  bool expert = false;   // Parameter::expert of all parts
  bool sharded = false;  // Shards::partial of all parts
  // Equal weights of linear layers with FP8 products, and their codes; 0: other products.
  int64_t fp8_groups = 0;
  Fp8Weight fp8;
  std::vector<SlabPart> parts;
};

// Float32 master values, their gradients and AdamW's moments, and copies of the values in the dtype
// of matrix products, of which some also have FP8 codes. Borrows the parameters of the host, which
// have names and shapes, and the values that checkpoints load and store. Host and device exchange
// values at FromHost and ToHost only. Several ranks hold copies of the same parameters, except
// those of experts, and call the same functions in the same order. Of a parameter with shards, the
// device has moments of this rank's shard only (ZeRO stage 1). Used by the rank's thread only.
template <typename C>
class DeviceParameters final : public DeviceUpdate {
 public:
  // `memory` uses the device of `ops`. All outlive the object.
  DeviceParameters(std::span<Parameter<float>* const> host, TrainOps<C>& ops, DeviceRanks& ranks,
                   DeviceMemory& memory);

  // Places parameters, before Allocate. The host releases the memory of their gradients. All must
  // have rows of the same length, be trained or not alike, and be parameters of experts or not
  // alike. A name may be placed once. The result is valid until the object is destroyed.
  // `fp8_groups`: Slab::fp8_groups. Then Error kInvalid names a parameter whose widths are not
  // multiples of kFp8Block.
  const Slab* Place(std::span<const std::string> names, int64_t fp8_groups = 0);
  const Slab* Place(const std::string& name, int64_t fp8_groups = 0) {
    return Place(std::span(&name, 1), fp8_groups);
  }
  // Allocates memory for all slabs. CHECKs that every parameter has a place.
  void Allocate();

  float* value(const Slab& slab) { return values_.data() + slab.offset; }
  float* gradient(const Slab& slab) { return gradients_.data() + slab.offset; }
  const C* copy(const Slab& slab) const { return copies_.data() + slab.offset; }
  // The codes of the copy; null without FP8 products.
  static const Fp8Weight* fp8(const Slab& slab) {
    return slab.fp8_groups > 0 ? &slab.fp8 : nullptr;
  }

  void UploadValue(const Slab& slab);  // the value alone, of a slab that is not trained

  // Sums the gradients of each parameter over the ranks that hold it, once. Collective.
  void SumGradients();
  // Starts these sums for some slabs, numbered in the order of Place, whose gradients of the step
  // are complete. They may be used after SumGradients, which sums the others. Collective.
  void StartSums(Range slabs);
  int64_t slabs() const { return std::ssize(slabs_); }  // placed so far
  // After Step: sends the values of each shard to the other ranks that hold the parameter.
  // Collective.
  void GatherShards();

  void GradientsToHost();  // for tests

  void FromHost(AdamW* moments) override;
  void ToHost(AdamW* moments) override;
  void ClearGradients() override;
  // Of the parameters of all ranks; collective. Sums are in another order than those of
  // NormOfGradients, so norms agree within rounding of double.
  GradientNorm Norm() override;
  void Step(double learning_rate, double gradient_scale, AdamW* moments) override;

 private:
  std::string FirstNotFinite(const Slab& slab);
  // The end of a slab with the gap after it.
  int64_t EndOf(size_t slab) const {
    return slab + 1 < slabs_.size() ? slabs_[slab + 1].offset : count_;
  }
  // Sums the squares of the gradients of slabs for the norm.
  void SquareSums(const std::vector<bool>& slabs);
  void Quantize(const Slab& slab);  // the copy, if its products are FP8
  // The ranks that hold copies of the slab; null: only this one.
  Collectives* GroupOf(const Slab& slab) const {
    const DeviceGroups& groups = ranks_.groups();
    return slab.expert ? groups.expert_copies : groups.all;
  }
  void GatherShards(const Slab& slab, Collectives& group);
  // The norm over all ranks, from the sums of squares of this rank's parameters.
  void AddRanks(double replicated, double experts, GradientNorm* norm);

  TrainOps<C>& ops_;
  DeviceRanks& ranks_;
  DeviceMemory& memory_;
  std::map<std::string, Parameter<float>*> host_;    // those without a place yet
  std::map<const Parameter<float>*, size_t> index_;  // of a parameter among those of the host
  std::deque<Slab> slabs_;
  std::vector<bool> summed_;  // [slabs] whether StartSums was called
  // [slabs] whether sums_ has the squares of the present gradients.
  std::vector<bool> squared_;
  int64_t count_ = 0, moments_ = 0;  // elements of all slabs and shards, with gaps
  DeviceArray<float> values_, gradients_, first_, second_;
  DeviceArray<C> copies_;
  int64_t fp8_count_ = 0;  // elements with codes
  DeviceArray<uint8_t> codes_, transposed_;
  DeviceArray<float> scales_, transposed_scales_;
  DeviceArray<double> sums_;
};

}  // namespace switchyard::train
