// Errors for damaged and contradictory checkpoints name the tensor.
#include <cmath>
#include <cstring>

#include "model/weights/assembled.h"

namespace switchyard {
namespace {

using nlohmann::json;
using testing::ChangedCheckpoint;
using ::testing::HasSubstr;
using testing::ReadBytes;
using testing::WriteBytes;

TEST(CheckpointErrors, MissingTensorsAreCountedAndFiveNamed) {
  ChangedCheckpoint c("mixtral");
  for (int e = 0; e < 8; ++e) {
    c.tensors.erase("model.layers.1.block_sparse_moe.experts." + std::to_string(e) + ".w2.weight");
  }
  for (const std::string& message : {c.LoadMessage(), c.CheckMessage()}) {
    EXPECT_THAT(message, HasSubstr("8 tensors"));
    EXPECT_THAT(message, HasSubstr("experts.0.w2.weight"));
    EXPECT_THAT(message, HasSubstr("experts.4.w2.weight"));
    EXPECT_THAT(message, ::testing::Not(HasSubstr("experts.5.w2.weight")));
  }
  ChangedCheckpoint fp8("deepseek_v3_fp8");
  fp8.tensors.erase("model.layers.0.mlp.up_proj.weight_scale_inv");
  EXPECT_THAT(fp8.CheckMessage(), HasSubstr("1 tensor that config.json implies is missing: "
                                            "model.layers.0.mlp.up_proj.weight_scale_inv"));
}

TEST(CheckpointErrors, ShapesAndTypesAreHeldAgainstTheConfig) {
  ChangedCheckpoint c("qwen3");
  c.tensors["model.layers.1.self_attn.q_proj.weight"].shape = {64, 128};
  for (const std::string& message : {c.LoadMessage(), c.CheckMessage()}) {
    EXPECT_THAT(message, HasSubstr("model.layers.1.self_attn.q_proj.weight"));
    EXPECT_THAT(message, HasSubstr("[64, 128]"));
    EXPECT_THAT(message, HasSubstr("[128, 64]"));
    EXPECT_THAT(message, HasSubstr("num_attention_heads"));
  }
  ChangedCheckpoint ints("qwen3");
  ints.tensors["model.layers.0.mlp.up_proj.weight"].dtype = "I16";
  EXPECT_THAT(ints.CheckMessage(), HasSubstr("int16"));
  ChangedCheckpoint norm("qwen3");
  norm.tensors["model.norm.weight"].dtype = "I16";
  EXPECT_THAT(norm.CheckMessage(), HasSubstr("model.norm.weight"));
  ChangedCheckpoint fp8("deepseek_v3_fp8");
  fp8.config.quantization = {};
  EXPECT_THAT(fp8.CheckMessage(), HasSubstr("quantization_config"));
}

TEST(CheckpointErrors, ScalesThatAreNoNumbers) {
  ChangedCheckpoint fp8("deepseek_v3_fp8");
  const float inf = INFINITY, nan = NAN;
  std::string& scale = fp8.tensors["model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"].bytes;
  for (float bad : {inf, nan}) {
    std::memcpy(scale.data() + 4, &bad, 4);
    EXPECT_THAT(fp8.LoadMessage(), HasSubstr("experts.3.up_proj.weight_scale_inv"));
  }
  EXPECT_EQ(fp8.LoadMessage({.check_nan_scales = false}), "no error");
  // A rank ignores bad scales outside its own shard.
  LoadWeights(fp8.Write(), fp8.config, Mesh({4, 4}, 0), {});

  ChangedCheckpoint oss("gpt_oss");
  oss.tensors["model.layers.2.mlp.experts.down_proj_scales"].bytes[77] = '\xff';
  EXPECT_THAT(oss.LoadMessage(), HasSubstr("down_proj_scales"));
}

TEST(CheckpointErrors, ExpertsOfTokenIdsAreExpertsOfTheModel) {
  const char* name = "layers.1.ffn.gate.tid2eid";
  const auto message = [&](int64_t first, int64_t second) {
    ChangedCheckpoint c("deepseek_v4", "families");
    std::string& bytes = c.tensors.at(name).bytes;  // 3 experts of 8 for each id
    std::memcpy(bytes.data() + 6 * sizeof(int64_t), &first, sizeof(first));
    std::memcpy(bytes.data() + 7 * sizeof(int64_t), &second, sizeof(second));
    const int64_t third = 1;
    std::memcpy(bytes.data() + 8 * sizeof(int64_t), &third, sizeof(third));
    return c.LoadMessage();
  };
  EXPECT_EQ(message(7, 0), "no error");
  EXPECT_THAT(message(8, 0), HasSubstr(name + std::string("\" holds 8; want 0 to 7")));
  EXPECT_THAT(message(2, -1), HasSubstr("holds -1; want 0 to 7"));
  EXPECT_THAT(message(5, 5), HasSubstr("holds 5 twice in row 2"));
  ChangedCheckpoint floats("deepseek_v4", "families");
  floats.tensors.at(name).dtype = "F32";
  floats.tensors.at(name).bytes.resize(floats.tensors.at(name).bytes.size() / 2);
  EXPECT_THAT(floats.CheckMessage(), HasSubstr("is float32; want int64 or int32"));
}

TEST(CheckpointErrors, CutFilesAreRefused) {
  ChangedCheckpoint c("qwen3");
  const auto dir = c.Write();
  const std::string whole = ReadBytes(dir / "model.safetensors");
  for (size_t size : {whole.size() - 1, whole.size() / 2, size_t{100}, size_t{8}, size_t{3}}) {
    WriteBytes(dir / "model.safetensors", whole.substr(0, size));
    EXPECT_THROW(CheckCheckpoint(dir, c.config), Error) << size;
  }
}

}  // namespace
}  // namespace switchyard
