// A model's pass is aborted by its number, on every rank, and runs again.
#include <gtest/gtest.h>

#include "model/test_layouts.h"

namespace switchyard {
namespace {

// Runs all passes of `groups`. Each one is first aborted before operation `first`, then before
// operation first + `stride`, and so on, until it ends.
std::vector<std::vector<Outcome>> RunWithAborts(const Case& c, const std::vector<Group>& groups,
                                                int first, int stride) {
  const ModelConfig config = LoadModelConfig(Fixture(c.fixture));
  ModelOptions options{.dtype = c.dtype, .max_tokens = 64};
  options.moe.a2a_backend = c.backend;
  options.moe.deepep_mode = c.mode;
  options.moe.long_seq_per_round_tokens = c.round_tokens;
  options.two_batch_overlap = c.two_batches;
  const MeshShape shape{.tp = c.tp, .ep = c.ep, .dp = c.dp, .dense_tp = c.dense_tp};
  int passes = 0;
  for (const Group& group : groups)
    for (const Text& text : group) passes = std::max(passes, text.passes());
  std::vector<std::vector<Outcome>> by_rank(c.tp);
  RunRankThreads(c.tp, SymmetricBytesPerRank(config, options, shape),
                 [&](int rank, std::shared_ptr<SharedArena> arena) {
                   ThreadPool pool(1);
                   const auto comm = RankComm::Create(std::move(arena), shape, rank);
                   Model* running = nullptr;
                   int left = 0;  // operations before the abort
                   ModelOptions mine = options;
                   mine.before_operation = [&](uint64_t pass, const schedule::Operation&) {
                     running->AbortPass(pass + 1000);  // not in flight
                     if (left-- == 0) running->AbortPass(pass);
                   };
                   Model model(Fixture(c.fixture), config, mine, *comm, pool);
                   running = &model;
                   std::vector<Sequences> all(groups.begin(), groups.end());
                   Sequences& own = all[comm->mesh.dp_rank()];
                   KvStorage kv(config, comm->mesh, own.num_pages(), kPageSize, c.kv_dtype);
                   by_rank[rank].resize(groups[comm->mesh.dp_rank()].size());
                   uint64_t number = 0;
                   int aborts = 0;
                   for (int pass = 0; pass < passes; ++pass) {
                     std::vector<int64_t> tokens, decoding;
                     for (Sequences& group : all) {
                       tokens.push_back(group.Batch(pass).num_tokens());
                       decoding.push_back(group.batch().decode_tokens);
                     }
                     ForwardBatch& batch = own.batch();
                     batch.group_tokens = batch.group_logit_rows = tokens;
                     batch.group_decode_tokens = decoding;
                     std::span<const float> logits;
                     for (int abort = first;; abort += stride) {
                       batch.pass = ++number;
                       left = abort;
                       logits = model.Forward(batch, kv);
                       if (!model.aborted()) break;
                       EXPECT_TRUE(logits.empty());
                       ++aborts;
                     }
                     own.Take(logits, model.routed_experts(), by_rank[rank]);
                   }
                   EXPECT_GE(aborts, passes);
                 });
  std::vector<std::vector<Outcome>> by_group;
  for (int rank = 0; rank < c.tp; rank += c.tp / c.dp) by_group.push_back(by_rank[rank]);
  return by_group;
}

void ExpectSameBitsAfterAborts(const Case& c, int first, int stride) {
  SCOPED_TRACE(testing::Message() << c);
  EXPECT_TRUE(RunWithAborts(c, ManyTexts(c.dp), first, stride) == Run(c, ManyTexts(c.dp)));
}

TEST(AbortPass, AnAbortedPassRunsAgainWithTheSameBits) {
  std::vector<Case> cases = {{"llama", 2, 1}, {"qwen2_moe", 2, 2}};
  for (const auto& [backend, mode] : RowBackends())
    cases.push_back(
        {.fixture = "deepseek_v3", .tp = 4, .ep = 2, .backend = backend, .mode = mode, .dp = 2});
  for (Case c : cases) {
    for (const bool two : {false, true}) {
      c.two_batches = two;
      c.round_tokens = 8192;
      ExpectSameBitsAfterAborts(c, 0, 7);
      c.round_tokens = 3;  // layers that run all their stages in one operation
      ExpectSameBitsAfterAborts(c, 3, 11);
    }
  }
}

}  // namespace
}  // namespace switchyard
