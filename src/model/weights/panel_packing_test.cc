// 4-bit checkpoints that are packed into panels while they are loaded hold the numbers that they
// hold in their stored layout, and products have the same bits.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/format.h"
#include "core/parallel.h"
#include "kernels/testing.h"
#include "model/rank_memory.h"
#include "model/weights/assembled.h"
#include "model/weights/expert_loader.h"
#include "model/weights/source.h"

namespace switchyard {
namespace {

using kernels::Random;
using testing::Assemble;
using testing::Dequantize;
using testing::ExpectSame;
using testing::FixtureDir;
using testing::QuantizedDir;
using testing::RawTensors;
using testing::Roles;
using testing::TempDir;

using W = WeightFormat;

// A matrix [n, k] of random codes in a method's layout. `scales`: F16, BF16 or F32.
struct Stored {
  LinearScheme scheme;
  std::string scales = "BF16";
  bool blocks = false;  // three matrices as gpt-oss's _blocks and _scales, with interleaved rows

  int64_t Unit() const {
    if (scheme.format == W::kMxfp4) return kMxfp4BlockSize;
    return scheme.format == W::kNvfp4 ? kNvfp4BlockSize : scheme.group_size;
  }
};

std::string RandomBytes(Random& random, int64_t count) {
  std::string bytes(static_cast<size_t>(count), '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.Below(256));
  return bytes;
}

std::string RandomScales(Random& random, const std::string& dtype, int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) {
    const float scale = 0.001f * static_cast<float>(random.Below(200) - 20);
    const uint16_t half = dtype == "F16" ? ToF16(scale).bits : ToBF16(scale).bits;
    if (dtype == "F32") {
      bytes.append(reinterpret_cast<const char*>(&scale), sizeof scale);
    } else {
      bytes.append(reinterpret_cast<const char*>(&half), sizeof half);
    }
  }
  return bytes;
}

// Bytes below 0x7f: exponents and e4m3 scales that are not NaN.
std::string RandomSmallBytes(Random& random, int64_t count) {
  std::string bytes = RandomBytes(random, count);
  for (char& byte : bytes) byte = static_cast<char>(static_cast<uint8_t>(byte) % 0x7f);
  return bytes;
}

RawTensors Tensors(Random& random, const Stored& s, int64_t n, int64_t k) {
  const int64_t groups = CeilDiv(k, s.Unit());
  RawTensors t;
  const auto codes = [&](const char* name, const std::vector<int64_t>& shape) {
    t[name] = {"I32", shape, RandomBytes(random, n * k / 2)};
  };
  const auto numbers = [&](const char* scales, const std::vector<int64_t>& shape, const char* zeros,
                           const std::vector<int64_t>& zeros_shape) {
    t[scales] = {s.scales, shape, RandomScales(random, s.scales, n * groups)};
    t[zeros] = {"I32", zeros_shape, RandomBytes(random, n * groups / 2)};
  };
  switch (s.scheme.packing) {
    case Packing::kPackedInt4:
      codes("m.weight_packed", {n, k / 8});
      numbers("m.weight_scale", {n, groups}, "m.weight_zero_point", {n / 8, groups});
      break;
    case Packing::kGptq:
      codes("m.qweight", {k / 8, n});
      numbers("m.scales", {groups, n}, "m.qzeros", {groups, n / 8});
      break;
    case Packing::kAwq:
      codes("m.qweight", {k, n / 8});
      numbers("m.scales", {groups, n}, "m.qzeros", {groups, n / 8});
      break;
    case Packing::kNvfp4: {
      const float global = 800;
      t["m.weight_packed"] = {"U8", {n, k / 2}, RandomBytes(random, n * k / 2)};
      t["m.weight_scale"] = {"F8_E4M3", {n, groups}, RandomSmallBytes(random, n * groups)};
      t["m.weight_global_scale"] = {
          "F32", {1}, std::string(reinterpret_cast<const char*>(&global), sizeof global)};
      break;
    }
    default:
      if (s.blocks) {
        t["m_blocks"] = {"U8", {3, n, groups, 16}, RandomBytes(random, 3 * n * k / 2)};
        t["m_scales"] = {"U8", {3, n, groups}, RandomSmallBytes(random, 3 * n * groups)};
        break;
      }
      t["m.weight_packed"] = {"U8", {n, k / 2}, RandomBytes(random, n * k / 2)};
      t["m.weight_scale"] = {"U8", {n, groups}, RandomSmallBytes(random, n * groups)};
  }
  return t;
}

// A random part whose columns begin at a group.
MatrixRequest PartOf(Random& random, const Stored& s, int64_t n, int64_t k) {
  const int64_t step = s.blocks ? 2 : 1, rows = n / step;
  MatrixRequest r{.name = s.blocks ? "m" : "m.weight",
                  .n = n,
                  .k = k,
                  .rows = {random.Below(rows), rows},
                  .cols = {random.Below(CeilDiv(k, s.Unit())) * s.Unit(), k},
                  .row_step = step,
                  .scheme = s.scheme,
                  .mxfp4_blocks = s.blocks};
  if (s.blocks) {
    r.experts = 3;
    r.expert = random.Below(3);
    r.row0 = random.Below(2);
  }
  r.rows.end -= random.Below(r.rows.size());
  if (s.Unit() < r.cols.size()) r.cols.end -= random.Below(r.cols.size() / 8) * 8;
  return r;
}

ModelConfig Int8Rows(bool stored_layout) {
  ModelConfig config;
  config.quantization.int8_group_rows = true;
  config.quantization.stored_layout = stored_layout;
  return config;
}

WeightView Load(const Checkpoint& checkpoint, const ModelConfig& config, const MatrixRequest& r) {
  const auto source = MakeCheckpointSource(checkpoint, config, {.threads = 2});
  WeightView view = source->Matrix(r);
  source->Finish({});
  view.activation = ActivationFormat::kInt8Group;
  return view;
}

void ExpectSameProducts(Random& random, const WeightView& a, const WeightView& b) {
  ThreadPool pool(2);
  for (const int64_t m : {1, 4, 9}) {
    const std::vector<float> x = random.Normal(m * a.k);
    std::vector<float> left(static_cast<size_t>(m * a.n)), right(left.size());
    kernels::Linear({.x = x.data(), .ldx = a.k, .w = a, .y = left.data(), .ldy = a.n, .m = m},
                    pool);
    kernels::Linear({.x = x.data(), .ldx = a.k, .w = b, .y = right.data(), .ldy = a.n, .m = m},
                    pool);
    ASSERT_TRUE(kernels::SameBits(left, right)) << m << " rows";
  }
}

LinearScheme Int4(Packing packing, int64_t group, bool zeros) {
  return {.packing = packing, .format = W::kInt4Group, .group_size = group, .zeros = zeros};
}

TEST(PanelPacking, KeepsNumbersAndProducts) {
  const struct {
    Stored stored;
    WeightFormat format;
  } cases[] = {
      {{Int4(Packing::kPackedInt4, 32, false)}, W::kInt4Panels},
      {{Int4(Packing::kPackedInt4, 128, true), "F16"}, W::kInt4HalfZeroPanels},
      {{Int4(Packing::kPackedInt4, 64, true)}, W::kInt4ZeroPanels},
      {{Int4(Packing::kPackedInt4, 64, false), "F32"}, W::kInt4Group},
      {{Int4(Packing::kPackedInt4, 48, false)}, W::kInt4Group},
      {{Int4(Packing::kGptq, 128, true), "F16"}, W::kInt4HalfZeroPanels},
      {{Int4(Packing::kAwq, 64, true), "F16"}, W::kInt4HalfZeroPanels},
      {{{.packing = Packing::kMxfp4, .format = W::kMxfp4}}, W::kMxfp4Panels},
      {{{.packing = Packing::kNvfp4, .format = W::kNvfp4}}, W::kNvfp4Panels},
      {{{.format = W::kMxfp4}, "", true}, W::kMxfp4Panels},
  };
  Random random(1);
  for (const auto& c : cases) {
    for (int round = 0; round < 4; ++round) {
      const int64_t n = 8 * (1 + random.Below(40));
      // Groups of int4 may end beyond the last column.
      const int64_t k = c.stored.scheme.format == W::kInt4Group
                            ? 8 * (1 + random.Below(60))
                            : kMxfp4BlockSize * (1 + random.Below(15));
      TempDir dir;
      testing::WriteSafetensors(dir.path() / "model.safetensors", Tensors(random, c.stored, n, k));
      const Checkpoint checkpoint(dir.path());
      const MatrixRequest part = PartOf(random, c.stored, n, k);
      SCOPED_TRACE(fmt::format("{} group {} {}: {} x {}, rows {} to {}, columns {} to {}",
                               Name(c.format), c.stored.scheme.group_size, c.stored.scales, n, k,
                               part.rows.begin, part.rows.end, part.cols.begin, part.cols.end));
      const WeightView rows = Load(checkpoint, Int8Rows(true), part);
      const WeightView panels = Load(checkpoint, Int8Rows(false), part);
      ASSERT_EQ(panels.format, c.format);
      ASSERT_FALSE(HasPanels(rows.format));
      EXPECT_EQ(Dequantize(panels), Dequantize(rows));
      ExpectSameProducts(random, panels, rows);
    }
  }
}

TEST(PanelPacking, AbsorbedMatricesStayInRows) {
  Random random(2);
  const Stored stored{Int4(Packing::kPackedInt4, 32, false)};
  TempDir dir;
  RawTensors tensors;
  for (auto& [name, tensor] : Tensors(random, stored, 16, 64))
    tensors["l.self_attn.kv_b_proj" + name.substr(1)] = tensor;
  testing::WriteSafetensors(dir.path() / "model.safetensors", tensors);
  const MatrixRequest all{.name = "l.self_attn.kv_b_proj.weight",
                          .n = 16,
                          .k = 64,
                          .rows = {0, 16},
                          .cols = {0, 64},
                          .scheme = stored.scheme};
  EXPECT_EQ(Load(Checkpoint(dir.path()), Int8Rows(false), all).format, W::kInt4Group);
}

// Checkpoints of the formats' own packages, on several ranks.
TEST(PanelPacking, CheckpointsHoldTheSameWeights) {
  const struct {
    std::filesystem::path dir;
    WeightFormat experts;
  } cases[] = {{QuantizedDir("ct_int4"), W::kInt4Panels},
               {QuantizedDir("ct_int4_zeros"), W::kInt4ZeroPanels},
               {QuantizedDir("gptq"), W::kInt4HalfZeroPanels},
               {QuantizedDir("awq"), W::kInt4HalfZeroPanels},
               {QuantizedDir("ct_mxfp4"), W::kMxfp4Panels},
               {QuantizedDir("ct_nvfp4"), W::kNvfp4Panels},
               {QuantizedDir("modelopt_nvfp4"), W::kNvfp4Panels},
               {FixtureDir("gpt_oss"), W::kMxfp4Panels}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.dir.filename());
    ModelConfig config = LoadModelConfig(c.dir);
    config.quantization.int8_group_rows = true;
    EXPECT_TRUE(PacksStoredWeights(config.quantization));
    ModelConfig stored = config;
    stored.quantization.stored_layout = true;
    EXPECT_FALSE(PacksStoredWeights(stored.quantization));
    const Roles want = Assemble(c.dir, stored, {1, 1});
    for (const MeshShape& shape : {MeshShape{1, 1}, {2, 1}, {4, 2}})
      ExpectSame(Assemble(c.dir, config, shape), want);

    const Mesh mesh({2, 2}, 1);
    const ModelWeights w = LoadWeights(c.dir, config, mesh, {});
    const ExpertLoader loader(c.dir, config, mesh, {});
    EXPECT_TRUE(loader.Converts());
    const int last = static_cast<int>(config.num_layers()) - 1;
    const kernels::ExpertWeights& expert = w.layers[last].moe.experts[1];
    EXPECT_EQ(expert.up.format, c.experts);
    EXPECT_EQ(expert.down.activation, ActivationFormat::kInt8Group);
    const Range own = ExpertsOfRank(config.moe->router.num_experts, mesh.ep(), mesh.ep_rank());
    const OwnedExpert loaded = loader.Load(last, static_cast<int32_t>(own.begin) + 1);
    EXPECT_EQ(loaded.weights.up.format, c.experts);
    EXPECT_EQ(Dequantize(loaded.weights.up), Dequantize(expert.up));
    EXPECT_EQ(w.bytes_mapped, WeightBytesPerRank(config, mesh));
  }
}

// Bytes of the process's mappings of a file that are in memory.
size_t ResidentBytes(const std::filesystem::path& file) {
  std::ifstream smaps("/proc/self/smaps");
  bool of_file = false;
  size_t kilobytes = 0;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find('-') < line.find(' ')) of_file = line.ends_with(file.string());
    if (of_file && line.starts_with("Rss:")) kilobytes += std::stoul(line.substr(4));
  }
  return kilobytes << 10;
}

TEST(PanelPacking, PagesOfTheFileLeaveTheProcess) {
  constexpr int64_t kRows = 1024, kColumns = 2048;
  constexpr size_t kBytes = kRows * kColumns / 2;
  Random random(3);
  const Stored stored{{.packing = Packing::kMxfp4, .format = W::kMxfp4}};
  TempDir dir;
  const std::filesystem::path file = dir.path() / "model.safetensors";
  testing::WriteSafetensors(file, Tensors(random, stored, kRows, kColumns));
  const MatrixRequest all{.name = "m.weight",
                          .n = kRows,
                          .k = kColumns,
                          .rows = {0, kRows},
                          .cols = {0, kColumns},
                          .scheme = stored.scheme};
  const Checkpoint checkpoint(dir.path());
  const WeightView panels = Load(checkpoint, Int8Rows(false), all);
  EXPECT_LT(ResidentBytes(file), kBytes / 4);
  const WeightView rows = Load(checkpoint, Int8Rows(true), all);
  EXPECT_GT(ResidentBytes(file), kBytes / 2);
  EXPECT_EQ(StoredBytes(panels), StoredBytes(rows));
}

// The checks of values are those of the stored layout.
TEST(PanelPacking, DamagedScalesAreRefused) {
  const std::string expert = "model.layers.1.mlp.experts.2.up_proj.";
  const struct {
    const char *name, *tensor;
    std::string bytes;
  } cases[] = {{"gptq", "scales", {"\x00\x7e", 2}},
               {"ct_mxfp4", "weight_scale", "\xff"},
               {"ct_nvfp4", "weight_scale", "\x7f"}};
  for (const auto& c : cases) {
    testing::ChangedCheckpoint changed(c.name, "quantized");
    changed.config.quantization.int8_group_rows = true;
    std::string& bytes = changed.tensors.at(expert + c.tensor).bytes;
    std::memcpy(bytes.data() + 2, c.bytes.data(), c.bytes.size());
    EXPECT_THAT(changed.LoadMessage(), ::testing::HasSubstr(expert + c.tensor)) << c.name;
  }
}

}  // namespace
}  // namespace switchyard
