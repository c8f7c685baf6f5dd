// The weights of a MoE layer on a GPU, and their moves.
#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/format.h"
#include "moe/cuda/cuda_backend.h"
#include "moe/cuda/placement/expert_moves.h"
#include "moe/runners/shared_expert.h"
#include "moe/stream_experts.h"
#include "quant/formats.h"

namespace switchyard::cuda {
namespace {

std::span<const float> Floats(const float* data, int64_t count) {
  return {data, static_cast<size_t>(data ? count : 0)};
}

ExpertArithmetic WithActivation(ExpertArithmetic arithmetic, kernels::Activation activation) {
  arithmetic.gated = activation != kernels::Activation::kRelu2;
  return arithmetic;
}

DeviceExperts PlaceExperts(const MoeLayerConfig& config, const MoeLayerWeights& weights,
                           const CudaMoeBackend& backend) {
  std::vector<kernels::ExpertWeights> experts(weights.experts.begin(), weights.experts.end());
  if (backend.shared_dispatched()) {
    CHECK(weights.has_shared);
    CHECK_EQ(weights.shared.gate.n, backend.shape().intermediate);
    experts.push_back(weights.shared);
  }
  CHECK_EQ(static_cast<int>(experts.size()), backend.local_experts());
  const kernels::CudaDeviceOptions& device = backend.device().options();
  return DeviceExperts(
      experts,
      WithActivation(backend.runner().Arithmetic(experts, device.dtype, device.packs_experts),
                     config.activation),
      backend.device().weight_store());
}

void AddExpert(const DeviceExperts& experts, int expert, const std::string& name,
               std::vector<kernels::DeviceArray>* arrays) {
  static constexpr std::array<const char*, kExpertArrays> kNames = {
      "gate_up", "gate_up.scales", "down", "down.scales", "gate_up_bias", "down_bias"};
  const ExpertSlotBytes bytes = experts.slot_bytes();
  const ExpertSlot slot = experts.Slot(expert);
  for (size_t i = 0; i < slot.size(); ++i)
    if (slot[i]) arrays->push_back({fmt::format("{}.{}", name, kNames[i]), slot[i], bytes[i]});
}

}  // namespace

CudaMoeParts::CudaMoeParts(MoeLayerConfig layer_config, const MoeLayerWeights& weights,
                           const CudaMoeBackend& moe_backend, int layer_index)
    : MoeLayerParts(std::move(layer_config)),
      backend(moe_backend),
      router(UploadPlain(weights.router.w, moe_backend.device().weight_store())),
      index(layer_index),
      places(config.router.num_experts * sizeof(int32_t)),
      physical_of(places.bytes()),
      experts(PlaceExperts(config, weights, moe_backend)) {
  const int64_t count = config.router.num_logits();
  DeviceStore* const store = backend.device().weight_store();
  if (weights.router.bias) router_bias = UploadFloats(Floats(weights.router.bias, count), store);
  if (weights.router.correction_bias)
    correction_bias = UploadFloats(Floats(weights.router.correction_bias, count), store);
  if (weights.router.token_experts != nullptr) {  // ranks with experts only have none
    token_rows = weights.router.token_rows;
    token_experts = UploadIds(
        {weights.router.token_experts, static_cast<size_t>(token_rows * config.router.top_k)},
        store);
  }
  if (!weights.has_shared) return;
  const std::span one(&weights.shared, 1);
  if (!backend.shared_dispatched())
    shared.emplace(
        one,
        WithActivation(ChooseArithmetic(one, backend.device().options().dtype, IsHopper()),
                       config.activation),
        store);
  if (weights.shared_gate.defined()) shared_gate = UploadPlain(weights.shared_gate, store);
}

// Overwrites the maps in place, because captured passes read these addresses. The copies run on the
// stream of the passes.
void CudaMoeParts::SetReplicas(std::vector<int32_t> replicas) {
  const Mesh& mesh = backend.mesh();
  if (replicas.empty()) {
    replicas.resize(config.router.num_experts);
    std::iota(replicas.begin(), replicas.end(), 0);
  }
  CHECK_EQ(replicas.size() * sizeof(int32_t), places.bytes());
  CudaDevice& device = backend.device();
  device.CopyIn(physical_of.data(), replicas.data(), physical_of.bytes());
  if (!backend.scatters())
    for (int32_t& place : replicas) place = backend.experts().LocalIdOn(mesh.ep_rank(), place);
  device.CopyIn(places.data(), replicas.data(), places.bytes());
  if (backend.may_stream()) PlaceGroups();
}

void CudaMoeParts::ReserveStreams(const kernels::ExpertWeights& like) {
  stream = &backend.StreamFor(experts, like);
  pinned = PinnedExperts(experts, config.router.num_experts);
}

void CudaMoeParts::KeepForStreams(int32_t logical, const kernels::ExpertWeights& expert) {
  CHECK(stream != nullptr);
  experts.CheckFits(expert, "want --stream-experts off");
  stream->Convert(expert, pinned.Slot(logical));
}

void CudaMoeParts::PinStreams() {
  pinned.Pin();
  stream->EndConversions();
}

int CudaMoeParts::groups() const {
  return static_cast<int>(CeilDiv(std::ssize(streamed), StreamGroup(config.router.num_experts)));
}

std::span<const int32_t> CudaMoeParts::Group(int group) const {
  const size_t size = StreamGroup(config.router.num_experts), first = group * size;
  return std::span(streamed).subspan(first, std::min(size, streamed.size() - first));
}

void CudaMoeParts::PlaceGroups() {
  const ExpertPlacement& placement = config.placement;
  StreamPlaces found = PlaceStreams(placement.physical_to_logical(),
                                    ExpertsOfRank(placement.num_physical(), backend.mesh()),
                                    config.router.num_experts);
  streamed = std::move(found.experts);
  const size_t bytes = found.table.size() * sizeof(int32_t);
  if (group_places.bytes() == 0) group_places = DeviceMemory(bytes);
  backend.device().CopyIn(group_places.data(), found.table.data(), bytes);
}

void CudaMoeParts::CheckFormats(const kernels::ExpertWeights& expert) const {
  experts.CheckFits(expert);
}

OwnedExpert CudaMoeParts::Held(int local) const {
  return {.placed = std::make_shared<DeviceExpert>(local)};
}

OwnedExpert CudaMoeParts::Expert(int local) const {
  return backend.mover().Download(experts, local);
}

OwnedExpert CudaMoeParts::Stage(OwnedExpert expert) const {
  if (expert.placed) return expert;
  return {.placed = backend.mover().Upload(experts, expert.weights)};
}

std::vector<OwnedExpert> CudaMoeParts::Swap(std::vector<OwnedExpert> replacements) {
  // The chooser runs on another thread, so the placement may change only after synchronization
  // (HostChoice).
  if (backend.chooser()) backend.device().Synchronize();
  const Mesh& mesh = backend.mesh();
  const Range own = ExpertsOfRank(config.placement.num_physical(), mesh);
  return backend.mover().Switch(
      experts, config.placement.physical_to_logical().subspan(own.begin, own.end - own.begin),
      std::move(replacements));
}

std::vector<kernels::DeviceArray> CudaMoeParts::Arrays() const {
  std::vector<kernels::DeviceArray> arrays;
  const auto add = [&](const char* name, const DeviceMemory& memory) {
    if (memory.bytes() > 0)
      arrays.push_back({name, memory.data(), static_cast<int64_t>(memory.bytes())});
  };
  add("router", router.data);
  add("router_bias", router_bias);
  add("router_correction", correction_bias);
  add("token_experts", token_experts);
  for (int i = 0; i < experts.experts; ++i)
    AddExpert(experts, i, fmt::format("experts.{}", i), &arrays);
  if (shared) AddExpert(*shared, 0, "shared", &arrays);
  add("shared_gate", shared_gate.data);
  return arrays;
}

}  // namespace switchyard::cuda
