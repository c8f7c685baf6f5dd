#include <utility>

#include "core/check.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

class CountingSource : public WeightSource {
 public:
  explicit CountingSource(const ModelConfig& config) : config_(config) {}

  bool Has(const std::string& name) const override {
    return config_.quantization == ModelConfig::Quantization::kMxfp4 && name.ends_with("_blocks");
  }
  WeightView Matrix(const MatrixRequest& r) override {
    return {.format = ImpliedFormat(config_, r.form), .n = r.rows.size(), .k = r.cols.size()};
  }
  void Vector(const VectorRequest&, std::span<float>) override {}
  void Finish(const Progress&) override {}

 private:
  const ModelConfig& config_;
};

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
      CheckFailed(__FILE__, __LINE__, fmt::format("{} is no plain weight format", Name(dtype)));
  }
}

WeightFormat ImpliedFormat(const ModelConfig& config, MatrixRequest::Form form) {
  if (form == MatrixRequest::Form::kMxfp4) return WeightFormat::kMxfp4;
  if (form == MatrixRequest::Form::kLinear &&
      config.quantization == ModelConfig::Quantization::kFp8Block) {
    return WeightFormat::kFp8Block;
  }
  return PlainFormat(config.dtype);
}

std::unique_ptr<WeightSource> MakeCountingSource(const ModelConfig& config) {
  return std::make_unique<CountingSource>(config);
}

}  // namespace switchyard
