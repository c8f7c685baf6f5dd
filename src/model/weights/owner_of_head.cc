// Weights of a draft model whose reduced head has rows of another model, its owner.
#include <utility>

#include "core/check.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

class SourceWithOwner : public WeightSource {
 public:
  SourceWithOwner(std::unique_ptr<WeightSource> own, std::unique_ptr<WeightSource> owner)
      : own_(std::move(own)), owner_(std::move(owner)) {}

  bool Has(const std::string& name) const override { return own_->Has(name); }
  WeightView Matrix(const MatrixRequest& request) override {
    return (request.of_owner ? owner_ : own_)->Matrix(request);
  }
  void Vector(const VectorRequest& request, std::span<float> out) override {
    (request.of_owner ? owner_ : own_)->Vector(request, out);
  }
  // The owner's part is only a head, so it has no part in the progress.
  void Finish(const Progress& progress) override {
    owner_->Finish({});
    own_->Finish(progress);
  }

 private:
  const std::unique_ptr<WeightSource> own_, owner_;
};

}  // namespace

std::unique_ptr<WeightSource> WithOwnerOfHead(
    const ModelConfig& config,
    const std::function<std::unique_ptr<WeightSource>(const ModelConfig&)>& make) {
  std::unique_ptr<WeightSource> own = make(config);
  if (!config.reduced_head || !config.reduced_head->owner) return own;
  std::unique_ptr<WeightSource> owner = make(*config.reduced_head->owner);
  return std::make_unique<SourceWithOwner>(std::move(own), std::move(owner));
}

}  // namespace switchyard
