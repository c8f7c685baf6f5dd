// Checkpoints as written by the packages that publish their formats (tests/data/quantized).
#include <cmath>
#include <cstring>
#include <string_view>

#include "model/weights/assembled.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

using testing::Assemble;
using testing::ChangedCheckpoint;
using testing::ExpectSame;
using ::testing::HasSubstr;
using testing::QuantizedDir;
using testing::RawTensor;
using testing::Roles;
using testing::Values;

using W = WeightFormat;
using A = ActivationFormat;

const struct Case {
  const char* name;
  WeightFormat experts, attention;
  // Activation format of the experts with --quantize-activations always.
  ActivationFormat activation;
} kCases[] = {
    {"fp8_tensor", W::kFp8Channel, W::kFp8Channel, A::kFp8Tensor},
    {"ct_fp8_channel", W::kFp8Channel, W::kFp8Channel, A::kFp8Token},
    {"ct_fp8_block", W::kFp8Block, W::kFp8Block, A::kFp8Group},
    {"ct_int8", W::kInt8Channel, W::kInt8Channel, A::kInt8Token},
    {"ct_int4", W::kInt4Group, W::kInt4Group, A::kNone},
    {"ct_int4_zeros", W::kInt4Group, W::kInt4Group, A::kNone},
    {"ct_nvfp4", W::kNvfp4, W::kNvfp4, A::kNone},
    {"ct_mxfp4", W::kMxfp4, W::kMxfp4, A::kNone},
    {"modelopt_fp8", W::kFp8Channel, W::kFp8Channel, A::kFp8Tensor},
    {"modelopt_nvfp4", W::kNvfp4, W::kNvfp4, A::kNone},
    {"modelopt_w4a8", W::kInt4Group, W::kInt4Group, A::kFp8Tensor},
    {"gptq", W::kInt4Group, W::kInt4Group, A::kNone},
    {"gptq_act_order", W::kF32, W::kF32, A::kNone},
    {"awq", W::kInt4Group, W::kInt4Group, A::kNone},
    {"w4afp8", W::kInt4Group, W::kFp8Block, A::kFp8Tensor},
};

Values Reference(const std::string& name, const std::string& tensor) {
  const auto path = QuantizedDir(name) / "reference.safetensors";
  const std::string bytes = testing::ReadBytes(path);
  const std::span head(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  const TensorEntry entry = ParseSafetensorsHeader(head, bytes.size(), path.string()).at(tensor);
  Values out((entry.end - entry.begin) / sizeof(float));
  std::memcpy(out.data(), bytes.data() + entry.begin, out.size() * sizeof(float));
  return out;
}

void ExpectNear(const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * std::fabs(want[i]) + 1e-9) << "element " << i;
  }
}

TEST(QuantizedCheckpoints, HoldTheWeightsThatTheirPackageReads) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto dir = QuantizedDir(c.name);
    const Roles roles = Assemble(dir, LoadModelConfig(dir), {1, 1});
    // The only difference is the order of products of scales. If inputs have column scales, the
    // weights are held in bfloat16.
    ExpectNear(roles.at("1.experts.3.down"),
               Reference(c.name, "weight.model.layers.1.mlp.experts.3.down_proj"), 1e-6);
    ExpectNear(roles.at("0.o"), Reference(c.name, "weight.model.layers.0.self_attn.o_proj"),
               std::string(c.name) == "modelopt_w4a8" ? 0x1p-8 : 1e-6);
  }
}

TEST(QuantizedCheckpoints, KeepTheirFormats) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const auto dir = QuantizedDir(c.name);
    const ModelConfig config = LoadModelConfig(dir, {}, {.activations = "always"});
    const ModelWeights w = LoadWeights(dir, config, Mesh(), {});
    const kernels::ExpertWeights& expert = w.layers[1].moe.experts[2];
    EXPECT_EQ(expert.up.format, c.experts);
    EXPECT_EQ(expert.up.activation, c.activation);
    EXPECT_EQ(expert.down.activation, c.activation);
    EXPECT_EQ(w.layers[1].grouped.q.w.format, c.attention);
    EXPECT_EQ(w.layers[1].moe.router.w.format, W::kBF16);
    EXPECT_EQ(w.head.format, W::kBF16);
    EXPECT_EQ(CheckCheckpoint(dir, config), w.bytes_mapped);
  }
}

TEST(QuantizedCheckpoints, PartsOfAllRanksMakeTheWhole) {
  for (const Case& c : kCases) {
    const auto dir = QuantizedDir(c.name);
    const ModelConfig config = LoadModelConfig(dir);
    const Roles whole = Assemble(dir, config, {1, 1});
    for (const MeshShape& shape : {MeshShape{2, 1}, {2, 2}, {4, 2}}) {
      SCOPED_TRACE(std::string(c.name) + " tp " + std::to_string(shape.tp) + " ep " +
                   std::to_string(shape.ep));
      ExpectSame(Assemble(dir, config, shape), whole);
    }
  }
}

TEST(QuantizedCheckpoints, BytesOfARankAreThoseOfThePlan) {
  for (const Case& c : kCases) {
    const std::string name = c.name;
    // config.json does not define which matrices must be held in the model's dtype.
    if (name == "modelopt_w4a8" || name == "gptq_act_order") continue;
    const auto dir = QuantizedDir(name);
    const ModelConfig config = LoadModelConfig(dir);
    for (int r = 0; r < 4; ++r) {
      SCOPED_TRACE(name + " rank " + std::to_string(r));
      const Mesh mesh({4, 2}, r);
      EXPECT_EQ(LoadWeights(dir, config, mesh, {}).bytes_mapped, WeightBytesPerRank(config, mesh));
    }
  }
}

// Inputs stay float32, unless the format or the user requires rounding.
TEST(QuantizedCheckpoints, ActivationsAreThoseOfTheFlag) {
  const auto activation = [](const char* name, const char* flag) {
    const auto dir = QuantizedDir(name);
    const ModelConfig config = LoadModelConfig(dir, {}, {.activations = flag});
    return LoadWeights(dir, config, Mesh(), {}).layers[1].moe.experts[0].gate.activation;
  };
  EXPECT_EQ(activation("ct_int8", "auto"), A::kInt8Token);
  EXPECT_EQ(activation("ct_int8", "never"), A::kNone);
  EXPECT_EQ(activation("ct_fp8_channel", "auto"), A::kNone);
  EXPECT_EQ(activation("ct_fp8_channel", "always"), A::kFp8Token);
}

TEST(PlainCheckpoints, BFloat16RowsNeedTheFlagAndBFloat16Weights) {
  const auto weights = [](const char* name, const char* flag) {
    const auto dir = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / name;
    const ModelConfig config = LoadModelConfig(dir, {}, {.activations = flag});
    return LoadWeights(dir, config, Mesh(), {});
  };
  EXPECT_EQ(weights("qwen3_moe", "auto").layers[1].moe.experts[0].down.activation, A::kNone);
  const auto always = weights("qwen3_moe", "always");
  EXPECT_EQ(always.layers[1].moe.experts[0].down.activation, A::kBFloat16);
  EXPECT_EQ(always.layers[1].moe.router.w.activation, A::kNone);
  EXPECT_EQ(weights("mixtral", "always").layers[1].moe.experts[0].down.activation, A::kNone)
      << "stored in float32";
}

TEST(QuantizedCheckpoints, GateAndUpShareTheLargerInputScale) {
  const struct {
    const char *name, *gate, *up;
  } cases[] = {{"fp8_tensor", "gate_proj", "up_proj"}, {"w4afp8", "w1", "w3"}};
  for (const auto& [name, gate, up] : cases) {
    SCOPED_TRACE(name);
    const auto dir = QuantizedDir(name);
    const testing::RawTensors stored = testing::ReadSafetensors(dir);
    const auto scale = [&](const std::string& linear) {
      const std::string tensor = "model.layers.1.mlp.experts.1." + linear + ".input_scale";
      return testing::FloatsOf(stored.at(tensor)).at(0);
    };
    EXPECT_NE(scale(gate), scale(up));
    const ModelConfig config = LoadModelConfig(dir, {}, {.activations = "always"});
    const ModelWeights w = LoadWeights(dir, config, Mesh(), {});
    const kernels::ExpertWeights& e = w.layers[1].moe.experts[1];
    EXPECT_EQ(e.gate.input_scale, std::max(scale(gate), scale(up)));
    EXPECT_EQ(e.up.input_scale, e.gate.input_scale);
    EXPECT_NE(e.gate.input_scale, e.down.input_scale);
  }
}

// Gate and up share their rounded rows, so different input formats leave them unrounded.
TEST(QuantizedCheckpoints, GateAndUpMadeForDifferentRowsReadFloats) {
  const std::string expert = "model.layers.1.mlp.experts.1.";
  const auto load = [](ChangedCheckpoint& c, const char* name) {
    c.config = LoadModelConfig(QuantizedDir(name), {}, {.activations = "always"});
    return LoadWeights(c.Write(), c.config, Mesh(), {}).layers[1].moe.experts[1];
  };
  ChangedCheckpoint static_scale("fp8_tensor", "quantized");
  static_scale.tensors.erase(expert + "up_proj.input_scale");
  ChangedCheckpoint plain("ct_int8", "quantized");
  plain.tensors.erase(expert + "gate_proj.weight_scale");
  plain.tensors[expert + "gate_proj.weight"] = {
      "BF16", {64, 64}, std::string(size_t{64} * 64 * 2, '\0')};
  const kernels::ExpertWeights one_scale = load(static_scale, "fp8_tensor");
  EXPECT_EQ(one_scale.down.activation, A::kFp8Tensor);
  const kernels::ExpertWeights one_plain = load(plain, "ct_int8");
  EXPECT_EQ(one_plain.up.format, W::kInt8Channel);
  EXPECT_EQ(one_plain.down.activation, A::kInt8Token);
  for (const auto& e : {one_scale, one_plain}) {
    EXPECT_EQ(e.gate.activation, A::kNone);
    EXPECT_EQ(e.up.activation, A::kNone);
  }
}

// Rows of 4-bit codes in the in-memory order are used in the mapped file; only scales are copied.
TEST(QuantizedCheckpoints, CodesInOrderAreNotCopied) {
  const Checkpoint checkpoint(QuantizedDir("ct_int4"));
  const ModelConfig config = LoadModelConfig(QuantizedDir("ct_int4"));
  const auto source = MakeCheckpointSource(checkpoint, config, {});
  const ModelWeights w = BuildWeights(config, Mesh({2, 2}, 1), {}, *source);
  const StoredTensor& q = *checkpoint.Find("model.layers.0.self_attn.q_proj.weight_packed");
  EXPECT_EQ(w.layers[0].grouped.q.w.data, q.data + 64 * 64 / 2);  // rows 64 … 127 of 128
}

TEST(QuantizedCheckpoints, GptqsSecondLayoutStoresZeroPointsAsTheyAre) {
  ChangedCheckpoint c("gptq", "quantized");
  const Roles want = Assemble(c.Write(), c.config, {2, 2});
  for (auto& [name, tensor] : c.tensors) {
    if (!name.ends_with(".qzeros")) continue;
    for (char& byte : tensor.bytes) byte = static_cast<char>(byte + 0x11);  // all are below 15
  }
  c.config.quantization.rules[0].scheme.zeros_less_one = false;
  ExpectSame(Assemble(c.Write(), c.config, {2, 2}), want);
}

// Ignore lists are sometimes incomplete: tensors stored plain are read as plain.
TEST(QuantizedCheckpoints, PlainTensorsAreTakenAsTheyAre) {
  ChangedCheckpoint c("ct_int8", "quantized");
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  c.tensors.erase(name + "_scale");
  c.tensors[name] = {"BF16", {128, 64}, std::string(128 * 64 * 2, '\0')};
  const ModelWeights w = LoadWeights(c.Write(), c.config, Mesh(), {});
  EXPECT_EQ(w.layers[1].grouped.q.w.format, W::kBF16);
  EXPECT_EQ(w.layers[1].grouped.q.w.activation, A::kNone);
}

class QuantizedErrors : public ::testing::Test {
 protected:
  // The error of loading `name` after `change`, which modifies the tensor of that name.
  static std::string Message(const char* name, const std::string& tensor,
                             const std::function<void(RawTensor&)>& change) {
    ChangedCheckpoint c(name, "quantized");
    EXPECT_TRUE(c.tensors.contains(tensor)) << tensor;
    change(c.tensors[tensor]);
    return c.LoadMessage();
  }
};

const std::string kExpert = "model.layers.1.mlp.experts.2.up_proj.";
const std::string kFolded = "model.layers.0.self_attn.o_proj.";  // its input columns have scales

TEST_F(QuantizedErrors, AbsentTensorsAreNamed) {
  for (const auto& [name, suffix] :
       std::vector<std::pair<std::string, std::string>>{{"ct_fp8_channel", "weight_scale"},
                                                        {"ct_nvfp4", "weight_global_scale"},
                                                        {"modelopt_nvfp4", "weight_scale_2"},
                                                        {"ct_int4_zeros", "weight_zero_point"},
                                                        {"awq", "scales"},
                                                        {"gptq", "qweight"},
                                                        {"w4afp8", "weight_scale_inv"}}) {
    ChangedCheckpoint c(name, "quantized");
    c.tensors.erase(kExpert + suffix);
    for (const std::string& message : {c.LoadMessage(), c.CheckMessage()}) {
      EXPECT_THAT(message, HasSubstr(kExpert + suffix)) << name;
      EXPECT_THAT(message, HasSubstr("1 tensor")) << name;
    }
  }
}

TEST_F(QuantizedErrors, TypesAndShapesAreHeldAgainstTheConfig) {
  const auto dtype = [](const char* to) { return [to](RawTensor& t) { t.dtype = to; }; };
  const auto shape = [](const std::vector<int64_t>& to) {
    return [to](RawTensor& t) { t.shape = to; };
  };
  EXPECT_THAT(Message("ct_int8", kExpert + "weight", dtype("U8")), HasSubstr("uint8"));
  EXPECT_THAT(Message("fp8_tensor", kExpert + "weight", dtype("I8")), HasSubstr("int8"));
  EXPECT_THAT(Message("ct_int8", kExpert + "weight_scale", shape({32, 2})), HasSubstr("[32, 2]"));
  EXPECT_THAT(Message("gptq", kExpert + "qweight", shape({64, 8})), HasSubstr("[8, 64]"));
  EXPECT_THAT(Message("awq", kExpert + "qzeros", shape({8, 2})), HasSubstr("group_size"));
  EXPECT_THAT(Message("ct_int4", kExpert + "weight_shape", [](RawTensor& t) { t.bytes[0] = 65; }),
              HasSubstr("holds [65, 64]"));
  EXPECT_THAT(Message("modelopt_w4a8", kFolded + "pre_quant_scale", dtype("I32")),
              HasSubstr("pre_quant_scale\" is int32"));
  ChangedCheckpoint nvfp4("modelopt_nvfp4", "quantized");
  nvfp4.tensors[kFolded + "pre_quant_scale"] = {"I32", {128}, std::string(128 * 4, '\0')};
  EXPECT_THAT(nvfp4.CheckMessage(), HasSubstr("pre_quant_scale\" is int32"));
}

TEST_F(QuantizedErrors, NumbersThatAreNone) {
  using namespace std::string_view_literals;
  const auto set = [](size_t at, std::string_view bytes) {
    return [=](RawTensor& t) { std::memcpy(t.bytes.data() + at, bytes.data(), bytes.size()); };
  };
  const std::string_view nan32 = "\x00\x00\xc0\x7f"sv;
  EXPECT_THAT(Message("ct_fp8_channel", kExpert + "weight", set(77, "\xff"sv)),
              HasSubstr("up_proj.weight\" has a weight that is NaN in row 1"));
  EXPECT_THAT(Message("ct_fp8_channel", kExpert + "weight_scale", set(8, nan32)),
              HasSubstr("row 2"));
  EXPECT_THAT(Message("modelopt_fp8", kExpert + "weight_scale", set(0, nan32)),
              HasSubstr("weight_scale"));
  EXPECT_THAT(Message("ct_nvfp4", kExpert + "weight_scale", set(5, "\x7f"sv)),
              HasSubstr("weight_scale"));
  EXPECT_THAT(Message("ct_nvfp4", kExpert + "weight_global_scale", set(0, "\0\0\0\0"sv)),
              HasSubstr("weight_global_scale"));
  EXPECT_THAT(Message("ct_mxfp4", kExpert + "weight_scale", set(3, "\xff"sv)),
              HasSubstr("weight_scale"));
  EXPECT_THAT(Message("gptq", kExpert + "scales", set(2, "\x00\x7e"sv)), HasSubstr("group 0"));
  EXPECT_THAT(Message("gptq_act_order", kExpert + "scales", set(2, "\x00\x7e"sv)),
              HasSubstr("group 0"));
  EXPECT_THAT(Message("modelopt_w4a8", kFolded + "weight_scale", set(4, nan32)),
              HasSubstr("group 1"));
  EXPECT_THAT(Message("modelopt_w4a8", kFolded + "pre_quant_scale", set(12, nan32)),
              HasSubstr("pre_quant_scale\" has a scale that is nan at column 3"));
  EXPECT_THAT(Message("gptq_act_order", kExpert + "g_idx", set(0, "\x02\0\0\0"sv)),
              HasSubstr("puts column 0 into group 2 of 2"));
}

}  // namespace
}  // namespace switchyard
