#include "engine/checks/features.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "kernels/cache_rows.h"
#include "kernels/gpus.h"
#include "moe/backends.h"
#include "moe/gpu_options.h"
#include "quant/weight_view.h"

namespace switchyard {
namespace {

constexpr Reach kSeveralRanks{.one_gpu = false};

// A section of the table. With `of_experts`, its flags have no effect on models without experts.
struct Section {
  const char* name;
  bool of_experts = false;
};
constexpr Section kRanks{"Parallelism"};
constexpr Section kExchange{"Exchange of token rows", true};
constexpr Section kExperts{"Expert computation", true};
constexpr Section kWeights{"Weight formats"};
constexpr Section kBalance{"Expert statistics and balance", true};
constexpr Section kPrecision{"Precision and cache"};
constexpr Section kServing{"Serving"};

// Selects the field of a configuration that a flag sets.
template <typename T>
using Field = T& (*)(EngineConfig&);

template <typename T>
const T& Read(Field<T> field, const EngineConfig& config) {
  return field(const_cast<EngineConfig&>(config));  // safe: `field` only selects a member
}

// The feature for one value of an enumerated flag, such as "--moe-a2a-backend deepep".
Feature Choice(Section section, const char* flag, const std::string& value,
               Field<std::string> field, Reach reach = {}) {
  return {.section = section.name,
          .flag = flag,
          .value = value,
          .reach = reach,
          .requested =
              [=](const EngineConfig& config, const ModelConfig& model) {
                return Read(field, config) == value && (!section.of_experts || model.has_moe());
              },
          .request = [=](EngineConfig& config) { field(config) = value; }};
}

// A switch, or a flag with a number. It is requested if its value is not the default. `example`: a
// value that requests it.
template <typename T>
Feature Setting(Section section, const char* flag, Field<T> field, T example, Reach reach = {}) {
  return {.section = section.name,
          .flag = flag,
          .reach = reach,
          .requested =
              [=](const EngineConfig& config, const ModelConfig& model) {
                return Read(field, config) != Read(field, EngineConfig()) &&
                       (!section.of_experts || model.has_moe());
              },
          .request = [=](EngineConfig& config) { field(config) = example; }};
}

// Names the backends whose member `ability` is true: "with `deepep` or `mooncake`".
template <typename Backend>
std::string With(const Registry<Backend>& exchanges, bool Backend::*ability) {
  std::vector<std::string> names;
  for (const auto& [name, backend] : exchanges.all())
    if (backend.*ability) names.push_back(fmt::format("`{}`", name));
  return fmt::format("with {}", Joined(names, " or "));
}

void AddExchange(const MoeBackends& backends, std::vector<Feature>& all) {
  const auto choices = [&](const char* flag, Field<std::string> field,
                           std::initializer_list<const char*> values) {
    for (const char* value : values) all.push_back(Choice(kExchange, flag, value, field));
  };
  const auto backend = [&](const std::string& name, Reach reach) {
    all.push_back(Choice(
        kExchange, "--moe-a2a-backend", name,
        [](EngineConfig& c) -> std::string& { return c.moe.a2a_backend; }, reach));
  };
  const auto on_gpus = [&](const std::string& name) {
    return backends.gpus.exchanges.FindIf(name) != nullptr;
  };
  for (const auto& [name, b] : backends.dispatchers.all())
    backend(name, {.gpus = on_gpus(name), .hosts = b.hosts});
  for (const auto& [name, b] : backends.fused.all())
    backend(name, {.gpus = on_gpus(name), .hosts = b.hosts});
  for (const auto& entry : backends.gpus.exchanges.all()) {
    const std::string& name = entry.first;
    if (!backends.dispatchers.FindIf(name) && !backends.fused.FindIf(name))
      backend(name, {.cpus = false});
  }
  choices("--deepep-mode", [](EngineConfig& c) -> std::string& { return c.moe.deepep_mode; },
          {"normal", "low_latency", "auto"});
  choices("--deepep-dispatcher-output-dtype",
          [](EngineConfig& c) -> std::string& { return c.moe.dispatcher_output_dtype; },
          {"auto", "bf16", "fp8"});
  choices("--moe-combine-rows", [](EngineConfig& c) -> std::string& { return c.moe.combine_rows; },
          {"slot", "rank"});
  all.back().on_cpus = With(backends.dispatchers, &DispatcherBackend::combines_by_rank);
  all.back().on_gpus = With(backends.gpus.exchanges, &cuda::GpuExchangeBackend::combines_by_rank);
  all.back().request = [](EngineConfig& c) {
    c.moe.a2a_backend = "deepep";
    c.moe.combine_rows = "rank";
  };
  all.push_back(Setting<bool>(
      kExchange, "--enable-deepep-waterfill",
      [](EngineConfig& c) -> bool& { return c.moe.waterfill; }, true));
  all.back().on_cpus = all.back().on_gpus = "not with `none`";
  all.back().request = [](EngineConfig& c) {
    c.moe.a2a_backend = "deepep";
    c.moe.waterfill = true;
  };
  all.push_back(Setting<bool>(
      kExchange, "--enable-single-batch-overlap",
      [](EngineConfig& c) -> bool& { return c.moe.single_batch_overlap; }, true));
  // The registry of CPUs gives the names for GPUs too, because CombinesInParts reads it for both.
  const std::string in_parts = With(backends.dispatchers, &DispatcherBackend::combines_in_parts);
  all.back().on_cpus = fmt::format("accepted; overlaps {}", in_parts);
  all.back().on_gpus = fmt::format("accepted; overlaps on several GPUs of one host {}", in_parts);
  all.back().request = [](EngineConfig& c) {
    c.moe.a2a_backend = "deepep";
    c.moe.single_batch_overlap = true;
  };
}

void AddExperts(const MoeBackends& backends, std::vector<Feature>& all) {
  const auto runner = [&](const std::string& name, Reach reach) {
    all.push_back(Choice(
        kExperts, "--moe-runner-backend", name,
        [](EngineConfig& c) -> std::string& { return c.moe.runner_backend; }, reach));
  };
  for (const auto& entry : backends.runners.all())
    runner(entry.first, {.gpus = backends.gpus.runners.FindIf(entry.first) != nullptr});
  for (const auto& entry : backends.gpus.runners.all())
    if (!backends.runners.FindIf(entry.first)) runner(entry.first, {.cpus = false});
  const auto limit = [&](const char* what, int most) {
    all.push_back(
        {.section = kExperts.name, .flag = what, .on_gpus = fmt::format("up to {}", most)});
  };
  limit("experts of a layer", cuda::kMaxRouterExperts);
  limit("experts of a layer and those without computation", cuda::kMaxRouterLogits);
  limit("experts of a layer and rank", cuda::kMaxLocalExperts);
  limit("experts of a token", cuda::kMaxTopK);
}

// Names the runners that support the format: "experts with `grouped_mlp`". Empty if all do.
std::string RunnersOf(WeightFormat format, const MoeBackends& backends) {
  std::vector<std::string> names;
  for (const auto& [name, backend] : backends.runners.all())
    if (backend.make()->Supports(format)) names.push_back(fmt::format("`{}`", name));
  if (names.size() == backends.runners.all().size()) return "";
  return fmt::format("experts with {}", Joined(names, " or "));
}

std::string OnGpu(WeightFormat format) {
  const WeightFormat form = kernels::GpuFormat(format, DType::kBF16, /*whole_blocks=*/true);
  if (form == format) return "";
  return fmt::format("as {}{}", Name(form),
                     kernels::ExpertsStayPackedOnGpu(format) ? "; experts packed on Hopper" : "");
}

void AddWeights(const MoeBackends& backends, std::vector<Feature>& all) {
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16, WeightFormat::kFp8Block,
        WeightFormat::kFp8Channel, WeightFormat::kInt8Channel, WeightFormat::kInt4Group,
        WeightFormat::kMxfp4, WeightFormat::kNvfp4})
    all.push_back({.section = kWeights.name,
                   .flag = "checkpoints in",
                   .value = std::string(Name(format)),
                   .on_cpus = RunnersOf(format, backends),
                   .on_gpus = OnGpu(format)});
  for (const char* name : {"fp8", "w8a8_fp8", "w8a8_int8", "int4", "w4afp8", "mxfp4", "nvfp4"})
    all.push_back(Choice(kWeights, "--quantization", name,
                         [](EngineConfig& c) -> std::string& { return c.quantization.method; }));
  all.push_back(Setting<std::string>(
      kWeights, "--quantization-config",
      [](EngineConfig& c) -> std::string& { return c.quantization.rules; },
      R"({"rules": [{"targets": ["lm_head"], "method": "w8a8_int8"}]})", {.gpus = false}));
  for (const char* name : {"panels", "stored"}) {
    all.push_back(Choice(kWeights, "--cpu-weight-layout", name,
                         [](EngineConfig& c) -> std::string& { return c.quantization.layout; },
                         {.gpus = false}));
    all.back().request = nullptr;  // needs a checkpoint with 4-bit weights (CheckWeightLayout)
  }
}

void AddBalance(std::vector<Feature>& all) {
  for (const char* name : {"stat", "stat_approx", "per_pass", "per_token"})
    all.push_back(Choice(kBalance, "--expert-distribution-recorder-mode", name,
                         [](EngineConfig& c) -> std::string& { return c.recorder.mode; }));
  all.push_back(Setting<bool>(
      kBalance, "--enable-expert-distribution-metrics",
      [](EngineConfig& c) -> bool& { return c.recorder.metrics; }, true));
  all.push_back(Setting<int>(
      kBalance, "--ep-num-redundant-experts",
      [](EngineConfig& c) -> int& { return c.moe.num_redundant_experts; }, 2));
  for (const std::string_view name : {"static", "dynamic", "balanced", "lp", "fake"})
    all.push_back(Choice(kBalance, "--ep-dispatch-algorithm", std::string(name),
                         [](EngineConfig& c) -> std::string& { return c.eplb.dispatch; }));
  all.push_back(Setting<bool>(
      kBalance, "--enable-eplb", [](EngineConfig& c) -> bool& { return c.eplb.enable; }, true,
      kSeveralRanks));
  all.back().on_cpus = all.back().on_gpus = "`--ep-size` 2 or more";
}

void AddPrecision(std::vector<Feature>& all) {
  for (const char* name : {"auto", "float32", "bfloat16", "float16"})
    all.push_back(Choice(kPrecision, "--dtype", name,
                         [](EngineConfig& c) -> std::string& { return c.dtype; }));
  all.back().on_gpus = "as bfloat16";
  const auto cache = [&](std::string_view name, Reach reach) {
    all.push_back(Choice(
        kPrecision, "--kv-cache-dtype", std::string(name),
        [](EngineConfig& c) -> std::string& { return c.kv_cache_dtype; }, reach));
  };
  cache("auto", {});
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8}) {
    if (!kernels::IsCacheType(dtype)) continue;
    const std::string_view name =
        dtype == DType::kF8E4M3 ? "fp8_e4m3" : Name(dtype);  // the name in flags
    cache(name, {.gpus = dtype != DType::kI8});  // GPUs have no kernels for scales in rows
    all.back().requested = [dtype](const EngineConfig& config, const ModelConfig&) {
      return ParseDType(config.kv_cache_dtype) == dtype;  // accepts any spelling
    };
  }
}

void AddParallelism(std::vector<Feature>& all) {
  const auto add = [&](const char* flag, Field<int> field, int example) {
    all.push_back(Setting<int>(kRanks, flag, field, example, kSeveralRanks));
    all.back().number = [=](const EngineConfig& config) {
      return fmt::format("{}", Read(field, config));
    };
  };
  add(
      "--tp-size", [](EngineConfig& c) -> int& { return c.mesh.tp; }, 2);
  add(
      "--ep-size", [](EngineConfig& c) -> int& { return c.mesh.ep; }, 2);
  all.back().on_gpus = fmt::format("up to {}, more with `none`", cuda::kMaxExchangeRanks);
  add(
      "--dp-size", [](EngineConfig& c) -> int& { return c.mesh.dp; }, 2);
  add(
      "--moe-dense-tp-size", [](EngineConfig& c) -> int& { return c.mesh.dense_tp; }, 1);
  add(
      "--pp-size", [](EngineConfig& c) -> int& { return c.mesh.pp; }, 2);
  all.back().reach = {.one_gpu = false, .gpu_hosts = false};
  // On GPUs, CheckHostExperts (checks.cc) checks the layout.
  constexpr Reach kUnequal{.hosts = false};
  constexpr const char* kWithCpus = "one GPU with experts on CPUs: `--device cuda,cpu`";
  add(
      "--expert-ranks", [](EngineConfig& c) -> int& { return c.mesh.expert_ranks; }, 1);
  all.back().reach = kUnequal;
  all.back().on_gpus = kWithCpus;
  all.back().request = [](EngineConfig& c) {
    c.mesh = {.tp = 2, .ep = 2, .dp = 2, .dense_tp = 1, .expert_ranks = 1};
  };
  all.push_back(Setting<std::vector<int32_t>>(
      kRanks, "--expert-slots",
      [](EngineConfig& c) -> std::vector<int32_t>& { return c.mesh.expert_slots; }, {}, kUnequal));
  all.back().on_gpus = kWithCpus;
  all.back().number = [](const EngineConfig& config) {
    return Joined(config.mesh.expert_slots, ",");
  };
  all.back().request = [](EngineConfig& c) {
    const int experts = ReadModelConfig(c).moe->router.num_experts;
    c.mesh = {.tp = 2, .ep = 2, .expert_slots = {1, experts - 1}};
  };
}

// Features of serving. `reach` is set for those that do not work on all kinds of ranks.
void AddServing(std::vector<Feature>& all) {
  for (const char* name : {"NGRAM", "NEXTN", "MTP", "STANDALONE", "EAGLE", "EAGLE3"}) {
    all.push_back(Choice(kServing, "--speculative-algorithm", name,
                         [](EngineConfig& c) -> std::string& { return c.speculative.algorithm; }));
    Feature& feature = all.back();
    feature.requested = [name](const EngineConfig& c, const ModelConfig&) {
      return std::ranges::equal(c.speculative.algorithm, std::string_view(name), {},
                                [](unsigned char ch) { return std::toupper(ch); });
    };
    const std::string_view source = name;
    const bool standalone = source == "STANDALONE";
    if (!standalone && source != "NGRAM") {
      feature.request = nullptr;  // needs a checkpoint with an MTP layer or an EAGLE head
      continue;
    }
    feature.request = [=](EngineConfig& c) {
      c.speculative.algorithm = name;
      if (standalone) c.speculative.draft_model_path = c.model_path;
    };
  }
  all.push_back(Setting<std::string>(
      kServing, "--speculative-draft-model-quantization",
      [](EngineConfig& c) -> std::string& { return c.speculative.draft_quantization; }, "int4",
      {.gpus = false}));
  all.back().request = nullptr;  // needs a draft model
  all.push_back(Setting<std::string>(
      kServing, "--speculative-token-map",
      [](EngineConfig& c) -> std::string& { return c.speculative.token_map; }, "tokens.json"));
  all.back().request = nullptr;  // needs a draft model and a file
  all.push_back(Setting<int32_t>(
      kServing, "--speculative-eagle-topk",
      [](EngineConfig& c) -> int32_t& { return c.speculative.eagle_topk; }, 2));
  all.back().request = [](EngineConfig& c) {
    c.speculative = {.algorithm = "STANDALONE",
                     .num_steps = "2",
                     .eagle_topk = 2,
                     .num_draft_tokens = 4,
                     .draft_model_path = c.model_path};
  };
  for (const char* mode : {"prefill", "decode"})
    all.push_back(Choice(kServing, "--disaggregation-mode", mode,
                         [](EngineConfig& c) -> std::string& { return c.disaggregation_mode; },
                         {.hosts = false}));
  all.push_back(Setting<bool>(
      kServing, "--is-embedding", [](EngineConfig& c) -> bool& { return c.pooling.is_embedding; },
      true));
  for (const char* kind : {"grouped-query", "latent (MLA)", "sliding window", "`clip_qkv`"})
    all.push_back({.section = kServing.name, .flag = "attention:", .value = kind});
  for (const char* what : {"prefix cache", "chunked prefill", "log-probabilities", "penalties",
                           "structured output", "`return_routed_experts`"})
    all.push_back({.section = kServing.name, .flag = "requests:", .value = what});
  all.push_back({.section = kServing.name,
                 .flag = "requests:",
                 .value = "jump-forward in structured output",
                 .on_gpus = "off, with equal outputs"});
}

// Ranks on GPUs map the memory of all GPUs of their host, also if a launcher has started them.
bool IsApart(RankPlaces places) {
  return places.several_hosts || (!places.gpus && !places.shared_memory);
}

bool Works(const Reach& reach, RankPlaces places) {
  const bool on_gpu_hosts = places.gpus && places.several_hosts;
  return (places.gpus ? reach.gpus : reach.cpus) && (reach.hosts || !IsApart(places)) &&
         (reach.gpu_hosts || !on_gpu_hosts);
}

// Where a feature works that does not work at `places`, and how to get there.
struct Advice {
  const char* where;
  const char* want;
};
Advice AdviceFor(const Reach& reach, RankPlaces places) {
  if (places.gpus && !reach.gpus) return {"CPUs", "--device cpu"};
  if (!places.gpus && !reach.cpus) return {"GPUs", "--device cuda"};
  if (places.gpus && !reach.gpu_hosts)
    return {"GPUs of one host and on CPUs", "one host, or --device cpu"};
  if (places.several_hosts) return {"one host", "one host"};
  return {"ranks that share memory",
          "one `serve` that starts all ranks itself (no mpirun or srun)"};
}

[[noreturn]] void Refuse(const Feature& feature, const EngineConfig& config,
                         const std::vector<Feature>& all, RankPlaces places) {
  std::vector<std::string> others;
  for (const Feature& other : all)
    if (other.flag == feature.flag && !other.value.empty() && Works(other.reach, places))
      others.push_back(other.value);
  const Advice advice = AdviceFor(feature.reach, places);
  std::string want = advice.want;
  if (!others.empty())
    want = fmt::format("{}, or {} {}", want, feature.flag, Joined(others, " | "));
  const std::string value = feature.number ? feature.number(config) : feature.value;
  throw Invalid("{}{}{}: supported on {} only; want {}", feature.flag, value.empty() ? "" : " ",
                value, advice.where, want);
}

}  // namespace

std::vector<Feature> EngineFeatures(const MoeBackends* backends) {
  const MoeBackends builtin = backends ? MoeBackends{} : BuiltinMoeBackends();
  const MoeBackends& registry = backends ? *backends : builtin;
  std::vector<Feature> all;
  AddParallelism(all);
  AddExchange(registry, all);
  AddExperts(registry, all);
  AddWeights(registry, all);
  AddBalance(all);
  AddPrecision(all);
  AddServing(all);
  return all;
}

void CheckFeatures(const EngineConfig& config, const ModelConfig& model, RankPlaces places) {
  const std::vector<Feature> all = EngineFeatures(config.backends.get());
  for (const Feature& feature : all)
    if (!Works(feature.reach, places) && feature.requested && feature.requested(config, model))
      Refuse(feature, config, all, places);
}

// The kernels of indexers and of compressed entries read no codes.
void CheckGpuCache(const EngineConfig& config, const ModelConfig& model) {
  if (ParseDType(config.kv_cache_dtype) != DType::kF8E4M3) return;
  const bool entries = model.attention.kind == AttentionConfig::Kind::kCompressed;
  if (entries || model.attention.index_topk > 0)
    throw Invalid(
        "--kv-cache-dtype {}: not supported on GPUs for {}, which has {}; want auto, float32, "
        "bfloat16 or float16",
        config.kv_cache_dtype, model.architecture,
        entries ? "compressed entries" : "an indexer of sparse attention");
}

}  // namespace switchyard
