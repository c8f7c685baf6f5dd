#include "model/quantizer/quantize.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"
#include "core/parallel.h"
#include "core/regular_file.h"
#include "core/verify_files.h"
#include "model/quantizer/config_writer.h"
#include "model/quantizer/plan.h"
#include "model/quantizer/shard_writer.h"
#include "model/quantizer/state.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;  // version of the packing; a part of KeyOf
constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kMaxCopiedBytes = uint64_t{256} << 20;  // maximum bytes of a file that is copied
constexpr const char* kReportFile = "quantization_report.json";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Identifies the checkpoint, by its files, and the settings. Threads do not change the output.
std::string KeyOf(const QuantizeOptions& o, const std::string& config_text) {
  json files = json::array();
  for (const FileStamp& f : WeightFiles(o.from)) {
    files.push_back({f.path.filename().string(), f.size, f.mtime_ns});
  }
  json rules = json::array();
  for (const SchemeRule& rule : o.rules.rules) {
    json targets = json::array();
    for (const ModulePattern& p : rule.targets) targets.push_back({p.kind, p.text});
    rules.push_back({rule.scheme.format, rule.scheme.group_size, rule.scheme.zeros, targets});
  }
  const PackedFormat& f = o.rules.format;
  const json key = {kVersion, files,        config_text,   rules,        o.rules.ignored,
                    f.name,   f.group_size, f.zero_points, o.shard_bytes};
  return Sha256Of(key.dump());
}

// Files that other readers of checkpoints use, without weights: tokenizer, templates, pooling.
bool IsCopied(const fs::path& path) {
  static constexpr std::array kWeights = {".safetensors", ".bin",       ".pt", ".pth",     ".gguf",
                                          ".onnx",        ".onnx_data", ".h5", ".msgpack", ".part"};
  const std::string name = path.filename().string();
  if (name.starts_with('.') || name == "config.json" || name == kReportFile) return false;
  if (name.ends_with(".index.json")) return false;
  return std::ranges::none_of(kWeights, [&](const char* end) { return name.ends_with(end); });
}

// Relative paths of the files to copy. Throws Invalid on a file that is too large, before any work
// is done.
std::vector<fs::path> OtherFiles(const fs::path& from) {
  std::vector<fs::path> names;
  for (auto it = fs::recursive_directory_iterator(from); it != fs::end(it); ++it) {
    const fs::path name = it->path().lexically_relative(from);
    if (it->is_directory()) {
      if (it->path().filename().string().starts_with('.')) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file() || !IsCopied(name)) continue;
    if (it->file_size() > kMaxCopiedBytes) {
      throw Invalid(
          "{}: has {} MiB; files beside the weights may have at most {} MiB. Remove it, or move it "
          "elsewhere",
          it->path().string(), it->file_size() >> 20, kMaxCopiedBytes >> 20);
    }
    names.push_back(name);
  }
  return names;
}

void CopyFiles(const std::vector<fs::path>& names, const fs::path& from, const fs::path& to) {
  for (const fs::path& name : names) {
    std::error_code error;
    fs::create_directories((to / name).parent_path(), error);
    if (error) throw Resource("{}: cannot be created: {}", (to / name).string(), error.message());
    WriteWholeFile(to / name, ReadRegularFile(from / name, kMaxCopiedBytes));
  }
}

void WriteIndex(const QuantizePlan& plan, const fs::path& to) {
  if (plan.shards.size() == 1) return;
  ordered_json index = {{"metadata", {{"total_size", plan.output_bytes}}},
                        {"weight_map", ordered_json::object()}};
  for (const PlannedShard& shard : plan.shards) {
    for (const PlannedPart& part : shard.parts) {
      for (const PlannedTensor& t : part.out) index["weight_map"][t.name] = shard.file;
    }
  }
  WriteWholeFile(to / kIndexFile, index.dump(2) + "\n");
}

void CheckSpace(const fs::path& to, uint64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(to, error);
  if (error || space.available >= bytes) return;
  const auto gib = [](uint64_t b) { return static_cast<double>(b) * 0x1p-30; };
  throw Resource("{}: needs {:.1f} GiB, and {:.1f} GiB are free", to.string(), gib(bytes),
                 gib(space.available));
}

bool IsInside(const fs::path& inner, const fs::path& outer) {
  const fs::path relative = fs::weakly_canonical(inner).lexically_relative(fs::canonical(outer));
  return !relative.empty() && *relative.begin() != "..";
}

ModelConfig ReadConfig(const QuantizeOptions& o) {
  ModelConfig config = LoadModelConfig(o.from);
  if (!config.quantization.none()) {
    throw Invalid(
        "{}: is quantized already, by {} (config.json); name a checkpoint that is not quantized",
        o.from.string(), config.quantization.method);
  }
  if (config.quantization.only_cache) {
    throw Invalid(
        "{}: has settings of a quantized cache (config.json), which would be lost; name a "
        "checkpoint without them",
        o.from.string());
  }
  config.quantization = ConfigOf(o.rules);
  if (config.quantization.rules.empty()) {
    throw Invalid("no format is given; add --format ({}), or rules by --config", kPackedFormats);
  }
  return config;
}

uint64_t SourceBytes(const PlannedShard& shard) {
  uint64_t bytes = 0;
  for (const PlannedPart& part : shard.parts) bytes += part.source_bytes();
  return bytes;
}

}  // namespace

PackingReport QuantizeCheckpoint(const QuantizeOptions& o) {
  const ModelConfig config = ReadConfig(o);
  if (IsInside(o.to, o.from)) {
    throw Invalid("{}: is inside the checkpoint {}; name another directory", o.to.string(),
                  o.from.string());
  }
  const std::vector<fs::path> others = OtherFiles(o.from);
  const Checkpoint checkpoint(o.from);
  const QuantizePlan plan = PlanQuantization(checkpoint, config, o.shard_bytes);
  const std::string config_text = ReadRegularFile(o.from / "config.json", kMaxConfigBytes);
  QuantizeState state(o.to, KeyOf(o, config_text));

  QuantizeProgress progress{.shards = plan.shards.size(), .total = plan.source_bytes};
  PackingReport report;
  std::vector<const PlannedShard*> missing;
  uint64_t missing_bytes = 0;
  for (const PlannedShard& shard : plan.shards) {
    if (const PackingReport* errors = state.Finished(shard.file)) {
      report.Add(*errors);
      ++progress.shard;
      progress.done += SourceBytes(shard);
    } else {
      missing.push_back(&shard);
      missing_bytes += shard.bytes;
    }
  }
  progress.kept = progress.done;
  CheckSpace(o.to, missing_bytes);
  const auto show = [&] {
    if (o.progress) o.progress(progress);
  };
  show();
  ThreadPool pool(o.threads);
  for (const PlannedShard* shard : missing) {
    WrittenShard written =
        WriteShard(checkpoint, plan.config, *shard, o.to, pool, [&](uint64_t bytes) {
          progress.done += bytes;
          show();
        });
    report.Add(written.errors);
    state.Add(shard->file, std::move(written));
    ++progress.shard;
    show();
  }
  CopyFiles(others, o.from, o.to);
  WriteIndex(plan, o.to);
  WriteWholeFile(o.to / kReportFile, report.Json().dump(2) + "\n");
  WriteWholeFile(o.to / "config.json", PackedConfig(config_text, plan));
  state.Remove();
  return report;
}

}  // namespace switchyard
