#include "plan/layout.h"

#include <charconv>
#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace switchyard::plan {
namespace {

constexpr const char* kBackends[] = {"none", "deepep", "mooncake", "flashinfer", "fused"};
constexpr const char* kModes[] = {"normal", "low_latency"};
constexpr int kMostRanks = 1 << 16;  // of an engine

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find('-', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// The number after `prefix`, if `part` has that form.
bool TakeNumber(std::string_view part, std::string_view prefix, int* to) {
  if (!part.starts_with(prefix)) return false;
  part.remove_prefix(prefix.size());
  int value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size()) return false;
  *to = value;
  return true;
}

std::vector<int> Divisors(int n) {
  std::vector<int> all;
  for (int d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

// A world may fill a part of a node or whole nodes.
bool FitsNodes(int ranks, const Cluster& cluster) {
  if (ranks <= cluster.per_node) return cluster.per_node % ranks == 0;
  return ranks % cluster.per_node == 0 && cluster.nodes % (ranks / cluster.per_node) == 0;
}

// With pipeline stages, the engine refuses two-batch overlap, and also --enable-eplb and
// --ep-dispatch-algorithm, without which redundant experts do not balance ranks. Smaller chunks
// than the default keep more stages busy during a prompt.
void AddStagedExchanges(Layout layout, std::vector<Layout>& all) {
  constexpr int32_t kSmallChunk = 512;
  for (const char* a2a : {"none", "deepep"}) {
    if (layout.mesh.ep == 1 && std::string_view(a2a) != "none") continue;
    layout.a2a = a2a;
    for (const int32_t chunk : {0, kSmallChunk}) {
      layout.chunk = chunk;
      all.push_back(layout);
    }
  }
}

void AddExchanges(Layout layout, const Cluster& cluster, std::vector<Layout>& all) {
  if (layout.mesh.pp > 1) return AddStagedExchanges(layout, all);
  layout.a2a = "none";
  all.push_back(layout);
  if (layout.mesh.ep == 1) return;
  layout.a2a = "deepep";
  all.push_back(layout);
  layout.tbo = true;
  all.push_back(layout);
  layout.tbo = false;
  if (!cluster.cuda || layout.mesh.ep < 4) return;
  layout.redundant = layout.mesh.ep;  // one more slot on each rank
  all.push_back(layout);
}

}  // namespace

std::string Layout::Name() const {
  std::string name = fmt::format("tp{}", mesh.tp);
  if (mesh.pp > 1) name += fmt::format("-pp{}", mesh.pp);
  if (mesh.ep > 1) name += fmt::format("-ep{}", mesh.ep);
  if (mesh.dp > 1) name += fmt::format("-dp{}", mesh.dp);
  if (mesh.dense_tp == 1 && mesh.tp > 1) name += "-dense1";
  if (a2a != "none") name += "-" + a2a;
  if (mode != "auto") name += "-" + mode;
  if (runner != "auto") name += "-run_" + runner;
  if (redundant > 0) name += fmt::format("-red{}", redundant);
  if (tbo) name += "-tbo";
  if (sbo) name += "-sbo";
  if (chunk != 0) name += fmt::format("-chunk{}", chunk);
  return name;
}

bool operator==(const Layout& a, const Layout& b) { return a.Name() == b.Name(); }

Layout ParseLayout(const std::string& name) {
  Layout layout;
  for (const std::string& part : Split(name)) {
    int dense = 0;
    bool known =
        TakeNumber(part, "tp", &layout.mesh.tp) || TakeNumber(part, "pp", &layout.mesh.pp) ||
        TakeNumber(part, "ep", &layout.mesh.ep) || TakeNumber(part, "dp", &layout.mesh.dp) ||
        TakeNumber(part, "red", &layout.redundant) || TakeNumber(part, "chunk", &layout.chunk);
    if (!known && TakeNumber(part, "dense", &dense)) {
      layout.mesh.dense_tp = dense;
      known = true;
    }
    for (const char* backend : kBackends)
      if (!known && part == backend) {
        layout.a2a = part;
        known = true;
      }
    for (const char* mode : kModes)
      if (!known && part == mode) {
        layout.mode = part;
        known = true;
      }
    if (!known && part.starts_with("run_")) {
      layout.runner = part.substr(4);
      known = true;
    }
    if (!known && part == "tbo") layout.tbo = known = true;
    if (!known && part == "sbo") layout.sbo = known = true;
    if (!known)
      throw Invalid(
          "layout {}: part \"{}\" is unknown; want parts like "
          "tp8-pp2-ep8-dp8-dense1-deepep-low_latency-red8-tbo-sbo-chunk8192",
          name, part);
  }
  const MeshShape& mesh = layout.mesh;
  for (const int size : {mesh.tp, mesh.ep, mesh.dp, mesh.pp})
    if (size < 1 || size > kMostRanks)
      throw Invalid("layout {}: want sizes of 1 to {}", name, kMostRanks);
  if (int64_t{mesh.pp} * mesh.tp > kMostRanks)
    throw Invalid("layout {}: has {} ranks; want at most {}", name, int64_t{mesh.pp} * mesh.tp,
                  kMostRanks);
  if (mesh.dense_tp > kMostRanks || layout.redundant > kMostRanks)
    throw Invalid("layout {}: want at most {} in dense and red", name, kMostRanks);
  return layout;
}

EngineConfig ConfigOf(const Layout& layout, const EngineConfig& base) {
  EngineConfig config = base;
  config.mesh = layout.mesh;
  config.moe.a2a_backend = layout.a2a;
  config.moe.deepep_mode = layout.mode;
  config.moe.runner_backend = layout.runner;
  config.moe.num_redundant_experts = layout.redundant;
  config.two_batch_overlap = layout.tbo;
  config.moe.single_batch_overlap = layout.sbo;
  if (layout.chunk != 0) config.chunked_prefill_size = layout.chunk;
  return config;
}

Layout LayoutOf(const EngineConfig& config) {
  return {.mesh = config.mesh,
          .a2a = config.moe.a2a_backend,
          .mode = config.moe.deepep_mode,
          .runner = config.moe.runner_backend,
          .redundant = config.moe.num_redundant_experts,
          .tbo = config.two_batch_overlap,
          .sbo = config.moe.single_batch_overlap,
          .chunk = config.chunked_prefill_size};
}

std::string FlagsOf(const Layout& layout) {
  std::string flags;
  if (layout.mesh.tp > 1) flags += fmt::format(" --tp-size {}", layout.mesh.tp);
  if (layout.mesh.pp > 1) flags += fmt::format(" --pp-size {}", layout.mesh.pp);
  if (layout.mesh.ep > 1) flags += fmt::format(" --ep-size {}", layout.mesh.ep);
  if (layout.mesh.dp > 1)
    flags += fmt::format(" --dp-size {} --enable-dp-attention", layout.mesh.dp);
  if (layout.mesh.dense_tp == 1 && layout.mesh.tp > 1) flags += " --moe-dense-tp-size 1";
  if (layout.a2a != "none") flags += " --moe-a2a-backend " + layout.a2a;
  if (layout.mode != "auto") flags += " --deepep-mode " + layout.mode;
  if (layout.runner != "auto") flags += " --moe-runner-backend " + layout.runner;
  if (layout.redundant > 0) {
    flags += fmt::format(" --ep-num-redundant-experts {}", layout.redundant);
    if (layout.mesh.pp == 1) flags += " --ep-dispatch-algorithm balanced";  // see CheckStages
  }
  if (layout.tbo) flags += " --enable-two-batch-overlap";
  if (layout.sbo) flags += " --enable-single-batch-overlap";
  if (layout.chunk != 0) flags += fmt::format(" --chunked-prefill-size {}", layout.chunk);
  return flags;
}

namespace {

// `ends`: ep and dp are 1 or tp, but no other divisor of tp.
void AddSizes(int tp, int pp, bool ends, const Cluster& cluster, const ModelConfig& model,
              std::vector<Layout>& all) {
  std::vector<int> sizes = Divisors(tp);
  if (ends) std::erase_if(sizes, [&](int size) { return size != 1 && size != tp; });
  for (const int ep : model.has_moe() ? sizes : std::vector<int>{1}) {
    for (const int dp : sizes) {
      Layout layout;
      layout.mesh = {.tp = tp, .ep = ep, .dp = dp, .pp = pp};
      AddExchanges(layout, cluster, all);
      // Complete dense layers on each rank are faster if each rank has its own tokens.
      if (dp == tp && tp > 1) {
        layout.mesh.dense_tp = 1;
        AddExchanges(layout, cluster, all);
      }
    }
  }
}

}  // namespace

std::vector<Layout> EnumerateLayouts(const Cluster& cluster, const ModelConfig& model, int stages) {
  std::vector<Layout> all;
  for (const int world : Divisors(cluster.devices())) {
    if (!FitsNodes(world, cluster)) continue;
    for (const int pp : Divisors(world)) {
      if (stages > 0 ? pp != stages : pp > (cluster.cuda ? 1 : model.num_layers())) continue;
      AddSizes(world / pp, pp, /*ends=*/pp > 1 && stages == 0, cluster, model, all);
    }
  }
  return all;
}

}  // namespace switchyard::plan
