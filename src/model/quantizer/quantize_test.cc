#include "model/quantizer/quantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/testing.h"
#include "model/quantizer/plan.h"
#include "model/weights/assembled.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::Assemble;
using testing::ChangedCheckpoint;
using testing::ExpectSame;
using testing::FixtureDir;
using ::testing::HasSubstr;
using testing::QuantizedDir;
using testing::RawTensor;
using testing::ReadBytes;
using testing::Roles;
using testing::TempDir;
using testing::WriteBytes;

QuantizeOptions OptionsFor(const fs::path& from, const fs::path& to, const PackedFormat& format) {
  return {.from = from, .to = to, .rules = {.format = format}, .threads = 2};
}

// The weights of `from`, packed while they are loaded.
Roles PackedOnLoad(const fs::path& from, const QuantizeRules& rules) {
  ModelConfig config = LoadModelConfig(from);
  config.quantization = ConfigOf(rules);
  return Assemble(from, config, {1, 1});
}

std::map<std::string, std::string> FilesOf(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(dir)) {
    files[entry.path().filename()] = ReadBytes(entry.path());
  }
  return files;
}

TEST(QuantizeCheckpoint, LoadsAsTheCheckpointThatIsPackedOnLoad) {
  const PackedFormat formats[] = {{"int4"}, {"int4", 16},    {"int4", 32, true}, {"int8"},
                                  {"fp8"},  {"fp8-channel"}, {"mxfp4"},          {"nvfp4"}};
  for (const char* name : {"qwen3_moe", "qwen2_moe", "mixtral", "deepseek_v3", "glm4_moe",
                           "../families/deepseek_v4"}) {
    for (const PackedFormat& format : formats) {
      SCOPED_TRACE(fmt::format("{} {} {}", name, format.name, format.group_size));
      if (name == std::string("deepseek_v3") && format.group_size == 32) continue;  // 48 columns
      if (name == std::string("glm4_moe") && format.name != "int4") continue;
      // Few of its sizes are multiples of a group.
      if (name == std::string("../families/deepseek_v4") && format.name != "fp8") continue;
      TempDir out;
      const auto options = OptionsFor(FixtureDir(name), out.path() / "new", format);
      QuantizeCheckpoint(options);
      const ModelConfig config = LoadModelConfig(options.to);
      EXPECT_EQ(config.quantization.method, "compressed-tensors");
      ExpectSame(Assemble(options.to, config, {1, 1}), PackedOnLoad(options.from, options.rules));
      ExpectSame(Assemble(options.to, config, {2, 2}), PackedOnLoad(options.from, options.rules));
      EXPECT_GT(CheckCheckpoint(options.to, config), 0u);
    }
  }
}

// Tests a model with MLA, whose latent projections stay plain, and a model without MLA.
TEST(QuantizeCheckpoint, Int4WithZeroPointsIsThatOfTheFlag) {
  for (const char* name : {"deepseek_v2", "olmoe"}) {
    TempDir out;
    const auto options = OptionsFor(FixtureDir(name), out.path() / "new", {"int4", 32, true});
    QuantizeCheckpoint(options);
    const ModelConfig flag = LoadModelConfig(options.from, {}, {.method = "int4"});
    ExpectSame(Assemble(options.to, LoadModelConfig(options.to), {1, 1}),
               Assemble(options.from, flag, {1, 1}));
  }
}

// Packed checkpoints load with the same activation formats as plain ones with `--quantization`.
TEST(QuantizeCheckpoint, RoundsActivationsAsTheFlagDoes) {
  const struct {
    const char *format, *method;
  } kPairs[] = {{"int8", "w8a8_int8"}, {"fp8", "fp8"}, {"fp8-channel", "w8a8_fp8"}};
  for (const auto& [format, method] : kPairs) {
    TempDir out;
    const fs::path from = FixtureDir("qwen3_moe"), to = out.path() / "new";
    QuantizeCheckpoint(OptionsFor(from, to, {format}));
    for (const char* activations : {"auto", "always"}) {
      const auto of = [&](const fs::path& dir, const char* flag) {
        const ModelConfig config =
            LoadModelConfig(dir, {}, {.method = flag, .activations = activations});
        return LoadWeights(dir, config, Mesh(), {}).layers[1].moe.experts[0].up.activation;
      };
      EXPECT_EQ(of(to, ""), of(from, method)) << format << " " << activations;
    }
  }
}

// Compressed attention, with published names and with those that transformers saves.
TEST(QuantizeCheckpoint, PacksCompressedAttention) {
  for (const char* name : {"../families/deepseek_v4", "../families/deepseek_v4_plain"}) {
    TempDir out;
    const auto options = OptionsFor(FixtureDir(name), out.path() / "new", {"int8"});
    QuantizeCheckpoint(options);
    const ModelConfig config = LoadModelConfig(options.to);
    const ModelConfig flag = LoadModelConfig(options.from, {}, {.method = "w8a8_int8"});
    ExpectSame(Assemble(options.to, config, {2, 2}), Assemble(options.from, flag, {1, 1}));
    EXPECT_GT(CheckCheckpoint(options.to, config), 0u);
    const Checkpoint packed(options.to);
    for (const auto& [linear, dtype] : {std::pair{"wq_b", DType::kI8},
                                        {"wo_a", DType::kBF16},
                                        {"compressor.wkv", DType::kBF16},
                                        {"indexer.wq_b", DType::kBF16},
                                        {"indexer.compressor.wgate", DType::kBF16}}) {
      const StoredTensor* tensor = packed.Find(fmt::format("layers.1.attn.{}.weight", linear));
      ASSERT_TRUE(tensor) << linear;
      EXPECT_EQ(tensor->dtype, dtype) << linear;
    }
    // The other key of the settings.
    json settings = json::parse(ReadBytes(options.to / "config.json"));
    settings["compression_config"] = std::exchange(settings["quantization_config"], nullptr);
    EXPECT_EQ(ParseModelConfig(settings.dump()).quantization, config.quantization);
  }
}

// All experts of a layer in two tensors, as transformers 5 writes them.
TEST(QuantizeCheckpoint, UnstacksExperts) {
  ChangedCheckpoint c("mixtral");
  const fs::path from = c.Write();
  const Roles want = PackedOnLoad(from, {.format = {"int4"}});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    RawTensor gate_up{"F32", {8, 192, 64}, ""}, down{"F32", {8, 64, 96}, ""};
    for (int e = 0; e < 8; ++e) {
      const std::string expert = layer + "block_sparse_moe.experts." + std::to_string(e) + ".";
      gate_up.bytes +=
          c.tensors[expert + "w1.weight"].bytes + c.tensors[expert + "w3.weight"].bytes;
      down.bytes += c.tensors[expert + "w2.weight"].bytes;
      for (const char* w : {"w1", "w2", "w3"}) c.tensors.erase(expert + w + ".weight");
    }
    c.tensors[layer + "block_sparse_moe.experts.gate_up_proj"] = gate_up;
    c.tensors[layer + "block_sparse_moe.experts.down_proj"] = down;
  }
  c.Write();
  TempDir out;
  const auto options = OptionsFor(from, out.path() / "new", {"int4"});
  QuantizeCheckpoint(options);
  ExpectSame(Assemble(options.to, LoadModelConfig(options.to), {1, 1}), want);
}

// Llama 4 stores the stacks transposed, and its decoder may be part of a multimodal checkpoint.
TEST(QuantizeCheckpoint, UnstacksTransposedExperts) {
  for (const char* name : {"llama4_text", "llama4_dense_layers"}) {
    SCOPED_TRACE(name);
    TempDir out;
    const fs::path from = fs::path(SWITCHYARD_TEST_DATA) / "families" / name;
    const auto options = OptionsFor(from, out.path() / "new", {"fp8-channel"});
    QuantizeCheckpoint(options);
    ExpectSame(Assemble(options.to, LoadModelConfig(options.to), {2, 2}),
               PackedOnLoad(options.from, options.rules));
  }
}

TEST(QuantizeCheckpoint, KeepsRoutersNormsEmbeddingAndHead) {
  TempDir out;
  const auto options = OptionsFor(FixtureDir("deepseek_v3"), out.path() / "new", {"int4", 16});
  QuantizeCheckpoint(options);
  const Checkpoint before(options.from), after(options.to);
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.layers.1.mlp.gate.weight", "model.layers.1.input_layernorm.weight",
        "model.layers.0.self_attn.kv_b_proj.weight", "model.layers.3.eh_proj.weight"}) {
    const StoredTensor *a = before.Find(name), *b = after.Find(name);
    ASSERT_TRUE(a && b) << name;
    EXPECT_EQ(a->dtype, b->dtype);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(a->data), a->num_bytes),
              std::string_view(reinterpret_cast<const char*>(b->data), b->num_bytes));
  }
  // The MTP layer is packed like the others.
  EXPECT_NE(after.Find("model.layers.3.self_attn.o_proj.weight_packed"), nullptr);
  EXPECT_NE(after.Find("model.layers.1.mlp.experts.0.up_proj.weight_packed"), nullptr);
  const json config = json::parse(ReadBytes(options.to / "config.json"));
  EXPECT_THAT(config["quantization_config"]["ignore"],
              ::testing::Contains("model.layers.1.mlp.gate"));
}

TEST(QuantizeCheckpoint, CopiesOtherFilesAndWritesThemComplete) {
  TempDir out;
  const auto options = OptionsFor(FixtureDir("qwen3_moe"), out.path() / "a" / "new", {"int8"});
  QuantizeCheckpoint(options);
  const auto before = FilesOf(options.from), after = FilesOf(options.to);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "chat_template.jinja"}) {
    EXPECT_EQ(after.at(name), before.at(name));
  }
  // Three files become one, since the limit is 5 GB.
  EXPECT_TRUE(after.contains("model.safetensors"));
  EXPECT_FALSE(after.contains("model.safetensors.index.json"));
  for (const auto& [name, bytes] : after) {
    EXPECT_FALSE(name.ends_with(".part") || name == "quantize_state.json") << name;
  }
}

// Readers in Python map tensors of the file: they must begin at multiples of their elements' size.
TEST(QuantizeCheckpoint, TensorsAreAligned) {
  TempDir out;
  for (const PackedFormat& format :
       {PackedFormat{"int4", 32, true}, PackedFormat{"nvfp4"}, PackedFormat{"fp8"}}) {
    const auto options = OptionsFor(FixtureDir("qwen2_moe"), out.path() / format.name, format);
    QuantizeCheckpoint(options);
    const std::string bytes = ReadBytes(options.to / "model.safetensors");
    const std::span head(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    for (const auto& [name, t] : ParseSafetensorsHeader(head, bytes.size(), "out")) {
      EXPECT_EQ(t.begin % SizeOf(t.dtype), 0u) << name;
    }
  }
}

class ResumeTest : public ::testing::Test {
 protected:
  ResumeTest() : options_(OptionsFor(FixtureDir("qwen3_moe"), out_.path() / "new", {"int4"})) {
    options_.shard_bytes = 20'000;
    QuantizeOptions whole = options_;
    whole.to = out_.path() / "whole";
    QuantizeCheckpoint(whole);
    want_ = FilesOf(whole.to);
  }

  struct Killed {};
  // Ends like a process that is killed after `shards` files.
  void RunAndKillAfter(size_t shards) {
    options_.progress = [&](const QuantizeProgress& p) {
      if (p.shard == shards) throw Killed();
    };
    EXPECT_THROW(QuantizeCheckpoint(options_), Killed);
  }
  // Continues the run. Returns the number of files that were kept.
  size_t Continue() {
    size_t kept = SIZE_MAX;
    options_.progress = [&](const QuantizeProgress& p) {
      if (kept == SIZE_MAX) kept = p.shard;
    };
    QuantizeCheckpoint(options_);
    EXPECT_EQ(FilesOf(options_.to), want_);
    return kept;
  }

  TempDir out_;
  QuantizeOptions options_;
  std::map<std::string, std::string> want_;
};

TEST_F(ResumeTest, KeepsFinishedFiles) {
  RunAndKillAfter(3);
  EXPECT_FALSE(fs::exists(options_.to / "config.json"));
  EXPECT_EQ(Continue(), 3u);
  EXPECT_GT(want_.size(), 8u);
}

TEST_F(ResumeTest, WritesChangedAndMissingFilesAgain) {
  RunAndKillAfter(4);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(options_.to)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  ASSERT_EQ(files.size(), 4u);
  std::string bytes = ReadBytes(files[0]);
  bytes.back() ^= 1;
  WriteBytes(files[0], bytes);
  fs::resize_file(files[1], fs::file_size(files[1]) - 1);
  fs::remove(files[2]);
  EXPECT_EQ(Continue(), 1u);
}

// Files that the state does not list are written again: a truncated file under its final name, and
// a partial file.
TEST_F(ResumeTest, ReusesOnlyFilesOfTheState) {
  RunAndKillAfter(1);
  for (const auto& [name, bytes] : want_) {
    if (name.ends_with(".safetensors") && !fs::exists(options_.to / name)) {
      WriteBytes(options_.to / name, bytes.substr(0, bytes.size() / 2));
      WriteBytes(options_.to / (name + ".part"), "half");
    }
  }
  EXPECT_EQ(Continue(), 1u);
}

TEST_F(ResumeTest, RefusesOtherSettingsAndOtherDirectories) {
  RunAndKillAfter(2);
  options_.progress = {};
  QuantizeOptions other = options_;
  other.rules.format.group_size = 16;
  EXPECT_THAT(ErrorOf([&] { QuantizeCheckpoint(other); }), HasSubstr("other settings"));
  other = options_;
  other.from = FixtureDir("qwen2_moe");
  EXPECT_THAT(ErrorOf([&] { QuantizeCheckpoint(other); }), HasSubstr("another checkpoint"));
  other = options_;
  other.to = out_.path() / "whole";
  EXPECT_THAT(ErrorOf([&] { QuantizeCheckpoint(other); }), HasSubstr("is not empty"));
  other.threads = 1;
  other.to = options_.to;
  QuantizeCheckpoint(other);
  EXPECT_EQ(FilesOf(options_.to), want_) << "depends on the number of threads";
}

TEST(QuantizeRules, SelectFormatsByModule) {
  TempDir out;
  WriteBytes(out.path() / "rules.json",
             R"({"rules": [{"targets": ["re:.*layers\\.2\\.mlp.*"], "method": "none"},
                           {"targets": ["self_attn"], "method": "w8a8_int8"},
                           {"targets": ["re:.*experts\\.[01]\\."], "method": "int4",
                            "group_size": 16, "zero_points": true}]})");
  auto options = OptionsFor(FixtureDir("qwen3_moe"), out.path() / "new", {"int4"});
  ReadQuantizeRules(out.path() / "rules.json", &options.rules);
  QuantizeCheckpoint(options);
  const ModelConfig config = LoadModelConfig(options.to);
  const ModelWeights w = LoadWeights(options.to, config, Mesh(), {});
  EXPECT_EQ(w.layers[0].grouped.q.w.format, WeightFormat::kInt8Channel);
  EXPECT_EQ(w.layers[0].grouped.q.w.activation, ActivationFormat::kInt8Token);
  EXPECT_EQ(w.layers[1].moe.experts[1].up.group_size, 16);
  EXPECT_EQ(w.layers[1].moe.experts[2].up.group_size, 32);
  EXPECT_EQ(w.layers[2].moe.experts[1].up.format, WeightFormat::kBF16);
  EXPECT_EQ(w.layers[2].grouped.o.w.format, WeightFormat::kInt8Channel);
  ExpectSame(Assemble(options.to, config, {1, 1}), PackedOnLoad(options.from, options.rules));
  const json written = json::parse(ReadBytes(options.to / "config.json"));
  EXPECT_EQ(written["quantization_config"]["format"], "mixed-precision");
}

TEST(QuantizeRules, ErrorsNameTheKey) {
  TempDir dir;
  const auto message = [&](const std::string& text) {
    WriteBytes(dir.path() / "rules.json", text);
    return ErrorOf([&] {
      auto options = OptionsFor(FixtureDir("qwen3_moe"), dir.path() / "new", {"int4"});
      ReadQuantizeRules(dir.path() / "rules.json", &options.rules);
      QuantizeCheckpoint(options);
    });
  };
  const auto rule = [&](const std::string& fields) {
    return message(R"({"rules": [{)" + fields + "}]}");
  };
  EXPECT_THAT(message("[]"), HasSubstr("rules.json"));
  EXPECT_THAT(message("{}"), HasSubstr("rules is empty"));
  EXPECT_THAT(message(R"({"formats": "int4"})"), HasSubstr("formats: unknown"));
  EXPECT_THAT(rule(R"("method": "int8")"), HasSubstr("rules[0].targets"));
  EXPECT_THAT(rule(R"("targets": ["a"], "method": "int5")"), HasSubstr("\"int5\" is unknown"));
  EXPECT_THAT(rule(R"("targets": ["a"], "method": "int8", "group_size": 32)"),
              HasSubstr("rules[0].group_size"));
  EXPECT_THAT(rule(R"("targets": ["a"], "method": "int4", "group_size": 12)"),
              HasSubstr("multiple of 8"));
  EXPECT_THAT(rule(R"("targets": ["re:("], "method": "int8")"),
              HasSubstr("not a regular expression"));
  // The head and unknown modules are not packed.
  EXPECT_THAT(rule(R"("targets": ["lm_head"], "method": "int8")"), HasSubstr("\"lm_head\""));
  EXPECT_THAT(rule(R"("targets": ["mlp.gate"], "method": "int8")"), HasSubstr("\"mlp.gate\""));
  EXPECT_FALSE(fs::exists(dir.path() / "new"));
}

TEST(QuantizeRules, IgnoredLinearsStayPlain) {
  TempDir out;
  auto options = OptionsFor(FixtureDir("qwen3_moe"), out.path() / "new", {"int4"});
  options.rules.ignored = {"self_attn.o_proj", "re:.*experts\\.3\\."};
  QuantizeCheckpoint(options);
  const ModelWeights w = LoadWeights(options.to, LoadModelConfig(options.to), Mesh(), {});
  EXPECT_EQ(w.layers[0].grouped.o.w.format, WeightFormat::kBF16);
  EXPECT_EQ(w.layers[0].grouped.q.w.format, WeightFormat::kInt4Group);
  EXPECT_EQ(w.layers[1].moe.experts[3].up.format, WeightFormat::kBF16);
  EXPECT_EQ(w.layers[1].moe.experts[4].up.format, WeightFormat::kInt4Group);
  options.to = out.path() / "other";
  options.rules.ignored = {"self_attention"};
  EXPECT_THAT(ErrorOf([&] { QuantizeCheckpoint(options); }), HasSubstr("--ignore self_attention"));
}

TEST(QuantizeCheckpoint, RefusesWhatItCannotWrite) {
  TempDir out;
  const auto message = [&](const fs::path& from, const PackedFormat& format) {
    return ErrorOf([&] { QuantizeCheckpoint(OptionsFor(from, out.path() / "new", format)); });
  };
  EXPECT_THAT(message(QuantizedDir("awq"), {"int4"}), HasSubstr("quantized already, by awq"));
  EXPECT_THAT(message(FixtureDir("gpt_oss"), {"int4"}), HasSubstr("quantized already, by mxfp4"));
  json cached = json::parse(ReadBytes(FixtureDir("qwen3") / "config.json"));
  cached["quantization_config"] = {{"quant_method", "modelopt"}, {"kv_cache_quant_algo", "FP8"}};
  WriteBytes(out.path() / "config.json", cached.dump());
  EXPECT_THAT(message(out.path(), {"int4"}), HasSubstr("settings of a quantized cache"));
  const std::string group = message(FixtureDir("qwen3_moe"), {"int4", 64});
  EXPECT_THAT(group, HasSubstr("down_proj [64, 32]"));
  EXPECT_THAT(group, HasSubstr("--group-size"));
  EXPECT_THAT(message(FixtureDir("qwen3"), {"mxfp4"}), HasSubstr("none of its linears"));
  EXPECT_THAT(message(FixtureDir("qwen3_moe"), {""}), HasSubstr("--format"));
  EXPECT_FALSE(fs::exists(out.path() / "new"));
  auto inside = OptionsFor(FixtureDir("qwen3_moe"), FixtureDir("qwen3_moe") / "out", {"int4"});
  EXPECT_THAT(ErrorOf([&] { QuantizeCheckpoint(inside); }), HasSubstr("inside the checkpoint"));
  EXPECT_FALSE(fs::exists(inside.to));
  const fs::path large = out.path() / "large";
  fs::copy(FixtureDir("qwen3_moe"), large);
  WriteBytes(large / "notes.txt", "");
  fs::resize_file(large / "notes.txt", (uint64_t{256} << 20) + 1);  // sparse
  EXPECT_THAT(message(large, {"int4"}), HasSubstr("notes.txt: has 256 MiB"));
  EXPECT_FALSE(fs::exists(out.path() / "new"));
  WriteBytes(out.path() / "file", "");
  auto file = OptionsFor(FixtureDir("qwen3_moe"), out.path() / "file" / "out", {"int4"});
  EXPECT_THAT(ErrorOf([&] { QuantizeCheckpoint(file); }, ErrorKind::kResource),
              HasSubstr("file/out"));
}

TEST(QuantizeCheckpoint, ReportsTheErrorOfEachKindAndLayer) {
  TempDir out;
  const auto options = OptionsFor(FixtureDir("qwen3_moe"), out.path() / "new", {"int4"});
  const PackingReport report = QuantizeCheckpoint(options);
  const json written = json::parse(ReadBytes(options.to / "quantization_report.json"));
  EXPECT_EQ(written, json::parse(report.Json().dump()));
  const ModelConfig plain = LoadModelConfig(options.from), packed = LoadModelConfig(options.to);
  const Roles want = Assemble(options.from, plain, {1, 1}),
              got = Assemble(options.to, packed, {1, 1});
  double error = 0, squares = 0;
  for (int e = 0; e < 16; ++e) {
    const std::string role = fmt::format("1.experts.{}.up", e);
    for (size_t i = 0; i < want.at(role).size(); ++i) {
      error += std::pow(double{want.at(role)[i]} - got.at(role)[i], 2);
      squares += std::pow(want.at(role)[i], 2);
    }
  }
  EXPECT_EQ(written["layers"].size(), 3u);
  EXPECT_NEAR(written["layers"][1]["kinds"]["mlp.experts.up_proj"].get<double>(),
              std::sqrt(error / squares), 1e-9);
  EXPECT_EQ(written["kinds"]["self_attn.q_proj"]["weights"], 3 * 128 * 64);
  EXPECT_THAT(report.Table(), HasSubstr("mlp.experts.down_proj"));
  EXPECT_LT(written["relative_rms"].get<double>(), 0.1);
}

}  // namespace
}  // namespace switchyard
