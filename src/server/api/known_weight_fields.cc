// Requests that concern weights, of SGLang (managers/io_struct.py). All have the members of its
// BaseReq: rid and http_worker_ipc.
#include "server/api/known_weight_fields.h"

namespace switchyard {
namespace {

using enum FieldUse;

constexpr char kNoSupport[] = "is not supported";

constexpr KnownField kUpdateWeights[] = {
    {"model_path", kHonoured},
    {"load_format", kHonoured},
    {"abort_all_requests", kHonoured},
    {"weight_version", kHonoured},
    {"flush_cache", kHonoured},
    {"is_async", kRefused, "is not supported: the response is sent when the update has ended"},
    {"keep_pause", kRefused, "is not supported: requests continue after the update"},
    {"token_step", kRefused, "is not supported: use weight_version", "[0]"},
    {"manifest", kRefused, kNoSupport},
    {"torch_empty_cache", kHint},     // there is no PyTorch
    {"recapture_cuda_graph", kHint},  // ranks on CPUs have no graphs
    {"rid", kHint},
    {"http_worker_ipc", kHint},
};

constexpr KnownField kUpdateFromTensor[] = {
    {"shared_memory", kHonoured},  // not in SGLang
    {"abort_all_requests", kHonoured},
    {"weight_version", kHonoured},
    {"flush_cache", kHonoured},
    {"serialized_named_tensors", kRefused,
     "is not supported: it has pickled Python objects; write safetensors into shared memory, and "
     "name the objects in shared_memory"},
    {"load_format", kRefused, "is not supported: shared memory has the layout of safetensors"},
    {"disable_draft_model", kRefused, kNoSupport},
    {"is_async", kRefused, "is not supported: the response is sent when the update has ended"},
    {"torch_empty_cache", kHint},  // there is no PyTorch
    {"rid", kHint},
    {"http_worker_ipc", kHint},
};

constexpr KnownField kUpdateWeightVersion[] = {{"new_version", kHonoured},
                                               {"abort_all_requests", kHonoured},
                                               {"rid", kHint},
                                               {"http_worker_ipc", kHint}};
constexpr KnownField kMemoryTags[] = {
    {"tags", kHonoured}, {"rid", kHint}, {"http_worker_ipc", kHint}};
constexpr KnownField kGetWeights[] = {
    {"name", kHonoured}, {"truncate_size", kHonoured}, {"rid", kHint}, {"http_worker_ipc", kHint}};
constexpr KnownField kCheckWeights[] = {
    {"action", kHonoured},
    {"allow_quant_error", kRefused, "is not supported: checksums are compared exactly"},
    {"skip_tensor_list", kRefused, kNoSupport},
    {"rid", kHint},
    {"http_worker_ipc", kHint}};

}  // namespace

std::span<const KnownField> KnownWeightFields(RequestKind kind) {
  switch (kind) {
    case RequestKind::kUpdateWeights:
      return kUpdateWeights;
    case RequestKind::kUpdateFromTensor:
      return kUpdateFromTensor;
    case RequestKind::kUpdateWeightVersion:
      return kUpdateWeightVersion;
    case RequestKind::kMemoryTags:
      return kMemoryTags;
    case RequestKind::kGetWeights:
      return kGetWeights;
    case RequestKind::kCheckWeights:
      return kCheckWeights;
    default:
      return {};
  }
}

}  // namespace switchyard
