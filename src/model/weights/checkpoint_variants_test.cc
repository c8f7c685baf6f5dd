// Different storage layouts of one model that load as the same weights.
#include <cstring>
#include <utility>

#include "model/weights/assembled.h"
#include "model/weights/stored_names.h"

namespace switchyard {
namespace {

using testing::Assemble;
using testing::ChangedCheckpoint;
using testing::ExpectSame;
using testing::RawTensor;
using testing::Roles;

TEST(CheckpointVariants, ScalesInBfloat16AndMisalignedTensors) {
  ChangedCheckpoint c("deepseek_v3_fp8");
  const Roles want = Assemble(c.Write(), c.config, {2, 2});
  // A first tensor of one byte misaligns all others.
  c.tensors["a"] = {"U8", {1}, "x"};
  ExpectSame(Assemble(c.Write(), c.config, {2, 2}), want);

  RawTensor& scale = c.tensors["model.layers.0.mlp.up_proj.weight_scale_inv"];  // [2, 2]
  const std::string half = std::string("\x80\x3f\x00\x40\x80\x3f\x00\x40", 8);  // 1 2 1 2
  scale = {"BF16", {2, 2}, half};
  const Roles bf16 = Assemble(c.Write(), c.config, {1, 1});
  const float two[] = {1, 2, 1, 2};
  scale = {"F32", {2, 2}, std::string(reinterpret_cast<const char*>(two), 16)};
  EXPECT_TRUE(Assemble(c.Write(), c.config, {1, 1}).at("0.dense.up") == bf16.at("0.dense.up"));
}

// transformers 5's own layout: all experts of a layer in two tensors.
TEST(CheckpointVariants, FusedExperts) {
  ChangedCheckpoint c("mixtral");
  const Roles want = Assemble(c.Write(), c.config, {1, 1});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    RawTensor gate_up{"F32", {8, 192, 64}, ""}, down{"F32", {8, 64, 96}, ""};
    for (int e = 0; e < 8; ++e) {
      const std::string expert = layer + "block_sparse_moe.experts." + std::to_string(e) + ".";
      gate_up.bytes +=
          c.tensors[expert + "w1.weight"].bytes + c.tensors[expert + "w3.weight"].bytes;
      down.bytes += c.tensors[expert + "w2.weight"].bytes;
      for (const char* w : {"w1", "w2", "w3"}) c.tensors.erase(expert + w + ".weight");
    }
    c.tensors[layer + "mlp.experts.gate_up_proj"] = gate_up;
    c.tensors[layer + "mlp.experts.down_proj"] = down;
    c.tensors[layer + "mlp.gate.weight"] = c.tensors[layer + "block_sparse_moe.gate.weight"];
    c.tensors.erase(layer + "block_sparse_moe.gate.weight");
  }
  EXPECT_EQ(c.CheckMessage(), "no error");
  ExpectSame(Assemble(c.Write(), c.config, {1, 1}), want);
  ExpectSame(Assemble(c.Write(), c.config, {4, 2}), want);
}

// gpt-oss in bfloat16: [E, H, 2 I] with interleaved columns, [E, I, H].
TEST(CheckpointVariants, TransposedExperts) {
  ChangedCheckpoint c("gpt_oss");
  const Roles want = Assemble(c.Write(), c.config, {1, 1});
  c.config.quantization = {};
  for (int l = 0; l < 4; ++l) {
    const std::string prefix = "model.layers." + std::to_string(l) + ".mlp.experts.";
    RawTensor gate_up{"BF16", {8, 64, 128}, ""}, down{"BF16", {8, 64, 64}, ""};
    const auto put = [](std::string* bytes, float x) {
      const BF16 b = ToBF16(x);  // exact for MXFP4 values
      bytes->append(reinterpret_cast<const char*>(&b), 2);
    };
    for (int e = 0; e < 8; ++e) {
      const std::string role = std::to_string(l) + ".experts." + std::to_string(e) + ".";
      for (int h = 0; h < 64; ++h) {
        for (int i = 0; i < 64; ++i) {
          put(&gate_up.bytes, want.at(role + "gate")[i * 64 + h]);
          put(&gate_up.bytes, want.at(role + "up")[i * 64 + h]);
        }
      }
      for (int i = 0; i < 64; ++i) {
        for (int h = 0; h < 64; ++h) put(&down.bytes, want.at(role + "down")[h * 64 + i]);
      }
    }
    for (const char* name : {"gate_up_proj", "down_proj"}) {
      c.tensors.erase(prefix + name + "_blocks");
      c.tensors.erase(prefix + name + "_scales");
    }
    c.tensors[prefix + "gate_up_proj"] = gate_up;
    c.tensors[prefix + "down_proj"] = down;
  }
  EXPECT_EQ(c.CheckMessage(), "no error");
  ExpectSame(Assemble(c.Write(), c.config, {1, 1}), want);
  ExpectSame(Assemble(c.Write(), c.config, {4, 2}), want);
}

// The fixture deepseek_v4 has the published names.
TEST(CheckpointVariants, NamesOfDeepseekV4AsTransformersSavesThem) {
  ChangedCheckpoint c("deepseek_v4", "families");
  const Roles want = Assemble(c.Write(), c.config, {1, 1});
  const auto published = std::exchange(c.tensors, {});
  for (const auto& [name, tensor] : published) {  // saved without the head: one name differs
    std::string saved = name;
    if (const size_t at = saved.find("attn.kv_norm."); at != std::string::npos)
      saved.replace(at, 13, "attn.norm.");
    c.tensors[saved] = tensor;
  }
  EXPECT_EQ(c.CheckMessage(), "no error");
  ExpectSame(Assemble(c.Write(), c.config, {1, 1}), want);
  const auto decoder = std::exchange(c.tensors, {});
  for (const auto& [name, tensor] : decoder) {
    std::string saved = "model." + name;
    if (name == "embed.weight") saved = "model.embed_tokens.weight";
    if (name == "head.weight") saved = name;
    if (name.starts_with("hc_head_")) saved = "model.hc_head.hc_" + name.substr(8);
    c.tensors[saved] = tensor;
  }
  EXPECT_EQ(c.CheckMessage(), "no error");
  ExpectSame(Assemble(c.Write(), c.config, {2, 2}), want);
  const Checkpoint stored(c.Write());
  EXPECT_NE(stored.Find("layers.0.attn.kv_norm.weight"), nullptr);
  EXPECT_EQ(stored.Find("layers.0.attn.kv_norm.weight"),
            stored.FindStored("model.layers.0.attn.norm.weight"));
  c.tensors["layers.0.attn.wq_a.weight"] = c.tensors["model.layers.0.attn.wq_a.weight"];
  EXPECT_THAT(c.CheckMessage(),
              ::testing::HasSubstr("\"layers.0.attn.wq_a.weight\" is stored twice, also as "
                                   "\"model.layers.0.attn.wq_a.weight\""));
}

// Checkpoints of other families keep names that look like those of DeepSeek-V4.
TEST(CheckpointVariants, NamesOfFamilies) {
  const auto of = [](StoredNames names, const char* stored) { return NameOfFamily(names, stored); };
  EXPECT_EQ(of(StoredNames::kOfFamily, "model.layers.0.attn.norm.weight"),
            "model.layers.0.attn.norm.weight");
  EXPECT_EQ(of(StoredNames::kWithoutModel, "layers.0.attn.norm.weight"),
            "model.layers.0.attn.norm.weight");
  EXPECT_EQ(of(StoredNames::kWithoutModel, "lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(of(StoredNames::kDeepseekV4, "model.layers.12.attn.compressor.norm.weight"),
            "layers.12.attn.compressor.norm.weight");
  EXPECT_EQ(of(StoredNames::kDeepseekV4, "model.layers.12.attn.norm.weight"),
            "layers.12.attn.kv_norm.weight");
  EXPECT_EQ(of(StoredNames::kDeepseekV4, "model.norm.weight"), "norm.weight");
  EXPECT_EQ(of(StoredNames::kDeepseekV4, "embed.weight"), "embed.weight");
  EXPECT_EQ(of(StoredNames::kDeepseekV4, "model.embed.weight"), "embed.weight");
}

}  // namespace
}  // namespace switchyard
