#include <algorithm>
#include <utility>

#include "core/check.h"
#include "kernels/gpus.h"
#include "model/weights/int4_matrix.h"
#include "model/weights/source.h"
#include "quant/panels.h"

namespace switchyard {
namespace {

class CountingSource : public WeightSource {
 public:
  CountingSource(const ModelConfig& config, std::optional<DType> gpu_plain_dtype,
                 bool packs_experts)
      : config_(config), placed_as_(gpu_plain_dtype), packs_experts_(packs_experts) {}

  bool Has(const std::string& name) const override {
    return config_.quantization.mxfp4_blocks() && name.ends_with("_blocks");
  }
  WeightView Matrix(const MatrixRequest& r) override {
    WeightView view{
        .format = Placed(ImpliedFormat(config_, r), r), .n = r.rows.size(), .k = r.cols.size()};
    if (HasPanels(view.format)) view.group_size = GroupSizeOf(r.scheme, r.cols);
    if (view.format == WeightFormat::kInt4Group) {
      view.group_size = GroupSizeOf(r.scheme, r.cols);
      // Packed 4-bit weights on a GPU have scales for groups of at most 64 columns.
      if (placed_as_) view.group_size = std::min(view.group_size, 64);
    }
    return view;
  }
  void Vector(const VectorRequest&, std::span<float>) override {}
  void Finish(const Progress&) override {}

 private:
  // The format in which a GPU holds the matrix: that of Device::Place, or of packed experts on a
  // Hopper GPU. With dtype float32, its size is an upper bound.
  WeightFormat Placed(WeightFormat stored, const MatrixRequest& r) const {
    const bool plain = stored == WeightFormat::kF32 || stored == WeightFormat::kBF16;
    if (!placed_as_ || plain || StaysPacked(stored, r)) return stored;
    if (*placed_as_ != DType::kF32 && stored == WeightFormat::kFp8Block) return stored;
    return PlainFormat(*placed_as_);
  }

  // Whether a routed expert stays packed: its sizes must fit the tensor cores' tiles. Assumes that
  // its scales can be packed.
  bool StaysPacked(WeightFormat stored, const MatrixRequest& r) const {
    return packs_experts_ && kernels::ExpertsStayPackedOnGpu(stored) &&
           r.name.find(".experts.") != std::string::npos && r.rows.size() % 64 == 0 &&
           r.cols.size() % 64 == 0;
  }

  const ModelConfig& config_;
  const std::optional<DType> placed_as_;
  const bool packs_experts_;
};

// Columns at multiples of which a panel of the format may begin.
int64_t PanelUnit(WeightFormat panels, int64_t group_size) {
  switch (panels) {
    case WeightFormat::kInt4Panels:
    case WeightFormat::kInt4ZeroPanels:
      return group_size;
    case WeightFormat::kNvfp4Panels:
      return kNvfp4BlockSize;
    case WeightFormat::kQ4KPanels:
    case WeightFormat::kQ5KPanels:
    case WeightFormat::kQ6KPanels:
    case WeightFormat::kIQ4XSPanels:
      return kPanelColumns;
    default:
      return kMxfp4BlockSize;
  }
}

// Whether the method stores codes of 4 bits whose scales panels can hold as they are. kSignedInt4
// and kModelOptInt4 usually have float32 scales.
bool StoresForPanels(Packing packing) {
  switch (packing) {
    case Packing::kPackedInt4:
    case Packing::kGptq:
    case Packing::kAwq:
    case Packing::kMxfp4:
    case Packing::kNvfp4:
    case Packing::kModelOptNvfp4:
      return true;
    default:
      return false;
  }
}

// Whether the loader may pack the matrix into panels. MLA multiplies the transpose of kv_b_proj,
// for which panels are slow.
bool MayPack(const ModelConfig& config, const MatrixRequest& r) {
  const Packing packing = r.scheme.packing;
  if (packing == Packing::kGguf || packing == Packing::kWhileLoading) return true;
  return !config.quantization.stored_layout && StoresForPanels(packing) &&
         !r.name.ends_with("kv_b_proj.weight");
}

// The format of a matrix after loading. Loaders pack matrices into panels only if rows are int8,
// because kernels of panels need int8 rows.
WeightFormat Loaded(const ModelConfig& config, const MatrixRequest& r) {
  const LinearScheme& scheme = r.scheme;
  const bool gguf = scheme.packing == Packing::kGguf;
  if (!MayPack(config, r)) return scheme.format;
  const WeightFormat panels = gguf && scheme.format == WeightFormat::kInt4Group
                                  ? WeightFormat::kQ4_0Panels
                                  : PanelFormatOf(scheme.format, scheme.group_size, scheme.zeros);
  if (!HasPanels(panels)) return panels;
  const bool int8_rows =
      config.quantization.int8_group_rows && (scheme.activation == ActivationFormat::kNone ||
                                              scheme.activation == ActivationFormat::kBFloat16);
  if (int8_rows && r.cols.begin % PanelUnit(panels, scheme.group_size) == 0) return panels;
  return HasPanels(scheme.format) ? PlainFormat(config.dtype) : scheme.format;
}

}  // namespace

WeightFormat PlainFormat(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return WeightFormat::kF32;
    case DType::kBF16:
      return WeightFormat::kBF16;
    case DType::kF16:
      return WeightFormat::kF16;
    default:
      CheckFailed(__FILE__, __LINE__, fmt::format("{} is not a plain weight format", Name(dtype)));
  }
}

WeightFormat ImpliedFormat(const ModelConfig& config, const MatrixRequest& request) {
  if (request.mxfp4_blocks) {
    const QuantizationConfig& q = config.quantization;
    const bool panels =
        q.int8_group_rows && !q.stored_layout && request.cols.begin % kMxfp4BlockSize == 0;
    return panels ? WeightFormat::kMxfp4Panels : WeightFormat::kMxfp4;
  }
  const LinearScheme& scheme = request.scheme;
  const bool plain = scheme.packing == Packing::kPlain || scheme.act_order;
  if (plain) return request.float32 ? WeightFormat::kF32 : PlainFormat(config.dtype);
  return Loaded(config, request);
}

bool MayPackStoredWeights(const QuantizationConfig& q) {
  const auto packs = [](const SchemeRule& rule) {
    const LinearScheme& scheme = rule.scheme;
    const bool own_rows = scheme.activation != ActivationFormat::kNone &&
                          scheme.activation != ActivationFormat::kBFloat16;  // as in Loaded
    return StoresForPanels(scheme.packing) && !scheme.act_order && !own_rows &&
           HasPanels(PanelFormatOf(scheme.format, scheme.group_size, scheme.zeros));
  };
  return q.mxfp4_blocks() || std::ranges::any_of(q.rules, packs);
}

bool PacksStoredWeights(const QuantizationConfig& q) {
  return q.int8_group_rows && !q.stored_layout && MayPackStoredWeights(q);
}

int32_t GroupSizeOf(const LinearScheme& scheme, Range cols) {
  return static_cast<int32_t>(scheme.group_size > 0 ? scheme.group_size
                                                    : std::max<int64_t>(cols.size(), 1));
}

int64_t ColumnUnit(const LinearScheme& scheme) {
  if (scheme.packing == Packing::kPlain) return 1;
  switch (scheme.format) {
    case WeightFormat::kMxfp4:
      return kMxfp4BlockSize;
    case WeightFormat::kNvfp4:
      return kNvfp4BlockSize;
    case WeightFormat::kInt4Group:
      return scheme.group_size > 0 ? scheme.group_size : kInt4Word;
    case WeightFormat::kQ8_0Panels:
    case WeightFormat::kQ4KPanels:
    case WeightFormat::kQ5KPanels:
    case WeightFormat::kQ6KPanels:
    case WeightFormat::kIQ4XSPanels:
      return PanelUnit(scheme.format, scheme.group_size);
    default:
      return 1;
  }
}

std::unique_ptr<WeightSource> MakeCountingSource(const ModelConfig& config,
                                                 std::optional<DType> gpu_plain_dtype,
                                                 bool packs_experts) {
  return WithOwnerOfHead(config, [&](const ModelConfig& of) {
    return std::make_unique<CountingSource>(of, gpu_plain_dtype, packs_experts);
  });
}

}  // namespace switchyard
