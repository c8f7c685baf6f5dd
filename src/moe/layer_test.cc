// The whole layer, on rank threads, against the one-process reference.
#include "moe/layer.h"

#include <algorithm>
#include <string>

#include "gtest/gtest.h"
#include "moe/reference.h"
#include "moe/test_layer.h"

namespace switchyard {
namespace {

using kernels::SameBits;

struct Backend {
  std::string a2a, mode;
};
const std::vector<Backend> kBackends = {
    {"none", "auto"}, {"deepep", "normal"}, {"deepep", "low_latency"}, {"deepep", "auto"}};
const std::vector<MeshShape> kMeshes = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 2}, {4, 4}, {8, 4}};

MoeOptions Options(const Backend& backend, DType row_dtype, int capacity = 128) {
  return {.a2a_backend = backend.a2a,
          .deepep_mode = backend.mode,
          .max_dispatch_tokens_per_rank = capacity,
          .row_dtype = row_dtype};
}

// Batches of these sizes one after the other, on one runtime: what earlier ones leave in buffers
// must not matter to later ones.
using Sizes = std::vector<int64_t>;

// The outputs of all batches, after a check that every rank has the same bits.
std::vector<float> RunLayer(const TestLayer& layer, const MoeOptions& options,
                            const MeshShape& mesh, const Sizes& sizes, bool decode = false) {
  const MoeShape shape = layer.Shape(std::ranges::max(sizes));
  std::vector<std::vector<float>> outs(mesh.tp);
  RunMoeRanks(options, shape, mesh, [&](RankComm& comm, ThreadPool& pool) {
    const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, options.a2a_backend != "none"),
                       MakeMoeRuntime(options, shape, comm, pool));
    std::vector<float>& all = outs[comm.mesh.rank()];
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::vector<float> hidden = layer.Hidden(sizes[i], i);
      std::vector<float> out(hidden.size(), NAN);
      moe.Forward(hidden.data(), sizes[i], decode, out.data());
      all.insert(all.end(), out.begin(), out.end());
    }
  });
  for (int rank = 1; rank < mesh.tp; ++rank)
    EXPECT_TRUE(SameBits(outs[0], outs[rank])) << "rank " << rank << " differs from rank 0";
  return outs[0];
}

std::vector<float> Reference(const TestLayer& layer, DType row_dtype, const Sizes& sizes) {
  std::vector<float> all;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::vector<float> hidden = layer.Hidden(sizes[i], i);
    std::vector<float> out(hidden.size());
    MoeReference(layer.config, layer.whole, row_dtype, hidden.data(), sizes[i], out.data());
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// Largest error as a fraction of the largest value.
double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  double error = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    error = std::max(error, std::abs(double{got[i]} - want[i]));
    largest = std::max(largest, std::abs(double{want[i]}));
  }
  return largest > 0 ? error / largest : error;
}

// In flight as bfloat16, an output near the middle of two values may round either way, and slices
// of an expert are rounded one by one.
double Tolerance(DType row_dtype) { return row_dtype == DType::kF32 ? 1e-5 : 1e-2; }

void ExpectReference(const TestLayer& layer, DType row_dtype, const Sizes& sizes,
                     int capacity = 128) {
  const std::vector<float> want = Reference(layer, row_dtype, sizes);
  for (const MeshShape& mesh : kMeshes) {
    for (const Backend& backend : kBackends) {
      for (const bool decode : {false, true}) {
        if (decode && backend.mode != "auto") continue;
        SCOPED_TRACE(fmt::format("tp {} ep {} {} {} decode {}", mesh.tp, mesh.ep, backend.a2a,
                                 backend.mode, decode));
        const auto got =
            RunLayer(layer, Options(backend, row_dtype, capacity), mesh, sizes, decode);
        EXPECT_LT(RelativeError(got, want), Tolerance(row_dtype));
      }
    }
  }
}

TEST(MoeLayerTest, MatchesReferenceInFloat32) {
  ExpectReference(TestLayer({.shared = true}), DType::kF32, {13, 6, 1});
}
TEST(MoeLayerTest, MatchesReferenceInBfloat16) {
  ExpectReference(TestLayer({.format = WeightFormat::kBF16, .shared = true}), DType::kBF16,
                  {13, 6, 1});
}
TEST(MoeLayerTest, MatchesReferenceInFloat16) {
  ExpectReference(TestLayer({.format = WeightFormat::kF16}), DType::kF16, {9});
}
TEST(MoeLayerTest, MatchesReferenceInFp8Blocks) {
  ExpectReference(TestLayer({.format = WeightFormat::kFp8Block, .shared = true}), DType::kBF16,
                  {9, 2});
}
TEST(MoeLayerTest, MatchesReferenceInMxfp4WithBiases) {
  ExpectReference(TestLayer({.format = WeightFormat::kMxfp4, .clamped_with_biases = true}),
                  DType::kF32, {9, 2});
}
TEST(MoeLayerTest, OneHotExpertGetsAllTokens) {
  ExpectReference(TestLayer({.top_k = 1, .hot_expert = 7}), DType::kF32, {16, 3});
}
TEST(MoeLayerTest, RanksWithoutTokensTakePart) {
  ExpectReference(TestLayer({.num_experts = 16, .shared = true}), DType::kF32, {1, 0, 3});
}
TEST(MoeLayerTest, RanksWithoutExpertsTakePart) {
  ExpectReference(TestLayer({.num_experts = 3, .top_k = 2}), DType::kF32, {8});
}
TEST(MoeLayerTest, BatchAboveLowLatencyCapacityGoesInRounds) {
  ExpectReference(TestLayer({.shared = true}), DType::kF32, {21, 5}, /*capacity=*/2);
}

TEST(MoeLayerTest, BitsDoNotDependOnRanksBackendOrMode) {
  for (const DType row_dtype : {DType::kF32, DType::kBF16}) {
    const TestLayer layer({.format = WeightFormat::kBF16, .shared = true});
    const Sizes sizes = {24, 1, 7};
    const auto want = RunLayer(layer, Options({"none", "auto"}, row_dtype), {1, 1}, sizes);
    for (const int ranks : {1, 2, 4, 8}) {
      for (const Backend& backend : kBackends) {
        if (backend.a2a == "none" && ranks > 1) continue;  // adds by rank
        for (const int capacity : {128, 1}) {
          SCOPED_TRACE(fmt::format("{} ranks, {} {}, capacity {}", ranks, backend.a2a, backend.mode,
                                   capacity));
          const MoeOptions options = Options(backend, row_dtype, capacity);
          EXPECT_TRUE(SameBits(RunLayer(layer, options, {ranks, ranks}, sizes), want));
        }
      }
    }
  }
}

TEST(MoeLayerTest, BitsDoNotDependOnHowABatchIsSplit) {
  const TestLayer layer({.format = WeightFormat::kBF16, .shared = true});
  const std::vector<float> hidden = layer.Hidden(12);
  const MoeOptions options = Options({"deepep", "auto"}, DType::kBF16);
  RunMoeRanks(options, layer.Shape(12), {2, 2}, [&](RankComm& comm, ThreadPool& pool) {
    const MoeLayer moe(layer.config, layer.ShareOf(comm.mesh, true),
                       MakeMoeRuntime(options, layer.Shape(12), comm, pool));
    std::vector<float> at_once(hidden.size()), one_by_one(hidden.size());
    moe.Forward(hidden.data(), 12, false, at_once.data());
    for (int64_t t = 0; t < 12; ++t)
      moe.Forward(hidden.data() + t * layer.spec.hidden, 1, true,
                  one_by_one.data() + t * layer.spec.hidden);
    EXPECT_TRUE(SameBits(at_once, one_by_one));
  });
}

}  // namespace
}  // namespace switchyard
