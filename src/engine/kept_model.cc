#include "engine/kept_model.h"

namespace switchyard {

KvStorage KeptModel::Keep(Model& model, const EnginePlan& plan, int32_t page_size) {
  KvStorage kv = kv_ ? *kv_ : model.MakeCache(plan.num_pages, page_size, plan.kv_dtype);
  weights_ = model.weights();
  if (weights_) kv_ = kv;
  return kv;
}

}  // namespace switchyard
