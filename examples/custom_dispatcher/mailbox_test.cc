// Sends random tokens through the dispatcher and through deepep on four ranks, with the same
// experts. Exits 1 if an output differs in any bit.
#include "mailbox.h"

#include <cstdio>
#include <random>
#include <vector>

namespace {

using namespace switchyard;

constexpr int kRanks = 4, kExperts = 8;

// The tokens of a rank: none on rank 2, and a slot without expert in every fifth place.
TopK RoutingOf(int rank, int k) {
  std::mt19937 random(rank + 1);
  TopK topk{.tokens = rank == 2 ? 0 : 5 + rank, .k = k};
  for (int64_t i = 0; i < topk.tokens * k; ++i) {
    topk.ids.push_back(i % 5 == 4 ? -1 : static_cast<int32_t>(random() % kExperts));
    topk.weights.push_back(1.0f / static_cast<float>(2 + i % 3));
  }
  return topk;
}

// The outputs of all ranks, rank by rank. The expert computation is row · (local expert + 2).
std::vector<std::vector<float>> OutputsOf(const MoeBackends& backends, const std::string& name) {
  const ExchangeShape shape{.hidden = 24,
                            .k = 2,
                            .num_experts = kExperts,
                            .local_experts = kExperts / kRanks,
                            .max_tokens = 16,
                            .ep = kRanks};
  const MeshShape mesh{.tp = kRanks, .ep = kRanks};
  const MoeOptions options{.a2a_backend = name, .deepep_mode = "normal"};
  const DispatcherBackend& backend = backends.dispatchers.Find(name);
  std::vector<std::vector<float>> outputs(kRanks);
  RunRankThreads(
      kRanks, RankComm::BytesPerRank(mesh) + backend.symmetric_bytes(options, shape),
      [&](int rank, std::shared_ptr<SharedArena> arena) {
        const auto comm = RankComm::Create(std::move(arena), mesh, rank);
        ThreadPool pool(1);
        const ExpertMap experts(kExperts, kRanks, /*shared_dispatched=*/false);
        const auto dispatcher = backend.make({options, shape, experts, *comm, pool});

        const TopK topk = RoutingOf(rank, shape.k);
        std::vector<float> x(topk.tokens * shape.hidden), y(x.size());
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(rank) + 0.01f * i;

        DispatchHandle handle;
        dispatcher->BeginDispatch(x.data(), topk, /*decode=*/false, &handle);
        const Dispatched in = dispatcher->EndDispatch(&handle);
        const PermutePair& permute = *backends.permutes.Find(in.layout, RunnerLayout::kContiguous);
        GroupedRows rows;
        permute.pre({shape.hidden, static_cast<int>(shape.local_experts), pool}, in, &rows);
        std::vector<float> computed(rows.num_rows * shape.hidden);
        for (int64_t e = 0; e < shape.local_experts; ++e)
          for (int64_t r = rows.offsets[e]; r < rows.offsets[e + 1]; ++r) {
            const int64_t from = rows.row_ids ? rows.row_ids[r] : r;
            for (int64_t i = 0; i < shape.hidden; ++i)
              computed[r * shape.hidden + i] =
                  rows.x[from * rows.ldx + i] * static_cast<float>(e + 2);
          }
        dispatcher->BeginCombine(permute.post(rows, computed.data()), &handle);
        dispatcher->EndCombine(&handle, y.data());
        outputs[rank] = std::move(y);
      });
  return outputs;
}

}  // namespace

int main() {
  MoeBackends backends = BuiltinMoeBackends();
  AddMailbox(backends);
  if (OutputsOf(backends, "mailbox") != OutputsOf(backends, "deepep")) {
    std::puts("mailbox and deepep return different outputs");
    return 1;
  }
  std::puts("mailbox: same bits as deepep on 4 ranks");
  return 0;
}
