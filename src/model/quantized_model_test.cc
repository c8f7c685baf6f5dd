// Compares quantized checkpoints with logits that `transformers` computes from the weights as each
// format's own package dequantizes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "core/error.h"
#include "kernels/ops.h"
#include "model/model.h"
#include "model/weights/safetensors.h"

namespace switchyard {
namespace {

constexpr int32_t kPageSize = 4;

struct Reference {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [T, V]
};

std::filesystem::path Dir(const std::string& name) {
  return std::filesystem::path(SWITCHYARD_TEST_DATA) / "quantized" / name;
}

Reference ReadReference(const std::string& name) {
  const auto path = Dir(name) / "reference.safetensors";
  std::ifstream in(path, std::ios::binary);
  const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(in), {}};
  const TensorEntries entries = ParseSafetensorsHeader(bytes, bytes.size(), path.string());
  const auto view = [&](const char* tensor) {
    const TensorEntry& e = entries.at(tensor);
    return Tensor::View(bytes.data() + e.begin, e.dtype, e.shape);
  };
  const Tensor prompt = view("prompt"), logits = view("logits");
  return {{prompt.span<int64_t>().begin(), prompt.span<int64_t>().end()},
          {logits.span<float>().begin(), logits.span<float>().end()}};
}

// Logits of the whole prompt in one pass, from rank 0.
std::vector<float> Logits(const std::filesystem::path& dir, const ModelConfig& config,
                          const MeshShape& shape, const std::vector<int32_t>& tokens,
                          const LoadOptions& load = {}) {
  const auto count = static_cast<int32_t>(tokens.size());
  const ModelOptions options{.dtype = DType::kF32, .max_tokens = count, .load = load};
  std::vector<int32_t> pages((count + kPageSize - 1) / kPageSize);
  ForwardBatch batch{.tokens = tokens};
  for (int32_t i = 0; i < static_cast<int32_t>(pages.size()); ++i) pages[i] = i;
  for (int32_t i = 0; i < count; ++i) {
    batch.positions.push_back(i);
    batch.slots.push_back(i);
    batch.logit_rows.push_back(i);
  }
  batch.sequences = {{.row_begin = 0, .rows = count, .kv_len = count, .pages = pages.data()}};
  std::vector<float> out;
  RunRankThreads(shape.tp, SymmetricBytesPerRank(config, options, shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   ThreadPool pool(1);
                   const auto comm = RankComm::Create(std::move(arena), shape, rank);
                   Model model(dir, config, options, *comm, pool);
                   KvStorage kv(config, comm->mesh, static_cast<int64_t>(pages.size()), kPageSize,
                                DType::kF32);
                   const auto logits = model.Forward(batch, kv);
                   if (rank == 0) out.assign(logits.begin(), logits.end());
                 });
  return out;
}

std::vector<float> Logits(const std::filesystem::path& dir, const QuantizationFlags& flags,
                          const MeshShape& shape, const std::vector<int32_t>& tokens) {
  return Logits(dir, LoadModelConfig(dir, {}, flags), shape, tokens);
}

double Worst(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return worst;
}

// Root mean square of the differences divided by that of `want`.
double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
    size += std::pow(static_cast<double>(want[i]), 2);
  }
  return std::sqrt(difference / size);
}

class QuantizedModel : public ::testing::TestWithParam<const char*> {};

TEST_P(QuantizedModel, LogitsAreThoseOfTheDequantizedModel) {
  const Reference reference = ReadReference(GetParam());
  // Input columns with their own scales are folded into bfloat16 weights.
  const double tolerance = std::string(GetParam()) == "modelopt_w4a8" ? 5e-2 : 2e-4;
  for (const MeshShape& shape : {MeshShape{1, 1}, {2, 2}, {2, 1}}) {
    SCOPED_TRACE("tp " + std::to_string(shape.tp) + " ep " + std::to_string(shape.ep));
    const auto logits = Logits(Dir(GetParam()), {.activations = "never"}, shape, reference.tokens);
    EXPECT_LT(Worst(logits, reference.logits), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, QuantizedModel,
                         ::testing::Values("fp8_tensor", "ct_fp8_channel", "ct_fp8_block",
                                           "ct_int8", "ct_int4", "ct_int4_zeros", "ct_nvfp4",
                                           "ct_mxfp4", "modelopt_fp8", "modelopt_nvfp4",
                                           "modelopt_w4a8", "gptq", "gptq_act_order", "awq",
                                           "w4afp8"),
                         [](const auto& name) { return std::string(name.param); });

// The default of CPUs for 4-bit weights: int8 rows with one scale per 128 columns.
TEST(QuantizedModelRows, Int8GroupsStayClose) {
  for (const char* name : {"ct_int4", "ct_int4_zeros", "gptq", "awq", "ct_mxfp4", "ct_nvfp4"}) {
    SCOPED_TRACE(name);
    const Reference reference = ReadReference(name);
    ModelConfig config = LoadModelConfig(Dir(name));
    config.quantization.int8_group_rows = true;
    const auto rounded = Logits(Dir(name), config, {1, 1}, reference.tokens);
    EXPECT_LT(RelativeError(rounded, reference.logits), 0.06);
    EXPECT_GT(RelativeError(rounded, reference.logits), 1e-4);
    // No bit of a row depends on the rows after it.
    const std::vector<int32_t> first(reference.tokens.begin(), reference.tokens.begin() + 3);
    const auto alone = Logits(Dir(name), config, {1, 1}, first);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), rounded.begin()));
    const auto two = Logits(Dir(name), config, {2, 2}, reference.tokens);
    EXPECT_LT(RelativeError(two, reference.logits), 0.06);
    // Panels do not change a bit, so ranks with different layouts agree.
    config.quantization.stored_layout = true;
    EXPECT_EQ(Logits(Dir(name), config, {1, 1}, reference.tokens), rounded);
    EXPECT_EQ(Logits(Dir(name), config, {2, 2}, reference.tokens), two);
  }
}

// Panels of a GGUF file, and of weights that are packed while loading.
TEST(QuantizedModelRows, PanelsStayClose) {
  const auto data = std::filesystem::path(SWITCHYARD_TEST_DATA);
  const struct {
    std::filesystem::path path;
    const char* method;
  } cases[] = {{data / "gguf" / "olmoe_q8_0.gguf", ""},
               {data / "gguf" / "mixtral_q4_0.gguf", ""},
               {data / "gguf" / "k_types.gguf", ""},
               {data / "fixtures" / "qwen3_moe", "int4"},
               {data / "fixtures" / "qwen3_moe", "mxfp4"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.path.filename().string() + " " + c.method);
    const std::vector<int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 29, 39};
    ModelConfig config = LoadModelConfig(c.path, {}, {.method = c.method});
    const auto exact = Logits(c.path, config, {1, 1}, tokens);
    config.quantization.int8_group_rows = true;
    const auto rounded = Logits(c.path, config, {1, 1}, tokens);
    EXPECT_LT(RelativeError(rounded, exact), 0.15);
    EXPECT_GT(RelativeError(rounded, exact), 1e-4);
    kernels::SelectIsa("reference");
    EXPECT_LT(RelativeError(rounded, Logits(c.path, config, {1, 1}, tokens)), 1e-3);
    kernels::SelectIsa("auto");
    const std::vector<int32_t> first(tokens.begin(), tokens.begin() + 3);
    const auto alone = Logits(c.path, config, {1, 1}, first);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), rounded.begin()));
    EXPECT_LT(RelativeError(Logits(c.path, config, {2, 2}, tokens), exact), 0.15);
  }
}

// Each layer is sharded at multiples of its own group size. Of the 96 intermediate elements, the
// second rank has 48 in the first layer and 64 in the second layer.
TEST(QuantizedModelSchemes, DenseLayersMayDifferInFormat) {
  const auto fixtures = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures";
  ModelConfig config = LoadModelConfig(fixtures / "llama");
  config.intermediate = 96;
  config.quantization.rules = {
      {{.packing = Packing::kPackedInt4, .format = WeightFormat::kInt4Group, .group_size = 32},
       {{ModulePattern::Kind::kName, "layers.1.mlp"}}}};
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 89, 79};
  const LoadOptions dummy{.load_format = "dummy"};
  EXPECT_LT(
      Worst(Logits("", config, {1, 1}, tokens, dummy), Logits("", config, {2, 1}, tokens, dummy)),
      2e-4);
}

// With activations rounded to 8 bits, for which these checkpoints were made.
TEST(QuantizedModelErrors, QuantizedActivationsStayClose) {
  const struct {
    const char* checkpoint;
    double error;
  } cases[] = {{"fp8_tensor", 0.13}, {"ct_fp8_channel", 0.13}, {"ct_fp8_block", 0.13},
               {"ct_int8", 0.035},   {"modelopt_fp8", 0.13},   {"modelopt_w4a8", 0.11},
               {"w4afp8", 0.13}};
  for (const auto& c : cases) {
    const Reference reference = ReadReference(c.checkpoint);
    const auto logits =
        Logits(Dir(c.checkpoint), {.activations = "always"}, {2, 2}, reference.tokens);
    const double error = RelativeError(logits, reference.logits);
    std::printf("%s: error of the logits by quantized activations %.4f\n", c.checkpoint, error);
    EXPECT_GT(error, 1e-3) << c.checkpoint;
    EXPECT_LT(error, c.error) << c.checkpoint;
  }
}

// bfloat16 weights with bfloat16 rows: multiplied by float32 instructions, AVX-512 and AMX.
TEST(QuantizedModelErrors, RowsInBFloat16StayClose) {
  const auto dir = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / "qwen3_moe";
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 89, 79};
  const std::vector<float> plain = Logits(dir, QuantizationFlags{}, {1, 1}, tokens);
  for (const char* isa : {"avx2", "avx512", "amx", "amx-emulated"}) {
    try {
      kernels::SelectIsa(isa);
    } catch (const Error&) {
      continue;
    }
    for (const MeshShape& shape : {MeshShape{1, 1}, {2, 2}}) {
      const auto logits = Logits(dir, {.activations = "always"}, shape, tokens);
      const double error = RelativeError(logits, plain);
      std::printf("%s: error of the logits by rows in bfloat16 %.4f\n", isa, error);
      EXPECT_GT(error, 1e-4) << isa;
      EXPECT_LT(error, 0.02) << isa;
    }
  }
  kernels::SelectIsa("auto");
}

// `--quantization`: the error of each format's logits relative to the root mean square of a plain
// model's, and agreement between ranks.
TEST(QuantizedModelErrors, PackedWhileLoading) {
  const struct {
    const char* method;
    double error;
  } cases[] = {{"fp8", 0.105},  {"w8a8_fp8", 0.135}, {"w8a8_int8", 0.035}, {"int4", 0.36},
               {"nvfp4", 0.37}, {"w4afp8", 0.27},    {"mxfp4", 0.25}};
  const auto dir = std::filesystem::path(SWITCHYARD_TEST_DATA) / "fixtures" / "qwen3_moe";
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 89, 79};
  const std::vector<float> plain = Logits(dir, QuantizationFlags{}, {1, 1}, tokens);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.method);
    const QuantizationFlags flags{.method = c.method, .activations = "never"};
    const std::vector<float> one = Logits(dir, flags, {1, 1}, tokens);
    const double error = RelativeError(one, plain);
    std::printf("%s: error of the logits %.4f\n", c.method, error);
    EXPECT_GT(error, 0);
    EXPECT_LT(error, c.error);
    EXPECT_LT(Worst(one, Logits(dir, flags, {2, 2}, tokens)), 2e-4);
  }
}

}  // namespace
}  // namespace switchyard
