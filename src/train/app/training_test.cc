#include "train/app/training.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "core/testing.h"
#include "model/weights/safetensors.h"
#include "text/tokenizer/base64.h"
#include "train/app/step_log.h"
#include "train/app/test_run.h"

namespace switchyard::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using TrainingTest = testing::RunTest;

std::string Bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<double> Losses(const fs::path& output) {
  std::vector<double> losses;
  for (const auto& line : ReadStepLog(output / "log.jsonl")) losses.push_back(line["loss"]);
  return losses;
}

TEST_F(TrainingTest, ARunInTwoPartsIsTheSameToTheBit) {
  TrainingOptions options = Options(10);
  const TrainingEnd whole = Train(options);
  EXPECT_EQ(whole.step, 10);
  EXPECT_FALSE(whole.stopped);
  EXPECT_THAT(said_, HasSubstr("40 documents"));
  EXPECT_THAT(said_, HasSubstr("step 10/10"));

  options.trainer.output = dir_ / "halves";
  std::atomic<int> polls{0};
  const TrainingEnd half = Train(options, [&] { return polls++ >= 4; });
  EXPECT_TRUE(half.stopped);
  EXPECT_EQ(half.step, 4);
  const TrainingEnd rest = Train(options);
  EXPECT_THAT(said_, HasSubstr("resuming from " + half.checkpoint.string() + ", after step 4"));
  EXPECT_EQ(rest.step, 10);
  EXPECT_EQ(Losses(options.trainer.output), Losses(dir_ / "out"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.json"}) {
    EXPECT_EQ(Bytes(rest.checkpoint / file), Bytes(whole.checkpoint / file)) << file;
  }
}

TEST_F(TrainingTest, ParquetTrainsAsTheSameJsonLinesDo) {
  const fs::path data = fs::path(SWITCHYARD_TEST_DATA) / "parquet";
  TrainingOptions options = Options(6);
  options.data = {data / "chats.jsonl"};
  const TrainingEnd lines = Train(options);
  options.data = {data / "chats.parquet"};
  options.trainer.output = dir_ / "halves";
  std::atomic<int> polls{0};
  EXPECT_EQ(Train(options, [&] { return polls++ >= 3; }).step, 3);
  const TrainingEnd rest = Train(options);
  EXPECT_THAT(said_, HasSubstr("after step 3"));
  EXPECT_EQ(rest.step, 6);
  EXPECT_EQ(Losses(options.trainer.output), Losses(dir_ / "out"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(Bytes(rest.checkpoint / file), Bytes(lines.checkpoint / file)) << file;
}

// Writes rollouts with random experts, as a server returns them. The model of the tests has a dense
// and an MoE layer of 8 experts, top-3.
void WriteRollouts(const fs::path& path, int shift) {
  std::ofstream out(path);
  for (int i = 0; i < 24; ++i) {
    const int output = 4 + i % 9;
    nlohmann::json line = {{"output_ids", nlohmann::json::array()},
                           {"meta_info", {{"prompt_token_ids", {i, i + 1, 7}}}}};
    std::vector<int32_t> experts;
    for (int t = 0; t < 3 + output - 1; ++t) {
      const int first = i + t * t + shift;
      experts.insert(experts.end(), {-1, -1, -1, first % 8, (first + 3) % 8, (first + 5) % 8});
    }
    for (int t = 0; t < output; ++t) line["output_ids"].push_back((i * 5 + t * 3) % 280);
    if (i % 3 != 2) {  // some rollouts have no experts
      line["meta_info"]["routed_experts"] =
          Base64Of({reinterpret_cast<const char*>(experts.data()), 4 * experts.size()});
    }
    out << line.dump() << "\n";
  }
}

TEST_F(TrainingTest, GivenExpertsSurviveRanksAndInterruptions) {
  TrainingOptions options = Options(6);
  options.data = {dir_ / "rollouts.jsonl"};
  options.trainer.rows_per_step = 8;
  WriteRollouts(options.data[0], 0);
  const TrainingEnd whole = Train(options);
  EXPECT_THAT(said_, HasSubstr("16 documents give the experts"));
  const std::vector<double> one = Losses(dir_ / "out");
  const auto log = ReadStepLog(dir_ / "out" / "log.jsonl");
  EXPECT_LT(log[0]["routing_agreement"].get<double>(), 1.0);

  options.trainer.output = dir_ / "halves";
  std::atomic<int> polls{0};
  EXPECT_EQ(Train(options, [&] { return polls++ >= 3; }).step, 3);
  WriteRollouts(options.data[0], 1);
  EXPECT_THAT(ErrorOf([&] { Train(options); }), HasSubstr("was trained on another corpus"));
  WriteRollouts(options.data[0], 0);
  const TrainingEnd rest = Train(options);
  EXPECT_EQ(Losses(options.trainer.output), one);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(Bytes(rest.checkpoint / file), Bytes(whole.checkpoint / file)) << file;

  for (const Layout& layout :
       {Layout{.ep = 2, .dp = 2}, Layout{.tp = 2, .ep = 2}, Layout{.dp = 2, .pp = 2}}) {
    options.trainer.output = dir_ / layout.ToString();
    options.layout = layout;
    options.learner.order = schedule::Order::kOverlapped;
    Train(options);
    const auto lines = ReadStepLog(options.trainer.output / "log.jsonl");
    ASSERT_EQ(lines.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(lines[i]["loss"].get<double>(), one[i], 1e-3) << layout.ToString();
    EXPECT_EQ(lines[0]["routing_agreement"], log[0]["routing_agreement"]) << layout.ToString();
    EXPECT_EQ(lines[0]["balancedness"], log[0]["balancedness"]) << layout.ToString();
  }

  options.layout = {};
  options.routing_replay = false;
  options.trainer.output = dir_ / "off";
  Train(options);
  EXPECT_NE(Losses(options.trainer.output), one);
  EXPECT_FALSE(ReadStepLog(options.trainer.output / "log.jsonl")[0].contains("routing_agreement"));
}

TEST_F(TrainingTest, RanksLearnTheSame) {
  TrainingOptions options = Options(6);
  Train(options);
  const std::vector<double> one = Losses(dir_ / "out");
  for (const Layout& layout : {Layout{.ep = 2, .dp = 2}, Layout{.ep = 2, .dp = 4},
                               Layout{.tp = 2, .ep = 2}, Layout{.dp = 2}, Layout{.pp = 2}}) {
    options.trainer.output = dir_ / layout.ToString();
    options.layout = layout;
    Train(options);
    const std::vector<double> many = Losses(options.trainer.output);
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i], one[i], 1e-3) << layout.ToString();
  }
}

TEST_F(TrainingTest, TheOrderOfWorkChangesNoBit) {
  TrainingOptions options = Options(4);
  options.trainer.rows_per_step = 8;
  options.layout = {.ep = 2, .dp = 2};
  Train(options);
  const std::vector<double> plain = Losses(dir_ / "out");
  options.learner.order = schedule::Order::kOverlapped;
  options.early_sums = true;
  options.synchronous = true;
  options.trainer.output = dir_ / "overlapped";
  Train(options);
  EXPECT_EQ(Losses(options.trainer.output), plain);
}

TEST_F(TrainingTest, EveryRankWritesATraceOfItsSteps) {
  TrainingOptions options = Options(4);
  options.trainer.rows_per_step = 8;
  options.layout = {.ep = 2, .dp = 2};
  options.learner.order = schedule::Order::kOverlapped;
  options.profile = profile::Options{
      .dir = (dir_ / "traces").string(), .name = "train", .start_step = 3, .num_steps = 1};
  Train(options);
  EXPECT_THAT(said_, HasSubstr("train-TP-0.trace.json, 0 were dropped"));
  for (const char* file : {"traces/train-TP-0.trace.json", "traces/train-TP-1.trace.json"}) {
    std::map<std::string, int> names;  // number of events
    const nlohmann::json trace = nlohmann::json::parse(Bytes(dir_ / file));
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      EXPECT_EQ(event["args"]["step"], 3);
      ++names[event["name"]];
    }
    EXPECT_EQ(names["training step"], 1);
    EXPECT_GT(names["experts"], 0);
    EXPECT_EQ(names["experts backward"], names["experts"]);
    EXPECT_EQ(names["attention backward"], names["attention"]);
  }

  options.profile->dir = (dir_ / "config.json" / "sub").string();
  options.trainer.output = dir_ / "refused";
  EXPECT_THAT(ErrorOf([&] { Train(options); }), HasSubstr("sub cannot be created"));
}

TEST_F(TrainingTest, SharedMomentsAndRecomputationChangeNoBit) {
  TrainingOptions options = Options(4);
  options.trainer.rows_per_step = 8;
  options.layout = {.tp = 2, .ep = 2, .dp = 2, .pp = 2};
  const TrainingEnd whole = Train(options);
  EXPECT_THAT(said_, Not(HasSubstr("without --zero-stage 1")));
  options.zero_stage = 1;
  options.recompute = Recompute::kLayer;
  options.early_sums = true;
  options.trainer.save_every = 2;
  options.trainer.async_save = true;
  options.trainer.keep = 0;
  options.trainer.output = dir_ / "shards";
  Train(options);
  EXPECT_THAT(said_, HasSubstr("AdamW's moments: at most"));
  EXPECT_THAT(said_, HasSubstr("without --zero-stage 1"));
  EXPECT_THAT(said_, HasSubstr("MiB without --recompute layer)"));
  EXPECT_EQ(Losses(options.trainer.output), Losses(dir_ / "out"));
  // A run may continue with or without shared moments.
  fs::remove_all(CheckpointPath(options.trainer.output, 4));
  options.zero_stage = 0;
  const TrainingEnd rest = Train(options);
  EXPECT_THAT(said_, HasSubstr("after step 2"));
  for (const auto& entry : fs::directory_iterator(whole.checkpoint)) {
    const fs::path file = entry.path().filename();
    if (file != "trainer.json") {  // has times

      EXPECT_EQ(Bytes(rest.checkpoint / file), Bytes(whole.checkpoint / file)) << file;
    }
  }
}

TEST_F(TrainingTest, CheckpointsCompleteTheConfig) {
  const TrainingEnd end = Train(Options(1));
  const auto config = nlohmann::json::parse(Bytes(end.checkpoint / "config.json"));
  EXPECT_EQ(config["model_type"], "deepseek_v3");
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  EXPECT_EQ(config["eos_token_id"], 2);
  const auto generation = nlohmann::json::parse(Bytes(end.checkpoint / "generation_config.json"));
  EXPECT_EQ(generation["eos_token_id"], 2);
  EXPECT_TRUE(fs::exists(end.checkpoint / "tokenizer.json"));
  EXPECT_THAT(Bytes(end.checkpoint / "model.safetensors"), HasSubstr("model.layers.2.eh_proj"));
}

TEST_F(TrainingTest, ATokenizerWithoutTokenizerJsonIsUsedAndCopied) {
  const fs::path bytes = dir_ / "bytes";
  fs::create_directories(bytes);
  std::ofstream ranks(bytes / "tiktoken.model");
  for (int byte = 0; byte < 256; ++byte)
    ranks << Base64Of(std::string(1, static_cast<char>(byte))) << ' ' << byte << '\n';
  ranks.close();
  std::ofstream(bytes / "tokenizer_config.json")
      << R"({"eos_token": "[EOS]", "added_tokens_decoder": {"256": {"content": "[EOS]"}}})";
  std::ofstream data(dir_ / "texts.jsonl");
  for (int i = 0; i < 40; ++i) data << R"({"text": "track )" << i << "\"}\n";
  data.close();

  TrainingOptions options = Options(1);
  options.tokenizer = bytes;
  options.data = {dir_ / "texts.jsonl"};
  // A run with another tokenizer may have left its files.
  fs::create_directories(options.trainer.output / ".files");
  std::ofstream(options.trainer.output / ".files" / "tokenizer.json") << "{}";
  const TrainingEnd end = Train(options);
  EXPECT_EQ(end.step, 1);
  EXPECT_EQ(Bytes(end.checkpoint / "tiktoken.model"), Bytes(bytes / "tiktoken.model"));
  EXPECT_FALSE(fs::exists(end.checkpoint / "tokenizer.json"));
  const auto config = nlohmann::json::parse(Bytes(end.checkpoint / "config.json"));
  EXPECT_EQ(config["eos_token_id"], 256);
}

TEST_F(TrainingTest, ARunBeginsWithOtherWeights) {
  const TrainingEnd first = Train(Options(8));
  TrainingOptions options = Options(1);
  options.trainer.output = dir_ / "second";
  Train(options);
  const double cold = Losses(options.trainer.output).front();
  options.init_from = first.checkpoint;
  options.trainer.output = dir_ / "third";
  Train(options);
  EXPECT_LT(Losses(options.trainer.output).front(), cold - 0.1);
}

TEST_F(TrainingTest, MtpModulesAreTrainedOnAFrozenModel) {
  TrainingOptions options = Options(8);
  options.mtp_layers = 0;
  options.trainer.output = dir_ / "base";
  const fs::path base = Train(options).checkpoint;
  options = Options(8);
  options.mtp_layers = 1;
  options.losses.mtp_only = true;
  options.init_from = base;
  options.learner.bias_step = 0.01;
  const TrainingEnd whole = Train(options);
  const std::vector<double> losses = Losses(dir_ / "out");
  EXPECT_LT(losses.back(), losses.front() - 0.05);

  const Checkpoint before(base), after(whole.checkpoint);
  size_t equal = 0;
  for (const auto& [name, tensor] : before.tensors()) {
    const StoredTensor* same = after.Find(name);
    ASSERT_NE(same, nullptr) << name;
    ASSERT_EQ(same->num_bytes, tensor.num_bytes) << name;
    EXPECT_EQ(std::memcmp(same->data, tensor.data, tensor.num_bytes), 0) << name;
    ++equal;
  }
  EXPECT_GT(after.tensors().size(), equal + 20);

  for (const Layout& layout : {Layout{.ep = 2, .dp = 2}, Layout{.tp = 2, .ep = 2}}) {
    options.trainer.output = dir_ / layout.ToString();
    options.layout = layout;
    options.early_sums = layout.dp == 2;
    Train(options);
    const std::vector<double> others = Losses(options.trainer.output);
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(others[i], losses[i], 1e-4) << i;
  }
  options = Options(8);
  options.losses.mtp_only = true;
  options.init_from = base;
  options.mtp_layers = 1;
  options.trainer.output = dir_ / "halves";
  std::atomic<int> polls{0};
  Train(options, [&] { return polls++ >= 4; });
  EXPECT_EQ(Bytes(Train(options).checkpoint / "model.safetensors"),
            Bytes(whole.checkpoint / "model.safetensors"));
}

// The adapters of the export, added to the base, are the weights of the checkpoint.
TEST_F(TrainingTest, AdaptersAreTrainedOnAFrozenModel) {
  TrainingOptions options = Options(4);
  options.learner.bias_step = 0;
  options.trainer.files.dtype = DType::kF32;
  options.trainer.output = dir_ / "base";
  const fs::path base = Train(options).checkpoint;
  options.init_from = base;
  options.lora = {.rank = 4, .alpha = 6};
  options.trainer.schedule.steps = 6;
  options.trainer.output = dir_ / "out";
  const TrainingEnd whole = Train(options);
  const std::vector<double> losses = Losses(dir_ / "out");
  EXPECT_LT(losses.back(), losses.front());

  const Checkpoint before(base), after(whole.checkpoint);
  EXPECT_EQ(before.tensors().size(), after.tensors().size());
  const std::map<std::string, StoredAdapter> adapters = ReadAdapters(whole.checkpoint);
  size_t adapted = 0;
  for (const auto& [name, tensor] : before.tensors()) {
    const StoredTensor* same = after.Find(name);
    ASSERT_NE(same, nullptr) << name;
    const auto layer = name.substr(0, name.rfind(".weight"));
    const auto a = adapters.find(layer + ".lora_A.weight");
    if (a == adapters.end()) {
      EXPECT_EQ(std::memcmp(same->data, tensor.data, tensor.num_bytes), 0) << name;
      continue;
    }
    ++adapted;
    const StoredAdapter& b = adapters.at(layer + ".lora_B.weight");
    const int64_t n = tensor.shape[0], k = tensor.shape[1];
    ASSERT_EQ(a->second.shape, (std::vector<int64_t>{4, k}));
    ASSERT_EQ(b.shape, (std::vector<int64_t>{n, 4}));
    for (int64_t i = 0; i < n * k; ++i) {
      float from = 0, to = 0;
      std::memcpy(&from, tensor.data + 4 * i, 4);
      std::memcpy(&to, same->data + 4 * i, 4);
      double sum = from;
      for (int64_t r = 0; r < 4; ++r)
        sum += 1.5 * b.value[i / k * 4 + r] * a->second.value[r * k + i % k];
      ASSERT_NEAR(to, sum, 1e-5) << name;
    }
  }
  EXPECT_EQ(adapted, 5u * 3 + 3 + 3 * (2u * 8 + 2));  // attention; dense; experts and shared

  ExportFinal(dir_ / "out");
  EXPECT_FALSE(fs::exists(dir_ / "out" / "final" / kLoraFile));
  EXPECT_THAT(Bytes(dir_ / "out" / "adapter" / "adapter_model.safetensors"),
              HasSubstr("base_model.model.model.layers.1.mlp.experts.7.up_proj.lora_B.weight"));
  const auto config =
      nlohmann::json::parse(Bytes(dir_ / "out" / "adapter" / "adapter_config.json"));
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 6);
  EXPECT_EQ(config["target_modules"].size(), 8u);

  for (const Layout& layout : {Layout{.ep = 2, .dp = 2}, Layout{.tp = 2, .ep = 2, .pp = 2}}) {
    options.trainer.output = dir_ / layout.ToString();
    options.layout = layout;
    options.zero_stage = 1;
    std::atomic<int> polls{0};
    Train(options, [&] { return polls++ >= 3 * layout.ranks(); });
    Train(options);
    const std::vector<double> others = Losses(options.trainer.output);
    ASSERT_EQ(others.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(others[i], losses[i], 1e-3) << i;
  }
  options.lora.alpha = 7;  // would change the weights of the checkpoint
  EXPECT_THAT(ErrorOf([&] { Train(options); }),
              AllOf(HasSubstr("--lora-alpha: the adapters of "),
                    HasSubstr("have 6.0, those of this run 7.0")));
  options.lora = {};
  EXPECT_THAT(ErrorOf([&] { Train(options); }), HasSubstr("those of this run none"));
  options.lora = {.rank = 4, .targets = {"gate"}};
  EXPECT_THAT(ErrorOf([&] { Train(options); }),
              HasSubstr("--lora-targets gate: no linear layer of DeepseekV3ForCausalLM has this"));
  options.lora.targets = {};
  options.init_from = "";
  EXPECT_THAT(ErrorOf([&] { Train(options); }), HasSubstr("--init-from"));
}

TEST_F(TrainingTest, ResumptionFollowsTheOption) {
  TrainingOptions options = Options(2);
  const TrainingEnd end = Train(options);
  options.trainer.schedule.steps = 3;
  options.resume = "never";
  EXPECT_THAT(ErrorOf([&] { Train(options); }), HasSubstr("--resume never"));
  options.resume = (dir_ / "nowhere").string();
  EXPECT_THAT(ErrorOf([&] { Train(options); }, ErrorKind::kNotFound), HasSubstr("no trainer.json"));
  options.resume = end.checkpoint.string();
  options.trainer.output = dir_ / "elsewhere";
  EXPECT_EQ(Train(options).step, 3);
  EXPECT_EQ(Losses(options.trainer.output).size(), 1u);
  // A later resume would treat a checkpoint of another run in --output as one of this run.
  EXPECT_THAT(ErrorOf([&] { Train(options); }), HasSubstr("holds another checkpoint"));
}

TEST_F(TrainingTest, CheckpointsOfAnotherConfigAreRefused) {
  Train(Options(1));
  std::string config = Bytes(dir_ / "config.json");
  const std::string key = "\"routed_scaling_factor\": 2.5";
  config.replace(config.find(key), key.size(), "\"routed_scaling_factor\": 1.5");
  std::ofstream(dir_ / "config.json") << config;
  EXPECT_THAT(ErrorOf([&] { Train(Options(2)); }),
              HasSubstr("they differ in routed_scaling_factor"));
}

TEST_F(TrainingTest, WhatCannotBeTrainedIsRefusedBeforeItBegins) {
  const auto error = [&](const std::function<void(TrainingOptions*)>& change,
                         ErrorKind kind = ErrorKind::kInvalid) {
    TrainingOptions options = Options(2);
    change(&options);
    return ErrorOf([&] { Train(options); }, kind);
  };
  EXPECT_THAT(error([&](auto* o) { o->data = {dir_ / "none.jsonl"}; }, ErrorKind::kNotFound),
              HasSubstr("none.jsonl"));
  std::ofstream(dir_ / "empty.jsonl") << "\n";
  EXPECT_THAT(error([&](auto* o) { o->data = {dir_ / "empty.jsonl"}; }),
              HasSubstr("empty.jsonl: no document found"));
  EXPECT_THAT(error([&](auto* o) { o->model = dir_ / "none"; }, ErrorKind::kNotFound),
              HasSubstr("--model"));
  EXPECT_THAT(error([&](auto* o) { o->tokenizer = dir_; }, ErrorKind::kNotFound),
              HasSubstr("--tokenizer-path"));
  EXPECT_THAT(error([](auto* o) { o->packing.length = 33; }),
              HasSubstr("max_position_embeddings 32"));
  EXPECT_THAT(error([](auto* o) { o->layout = {.ep = 2, .dp = 3}; }), HasSubstr("--ep 2"));
  EXPECT_THAT(error([](auto* o) { o->layout.ep = 16; }), HasSubstr("--ep 16"));
  EXPECT_THAT(error([](auto* o) { o->trainer.schedule.warmup_steps = 5; }),
              HasSubstr("--warmup-steps"));
  EXPECT_THAT(error([](auto* o) { o->losses.mtp_only = true; }), HasSubstr("--init-from"));
  EXPECT_THAT(error([](auto* o) { o->losses.mtp_only = true, o->mtp_layers = 0; }),
              HasSubstr("no MTP module (add one with --mtp-layers 1)"));
  EXPECT_THAT(error([](auto* o) { o->losses.mtp_only = true, o->layout.pp = 2; }),
              HasSubstr("want --pp 1, not 2"));
  EXPECT_THAT(error([](auto* o) { o->learner.order = schedule::Order::kZeroBubble; }),
              HasSubstr("--schedule zero-bubble: fills the waits of pipeline stages"));
  EXPECT_THAT(error([](auto* o) {
                o->learner.order = schedule::Order::kZeroBubble;
                o->recompute = Recompute::kMoe;
                o->layout.pp = 2;
              }),
              HasSubstr("--recompute moe: not with --schedule zero-bubble"));
  std::ofstream(dir_ / "config.json") << testing::SmallConfig("qwen3_moe");
  EXPECT_THAT(error([](auto* o) { o->losses.mtp_only = true, o->mtp_layers = 1; }),
              HasSubstr("Qwen3MoeForCausalLM has no support for MTP modules; want a model such as "
                        "DeepseekV3ForCausalLM or Glm4MoeForCausalLM"));
  EXPECT_FALSE(LatestCheckpoint(dir_ / "out").has_value());
}

}  // namespace
}  // namespace switchyard::train
