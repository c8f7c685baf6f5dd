#include "server/native/weights.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "core/gguf_files.h"
#include "core/tensor.h"
#include "model/weights/safetensors.h"
#include "server/api/guarded.h"
#include "server/api/known_fields.h"
#include "server/http/error_body.h"
#include "server/native/native.h"

namespace switchyard::native {
namespace {

using RequestPtr = std::shared_ptr<const http::Request>;

constexpr const char* kConflict = "a change of the ranks is in progress";

RankWeights& WeightsOf(const Service& service) {
  RankWeights* weights = service.weights;
  if (weights == nullptr)
    throw Error(ErrorKind::kUnavailable, "this server cannot change its weights");
  return *weights;
}

// SGLang's response to a failure, {"success": false, "message": …}, with the members of all error
// responses.
void SendFailure(const Service& service, const http::Responder& responder, int status,
                 const std::string& why, size_t waiting = 0) {
  const std::string message = RedactPaths(service, why);
  Json body = ParseBody(http::ErrorBody(status, message));
  body["success"] = false;
  body["message"] = message;
  body["num_paused_requests"] = waiting;
  responder.Send(status, http::kJson, Dump(body));
}

// Runs `begin`, which begins a change and returns whether it has begun.
void Begin(const Service& service, const http::Responder& responder,
           const std::function<bool()>& begin) {
  try {
    if (!begin()) SendFailure(service, responder, 409, kConflict);
  } catch (const Error& error) {
    const int status = http::StatusOf(error.kind());
    SendFailure(service, responder, status == 404 ? 400 : status, error.what());
  }
}

// The callback of a change. `message`: of the response to a change that has succeeded.
RankWeights::Done Responding(const Service& service, const http::Responder& responder,
                             std::string message) {
  return [&service, responder, message = std::move(message)](const WeightsResult& result) {
    if (!result.error.empty())
      return SendFailure(service, responder, result.unavailable ? 503 : 400, result.error,
                         result.waiting);
    responder.Send(200, http::kJson,
                   Dump({{"success", true},
                         {"message", message},
                         {"num_paused_requests", result.waiting},
                         {"seconds", result.seconds}}));
  };
}

// `from_tensor`: replaces tensors by those in shared memory, not the whole checkpoint.
void HandleUpdate(Service& service, const http::Request& request, const http::Responder& responder,
                  bool from_tensor) {
  RequireServing(service);
  const Json body = ParseBody(request);
  RefuseUnknownFields(body,
                      from_tensor ? RequestKind::kUpdateFromTensor : RequestKind::kUpdateWeights);
  const Fields f(body);
  WeightUpdate update{.abort_all = f.Bool("abort_all_requests", false)};
  if (from_tensor) {
    update.shared_memory = f.Strings("shared_memory");
    if (update.shared_memory.empty())
      throw InvalidField("shared_memory",
                         "shared_memory is missing or empty, want a list of names of objects");
  } else {
    update.model_path = f.String("model_path", "");
    update.load_format = f.String("load_format", "");
    if (update.model_path.empty())
      throw InvalidField("model_path", "model_path is missing, want a checkpoint");
  }
  if (f.Has("weight_version")) update.version = f.String("weight_version", "");
  if (!f.Bool("flush_cache", true))
    throw InvalidField("flush_cache",
                       "flush_cache is false, but the cache of other weights is never kept");
  std::string message = "Succeeded to update model weights.";
  if (update.version) message += fmt::format(" Weight version updated to {}.", *update.version);
  Begin(service, responder, [&] {
    return WeightsOf(service).Update(update, Responding(service, responder, std::move(message)));
  });
}

void HandleVersion(Service& service, const http::Request& request,
                   const http::Responder& responder) {
  RequireServing(service);
  const Json body = ParseBody(request);
  RefuseUnknownFields(body, RequestKind::kUpdateWeightVersion);
  const Fields f(body);
  if (!f.Has("new_version")) throw InvalidField("new_version", "new_version is missing");
  const std::string version = f.String("new_version", "");
  if (f.Bool("abort_all_requests", true)) service.front.AbortAll();
  service.front.SetWeightVersion(version);
  responder.Send(200, http::kJson,
                 Dump({{"success", true},
                       {"message", fmt::format("Weight version updated to {}", version)},
                       {"new_version", version}}));
}

// The tags of a request; all of them if it has none.
MemoryTags ParseTags(const http::Request& request) {
  const Json body = request.body.empty() ? Json::object() : ParseBody(request);
  RefuseUnknownFields(body, RequestKind::kMemoryTags);
  const Fields f(body);
  const std::vector<std::string> names = f.Strings("tags");
  if (names.empty()) return {.weights = true, .kv_cache = true};
  MemoryTags tags;
  for (const std::string& name : names) {
    if (name == "weights") {
      tags.weights = true;
    } else if (name == "kv_cache") {
      tags.kv_cache = true;
    } else if (name != "cuda_graph") {  // on GPUs, graphs end with the weights and the cache
      throw InvalidField("tags", "tags has {}, want weights, kv_cache or cuda_graph", name);
    }
  }
  return tags;
}

void HandleMemory(Service& service, const http::Request& request, const http::Responder& responder,
                  bool resumes) {
  RequireServing(service);
  const MemoryTags tags = ParseTags(request);
  auto done =
      Responding(service, responder, resumes ? "The memory is back." : "The memory is released.");
  if (!tags.any()) return done({});
  Begin(service, responder, [&] {
    RankWeights& weights = WeightsOf(service);
    return resumes ? weights.Resume(tags, std::move(done)) : weights.Release(tags, std::move(done));
  });
}

// A list for each dimension; the first dimension is cut to `most` entries, as in SGLang.
Json Values(const StoredTensor& tensor, int64_t most) {
  const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
  const int64_t elements = static_cast<int64_t>(tensor.num_bytes / SizeOf(tensor.dtype));
  const int64_t width = rows > 0 ? elements / rows : 0;
  const int64_t count = std::min(rows, most) * width;
  constexpr int64_t kMostValues = 1'000'000;
  if (count > kMostValues)
    throw InvalidField("truncate_size", "truncate_size {} selects {} values, want at most {}", most,
                       count, kMostValues);
  const Tensor floats = Tensor::View(tensor.data, tensor.dtype, {count}).ToFloat32();
  const auto* values = floats.data<float>();
  const std::function<Json(size_t, int64_t, int64_t)> list = [&](size_t axis, int64_t begin,
                                                                 int64_t size) -> Json {
    if (axis == tensor.shape.size()) return values[begin];
    const int64_t n = axis == 0 ? std::min(tensor.shape[0], most) : tensor.shape[axis];
    Json all = Json::array();
    for (int64_t i = 0; i < n; ++i) all.push_back(list(axis + 1, begin + i * (size / n), size / n));
    return all;
  };
  return list(0, 0, count);
}

// Reads the checkpoint of the present weights. So the values are those before a conversion at load
// time (--quantization), and of the whole tensor.
void HandleGetWeights(const Service& service, const http::Request& request,
                      const http::Responder& responder) {
  RequireServing(service);
  const Json body = ParseBody(request);
  RefuseUnknownFields(body, RequestKind::kGetWeights);
  const Fields f(body);
  const std::string name = f.String("name", "");
  const int64_t most = f.Int("truncate_size", 100, 1, 1'000'000);
  const WeightsState state = WeightsOf(service).weights_state();
  if (state.load_format == "dummy")
    throw Invalid("--load-format dummy has no checkpoint to read weights from");
  if (FindGguf(state.model_path))
    throw Invalid("the checkpoint is a GGUF file; want a directory with safetensors");
  const Checkpoint checkpoint(state.model_path);
  const StoredTensor* tensor = checkpoint.FindStored(name);
  if (tensor == nullptr)
    throw InvalidField("name", "name is {}: the checkpoint has no such tensor", name);
  constexpr std::array kFloats = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3};
  if (std::ranges::find(kFloats, tensor->dtype) == kFloats.end())
    throw InvalidField("name", "name is {}: a tensor of {} has no values without its scales", name,
                       Name(tensor->dtype));
  responder.Send(200, http::kJson, Dump(Values(*tensor, most)));
}

// The checksums of the last snapshot. Thread-safe.
class Snapshot {
 public:
  void Set(std::vector<std::string> ranks) {
    const std::lock_guard lock(mutex_);
    ranks_ = std::move(ranks);
  }
  // Names the first rank and weight that differ from the snapshot; "" if none does.
  std::string Compare(const std::vector<std::string>& now) const {
    const std::lock_guard lock(mutex_);
    if (!ranks_) return "there is no snapshot: send the action snapshot first";
    if (ranks_->size() != now.size()) return "the number of ranks has changed";
    for (size_t rank = 0; rank < now.size(); ++rank) {
      std::istringstream before((*ranks_)[rank]), after(now[rank]);
      for (std::string a, b; std::getline(before, a) && std::getline(after, b);)
        if (a != b) return fmt::format("rank {}: {} differs", rank, b.substr(0, b.find(' ')));
      if ((*ranks_)[rank] != now[rank]) return fmt::format("rank {} has other weights", rank);
    }
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::vector<std::string>> ranks_;
};

Json ChecksumsJson(const std::vector<std::string>& ranks) {
  Json all = Json::array();
  for (const std::string& text : ranks) {
    Json sums = Json::object();
    std::istringstream lines(text);
    for (std::string name, sum; lines >> name >> sum;) sums[name] = sum;
    all.push_back({{"rank", all.size()}, {"checksums", std::move(sums)}});
  }
  return all;
}

void HandleCheck(Service& service, const http::Request& request, const http::Responder& responder,
                 const std::shared_ptr<Snapshot>& snapshot) {
  RequireReady(service);
  const Json body = ParseBody(request);
  RefuseUnknownFields(body, RequestKind::kCheckWeights);
  const std::string action = Fields(body).String("action", "");
  if (action != "checksum" && action != "snapshot" && action != "compare")
    throw InvalidField("action", "action is {}, want checksum, snapshot or compare", action);
  service.front.GetWeightChecksums(
      [&service, responder, snapshot, action](const WeightChecksums& sums) {
        if (!sums.error.empty()) return SendFailure(service, responder, 400, sums.error);
        if (action == "compare") {
          const std::string difference = snapshot->Compare(sums.ranks);
          if (!difference.empty()) return SendFailure(service, responder, 400, difference);
        }
        if (action == "snapshot") snapshot->Set(sums.ranks);
        Json answer = {{"success", true}, {"message", "Success."}};
        if (action == "checksum") answer["ranks"] = ChecksumsJson(sums.ranks);
        responder.Send(200, http::kJson, Dump(answer));
      });
}

}  // namespace

void RegisterWeights(http::Server& server, Service& service) {
  using Handle = std::function<void(Service&, const http::Request&, const http::Responder&)>;
  const auto control = [&](const char* method, const char* path, const Handle& handle) {
    server.Route(method, path,
                 Guarded(service,
                         [&service, handle](const RequestPtr& r, const http::Responder& out) {
                           handle(service, *r, out);
                         }),
                 http::Access::kControl);
  };
  const auto memory = [](bool resumes) -> Handle {
    return [resumes](Service& s, const http::Request& r, const http::Responder& out) {
      HandleMemory(s, r, out, resumes);
    };
  };
  const auto update = [](bool from_tensor) -> Handle {
    return [from_tensor](Service& s, const http::Request& r, const http::Responder& out) {
      HandleUpdate(s, r, out, from_tensor);
    };
  };
  control("POST", "/update_weights_from_disk", update(false));
  control("POST", "/update_weights_from_tensor", update(true));
  control("POST", "/update_weight_version", HandleVersion);
  control("POST", "/weights_checker",
          [snapshot = std::make_shared<Snapshot>()](Service& s, const http::Request& r,
                                                    const http::Responder& out) {
            HandleCheck(s, r, out, snapshot);
          });
  control("POST", "/release_memory_occupation", memory(false));
  control("POST", "/resume_memory_occupation", memory(true));
  for (const char* method : {"GET", "POST"})
    control(method, "/get_weights_by_name", HandleGetWeights);
}

}  // namespace switchyard::native
